# SPDX-License-Identifier: Apache-2.0
"""Keep compiled programs, and use none that another user could have made or that is damaged."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from gotrace import kept
from gotrace.kernel import compiling, program_cache
from gotrace.kernel.compiler import Compiled, LoadError, MapShape, NoCompilerError, file_state
from gotrace.kernel.program_cache import cached_program, cached_programs, fresh_program
from gotrace.settings import CountSettings, SiteSettings, TrialSettings
from tests.live import skip_or_fail

SETTINGS = CountSettings(site=SiteSettings(tgid=1), counters=1)
MAPS = (MapShape("counts", 6, 4, 8, 1, 0),)
PROGRAM = Compiled("GPL", MAPS, {"on_entry": bytes(range(64)), "other": b"\x95" + bytes(7)})


class Compiler:
    """Stands in for BCC; counts what it compiles."""

    def __init__(self) -> None:
        self.calls = 0
        self.there = True
        self.compiled = PROGRAM

    def __call__(self, settings: object, arch: object) -> Compiled:
        if not self.there:
            raise NoCompilerError("no BCC")
        self.calls += 1
        return self.compiled


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Here, and not in a process of its own as in the daemon and in commands, which are told."""
    compiler = Compiler()
    monkeypatch.setattr(program_cache, "compile_program", compiler)
    monkeypatch.setattr(program_cache, "_apart", False)
    monkeypatch.setattr(compiling, "_told", [])
    return compiler


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gotrace" / "bpf"


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_was_compiled_is_not_compiled_again(compiler: Compiler, folder: Path) -> None:
    assert cached_program(SETTINGS) == PROGRAM
    other_run = replace(SETTINGS, site=SiteSettings(tgid=2), counters=100)
    assert cached_program(other_run) == PROGRAM
    assert compiler.calls == 1
    cached_program(SETTINGS.by_address(1))  # another shape
    assert compiler.calls == 2
    assert len(list(folder.iterdir())) == 2


def test_a_run_that_compiles_is_told_before(
    compiler: Compiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(compiling, "_told", [])
    compiling.tell_of_compiling(lambda: told.append(compiler.calls))
    cached_program(SETTINGS)
    cached_program(SETTINGS)
    assert told == [0]


def test_folder_and_files_are_for_their_owner_alone(compiler: Compiler, folder: Path) -> None:
    cached_program(SETTINGS)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert only_file(folder).stat().st_mode & 0o777 == 0o600


def test_anything_can_be_removed_at_any_moment(compiler: Compiler, folder: Path) -> None:
    cached_program(SETTINGS)
    only_file(folder).unlink()
    assert cached_program(SETTINGS) == PROGRAM
    only_file(folder).unlink()
    folder.rmdir()
    assert cached_program(SETTINGS) == PROGRAM
    assert compiler.calls == 3


def test_another_compiler_compiles_again(compiler: Compiler, folder: Path, tmp_path: Path) -> None:
    library = tmp_path / "libbcc.so"
    library.write_text("1")
    state = file_state(str(library))
    assert state is not None
    compiler.compiled = replace(PROGRAM, made_by=(state,))
    cached_program(SETTINGS)
    cached_program(SETTINGS)
    assert compiler.calls == 1
    library.write_text("another")
    cached_program(SETTINGS)
    assert compiler.calls == 2
    library.unlink()
    cached_program(SETTINGS)
    assert compiler.calls == 3
    compiler.there = False  # better by another one than not at all
    assert cached_program(SETTINGS) == compiler.compiled


def test_another_kernel_compiles_again_where_it_can(
    compiler: Compiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_program(SETTINGS)
    monkeypatch.setattr(program_cache, "_kernel", lambda: "0" * 8)
    compiler.there = False
    assert cached_program(SETTINGS) == PROGRAM
    compiler.there = True
    cached_program(SETTINGS)
    assert compiler.calls == 2
    assert len(list(folder.iterdir())) == 2


def test_without_a_compiler_and_without_a_kept_program(compiler: Compiler, folder: Path) -> None:
    compiler.there = False
    with pytest.raises(NoCompilerError):
        cached_program(SETTINGS)
    assert list(folder.iterdir()) == []


def test_fresh_program_is_compiled_and_kept(compiler: Compiler, folder: Path) -> None:
    fresh_program(SETTINGS)
    fresh_program(SETTINGS)
    cached_program(SETTINGS)
    assert compiler.calls == 2


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def flip_digest(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(8))


def other_format(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"program 1", b"program 0", 1))


def link(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def writable(path: Path) -> None:
    path.chmod(0o622)


def fill(path: Path) -> None:
    os.truncate(path, 1 << 40)


DAMAGES = (cut, empty, flip, flip_digest, lengthen, other_format, link, pipe, writable, fill)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_file_is_not_used_and_replaced(
    damage: object, compiler: Compiler, folder: Path
) -> None:
    assert callable(damage)
    cached_program(SETTINGS)
    damage(only_file(folder))
    assert cached_program(SETTINGS) == PROGRAM
    assert cached_program(SETTINGS) == PROGRAM
    assert compiler.calls == 2
    assert not only_file(folder).is_symlink()


def test_directory_in_place_of_a_file_is_left_alone(compiler: Compiler, folder: Path) -> None:
    cached_program(SETTINGS)
    directory(only_file(folder))
    assert cached_program(SETTINGS) == PROGRAM
    assert only_file(folder).is_dir()


@pytest.fixture
def as_root() -> None:
    if os.geteuid():
        skip_or_fail("only root can give files away")


@pytest.mark.usefixtures("as_root")
def test_file_of_another_owner_is_not_used(compiler: Compiler, folder: Path) -> None:
    cached_program(SETTINGS)
    os.chown(only_file(folder), 1, 1)
    cached_program(SETTINGS)
    assert compiler.calls == 2
    assert only_file(folder).stat().st_uid == os.geteuid()


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("up", [0, 1, 2])
def test_folder_of_another_owner_is_not_used(up: int, compiler: Compiler, folder: Path) -> None:
    cached_program(SETTINGS)
    os.chown([folder, *folder.parents][up], 1, 1)
    cached_program(SETTINGS)
    assert compiler.calls == 2
    refused = cached_programs().refused
    assert [path for path, _ in refused] == [folder]
    assert "belongs to another user" in refused[0][1]


@pytest.mark.parametrize("up", [0, 1, 2])
def test_folder_that_others_can_write_to_is_not_used(
    up: int, compiler: Compiler, folder: Path
) -> None:
    cached_program(SETTINGS)
    [folder, *folder.parents][up].chmod(0o777)
    cached_program(SETTINGS)
    assert compiler.calls == 2
    assert "others can write to" in cached_programs().refused[0][1]


@pytest.mark.parametrize("up", [0, 1])
def test_folder_is_not_followed_elsewhere(up: int, compiler: Compiler, folder: Path) -> None:
    cached_program(SETTINGS)
    place = [folder, *folder.parents][up]
    elsewhere = place.rename(place.parent / "elsewhere")
    place.symlink_to(elsewhere)
    cached_program(SETTINGS)
    assert compiler.calls == 2


@pytest.mark.usefixtures("as_root")
def test_home_of_the_caller_of_sudo_is_left_alone(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    for home in (theirs, own):
        (home / ".cache").mkdir(parents=True)
    for path in (theirs, theirs / ".cache"):
        os.chown(path, 1, 1)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(theirs))
    monkeypatch.setattr(kept, "_own_home", lambda: str(own))
    cached_program(SETTINGS)
    cached_program(SETTINGS)
    assert compiler.calls == 1
    assert list((theirs / ".cache").iterdir()) == []
    found = cached_programs()
    assert (found.path, found.programs) == (own / ".cache/gotrace/bpf", 1)
    assert [path for path, _ in found.refused] == [theirs / ".cache/gotrace/bpf"]


def test_nothing_is_kept_where_there_is_no_place(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cached_program(SETTINGS) == PROGRAM
    assert cached_program(SETTINGS) == PROGRAM
    assert compiler.calls == 2
    assert cached_programs().path is None


def test_nothing_is_left_of_what_could_not_be_written(
    compiler: Compiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files stands in for a full disk: both end a write in the middle."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        assert cached_program(SETTINGS) == PROGRAM
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert list(folder.iterdir()) == []
    cached_program(SETTINGS)
    assert compiler.calls == 2
    only_file(folder)


def test_starts_at_the_same_time_do_not_disturb_one_another(
    compiler: Compiler, folder: Path
) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: cached_program(SETTINGS), range(64)))
    assert found == [PROGRAM] * 64
    only_file(folder)


def test_room_is_bounded_and_what_was_used_last_stays(
    compiler: Compiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_cache, "_MAX_FILES", 3)
    trial = TrialSettings(fetch=1)
    shapes = (SETTINGS, SETTINGS.by_address(1), trial, trial.by_address(1))
    for number, shape in enumerate(shapes[:3]):
        cached_program(shape)
        newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (number, number))
    cached_program(shapes[0])  # used again: the second is now the oldest
    cached_program(shapes[3])
    assert (compiler.calls, len(list(folder.iterdir()))) == (4, 3)
    for shape in (shapes[0], shapes[2], shapes[3]):
        cached_program(shape)
    assert compiler.calls == 4
    monkeypatch.setattr(program_cache, "_MAX_BYTES", 1)
    fresh_program(trial)
    assert list(folder.iterdir()) == []


def test_what_was_never_finished_is_removed(compiler: Compiler, folder: Path) -> None:
    cached_program(SETTINGS)
    name = only_file(folder).name
    old, new = folder / f".{name}.{'0' * 16}", folder / f".{name}.{'1' * 16}"
    for path in (old, new, folder / "strange"):
        path.touch()
    os.utime(old, (0, 0))
    fresh_program(SETTINGS)
    assert {path.name for path in folder.iterdir()} == {name, new.name, "strange"}


@pytest.mark.live
def test_real_program_comes_back_as_it_was(folder: Path) -> None:
    compiled = fresh_program(SETTINGS)
    assert compiled.made_by  # the binding, libbcc, LLVM
    assert any("LLVM" in state or "libbcc" in state for state in compiled.made_by)
    assert cached_program(SETTINGS) == compiled


def test_a_process_of_its_own_compiles(
    compiler: Compiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program_cache.compile_apart()
    assert cached_program(SETTINGS) == PROGRAM
    assert compiler.calls == 0  # here
    assert only_file(folder).stat().st_size
    compiler.there = False
    with pytest.raises(NoCompilerError, match="no BCC"):
        cached_program(SETTINGS.by_address(1))
    monkeypatch.setattr(program_cache, "compile_program", lambda *_: os.kill(os.getpid(), 9))
    with pytest.raises(LoadError, match="was killed"):
        cached_program(SETTINGS.by_address(1))


def test_a_signal_ends_the_compiling_of_a_command(
    compiler: Compiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    def children() -> str:
        return Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text()

    told: list[str] = []
    before_it = children()
    monkeypatch.setattr(compiling, "_told", [lambda: told.append("compiling")])
    monkeypatch.setattr(program_cache, "compile_program", lambda *_: signal.pause())
    before = signal.signal(signal.SIGALRM, interrupt)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            cached_program(SETTINGS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert told == ["compiling"] and time.monotonic() - began < 30
    assert list(folder.iterdir()) == []
    assert children() == before_it
