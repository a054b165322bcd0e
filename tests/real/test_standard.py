"""The standard library's own tests, while all functions of the test program are probed."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.real.report import figures
from tests.toolchains import Toolchain, cache_dir, toolchains
from tests.tools.harness import run_tool

pytestmark = pytest.mark.live

PACKAGES = ("strconv", "sort", "strings", "encoding/json")
BOTH_ENDS = [
    pytest.param(found, id=f"go{found.minor}") for found in [*toolchains()[:1], *toolchains()[-1:]]
]


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


@pytest.mark.parametrize("toolchain", BOTH_ENDS)
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("name", ["gofunccount", "gofunclatency"])
def test_standard_library_passes_its_tests(name: str, package: str, toolchain: Toolchain) -> None:
    program = compiled_tests(toolchain, package)
    goroot = Path(toolchain.env()["GOROOT"])
    env = {**os.environ, "GOROOT": str(goroot)}
    words = ["--json", *(["-F"] if name == "gofunclatency" else []), f"{package}.*"]
    # The tests ask these about each of the 1.1 million code points: minutes of single steps.
    words += ["-x", "strconv.Is*", "-x", "strconv.bsearch*"]
    command = ["--", str(program), "-test.short", "-test.timeout=90s"]
    result = run_tool(name, *words, *command, env=env, cwd=goroot / "src" / package)
    rows = [json.loads(line) for line in result.lines if line.startswith('{"kind":')]
    (ended,) = [row for row in rows if row["kind"] == "exited"]
    assert ended["status"] == 0, "".join(line for line in result.lines if "FAIL" in line)
    assert "PASS\n" in result.lines
    counts = [row["count"] for row in rows if "func" in row and "count" in row]
    assert counts
    figures(f"{name} {package}, Go {toolchain.version}", functions=len(counts), calls=sum(counts))
