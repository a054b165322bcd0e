# SPDX-License-Identifier: Apache-2.0
"""Hold gotraced's documentation to what it does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gotrace.fleet.config import SCHEMA, parse_config
from gotrace.fleet.gotraced import _parser
from gotrace.fleet.privacy import DENIED
from gotrace.fleet.telemetry.waits import WaitPoint, families
from gotrace.session.waits.states import StateKind
from tests.test_docs import page_text, section

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "fleet.md").read_text()


def test_examples_are_configurations() -> None:
    examples = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        assert parse_config("example", example).targets


def keys(schema: dict[str, Any]) -> set[str]:
    found = set(schema.get("properties", ()))
    rows = [schema["items"]] if "items" in schema else []
    for below in (*schema.get("properties", {}).values(), *rows):
        found |= keys(below)
    return found


def test_every_key_is_documented() -> None:
    documented = set(re.findall(r"`(\w+)`", PAGE)) | set(re.findall(r"\b(\w+):", PAGE))
    assert keys(SCHEMA) <= documented


def test_man_page_has_the_parsers_options() -> None:
    page = page_text(DOCS / "man" / "gotraced.8")
    tags = re.findall(r"^\.TP\n(-.*)$", section(page, "OPTIONS"), re.MULTILINE)
    documented = {word for tag in tags for word in re.findall(r"(?<!\S)--?[\w-]+", tag)}
    assert documented == {option for one in _parser()._actions for option in one.option_strings}


def own_metrics() -> set[str]:
    source = Path(__file__).parents[2] / "gotrace" / "fleet" / "exposition.py"
    names = set(re.findall(r'"(gotraced_\w+)"', source.read_text())) - {"gotraced_build"}
    names |= {
        family.name for family in families(WaitPoint("", kind, "", 0.0) for kind in StateKind)
    }
    return names


def named(page: str) -> set[str]:
    return {name.removesuffix("_total") for name in re.findall(r"`(gotraced_\w+)", page)}


def test_own_metrics_are_documented() -> None:
    assert named(PAGE) == own_metrics()


def test_the_runbook_has_a_line_for_each_metric() -> None:
    page = (DOCS / "operating.md").read_text()
    assert named(page) == {*own_metrics(), "gotraced_build"}


def test_privacy_lists_the_denied_words() -> None:
    page = (DOCS / "privacy.md").read_text()
    (listed,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert tuple(listed.split()) == DENIED
