# SPDX-License-Identifier: Apache-2.0
"""What gotraced needs for large programs is bounded, and so is what a hostile one can cost it."""

from __future__ import annotations

import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gotrace.errors import GotraceError
from gotrace.fleet.config import PlanningSpec
from gotrace.fleet.trial import Trial
from tests.fleet.test_gotraced import Daemon
from tests.fleet.test_gotraced import keys as keys
from tests.toolchains import newest

MB = 1 << 20

PROGRAMS = 20
SIZE = 60 << 20
#: Of all processes, in bytes.
MOST = 250e6


def family(pid: int) -> Iterator[int]:
    """Yield a process and those that it has forked."""
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from family(int(child))


def memory(pid: int, name: str = "Pss") -> int:
    """Return how many bytes a process has, its part of those that it shares."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found) * 1024


def peak(pid: int) -> int:
    """Return how many bytes a process has had in memory at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found) * 1024


@pytest.mark.live
@pytest.mark.slow
def test_twenty_large_programs_leave_no_files_in_memory(tmp_path: Path) -> None:
    """They were 1.4 GB: a copy of each file, and of each all that was ever read of it."""
    compiler = next(newest().go.parent.parent.glob("pkg/tool/*/compile"))
    targets = []
    for number in range(PROGRAMS):
        path = shutil.copy(compiler, tmp_path / f"program{number}")
        os.truncate(path, SIZE)
        targets.append(f"  - {{name: t{number}, exe: {path}}}\n")
    config = tmp_path / "c.yaml"
    function = "cmd/compile/internal/noder.LoadPackage"
    config.write_text(
        f"listen: 127.0.0.1:0\nbudget: 100%\ntargets:\n{''.join(targets)}metrics:\n"
        f"  - {{name: seconds, type: histogram, probe: {function}}}\n"
        f"  - {{name: calls, type: counter, probe: {function}, labels: {{files: RBX}}}}\n"
    )
    with Daemon(config, probes=2 * PROGRAMS, patience=600.0) as daemon:
        daemon.samples()
        lasting = sum(memory(pid) for pid in family(daemon.pid))
        most = peak(daemon.pid)
        daemon.end()
    print(f"{lasting / 1e6:.0f} MB, {most / 1e6:.0f} MB at most")
    assert lasting < MOST and most < MOST


def spin() -> None:
    while True:
        pass


def fail() -> None:
    raise GotraceError("no function matches")


def stumble() -> None:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (lambda: bytes(40 * MB), None),
        (fail, None),  # which the plan that is attached says
        (lambda: bytes(100 * MB), "takes more than 64 MB of memory: planning: memory allows more"),
        (spin, "takes more than 1 s: planning: seconds allows more"),
        (stumble, "it cannot be read: KeyError: 'x'"),
    ],
)
def test_a_plan_may_take_so_much(plan: Callable[[], object], problem: str | None) -> None:
    trial = Trial([plan], PlanningSpec(memory=64 * MB, seconds=1))
    assert trial.has_ended(60.0)
    assert (trial.problem or "").endswith(problem or "") and (trial.problem is None) == (
        not problem
    )


def test_others_do_not_wait_for_a_plan() -> None:
    trial = Trial([spin], PlanningSpec(seconds=60))
    assert not trial.has_ended(0.0)
    trial.close()
    assert trial.has_ended(0.0) and trial.problem is None


def bomb(program: Path, path: Path, size: int) -> Path:
    """Make a program whose type information is a file of 200 KB, and so much in memory."""
    packed = zlib.compressobj(9)
    content = b"".join(packed.compress(bytes(MB)) for _ in range(size // MB)) + packed.flush()
    part = path.with_suffix(".packed")
    part.write_bytes(b"ZLIB" + size.to_bytes(8, "big") + content)
    named = f".zdebug_info={part}"
    subprocess.run(
        ["objcopy", "-R", ".debug_info", "--add-section", named, program, path], check=True
    )
    return path


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize(
    ("planning", "attached", "most"),
    [
        ("", 2, 150e6),  # without the section
        ("planning: {section: 256, memory: 64}", 1, 150e6),
        ("planning: {section: 256, memory: 1024}", 2, 600e6),
    ],
)
def test_a_hostile_program_costs_itself_alone(
    keys: Path, tmp_path: Path, planning: str, attached: int, most: float
) -> None:
    hostile = bomb(keys, tmp_path / "hostile", 200 * MB)
    good = shutil.copy(keys, tmp_path / "good")
    config = tmp_path / "c.yaml"
    config.write_text(
        f"listen: 127.0.0.1:0\n{planning}\ntargets:\n"
        f"  - {{name: hostile, exe: {hostile}}}\n  - {{name: good, exe: {good}}}\n"
        "metrics:\n"
        "  - {name: a, type: counter, probe: main.handle, labels: {n: RBX}, targets: [hostile]}\n"
        "  - {name: b, type: counter, probe: main.handle, labels: {key: key}, targets: [good]}\n"
    )
    with Daemon(config, probes=attached) as daemon:
        said = any("hostile" in line and "nothing is traced" in line for line in daemon.log)
        assert said == (attached == 1)
        highest = peak(daemon.pid)
        samples = daemon.samples()["gotraced_probe_attached"]
        assert sum(samples.values()) <= attached
        daemon.end()
    print(f"{highest / 1e6:.0f} MB")
    assert highest < most
