# SPDX-License-Identifier: Apache-2.0
"""Trace stripped programs of random functions, of which only the shape of arguments is known.

A seed makes a program. ``GOTRACE_SHAPES`` is how many functions each has.
"""

from __future__ import annotations

import os
import random
import re
import struct
from collections import Counter
from pathlib import Path

import pytest

from tests.toolchains import Toolchain, build, each_of, newest, toolchains
from tests.tools.harness import Fixture, run_tool, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

FUNCTIONS = int(os.environ.get("GOTRACE_SHAPES", "60"))
_ADDRESS = "0x[0-9a-f]+"
_REST = "<unavailable: beyond [^>]*>"
_FAR = "<unavailable: too far from the first argument>"
#: Words of at most 8 bytes that have no offset of 240, which is too far.
_NEAR_WORDS = 30
_CALL = re.compile(r".* main\.(\S+?)(?:\[\.\.\.\])?((?:\.\w+)?)\((.*)\) = .* at \w+\.go:\d+\n")

#: What a value is made of: a pattern of a word, a tuple of parts, or a text in words.
Parts = "str | tuple[Parts, ...] | Text"


class Text(tuple[str, ...]):
    """The words of a string or a slice of bytes that is shown as its text."""

    shown: str


def text(value: str, words: int) -> Text:
    found = Text((_ADDRESS, *(f"{len(value):#x}", _ADDRESS)[: words - 1]))
    found.shown = re.escape(f'~"{value}"')
    return found


class Maker:
    """A maker of random values: the Go type, the expression, and how a dump shows them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 0) -> tuple[str, str, object]:
        kinds = ["int", "float", "string", "bytes", "bool", "nil", "slice", "any", "complex"]
        kinds += ["struct", "struct", "array", "empty"] if depth < 3 else []
        return getattr(self, f"_{self.random.choice(kinds)}")(depth)  # type: ignore[no-any-return]

    def _int(self, depth: int) -> tuple[str, str, object]:
        size = self.random.choice([8, 16, 32, 64])
        signed = self.random.random() < 0.5
        number = self.random.getrandbits(size)
        shown = f"{number:#x}"
        if signed and number >= 1 << (size - 1):
            number -= 1 << size
        name = f"{'' if signed else 'u'}int{size}"
        return name, f"{name}({number})", shown

    def _bool(self, depth: int) -> tuple[str, str, object]:
        is_set = self.random.random() < 0.5
        return "bool", str(is_set).lower(), f"0x{is_set:d}"

    def _float(self, depth: int) -> tuple[str, str, object]:
        number = self.random.randrange(-4000, 4000) / 8 + 0.125
        if self.random.random() < 0.5:
            bits = struct.unpack("<I", struct.pack("<f", number))[0]
            return "float32", f"float32({number})", f"(?:{number:g}|{bits:#x})"
        bits = struct.unpack("<Q", struct.pack("<d", number))[0]
        return "float64", f"float64({number})", f"(?:{number:g}|{bits:#x})"

    def _complex(self, depth: int) -> tuple[str, str, object]:
        bits = struct.unpack("<Q", struct.pack("<d", 1.5))[0]
        part = f"(?:1.5|{bits:#x})"
        return "complex128", "complex(1.5, 1.5)", (part, part)

    def _string(self, depth: int) -> tuple[str, str, object]:
        value = "".join(self.random.choices("abcxyz /", k=self.random.randrange(12)))
        if not value:
            return "string", '""', (_ADDRESS, "0x0")
        return "string", f'"{value}"', text(value, 2)

    def _bytes(self, depth: int) -> tuple[str, str, object]:
        value = "".join(self.random.choices("GET /", k=self.random.randrange(4, 20)))
        return "[]byte", f'[]byte("{value}")', text(value, 3)

    def _nil(self, depth: int) -> tuple[str, str, object]:
        name = self.random.choice(["*int", "map[string]int", "chan int", "func()"])
        return name, f"({name})(nil)", "0x0"

    def _slice(self, depth: int) -> tuple[str, str, object]:
        return "[]int", "[]int{7, 8, 9}", (_ADDRESS, "0x3", "0x3")

    def _any(self, depth: int) -> tuple[str, str, object]:
        return "any", "any(len(kept))", (_ADDRESS, _ADDRESS)

    def _empty(self, depth: int) -> tuple[str, str, object]:
        return "struct{}", "struct{}{}", ()

    def _struct(self, depth: int) -> tuple[str, str, object]:
        parts = [self.value(depth + 1) for _ in range(self.random.randrange(1, 4))]
        name = f"struct{{ {'; '.join(f'F{n} {one[0]}' for n, one in enumerate(parts))} }}"
        return name, f"{name}{{{', '.join(one[1] for one in parts)}}}", tuple(p[2] for p in parts)

    def _array(self, depth: int) -> tuple[str, str, object]:
        name, shown, parts = self.value(depth + 1)
        length = self.random.randrange(1, 4)
        whole = f"[{length}]{name}"
        return whole, f"{whole}{{{', '.join([shown] * length)}}}", (parts,) * length


def _words(parts: object) -> int:
    return sum(map(_words, parts)) if isinstance(parts, tuple) else 1


def patterns(values: list[object]) -> list[str]:
    """Return how arguments are shown, as EmitArgInfo in the compiler's ssa.go limits them."""
    count = 0
    may_be_far = _words(tuple(values)) > _NEAR_WORDS

    def visit(parts: object, depth: int) -> tuple[str, bool]:
        nonlocal count
        if count >= 10:
            return _REST, False
        if isinstance(parts, str):
            count += 1
            return f"(?:{parts}|{_FAR})" if may_be_far else parts, True
        assert isinstance(parts, tuple)
        if depth + 1 >= 5:
            count += 1
            return rf"\{{{_REST}\}}", True
        shown = []
        goes_on = True
        for part in parts:
            found, goes_on = visit(part, depth + 1)
            shown.append(found)
            if not goes_on:
                break
        count += not parts
        whole = rf"\{{{', '.join(shown)}\}}"
        if isinstance(parts, Text) and goes_on:
            return f"(?:{parts.shown}|{whole})" if may_be_far else parts.shown, True
        return whole, True

    found = []
    for value in values:
        shown, goes_on = visit(value, 0)
        found.append(shown)
        if not goes_on:
            break
    return found


_MAIN = """package main

import (
	"bufio"
	"fmt"
	"os"
)

var kept []any

//go:noinline
func keep(values ...any) { kept = append(kept[:0], values...) }

type plain struct {
	n int
	s string
}

type box[T any] struct{ v T }

func main() {
	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready", os.Getpid())
	in.ReadString('\\n')
	calls()
	fmt.Println("truth {}")
	in.ReadString('\\n')
}
"""
#: Forms of functions: the beginning, the call, and the patterns of what comes before the values.
_FORMS: tuple[tuple[str, str, tuple[object, ...]], ...] = (
    ("func {name}(", "{name}(", ()),
    ("func (p plain) {name}(", 'plain{{3, "abc"}}.{name}(', (("0x3", text("abc", 2)),)),
    ("func (p *plain) {name}(", "(&plain{{}}).{name}(", (_ADDRESS,)),
    ("func {name}[T any](first T, ", "{name}[int](7, ", ("0x7",)),
    ("func (b *box[T]) {name}(first T, ", "(&box[int]{{}}).{name}(5, ", (_ADDRESS, "0x5")),
)


def program(seed: int) -> tuple[str, dict[str, list[str]]]:
    """Return a program's source, and the patterns of each function's arguments."""
    maker = Maker(seed)
    source, calls = [_MAIN], []
    wanted: dict[str, list[str]] = {}
    for number in range(FUNCTIONS):
        name = f"take{number}"
        begin, call, before = _FORMS[0 if number % 3 else maker.random.randrange(len(_FORMS))]
        values = [maker.value() for _ in range(maker.random.randrange(1, 6))]
        names = [f"a{at}" if maker.random.random() < 0.9 else "_" for at in range(len(values))]
        used = [each for each in names if each != "_"]
        if "(p" in begin:
            used.append("p")
        taken = ", ".join(f"{each} {of}" for each, (of, _, _) in zip(names, values, strict=True))
        head = begin.format(name=name)
        source.append(f"//go:noinline\n{head}{taken}) {{\n\tkeep({', '.join(used)})\n}}\n")
        given = ", ".join(one[1] for one in values)
        calls.append(f"\t{call.format(name=name)}{given})\n")
        is_method = "box" in begin
        parts = [*before, *(one[2] for one in values)]
        # The compiler leaves a method's receiver out in place of the dictionary, which it lists.
        wanted[name] = (
            [_ADDRESS, *patterns([_ADDRESS, *parts[1:]])[1:]] if is_method else patterns(parts)
        )
    source.append(f"func calls() {{\n{''.join(calls)}}}\n")
    return "\n".join(source), wanted


def verdict(shown: str, wanted: list[str]) -> str:
    if re.match(r"RAX=|8\(SP\)=", shown):
        return "registers"
    whole = ", ".join(f"arg{n}={pattern}" for n, pattern in enumerate(wanted, 1))
    return "right" if re.fullmatch(whole, shown) else f"wrong: {shown} is not {whole}"


def run(toolchain: Toolchain, seed: int, directory: Path) -> Counter[str]:
    source, wanted = program(seed)
    (directory / "main.go").write_text(source)
    (directory / "go.mod").write_text("module fixture\n\ngo 1.18\n")
    path = build(directory, toolchain, flags=["-ldflags=-s -w"])
    with Fixture([path]) as fixture:
        with tool("gotrace", "-v", "-p", str(fixture.ready), "main.*take*") as tracing:
            fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    found: Counter[str] = Counter()
    seen: set[str] = set()
    for line in result.lines:
        if match := _CALL.fullmatch(line):
            name = re.sub(r"^.*\.|\[.*", "", match[1] + match[2])
            seen.add(name)
            found[verdict(match[3], wanted[name])] += 1
    assert seen == set(wanted)
    return found


@each_of([found for found in toolchains() if found.minor != "1.15"])
def test_random_functions_by_shape(toolchain: Toolchain, tmp_path: Path) -> None:
    """Each word is right, and texts are marked as guesses. Code that uses no register says none."""
    directory = tmp_path / "shapes"
    directory.mkdir()
    found = run(toolchain, int(toolchain.minor.partition(".")[2]), directory)
    print(toolchain.minor, dict(found))
    assert set(found) <= {"right", "registers"}
    assert found["right"] > 0.7 * FUNCTIONS


def test_expressions_of_words(tmp_path: Path) -> None:
    """Parts of a shape are f0, f1 and so on; a typed signature wins, if the registers are its."""
    (tmp_path / "main.go").write_text(
        f"{_MAIN}\n//go:noinline\nfunc take(s string, n int8, f float64) {{ keep(s, n, f) }}\n\n"
        'func calls() {\n\ttake("first", 1, 0.5)\n\ttake("second", -1, 1.5)\n}\n'
    )
    (tmp_path / "go.mod").write_text("module fixture\n\ngo 1.18\n")
    path = str(build(tmp_path, newest(), flags=["-ldflags=-s -w"]))

    def traced(*arguments: str, name: str = "gotrace") -> str:
        with Fixture([path]) as fixture:
            with tool(name, "-p", str(fixture.ready), *arguments) as tracing:
                fixture.work()
                result = tracing.end()
            fixture.finish()
        return "".join(result.lines)

    lines = traced("main.take (arg1.f1 == 6 && arg2 == 0xff)")
    assert 'main.take(arg1=~"second", arg2=0xff, arg3=1.5) = (RAX=' in lines
    assert "first" not in lines
    lines = traced('main.take "%v|%s|%d", arg3, arg1, arg1.f1')
    assert "0.5|~first|5\n" in lines
    lines = traced('main.take(s string, n int8, f float64) (s == "first")')
    assert 'main.take(s="first", n=1, f=0.5)' in lines
    refused = run_tool("gotrace", "main.take(s string, n int8, f int)", "--", path).errors
    assert "are in other registers, or of other sizes: RAX of 8 bytes" in refused
    refused = run_tool("gotrace", "main.take (key == 1)", "--", path).errors
    assert "has no 'key', but words only, arg1 and others" in refused
    lines = traced("--by", "arg1", "main.take", name="gofunccount")
    assert '~"first"' in lines and '~"second"' in lines
