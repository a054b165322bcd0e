# SPDX-License-Identifier: Apache-2.0
"""Start from a program that is kept: no compiler is loaded, and so little memory is taken."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE, tool

pytestmark = pytest.mark.live

PEAK = 120 << 10  # kB: half of what a start with the compiler takes


@pytest.mark.parametrize("name", ["gofunccount", "gofunclatency", "gotrace"])
def test_start_without_a_compiler(name: str) -> None:
    program = build(FIXTURES / "live_count", newest())
    words = ("-d", "60", f"{program}:main.leaf")
    with tool(name, *words):
        pass  # it is kept from now on
    with tool(name, *words) as running:
        maps = Path(f"/proc/{running.pid}/maps").read_text()
        status = Path(f"/proc/{running.pid}/status").read_text()
    assert not re.search(r"/lib(bcc|LLVM|clang)", maps)
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    assert int(peak[1]) < PEAK


def test_bcc_is_not_imported_where_the_program_is_kept() -> None:
    program = build(FIXTURES / "live_count", newest())
    code = (
        "import sys; from gotrace.cli.gofunccount import main;"
        f"main(['-d', '0.01', {str(program) + ':main.leaf'!r}]);"
        "print(sorted(name for name in sys.modules if name == 'bcc'))"
    )
    lines = []
    for _ in range(2):
        run = [sys.executable, "-c", code]
        done = subprocess.run(run, cwd=CLONE, capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
    assert lines[-1] == "[]"
