# SPDX-License-Identifier: Apache-2.0
"""Judge each value that is shown of a stripped program by what the program says that it was.

``python -m tests.tools.gotrace.test_stripped_values`` prints how many are of each kind: of the
fixture's functions as they are, of those that check their stack, and of methods, which
``test_values`` holds to the very text.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_of, toolchains
from tests.tools.gotrace.test_values import TAKERS, assert_same, trace, traced_methods

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


def taken(call: str) -> tuple[str, list[str], list[str]]:
    """Return the function of a call, and its arguments and results without their names."""
    name, _, rest = call.partition("(") if not call.startswith("main.(") else method(call)
    end = closing(rest)
    given = rest[end + 1 :].removeprefix(" = ")
    if given.startswith("(") and closing(given[1:]) == len(given) - 2:
        given = given[1:-1]
    arguments, results = (
        [re.sub(r"^\w+=", "", one) for one in split(text)] for text in (rest[:end], given)
    )
    return name, arguments, results


def closing(text: str) -> int:
    """Return where the bracket ends that a text is after."""
    depth, end, quoted = 1, 0, False
    for end, character in enumerate(text):
        quoted ^= character == '"' and text[end - 1] != "\\"
        depth += 0 if quoted else (character in _OPEN) - (character in _CLOSE)
        if not depth:
            break
    return end


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


def register_verdicts(name: str, shown: Sequence[str], wanted: Sequence[str]) -> Iterator[str]:
    """Yield how each value is in the words of registers, which have no types and no marks.

    The first ones are numbers and texts of one word and two. After others the rest is in any, and
    so are all of interfaces, and of generic functions, which are passed a dictionary first.
    """
    words = [int(one, 16) for one in shown if _WORD.fullmatch(one)]
    for number, one in enumerate(wanted):
        inner = re.sub(r"^main\.\w+\((.*)\)$", r"\1", one)
        known = {"true": 1, "false": 0}.get(inner)
        if known is None and re.fullmatch(r"-?\d+", inner):
            known = int(inner)
        text = re.fullmatch(r'"(\w*)"', inner)
        if (known is None and text is None) or re.search(r"Any|Stringer|Error|\[", name):
            yield from ["register"] * (len(wanted) - number)
            return
        if len(words) < (1 if text is None else 2):
            yield from ["unavailable"] * (len(wanted) - number)
            return
        if text is not None:
            words.pop(0)
            known = len(text[1])
        yield "wrong" if known is None or (words.pop(0) - known) & 0xFF else "right register"


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


def verdicts(directory: Path, toolchain: Toolchain, checked: bool) -> Counter[str]:
    """Count the verdicts on all arguments and results of a stripped program's functions."""
    source = with_stack_checks(directory) if checked else FIXTURES / "trace_values"
    run = trace(build(source, toolchain, flags=BUILD_MODES["stripped"]), *TAKERS)
    found: Counter[str] = Counter()
    assert len(run.calls) == len(run.wanted)
    for call, text in zip(run.calls, run.wanted, strict=True):
        name, shown, results = taken(call)
        of, wanted, given = taken(text)
        assert name.partition("[")[0] == of.partition("[")[0]
        judged = [*zip(register_verdicts(name, results, given), given, strict=True)]
        if "8(SP)=" in call:
            found["register"] += len(wanted)
        elif "(RAX=" in call.partition(" = ")[0]:
            judged += zip(register_verdicts(name, shown, wanted), wanted, strict=True)
        elif len(shown) <= len(wanted):  # else it lists no blank ones, before Go 1.22
            # A mark stands for all that are beyond.
            found["unavailable"] += len(wanted) - len(shown)
            pairs = zip(shown, wanted, strict=False)
            judged += [(verdict(*pair), f"{pair[0]} for {pair[1]}") for pair in pairs]
        for one, what in judged:
            found[one] += 1
            if one in ("wrong", "unmarked guess"):
                found[f"{one}: {what} in {call}"] += 1
    return found


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "as-they-are"])
@each_of(toolchains())
def test_no_value_of_a_stripped_program_is_wrong(
    toolchain: Toolchain, checked: bool, tmp_path: Path
) -> None:
    found = verdicts(tmp_path, toolchain, checked)
    assert {text for text in found if text.startswith(("wrong", "unmarked"))} == set(), found
    if toolchain.minor == "1.15":  # without shapes
        assert found.keys() == {"register", "unavailable"}
    else:
        assert found["right register"] > 20
    if checked and toolchain.minor != "1.15":
        assert found["shape"] > 140 and found["right"] > 15


def method_verdicts(directory: Path, toolchain: Toolchain) -> Counter[str]:
    """Count the values of methods that read as the program has them."""
    shown, wanted, _ = traced_methods(toolchain, directory)
    assert_same(shown, wanted)
    values = [value for text in shown for kind in taken(text)[1:] for value in kind]
    missing = sum("<unavailable: " in value for value in values)
    return Counter({"right": len(values) - missing, "unavailable": missing})


if __name__ == "__main__":
    total: Counter[str] = Counter()
    for each in toolchains():
        for what in ("as they are", "checked", "methods"):
            with TemporaryDirectory() as folder:
                counts = (
                    method_verdicts(Path(folder), each)
                    if what == "methods"
                    else verdicts(Path(folder), each, what == "checked")
                )
            total += counts
            print(each.minor, what, counts.total(), dict(counts), flush=True)
    print(total.total(), dict(total))
