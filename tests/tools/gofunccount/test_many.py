# SPDX-License-Identifier: Apache-2.0
"""Count 100,000 functions, each called its own number of times: more than one chunk of a map."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gotrace.kernel import syscalls as kernel
from tests.toolchains import build, newest
from tests.tools.harness import Fixture, count_on, of_kind

# The program has a file of its own, which nothing else traces.
pytestmark = [pytest.mark.live, pytest.mark.apart]

FUNCTIONS, PACKAGE = 100_000, 1_000

#: The functions call another one, so that their entries are as most: emulated by the kernel.
_FUNCTION = "//go:noinline\nfunc F{0:05}(x int) int {{ return step(x) }}\n"
_PACKAGE = """\
package p{0:03}

//go:noinline
func step(x int) int {{ return x + 1 }}

{1}
var All = []func(int) int{{{2}}}
"""
_MAIN = """\
package main

import (
	"bufio"
	"fmt"
	"os"
{0}
)

func calls(i int) int {{ return int(uint32(i) * 2654435761 >> 27) }}

func main() {{
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready", os.Getpid())
	in.Scan()
	made := 0
	for p, all := range [][]func(int) int{{{1}}} {{
		for i, f := range all {{
			for n := calls(p*{2} + i); n > 0; n-- {{
				made = f(made)
			}}
		}}
	}}
	fmt.Printf("truth {{\\"made\\": %d}}\\n", made)
	in.Scan()
}}
"""


def calls(number: int) -> int:
    """Return how often a function is called: 0 to 31 times, its neighbours otherwise."""
    return (number * 2654435761 & 0xFFFFFFFF) >> 27


def write_program(directory: Path, functions: int = FUNCTIONS) -> Path:
    """Write the program's sources, a package for each thousand, and return their directory."""
    packages = [f"p{number:03}" for number in range(functions // PACKAGE)]
    for number, name in enumerate(packages):
        own = range(number * PACKAGE, (number + 1) * PACKAGE)
        code = "".join(map(_FUNCTION.format, own))
        (directory / name).mkdir(parents=True)
        text = _PACKAGE.format(number, code, ", ".join(f"F{each:05}" for each in own))
        (directory / name / "functions.go").write_text(text)
    imports = "\n".join(f'\t"fixture/{name}"' for name in packages)
    every = ", ".join(f"{name}.All" for name in packages)
    (directory / "main.go").write_text(_MAIN.format(imports, every, PACKAGE))
    return directory


def test_every_count_of_100000_functions_is_exact(tmp_path: Path) -> None:
    truth = {f"fixture/p{n // PACKAGE:03}.F{n:05}": calls(n) for n in range(FUNCTIONS)}
    # What one chunk has room for here: were chunks mixed up, another function's calls would show.
    chunk = kernel._CHUNK_BYTES // (4 + 8 * kernel.possible_cpus())
    assert FUNCTIONS > chunk
    # It takes two processors a quarter of a minute, once: no debug information, no second release.
    flags = ("-gcflags=-dwarf=false", "-ldflags=-w")
    with Fixture([build(write_program(tmp_path / "live_functions"), newest(), flags=flags)]) as it:
        made, result = count_on(it, "fixture/*.F*")
        assert it.finish() == 0
    assert made["made"] == sum(truth.values())
    rows = {row["func"]: row["count"] for row in of_kind(result, "count")}
    wrong = {
        name: (rows.get(name, 0), count)
        for name, count in truth.items()
        if rows.get(name, 0) != count
    }
    assert not wrong, f"{len(wrong)} wrong: {json.dumps(dict(list(wrong.items())[:5]))}"
    assert rows.keys() <= truth.keys()
    assert of_kind(result, "attached")[0]["functions"] == FUNCTIONS
    assert of_kind(result, "lost") == []
