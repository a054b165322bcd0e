# SPDX-License-Identifier: Apache-2.0
"""Start from a program that is kept: no compiler is loaded, and so little memory is taken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gotrace.doctor import precompile as precompiling
from gotrace.doctor.precompile import common_settings, precompile
from gotrace.errors import GotraceError
from gotrace.kernel import program_cache
from gotrace.settings import CountSettings
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE, run_tool, tool

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


def test_default_runs_need_what_is_usual(tmp_path: Path) -> None:
    """What a run by default loads is among what ``gotrace compile`` compiles."""
    program = build(FIXTURES / "live_count", newest())
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    tmp_path.chmod(0o700)
    for name in ("gofunccount", "gofunclatency", "gotrace"):
        done = run_tool(name, "-d", "0.01", f"{program}:main.leaf", env=environment)
        assert done.status == 0
    found = {path.name.partition("-")[0] for path in (tmp_path / "gotrace" / "bpf").iterdir()}
    assert len(found) == 3
    assert found <= {program_cache.program_key(settings) for settings in common_settings()}


def test_usual_programs_are_compiled_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tmp_path.chmod(0o700)
    few = [CountSettings(counters=1), CountSettings(counters=1).by_address(1)]
    monkeypatch.setattr(precompiling, "common_settings", lambda: few)
    monkeypatch.setattr(precompiling, "_PATIENCE", 0.0)
    assert precompile().programs == 2
    assert capsys.readouterr().err == "1 of 2 programs\n2 of 2 programs\n"
    monkeypatch.setattr(precompiling, "_PATIENCE", 60.0)
    assert precompile().programs == 2
    assert capsys.readouterr().err == ""  # soon done
    (tmp_path / "gotrace").chmod(0o777)
    with pytest.raises(GotraceError, match=r"cannot be kept: .*others can write to it"):
        precompile()


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
