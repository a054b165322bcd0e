# SPDX-License-Identifier: Apache-2.0
"""Read core files: the same goroutines as in the process that they are of."""

from __future__ import annotations

import contextlib
import random
import subprocess
from pathlib import Path

import pytest

from gotrace.errors import GotraceError
from gotrace.goroutines.core import CoreGoroutines
from gotrace.goroutines.dump import Dump
from tests.goroutines.cores import write_core
from tests.goroutines.test_parked import PARKED, PARKED_CGO, differences, parse
from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_toolchain, newest
from tests.tools.harness import Fixture


def read(core: Path, program: Path) -> Dump:
    with CoreGoroutines(str(core), str(program)) as goroutines:
        dump = goroutines.take()
        for goroutine in dump.goroutines:
            dump.program.frames(goroutine.stack)
            dump.program.creation(goroutine.created_by)
        return dump


@pytest.mark.live
@each_toolchain
def test_core_file_has_the_goroutines(toolchain: Toolchain, tmp_path: Path) -> None:
    assert_core_has_them(build(PARKED, toolchain, flags=BUILD_MODES["stripped"]), tmp_path)


@pytest.mark.live
def test_core_file_says_where_a_program_was(tmp_path: Path) -> None:
    assert_core_has_them(build(PARKED, newest(), flags=BUILD_MODES["pie"]), tmp_path)


def assert_core_has_them(program: Path, tmp_path: Path) -> None:
    core = tmp_path / "core"
    with Fixture([program]) as fixture:
        write_core(fixture.ready, core)
        own = parse(fixture.work("dump")["Stacks"])
        assert fixture.finish() == 0
    assert "\n".join(differences(own, read(core, program))) == ""


def parked_library() -> Path:
    flags, env = ["-buildmode=c-shared", "-ldflags=-s -w"], {"CGO_ENABLED": "1"}
    return build(PARKED_CGO, newest(), flags=flags, env=env, name="live_parked.so")


@pytest.mark.live
@pytest.mark.parametrize("given", ["library", "host"])
def test_core_file_of_a_c_program_with_a_go_library(given: str, tmp_path: Path) -> None:
    library = parked_library()
    host, core = tmp_path / "host", tmp_path / "core"
    source = FIXTURES / "live_parked_host" / "main.c"
    subprocess.run(["gcc", "-O1", "-o", host, source, "-ldl"], check=True)
    with Fixture([host, library]) as fixture:
        write_core(fixture.ready, core)
        own = parse(fixture.work("dump")["Stacks"])
        assert fixture.finish() == 0
    found = read(core, library if given == "library" else host).goroutines
    ours = {goroutine.goid for goroutine in found if not goroutine.is_system}
    assert ours == own.keys() and len(ours) > 3


@pytest.mark.live
def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    program = build(PARKED, newest())
    pie = build(PARKED, newest(), flags=BUILD_MODES["pie"])
    library = parked_library()
    core, blind = tmp_path / "core", tmp_path / "blind"
    with Fixture([pie]) as fixture:
        write_core(fixture.ready, core)
        write_core(fixture.ready, blind, auxv=False)
        assert fixture.finish() == 0
    cut, many, far = (tmp_path / name for name in ("cut", "many", "far"))
    cut.write_bytes(core.read_bytes()[:100])
    damaged = bytearray(core.read_bytes()[:4096])
    damaged[56:58] = b"\xff\xff"  # e_phnum: the number is in the first section's sh_info
    far.write_bytes(damaged[:40] + b"\xff" * 8 + damaged[48:])  # e_shoff
    damaged[40:48] = (60).to_bytes(8, "little")
    damaged[104:108] = b"\xff" * 4
    many.write_bytes(damaged)
    # A C program: with symbols, unlike that of the distribution, which may have none.
    other = tmp_path / "other"
    subprocess.run(["gcc", "-o", other, "-x", "c", "-"], input=b"int main() {}", check=True)
    refused = {
        (core, program): "is not a core file of .*, or lacks its memory",
        (core, library): r"does not say where .* was \(NT_FILE\)",
        (core, other): "is not a core file of",
        (blind, pie): "does not say where the program was",
        (cut, pie): "the core file is damaged or cut off",
        (far, pie): "the core file is damaged or cut off",
        (many, pie): "the core file is damaged: it claims 4294967295 segments",
        (tmp_path / "none", pie): "none: cannot open: No such file or directory",
        (program, program): "is an ELF file, but not a core file",
        (Path(__file__), program): "is not a core file",
        (core, Path("/bin/true")): "no Go function table|is not a core file of",
    }
    for (first, second), reason in refused.items():
        with pytest.raises(GotraceError, match=reason):
            read(first, second)


@pytest.mark.live
def test_damaged_core_files_give_a_result_or_an_error(tmp_path: Path) -> None:
    program = build(PARKED, newest(), flags=BUILD_MODES["stripped"])
    core = tmp_path / "core"
    with Fixture([program]) as fixture:
        write_core(fixture.ready, core)
        assert fixture.finish() == 0
    chance = random.Random(1)
    with core.open("r+b") as file:
        head = file.read(4096)
        heap = int.from_bytes(head[64 + 56 * 2 + 8 : 64 + 56 * 2 + 16], "little")
        for _ in range(20):
            damaged = bytearray(head)
            for _ in range(chance.randrange(1, 8)):
                damaged[chance.randrange(6, len(damaged))] = chance.randrange(256)
            file.seek(0)
            file.write(damaged)
            file.flush()
            with contextlib.suppress(GotraceError):
                read(core, program)
        file.seek(0)
        file.write(head)
        for _ in range(20):  # and the goroutines themselves
            file.seek(heap + chance.randrange(1 << 19))
            file.write(chance.randbytes(64))
            file.flush()
            with contextlib.suppress(GotraceError):
                read(core, program)
        file.truncate(8192)
    with pytest.raises(GotraceError):
        read(core, program)
