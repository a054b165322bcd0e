# SPDX-License-Identifier: Apache-2.0
"""Recordings as lines: read, and written of results, by the library as by the commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from gotrace.errors import GotraceError, UsageError
from gotrace.records import dataclass, field
from gotrace.results.rows import Json, Row
from gotrace.text import encodable


@contextmanager
def lines_of(path: str | os.PathLike[str], what: str = "--json") -> Iterator[Iterable[str]]:
    """Open a file of lines, which ``what`` has written. Raises GotraceError, also while it is read.

    It is compressed if its name ends in ``.gz``.
    """
    import gzip  # not by runs that make rows, so that they start soon
    import zlib

    name = os.fspath(path)
    try:
        with (gzip.open if name.endswith(".gz") else open)(name, "rt", encoding="utf-8") as lines:
            yield cast(Iterable[str], lines)
    except EOFError as error:
        raise GotraceError(f"cannot read {name}: its end is missing") from error
    except UnicodeDecodeError as error:
        raise GotraceError(f"cannot read {name}: not UTF-8, as {what} writes") from error
    except OSError as error:
        raise GotraceError(f"cannot read {name}: {error.strerror or error}") from error
    except (zlib.error, ValueError) as error:
        raise GotraceError(f"cannot read {name}: {error}") from error


def rows_of(source: Source, name: str) -> Iterator[Json]:
    """Yield the objects of a file or of lines, called ``name``. Raises GotraceError."""
    if isinstance(source, str | os.PathLike):
        with lines_of(source) as lines:
            yield from _parsed(lines, name)
    else:
        yield from _parsed(source.lines() if isinstance(source, Recordable) else source, name)


def _parsed(lines: Iterable[str], name: str) -> Iterator[Json]:
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise GotraceError(f"{name}:{number}: not a line of --json: {error}") from error
        except RecursionError as error:
            raise GotraceError(f"{name}:{number}: not a line of --json: too deep") from error
        if not isinstance(row, dict):
            raise GotraceError(f"{name}:{number}: not a line of --json: no object")
        yield row


def line_of(row: Json) -> str:
    """Return an object's line; what JSON cannot have says itself what is in its place."""
    line = _line(row)
    return _line(_encodable(json.loads(line))) if _SURROGATE in line else line


_SURROGATE = "\\udc"  # also in what encodes two surrogates that belong together


def _line(row: object) -> str:
    return json.dumps(row, separators=(",", ":"), default=lambda value: value.to_json()) + "\n"


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {key: _encodable(inner) for key, inner in value.items()}
    return list(map(_encodable, value)) if isinstance(value, list) else value


def timed(rows: Iterable[Json]) -> Iterator[Json]:
    """Yield results, each of which says when: that is where the head before it ends."""
    when: dict[str, Any] = {}
    for row in rows:
        if "seconds" in row:
            when = {"ts": row["ts"], "interval_s": round(row["seconds"], 6)}
        yield row if "ts" in row else {**row, **when}


@dataclass(frozen=True, slots=True)
class Reading:
    """When results were measured, how long, and what was asked.

    ``ended`` is in seconds since 1970. ``attached`` is the row that begins a recording, None if
    there is none; ``lost`` are numbers of what is missing. ``rates``: it is one interval of a run.
    """

    ended: float
    seconds: float = 0.0
    attached: Row | None = None
    lost: Mapping[str, int] = field(default_factory=dict)
    rates: bool = False


class Recordable:
    """Results that can be kept as a recording, which is what a command writes; a base class."""

    #: Set for what a run has returned: what is made of that has other numbers.
    reading: Reading | None = None

    def result_rows(self, reading: Reading) -> Iterable[Json]:
        """Return the rows of the results, as they were measured."""
        raise NotImplementedError

    def lines(self) -> Iterator[str]:
        """Return the lines of a recording. Raises UsageError of what no run has returned."""
        if self.reading is None:
            name = type(self).__name__
            raise UsageError(f"this {name} is no result of a run: write what the session returned")
        return recording([self])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a recording, compressed if its name ends in ``.gz``. Raises GotraceError."""
        write_lines(path, self.lines())


#: A recording: a file, its lines, or results of the library.
Source = str | os.PathLike[str] | Iterable[str] | Recordable


def recording(results: Iterable[Recordable]) -> Iterator[str]:
    """Yield the lines of a recording of results, those of a run's intervals one after the other."""
    last, seconds = None, 0.0
    for one in results:
        reading = one.reading
        if reading is None:
            yield from one.lines()  # which refuses it
            continue
        if last is None and reading.attached is not None:
            yield line_of({"kind": "attached", **reading.attached})
        yield from map(line_of, timed(one.result_rows(reading)))
        last, seconds = reading, seconds + reading.seconds
        for what, number in reading.lost.items():
            text = f"{number:,} missing: {what}"
            yield line_of({"kind": "lost", "message": text, "what": what, "calls": number})
    if last is not None and last.attached is not None:
        ended = {"message": "Detaching...", "seconds": round(seconds, 6)}
        yield line_of({"kind": "detached", **ended})


def write_lines(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Write lines to a file, compressed if its name ends in ``.gz``. Raises GotraceError."""
    import gzip

    name = os.fspath(path)
    try:
        with (gzip.open if name.endswith(".gz") else open)(name, "wt", encoding="utf-8") as file:
            cast(Any, file).writelines(lines)
    except OSError as error:
        raise GotraceError(f"cannot write {name}: {error.strerror or error}") from error
    except ValueError as error:
        raise GotraceError(f"cannot write {name!r}: {error}") from error
