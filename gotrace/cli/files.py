# SPDX-License-Identifier: Apache-2.0
"""The names of files that ``-o`` takes: their ends say what is written, in every command.

Commands import this only if a file is given, to start soon.
"""

from __future__ import annotations

import os.path
import re

from gotrace.errors import UsageError
from gotrace.profiles.execution import TRACE
from gotrace.profiles.perfetto import PERFETTO
from gotrace.profiles.write import PROFILES
from gotrace.text import quote

#: Of tables; of either kind, ``.gz`` after it compresses.
_JSON = (".ndjson", ".json", ".jsonl")
_TEXT = (".txt", ".log", ".out")
_TABLES = (*_JSON, *_TEXT, *(f"{end}.gz" for end in (*_JSON, *_TEXT)), ".gz")
_FILES, _REQUESTS = (*_TABLES, *PROFILES), (TRACE, PERFETTO)
#: The ends that have two dots.
_DOUBLE = tuple(end for end in PROFILES if end.count(".") > 1)
_PICTURES = (".svg", ".png")
#: Numbers, as in x.20241231, and what mktemp makes, as in tmp.cK3vOxNq7a, are not forms.
_SUFFIX = re.compile(r"\.[A-Za-z]\w{0,7}(\.gz)?", re.ASCII)


def check_name(tool: str, path: str) -> None:
    """Raise UsageError if a command does not know the form that a file's name asks for."""
    known = _FILES if " " not in tool else (*_TABLES, *_REQUESTS)
    root, end = os.path.splitext(os.path.basename(path))
    if end.lower() == ".gz":
        inner = os.path.splitext(root)[1]
        end = inner + end if _SUFFIX.fullmatch(inner) else end
    if end.lower() in _REQUESTS and tool == "gotrace":
        raise UsageError(
            f"-o {quote(path)} has requests: type gotrace tree ROOT, gotrace record or"
            " gotrace flight TIME"
        )
    end = next((one for one in _DOUBLE if path.lower().endswith(one)), end)
    if end.lower() in known:
        return
    if os.path.exists(path) and not os.path.isfile(path):
        return
    if end.endswith(_PICTURES):
        raise UsageError(
            f"{quote(path)}: -o x.html writes a page with a picture, for any browser, and -f prints"
            " stacks for flamegraph.pl"
        )
    if end in _DOUBLE or _SUFFIX.fullmatch(end):
        others = [one for one in known if one not in _TABLES]
        raise UsageError(
            f"{quote(path)}: -o writes no {end} file: give a name that ends in"
            f" {', '.join((*_JSON, *_TEXT))} (these also with .gz),"
            f" {', '.join(others[:-1])} or {others[-1]}"
        )


def is_json(path: str) -> bool:
    """Return whether the name of a file of results asks for JSON."""
    name = path.lower()
    return name.removesuffix(".gz").endswith(_JSON) and not name.endswith(PROFILES)


def is_text(path: str) -> bool:
    """Return whether the name of a file of results asks for text."""
    return path.lower().removesuffix(".gz").endswith(_TEXT)
