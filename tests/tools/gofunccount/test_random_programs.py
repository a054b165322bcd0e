# SPDX-License-Identifier: Apache-2.0
"""Counts of inlined calls in random programs, held against an interpreter of the programs.

See ``tests/random_programs.py``: the interpreter knows each call and its line.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from tests.random_programs import ROUNDS, Program
from tests.toolchains import Toolchain, build, each_since, parts
from tests.tools.harness import Json, of_kind, run_tool

pytestmark = [pytest.mark.live, pytest.mark.apart, pytest.mark.slow]

#: The small functions, and methods among them.
NAMES = "main.*f*"


def counted(binary: Path, printed: str, *words: str) -> list[Json]:
    words = ("--json", "--inlined", *words, NAMES)
    result = run_tool("gofunccount", *words, "--", binary, stdin=subprocess.DEVNULL)
    assert result.status == 0, result.errors
    assert printed in result.errors, "the interpreter is wrong"
    return list(of_kind(result, "count"))


def judge(program: Program, binary: Path) -> tuple[Counter[str], list[str]]:
    """Hold each row against the interpreter.

    Return how many calls of which kind were held against it, and what is wrong.
    """
    calls, printed = program.run(ROUNDS)
    truth = Counter((call.function, call.line) for call in calls)
    called = Counter(call.function for call in calls)
    with ElfImage.open(binary) as image:
        seen = {(call.name, call.line) for call in load_functions(image).inlined_calls()}
    # The compiler left nothing of these: that is said of all counts.
    untraced = Counter[str]()
    for (name, line), count in truth.items():
        untraced[name] += count if (name, line) not in seen else 0
    wrong, judged = [], Counter[str]()
    out_of_line = set()
    for row in counted(binary, printed):
        name, count = row["func"], row["count"]
        least = 0 if row.get("uncounted_places") else called[name] - untraced[name]
        if not least <= count <= called[name]:
            wrong.append(f"{name}: {count}, not {least} to {called[name]}")
        if "places" in row:
            judged["functions"] += 1
    for row in counted(binary, printed, "--places"):
        name, count = row["func"], row["count"]
        if "at" not in row:
            out_of_line.add(name)
            continue
        line = int(row["at"].rpartition(":")[2])
        is_exact = not row["uncounted_places"] and name not in out_of_line
        least = truth[name, line] if is_exact else 0
        if not least <= count <= truth[name, line]:
            wrong.append(f"{name} at {line}: {count}, not {least} to {truth[name, line]}")
        judged["exact" if is_exact else "at least"] += count
    judged["calls"] = len(calls)
    return judged, wrong


@each_since(19)
@parts(3)
def test_no_count_is_wrong(toolchain: Toolchain, part: int, tmp_path: Path) -> None:
    program = Program(1 + part)
    (tmp_path / "main.go").write_text(program.source(ROUNDS))
    judged, wrong = judge(program, build(tmp_path, toolchain, name="random"))
    assert not wrong
    assert judged["exact"] > 500
    assert judged["at least"] > 300
