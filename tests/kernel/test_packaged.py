# SPDX-License-Identifier: Apache-2.0
"""Use the programs that a package carries as its modules are used, and none of other sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gotrace.doctor import machine
from gotrace.doctor.finding import CheckState
from gotrace.doctor.precompile import packaged_settings
from gotrace.kernel import program_cache
from gotrace.kernel.compiler import LoadError, NoCompilerError, ProgramOrigin
from gotrace.kernel.instructions import CALL, EXIT, encode
from gotrace.kernel.program_cache import (
    MANIFEST,
    cached_program,
    is_packaged,
    package_program,
    packaged_programs,
    program_key,
    shape_of,
)
from gotrace.kernel.unpackaged import what_to_leave_out
from gotrace.settings import (
    HistogramSettings,
    LatencySettings,
    ProgramSettings,
    SiteSettings,
    WhySettings,
)
from tests.kernel.test_program_cache import PROGRAM, SETTINGS, Compiler
from tests.kernel.test_program_cache import as_root as as_root
from tests.kernel.test_program_cache import compiler as compiler
from tests.tools.harness import CLONE


@pytest.fixture
def package(tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a package that has one program; nothing else can be compiled."""
    tmp_path.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "_compiled"
    folder.mkdir(mode=0o755)
    key, _ = package_program(SETTINGS, folder)
    (folder / key).chmod(0o644)
    program = {"file": key, "source": "count.c", "shape": sorted(shape_of(SETTINGS))}
    machine = os.uname().machine
    manifest = {"compiler": {"name": "BCC 0.26"}, "machine": machine, "programs": [program]}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    monkeypatch.setattr(program_cache, "_package_folder", lambda: folder)
    for path in (tmp_path / "cache").rglob("*-*"):
        path.unlink()
    compiler.there = False
    return folder


def only_program(folder: Path) -> Path:
    (path,) = (path for path in folder.iterdir() if path.name != MANIFEST)
    return path


def test_program_of_the_package_is_used(package: Path) -> None:
    found = cached_program(SETTINGS)
    assert (found, found.origin) == (PROGRAM, ProgramOrigin.PACKAGE)
    other_run = replace(SETTINGS, site=SiteSettings(tgid=2), counters=100)
    assert cached_program(other_run) == PROGRAM
    assert is_packaged(SETTINGS)


def test_each_origin_is_known(package: Path, compiler: Compiler) -> None:
    compiler.there = True
    other = SETTINGS.by_address(1)
    origins = [cached_program(each).origin for each in (SETTINGS, other, other)]
    assert origins == [ProgramOrigin.PACKAGE, ProgramOrigin.COMPILER, ProgramOrigin.CACHE]


def test_nothing_of_the_machine_is_in_it(package: Path, compiler: Compiler) -> None:
    before = only_program(package).read_bytes()
    compiler.there = True
    compiler.compiled = replace(PROGRAM, made_by=("12 34 /usr/lib/libbcc.so",))
    _, made_by = package_program(SETTINGS.by_address(1), package)
    assert made_by == compiler.compiled.made_by
    found = cached_program(SETTINGS.by_address(1))
    assert (found.made_by, found.origin) == ((), ProgramOrigin.PACKAGE)
    assert only_program_of(package, SETTINGS).read_bytes() == before


def only_program_of(folder: Path, settings: ProgramSettings) -> Path:
    return folder / program_key(settings)


def test_programs_of_old_kernels_are_not_packaged(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for helper in (112, 4):  # bpf_probe_read_user, bpf_probe_read
        code = encode((CALL, 0, 0, helper), (EXIT, 0, 0, 0))
        compiler.compiled = replace(PROGRAM, functions={"on_entry": code})
        settings = SETTINGS if helper == 4 else SETTINGS.by_address(1)
        if helper == 112:
            package_program(settings, tmp_path)
            continue
        with pytest.raises(LoadError, match=r"before Linux 5\.5: make the package where"):
            package_program(settings, tmp_path)


def test_other_sources_are_not_served(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is named by its sources: one of an earlier release is never looked at."""
    monkeypatch.setattr(program_cache, "joined_source", lambda name: "/* newer */\n")
    with pytest.raises(NoCompilerError):
        cached_program(SETTINGS)


def damage_data(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def damage_all(path: Path) -> None:
    path.write_bytes(b"nothing that was compressed")


def let_others_write(path: Path) -> None:
    path.chmod(0o666)


def give_away(path: Path) -> None:
    os.chown(path, 4242, 4242)


def open_the_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def give_the_folder_away(path: Path) -> None:
    os.chown(path.parent, 4242, 4242)


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize(
    "harm",
    [damage_data, damage_all, let_others_write, give_away, open_the_folder, give_the_folder_away],
)
def test_what_is_less_safe_than_modules_is_not_used(
    harm: Callable[[Path], None], package: Path
) -> None:
    harm(only_program(package))
    assert not is_packaged(SETTINGS)
    with pytest.raises(NoCompilerError):
        cached_program(SETTINGS)
    if harm in (open_the_folder, give_the_folder_away):
        found = machine.packaged_compiled()
        assert found.state is CheckState.WARN
        assert "is not used" in found.found


def test_a_folder_for_the_modules_group_is_as_safe_as_they_are(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation by umask 002 lets the group write to modules, too."""
    only_program(package).chmod(0o664)
    module = tmp_path / "module.py"
    module.touch()
    module.chmod(0o644)
    monkeypatch.setattr(program_cache, "__file__", str(module))
    assert not is_packaged(SETTINGS)
    module.chmod(0o664)
    assert is_packaged(SETTINGS)


def test_doctor_says_what_there_is(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.packaged_compiled()
    assert (found.state, found.found) == (
        CheckState.OK,
        f"1, 0 kB, {package}, compiled by BCC 0.26",
    )
    binding = machine._no_compiler("cannot be imported", "install it")
    assert binding.state is CheckState.WARN
    monkeypatch.setattr(program_cache, "_package_folder", lambda: package / "nowhere")
    assert packaged_programs() is None
    assert machine.packaged_compiled().found.startswith("not there: ")


def test_programs_for_another_machine_are_named_in_one_line(package: Path) -> None:
    """An installation may be forced there, or copied."""
    manifest = json.loads((package / MANIFEST).read_text()) | {"machine": "riscv64"}
    (package / MANIFEST).write_text(json.dumps(manifest))
    only_program(package).write_bytes(b"")  # its name would be another one
    problem = f"they are for riscv64, and this machine is {os.uname().machine}"
    with pytest.raises(NoCompilerError) as caught:
        cached_program(SETTINGS)
    assert str(caught.value) == f"the package's BPF programs are not used: {problem}; and no BCC"
    found = machine.packaged_compiled()
    assert found.state is CheckState.WARN
    assert f"is not used: {problem}" in found.found


def test_a_manifest_that_is_none_is_no_package(package: Path) -> None:
    for text in ("", "[]", '{"programs": [1]}', '{"compiler": {}, "programs": []}'):
        (package / MANIFEST).write_text(text)
        assert packaged_programs() is None
        with pytest.raises(NoCompilerError, match=r"^no BCC$"):
            cached_program(SETTINGS.by_address(1))


def test_what_is_not_there_is_refused_in_a_sentence(package: Path) -> None:
    several = replace(SETTINGS, site=SiteSettings(tgid=1, tgid_1=1))
    with pytest.raises(NoCompilerError) as caught:
        cached_program(several)
    assert str(caught.value) == (
        "this run needs a BPF program that the package does not have, and no BCC, or leave out"
        " all processes but one"
    )
    with pytest.raises(NoCompilerError) as caught:  # it is the kernel that asks for this
        cached_program(SETTINGS.by_address(1))
    assert str(caught.value).endswith("and no BCC")


def test_least_is_left_out() -> None:
    times = HistogramSettings(rows=1, stripes=1, histograms=1, histogram_rows=1)
    plain = LatencySettings(stacks=1, outer_calls=1, times=times)
    grouped = replace(plain, goroutines=1)
    (why,) = WhySettings.usual()
    wanted = replace(grouped, slower=1, why=why)
    others = [shape_of(plain), shape_of(grouped)]
    assert what_to_leave_out(shape_of(wanted), others) == "why=True and --slower"
    assert (
        what_to_leave_out(shape_of(wanted), others[:1])
        == "why=True and --slower and by_goroutine=True"
    )
    assert what_to_leave_out(shape_of(wanted), []) is None


def test_packaged_shapes_are_distinct_and_as_many_as_are_kept() -> None:
    keys = [program_key(settings) for settings in packaged_settings()]
    assert len(set(keys)) == len(keys) < program_cache._MAX_FILES
    assert {each.source for each in packaged_settings()} == {
        *(
            "count.c",
            "latency.c",
            "trace.c",
            "waits.c",
            "states.c",
            "oncpu.c",
            "allocs.c",
            "syscalls.c",
            "executions.c",
            "doctor.c",
        )
    }


@pytest.mark.live
def test_what_the_doctor_tries_in_a_container_is_packaged() -> None:
    code = (
        "from gotrace.doctor.trials import _here; from gotrace.kernel.program_cache import"
        " program_key; from gotrace.settings import TrialSettings;"
        " print(program_key(TrialSettings(site=_here(), signal=1)))"
    )
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CLONE)
    assert done.stdout.strip() in map(program_key, packaged_settings()), done.stderr
