# SPDX-License-Identifier: Apache-2.0
"""Judge each value that is shown of a stripped program by what the program says that it was.

``python -m tests.tools.gotrace.test_stripped_values`` prints how many are of each kind.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_of, toolchains
from tests.tools.gotrace.test_values import TAKERS, trace

pytestmark = [pytest.mark.live, pytest.mark.apart]

_CALL = re.compile(r"(main\.\S+?)\((.*?)\)(?: = (.*))?")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?|[+-]Inf|NaN")
_WORD = re.compile(r"0x[0-9a-f]+")
_CHECKED = """package main

var checks int

//go:noinline
func checked() { checks++ }
"""
_OPEN, _CLOSE = "({[<", ")}]>"


def split(text: str) -> Iterator[str]:
    """Yield the values of a list, at the commas that are in no bracket and no text."""
    depth, start, quoted = 0, 0, False
    for at, character in enumerate(text):
        if character == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (character in _OPEN) - (character in _CLOSE)
            if character == "," and not depth:
                yield text[start:at].strip()
                start = at + 1
    if text:
        yield text[start:].strip()


def taken(call: str) -> tuple[str, list[str]]:
    """Return the function of a call, and its arguments without their names."""
    name, _, rest = call.partition("(") if not call.startswith("main.(") else method(call)
    depth, end, quoted = 1, 0, False
    for end, character in enumerate(rest):
        quoted ^= character == '"' and rest[end - 1] != "\\"
        depth += 0 if quoted else (character in _OPEN) - (character in _CLOSE)
        if not depth:
            break
    return name, [re.sub(r"^\w+=", "", one) for one in split(rest[:end])]


def method(call: str) -> tuple[str, str, str]:
    at = call.index("(", call.index(")"))
    return call[:at], "(", call[at + 1 :]


def words_of(number: str) -> set[str]:
    """Return the words that a number may be, of each size."""
    if re.fullmatch(r"-?\d+", number):
        return {f"{int(number) % (1 << size):#x}" for size in (8, 16, 32, 64)}
    value = float(number)
    short = value if abs(value) < 3e38 or value in (float("inf"), float("-inf")) else 0.0
    return {
        f"{struct.unpack('<I', struct.pack('<f', short))[0]:#x}",
        f"{struct.unpack('<Q', struct.pack('<d', value))[0]:#x}",
    }


def verdict(shown: str, wanted: str) -> str:
    """Return how the program's own value is shown, without a name and a type."""
    if "<unavailable: " in shown:
        return "unavailable"
    if shown == wanted:
        return "right"
    if shown.startswith("~"):
        return (
            "shape"
            if shown[1:] in (wanted, re.sub(r"^[^\"(]*\((.*)\)$", r"\1", wanted))
            else "wrong"
        )
    if re.search(r'(?<!~)"', re.sub(r'~"(?:[^"\\]|\\.)*"', "", shown)):
        return "unmarked guess"
    if wanted in ("true", "false") and not shown.startswith("{"):
        return "shape" if shown == f"0x{wanted == 'true':d}" else "wrong"
    if _NUMBER.fullmatch(wanted) and not shown.startswith("{"):
        is_same = _NUMBER.fullmatch(shown) is not None and float(shown) == float(wanted)
        return "shape" if is_same or shown in words_of(wanted) else "wrong"
    if re.fullmatch(r'"(?:[^"\\]|\\.)*"', wanted):
        text = wanted[1:-1]
        size = len(text.encode().decode("unicode_escape").encode("latin-1", "replace"))
        words = _WORD.findall(shown)
        return "shape" if shown.startswith("{") and int(words[1], 16) >= size else "wrong"
    if wanted == "nil" and _WORD.fullmatch(shown):
        return "shape" if shown == "0x0" else "wrong"
    # The words of what is made of others.
    parts = re.sub(rf'~"(?:[^"\\]|\\.)*"|{_WORD.pattern}|{_NUMBER.pattern}|[{{}}, ]', "", shown)
    return "wrong" if parts else "shape"


def with_stack_checks(directory: Path) -> Path:
    """Return a copy of the fixture whose functions call one, and so check their stack."""
    copy = directory / "trace_checked"
    shutil.copytree(FIXTURES / "trace_values", copy)
    for source in copy.glob("*.go"):
        text = re.sub(
            r"(?m)^(func .*\btake\w*(?:\[.*\])?\(.* \{)( |$)",
            r"\1 checked();\2",
            source.read_text(),
        )
        source.write_text(text)
    (copy / "checked.go").write_text(_CHECKED)
    return copy


def verdicts(directory: Path, toolchain: Toolchain) -> Counter[str]:
    path = build(with_stack_checks(directory), toolchain, flags=BUILD_MODES["stripped"])
    run = trace(path, *TAKERS)
    found: Counter[str] = Counter()
    assert len(run.calls) == len(run.wanted)
    for call, text in zip(run.calls, run.wanted, strict=True):
        name, shown = taken(call)
        of, wanted = taken(text)
        assert name.partition("[")[0] == of.partition("[")[0]
        if re.search(r"(RAX|8\(SP\))=", call.partition(" = ")[0]):
            found["registers"] += len(wanted)
            continue
        if len(shown) > len(wanted):  # the compiler lists no blank ones, before Go 1.22
            continue
        found["unavailable"] += len(wanted) - len(shown)  # a mark stands for all that are beyond
        for one, other in zip(shown, wanted, strict=False):
            judged = verdict(one, other)
            found[judged] += 1
            if judged in ("wrong", "unmarked guess"):
                found[f"{judged}: {name} {one} for {other}"] += 1
    return found


@each_of(toolchains())
def test_no_value_of_a_stripped_program_is_wrong(toolchain: Toolchain, tmp_path: Path) -> None:
    found = verdicts(tmp_path, toolchain)
    assert {text for text in found if text.startswith(("wrong", "unmarked"))} == set(), found
    if toolchain.minor == "1.15":  # without shapes
        assert found.keys() == {"registers"}
    else:
        assert found["shape"] > 140 and found["right"] > 15 and found["unavailable"] <= 12


if __name__ == "__main__":
    for each in toolchains():
        with TemporaryDirectory() as folder:
            print(each.minor, dict(verdicts(Path(folder), each)))
