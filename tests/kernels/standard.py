# SPDX-License-Identifier: Apache-2.0
"""The standard library's own tests under total tracing, with RETs carried out: runs in a guest.

Of the packages that are tested, and of some that these call, all functions are probed whose first
instructions need no single step: where one is made, the emulator may execute another instruction
(docs/support.md).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kernels.runs import EMULATED, MINORS, fixture_program
from tests.tools.harness import of_kind, run_tool

__all__ = ["SUITES", "Suite", "outcomes", "run_suite", "suite_name"]


@dataclass(frozen=True, slots=True)
class Suite:
    """How a package's tests are run: with which tools, and what is probed besides the package.

    ``spared`` are functions that its tests call some 100,000 times, ``tests`` how the names of
    those that are run begin, all where it is empty.
    """

    tools: Sequence[str] = ("gofunclatency",)
    further: Sequence[str] = ()
    spared: Sequence[str] = ()
    tests: str = ""


_BOTH = ("gofunclatency", "gotrace")  # gotrace writes a line for each call

#: Packages whose tests need neither files nor a network, and take no more than a minute in a guest.
SUITES: Mapping[str, Suite] = {
    "errors": Suite(_BOTH, ["fmt", "internal/reflectlite"]),
    "fmt": Suite(
        further=["reflect", "strconv", "internal/fmtsort"],
        tests="Sprintf|FmtInterface|Formatter|Panic|Reorder|Errorf|Complex|Struct|Star|Width|BadVerb"
        "|Nil|Stringer|Map|Slice",
    ),
    "strconv": Suite(further=["internal/strconv", "math"], spared=["strconv.IsPrint"]),
    "sort": Suite(further=["slices", "internal/reflectlite"], spared=["sort.siftDown"]),
    "strings": Suite(_BOTH, ["unicode/utf8", "internal/bytealg"], ["strings.(*Builder).*row"]),
    "bufio": Suite(
        further=["bytes", "strings"],
        spared=["bufio.isSpace", "bytes.(*Buffer).WriteByte", "bufio.(*Reader).Read"],
        tests="Scan|Reader|Writer|Peek|Read",
    ),
    "sync": Suite(
        further=["internal/sync", "context"],
        tests="Mutex|RWMutex|Once|WaitGroup|Cond|Map|Concurrent|Compare|Issue",
    ),
    "text/template": Suite(
        further=["text/template/parse", "reflect"], tests="Exec|Parse|Func|Template|Block|Delims"
    ),
    "encoding/json": Suite(
        further=["encoding/json/jsontext", "reflect", "bytes"],
        tests="Marshal|Unmarshal|Encode|Decode|Tag|Compact|Indent|Valid",
    ),
}


def suite_name(package: str) -> str:
    """Return the name of a package's compiled tests among the fixtures.

    >>> suite_name("encoding/json")
    'tests-encoding-json'
    """
    return f"tests-{package.replace('/', '-')}"


def outcomes(lines: Sequence[str]) -> Counter[tuple[str, str]]:
    """Return how tests ended, by the words of the testing package and their names.

    >>> outcomes(["=== RUN   TestA", "--- PASS: TestA (0.01s)", "    --- SKIP: TestA/b (0.00s)"])
    Counter({('PASS', 'TestA'): 1, ('SKIP', 'TestA/b'): 1})
    """
    # Without a tool's own lines, which show texts of the tests, and addresses in subtests' names.
    text = "\n".join(line.partition('{"kind":')[0] for line in lines)
    text = re.sub("0x[0-9a-f]+", "0x", text)
    return Counter(re.findall(r"--- (PASS|FAIL|SKIP): (\S+)", text))


def run_suite(package: str) -> str:
    """Run a package's tests alone and under tools: each ends as it does without."""
    suite, program = SUITES[package], fixture_program(suite_name(package), MINORS[-1])
    command = [str(program), "-test.short", "-test.v", f"-test.run=^Test({suite.tests})", *_FILES]
    bare = _alone(command)
    patterns = [f"{name}.*" for name in (package, *suite.further)]
    stepped = _stepped(program, patterns)
    spared = [word for name in (*suite.spared, *stepped) for word in ("-x", name)]
    seen = []
    for tool in suite.tools:
        options = ["--json", *EMULATED, *(["-F"] if tool == "gofunclatency" else [])]
        result = run_tool(tool, *options, *spared, *patterns, "--", *command, cwd="/tmp")
        found = outcomes(result.lines)
        assert found == bare, f"{tool}: {dict(found - bare)}, not {dict(bare - found)}"
        assert result.status == 0, result.errors[-400:]
        rows = [json.loads(line) for line in result.lines if line.startswith('{"kind":')]
        calls: Counter[str] = Counter()
        for row in rows:
            if row["kind"] in ("histogram", "call"):
                calls[row["func"]] += row.get("count", 1)
        wrong = [row for row in rows if row.get("what") == "unmatched" or row["kind"] == "lost"]
        assert tool == "gotrace" or not wrong, wrong
        assert len(calls) > _MIN_FUNCTIONS, calls
        seen.append(f"{calls.total():,} calls of {len(calls)} functions by {tool}")
    return f"{package}: {bare.total()} tests, {', '.join(seen)}"


#: Tests that need files of the sources, or a stack deeper than a guest's memory.
_FILES = ("-test.skip=File|Glob|MaxExecDepth|FS",)

#: Less would be no total tracing.
_MIN_FUNCTIONS = 30


def _alone(command: Sequence[str]) -> Counter[tuple[str, str]]:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd="/tmp")
    found = outcomes(done.stdout.splitlines())
    assert done.returncode == 0 and found, done.stdout[-400:]
    return found


def _stepped(program: Path, patterns: Sequence[str]) -> Sequence[str]:
    """Return the functions whose first instructions the kernel does not emulate."""
    words = [f"{program}:{pattern}" for pattern in patterns]
    rows = of_kind(run_tool("gofunclatency", "-l", "--json", *words), "function")
    return [row["func"] for row in rows if row["form"] != "emulated"]
