# SPDX-License-Identifier: Apache-2.0
"""The JSON schema of a configuration; docs/fleet.md says what each key means."""

from __future__ import annotations

from typing import Any, Final

_TEXT: Final = {"type": "string", "minLength": 1}
#: Words that YAML takes for numbers, too: 5 seconds may be given as 5.
_AMOUNT: Final = {"type": ["string", "number"]}
_MOST: Final = {"type": "integer", "minimum": 1, "maximum": 1 << 20}
_NAMES: Final = {"type": "array", "items": _TEXT, "minItems": 1}
_EXPRESSIONS: Final = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
    "minProperties": 1,
}


def _record(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _rows(record: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": record, "minItems": 1}


SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_record(
        ["targets"],
        listen=_TEXT,
        health=_TEXT,
        web_config=_TEXT,
        hosts=_NAMES,
        budget=_TEXT,
        host_budget=_TEXT,
        pprof={"type": "boolean"},
        errors={"enum": ["off", "type", "text", False]},
        deny_names=_NAMES,
        allow_names=_NAMES,
        hash_key=_TEXT,
        idle=_AMOUNT,
        max_series=_MOST,
        planning={
            **_record([], memory=_MOST, seconds=_MOST, section=_MOST),
            "minProperties": 1,
        },
        targets=_rows(
            _record(
                ["name"],
                name=_TEXT,
                exe=_TEXT,
                comm=_TEXT,
                cgroup=_TEXT,
                user={"type": ["string", "integer"], "minLength": 1, "minimum": 0},
                max_series=_MOST,
                max_files=_MOST,
                kubernetes={
                    **_record([], namespace=_TEXT, pod=_TEXT, container=_TEXT),
                    "minProperties": 1,
                },
            )
        ),
        metrics=_rows(
            _record(
                ["name", "type", "probe"],
                name=_TEXT,
                type={"enum": ["counter", "histogram"]},
                probe=_TEXT,
                help=_TEXT,
                targets=_NAMES,
                labels=_EXPRESSIONS,
                of=_TEXT,
                functions={"type": "boolean"},
                pods={"type": "boolean"},
                series={"type": "integer", "minimum": 1, "maximum": 4096},
                idle=_AMOUNT,
                open_calls={"type": "integer", "minimum": 16, "maximum": 131072},
                buckets=_record(
                    [],
                    **{"from": _AMOUNT, "to": _AMOUNT},
                    per_octave={"enum": [1, 2, 4, 8, 16]},
                ),
            )
        ),
        waits={
            **_record(
                [],
                targets=_NAMES,
                goroutines={"type": "integer", "minimum": 256, "maximum": 1 << 22},
            ),
            "type": ["boolean", "object"],
        },
        spans=_rows(
            _record(
                ["probe"],
                name=_TEXT,
                probe=_TEXT,
                targets=_NAMES,
                attributes=_EXPRESSIONS,
                rate=_TEXT,
                why={"type": "boolean"},
                trace_context={"type": "boolean"},
                inherit={"type": "boolean"},
            )
        ),
        flights=_rows(
            _record(
                ["name", "when", "folder"],
                name=_TEXT,
                targets=_NAMES,
                when=_NAMES,
                probes=_NAMES,
                keep=_AMOUNT,
                memory=_TEXT,
                folder=_TEXT,
                files={"type": "integer", "minimum": 1, "maximum": 10_000},
                every=_AMOUNT,
                form={"enum": ["trace", "pftrace", "json"]},
            )
        ),
        flight_memory=_TEXT,
        otlp=_record(
            ["endpoint"],
            endpoint=_TEXT,
            protocol={"enum": ["http", "grpc"]},
            headers={
                "type": "object",
                "additionalProperties": {
                    **_record([], file=_TEXT, env=_TEXT),
                    "type": ["string", "object"],
                },
            },
            tls={**_record([], ca_file=_TEXT, cert_file=_TEXT, key_file=_TEXT), "minProperties": 1},
            disk=_TEXT,
            disk_size=_MOST,
            interval=_AMOUNT,
            timeout=_AMOUNT,
            queue={"type": "integer", "minimum": 1, "maximum": 1 << 20},
            resource={"type": "object", "additionalProperties": {"type": "string"}},
        ),
    ),
}

#: The same of what is asked for while it runs.
PART: Final[dict[str, Any]] = {
    "$schema": SCHEMA["$schema"],
    **_record(
        ["metrics"], **{key: SCHEMA["properties"][key] for key in ("targets", "metrics", "idle")}
    ),
}
