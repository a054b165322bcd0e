# SPDX-License-Identifier: Apache-2.0
"""The standard library's own tests, while all functions of the test program are probed."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.real.report import figures
from tests.real.targets import releases
from tests.toolchains import Toolchain, cache_dir
from tests.tools.harness import run_tool

pytestmark = pytest.mark.live

PATIENCE = 400  # seconds

#: Packages, and which of their tests are run; the others need the network, a go command, a clock
#: that is not slowed down, or programs that they start.
PACKAGES = {
    "strconv": ".",
    "sort": ".",
    "strings": ".",
    "encoding/json": ".",
    # Parsers, headers, cookies, routing and what runs over one connection in order.
    "net/http": "^Test(Header|ReadRequest|ReadResponse|ReqWrite|RequestWrite|ResponseWrite|Cookie"
    "|ReadCookies|ReadSetCookies|ServeMux|ParseHTTPVersion|ParseMultipart|Redirect|Sniff|Detect"
    "|StatusText|TransferWriter|FileServer|ServeFile|ServeContent|HandlerBodyClose|ConnectRequest)",
    # Channels, maps, stacks, recovered panics, strings, memory: all within the test program, in
    # some million calls.
    "runtime": "^Test(ChanSendInterface|NonblockRecvRace|SelectDuplicateChannel|SelectStackAdjust"
    "|ShrinkStackDuringBlockedSend|SelfSelect|DeferPtrs|LFStack|CompareString|StringW|AppendGrowth"
    "|AppendSliceGrowth|Complex.*|NegativeZero|GrowWithNaN|MapAssignmentRuntimeErrorTransfer"
    "|MapIterOrder|MapBuckets|MapAppend.*|StackMem|StackGrowthCallers|StopTheWorldDeadlock"
    "|YieldProgress)$",
}
#: gotrace writes a line for each call: on these it takes no longer than counting.
TRACED = ("sort", "strings", "encoding/json")
CASES = [
    *((name, package) for name in ("gofunccount", "gofunclatency") for package in PACKAGES),
    *(("gotrace", package) for package in TRACED),
]
three_releases = pytest.mark.parametrize(
    "toolchain", [pytest.param(found, id=f"go{found.minor}") for found in releases()]
)


def compiled_tests(toolchain: Toolchain, package: str) -> Path:
    """Compile a package's tests, once for each release."""
    name = package.replace("/", "-")
    path = cache_dir() / "real" / f"{name}-{toolchain.version}.test"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            words = [str(toolchain.go), "test", "-c", "-o", str(path), package]
            subprocess.run(words, env=toolchain.env(), check=True, cwd=path.parent)
    return path


@three_releases
@pytest.mark.parametrize(("name", "package"), CASES, ids=[" ".join(case) for case in CASES])
def test_standard_library_passes_its_tests(name: str, package: str, toolchain: Toolchain) -> None:
    program = compiled_tests(toolchain, package)
    goroot = Path(toolchain.env()["GOROOT"])
    env = {**os.environ, "GOROOT": str(goroot)}
    words = ["--json", *(["-F"] if name == "gofunclatency" else []), f"{package}.*"]
    # The tests ask these about each of the 1.1 million code points: minutes of single steps.
    words += ["-x", "strconv.Is*", "-x", "strconv.bsearch*"]
    tests = ["-test.short", "-test.timeout=300s", "-test.run", PACKAGES[package]]
    command = ["--", str(program), *tests]
    result = run_tool(
        name, *words, *command, env=env, cwd=goroot / "src" / package, patience=PATIENCE
    )
    rows = [json.loads(line) for line in result.lines if line.startswith('{"kind":')]
    (ended,) = [row for row in rows if row["kind"] == "exited"]
    said = [line for line in [*result.lines, *result.errors.splitlines()] if "FAIL" in line]
    assert ended["status"] == 0, (said, result.errors[:500])
    assert "PASS\n" in result.lines
    calls: Counter[str] = Counter()
    for row in rows:
        if "func" in row:
            calls[row["func"]] += row.get("count", 1)
    assert calls
    lost = sum(row["calls"] for row in rows if row["kind"] == "lost")
    figures(
        f"{name} {package}, Go {toolchain.version}",
        functions=len(calls),
        calls=calls.total(),
        lost=lost,
    )
