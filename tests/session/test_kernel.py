"""Use BPF maps and attachments of the running kernel through bpf(2) itself."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from gotrace.session import kernel
from gotrace.session.program import AttachKind, LoadError, Program

pytestmark = pytest.mark.live

OFFSETS = ("G_STACK_HI", "G_M", "G_GOID", "G_SCHED_SP", "G_STARTPC", "G_GOPC", "M_CURG", "TLS_G")
ROOM = 1000


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    sizes = {"ROWS": 3, "HALVES": 2, "STRIPES": 5, "STACKS": 8, "FRAMES": ROOM, "GOROUTINES": 16}
    loaded = Program("latency.c", {**dict.fromkeys(OFFSETS, 0), **sizes})
    yield loaded
    loaded.close()


def frame(number: int) -> tuple[bytes, bytes]:
    """Return a key and a value of the map ``frames``."""
    return struct.pack("=QII", number, 1, 1), struct.pack("=QQQ", number, number + 1, number + 2)


def test_map_knows_its_shape(program: Program) -> None:
    frames = program.map("frames")
    assert (frames.key_size, frames.value_size, frames.max_entries) == (16, 24, ROOM)
    assert (frames.cpus, frames.stride) == (0, 24)
    per_cpu = program.map("diagnostics")
    assert per_cpu.stride == 8 * kernel.possible_cpus() == 8 * per_cpu.cpus
    assert program.map("histograms").max_entries == 3 * 2 * 5


def test_programs_are_loaded_for_links_where_bcc_cannot_ask_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """BCC before 0.25 cannot; what is loaded without it goes with the rest."""
    monkeypatch.setattr("gotrace.session.program._takes", lambda function, parameter: False)
    before = os.listdir("/proc/self/fd")
    loaded = Program("count.c", {"COUNTERS": 1})
    (number,) = loaded.load(["on_entry"], AttachKind.UPROBE_MULTI).values()
    assert os.readlink(f"/proc/self/fd/{number}") == "anon_inode:bpf-prog"
    with pytest.raises(OSError) as missing:  # any other program is EINVAL, before the file is
        kernel.link_uprobe_multi(number, str(tmp_path / "none"), [0], [0], 0)
    assert missing.value.errno in (errno.ENOENT, errno.EBADF)
    loaded.close()
    assert os.listdir("/proc/self/fd") == before


def test_hash_map_holds_what_is_put_in(program: Program) -> None:
    frames = program.map("frames")
    assert dict(frames.entries()) == {}
    expected = dict(frame(number) for number in range(ROOM))
    for key, value in expected.items():
        frames.update(key, value)
    assert dict(frames.entries()) == expected
    with pytest.raises(OSError) as full:
        frames.update(*frame(ROOM))
    assert full.value.errno == errno.E2BIG
    key, value = frame(7)
    assert frames.lookup(key) == value
    frames.delete(key)
    frames.delete(key)
    assert frames.lookup(key) is None
    del expected[key]
    assert dict(frames.entries()) == expected
    for key in expected:
        frames.delete(key)
    assert dict(frames.entries()) == {}


def test_array_is_read_at_once_as_one_by_one(program: Program) -> None:
    array = program.map("histograms")
    for index in (0, 13, 29):
        array.update(index.to_bytes(4, "little"), bytes([index + 1]) * array.value_size)
    values = array.read_array()
    assert len(values) == 30 * array.stride
    assert values == b"".join(value for _, value in array.array_range(0, 30))
    assert [index for index, value in array.array_range(0, 30) if any(value)] == [0, 13, 29]
    assert values[13 * array.stride] == 14


def test_array_is_read_where_there_is_no_batch(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = program.map("diagnostics")
    expected = array.read_array()
    assert len(expected) == array.max_entries * array.stride

    def refuse(*arguments: int) -> tuple[bytes, bytes]:
        raise OSError(524, "ENOTSUPP")

    monkeypatch.setattr(kernel, "map_lookup_batch", refuse)
    assert array.read_array() == expected


def test_empty_queue_has_nothing(program: Program) -> None:
    assert program.map("ended").pop() is None


def test_possible_cpus_are_those_that_the_kernel_lists() -> None:
    listed = len(list(Path("/sys/devices/system/cpu").glob("cpu[0-9]*")))
    assert kernel.possible_cpus() >= listed >= (os.cpu_count() or 1)


def test_attaching_where_there_is_no_file_or_no_code(program: Program, tmp_path: Path) -> None:
    fd = program.load(["on_goexit"], AttachKind.UPROBE_MULTI)["on_goexit"]
    with pytest.raises(OSError) as missing:
        kernel.link_uprobe_multi(fd, str(tmp_path / "none"), [0], [0], 0)
    assert missing.value.errno in (errno.ENOENT, errno.EBADF)
    with pytest.raises(OSError):
        kernel.open_uprobe(str(tmp_path / "none"), 0)


def test_program_that_does_not_compile_is_explained() -> None:
    with pytest.raises(LoadError, match=r"cannot compile bpf/latency\.c: .*error") as raised:
        Program("latency.c", {"ROWS": 1})
    assert "GOTRACE_" in raised.value.log


@pytest.mark.parametrize("options", range(8))
def test_every_variant_of_the_latency_program_passes_the_verifier(options: int) -> None:
    sizes = {"ROWS": 3, "HALVES": 2, "STRIPES": 2, "STACKS": 8, "FRAMES": 8}
    chosen = {"GOROUTINES": 16, "SLOWER": 1000, "UNIT": 1000}
    chosen = {name: size for bit, (name, size) in enumerate(chosen.items()) if options >> bit & 1}
    loaded = Program("latency.c", {**dict.fromkeys(OFFSETS, 0), **sizes, **chosen})
    try:
        for function in ("on_entry", "on_return", "on_recovery", "on_goexit"):
            assert loaded.load([function], AttachKind.PERF_EVENT)[function] >= 0
    finally:
        loaded.close()
