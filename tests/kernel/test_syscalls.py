# SPDX-License-Identifier: Apache-2.0
"""Use BPF maps and attachments of the running kernel through bpf(2) itself."""

from __future__ import annotations

import errno
import os
import struct
import threading
import tracemalloc
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gotrace.architecture import AMD64, HOST
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.attach import attach
from gotrace.kernel.btf import kernel_field
from gotrace.kernel.compiler import LoadError
from gotrace.kernel.instructions import EXIT, encode
from gotrace.kernel.own_function import own_function
from gotrace.kernel.program import AttachKind, BpfProgram
from gotrace.session import calibrate
from gotrace.session.waits.names import SyscallMeter
from gotrace.settings import CountSettings, HistogramSettings, LatencySettings
from gotrace.sites.records import SiteForm
from gotrace.target.process import Process
from gotrace.target.target import Target

pytestmark = pytest.mark.live

ROOM = 1000


@pytest.fixture(scope="module")
def program() -> Iterator[BpfProgram]:
    times = HistogramSettings.of(3, 2, 5)
    loaded = BpfProgram(LatencySettings(stacks=8, outer_calls=ROOM, times=times, goroutines=16))
    yield loaded
    loaded.close()


def frame(number: int) -> tuple[bytes, bytes]:
    """Return a key and a value of the map ``frames``."""
    return struct.pack("=QII", number, 1, 1), struct.pack("=6Q", *range(number, number + 6))


def test_map_knows_its_shape(program: BpfProgram) -> None:
    frames = program.map("outer_calls")
    assert (frames.key_size, frames.value_size, frames.max_entries) == (16, 48, ROOM)
    assert (frames.cpus, frames.stride) == (0, 48)
    per_cpu = program.map("diagnostics")
    assert per_cpu.stride == 8 * kernel.possible_cpus() == 8 * per_cpu.cpus
    assert program.map("histograms").max_entries == 3 * 2 * 5


def test_programs_are_loaded_for_links_and_unloaded(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    loaded = BpfProgram(CountSettings(counters=1))
    (number,) = loaded.load(["on_entry"], AttachKind.UPROBE_MULTI).values()
    assert os.readlink(f"/proc/self/fd/{number}") == "anon_inode:bpf-prog"
    with pytest.raises(OSError) as missing:  # any other program is EINVAL, before the file is
        kernel.link_uprobe_multi(number, str(tmp_path / "none"), [0], [0], 0)
    assert missing.value.errno in (errno.ENOENT, errno.EBADF)
    loaded.close()
    assert os.listdir("/proc/self/fd") == before


def test_hash_map_holds_what_is_put_in(program: BpfProgram) -> None:
    frames = program.map("outer_calls")
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


def test_array_is_read_at_once_as_one_by_one(program: BpfProgram) -> None:
    array = program.map("histograms")
    for index in (0, 13, 29):
        array.update(index.to_bytes(4, "little"), bytes([index + 1]) * array.value_size)
    words = array.value_size // 8
    sums = array.sums()
    assert len(sums) == 30 * words
    assert sums.tobytes() == b"".join(value for _, value in array.array_range(0, 30))
    assert [index for index, value in array.array_range(0, 30) if any(value)] == [0, 13, 29]
    assert sums[13 * words] == int.from_bytes(bytes([14]) * 8, "little")


@pytest.fixture(params=[1, 7, ROOM - 1, ROOM])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many entries a map of ``ROOM`` entries is read by, as with very many CPUs."""
    entries: int = request.param
    monkeypatch.setattr(kernel, "_CHUNK_ENTRIES", entries)
    monkeypatch.setattr(kernel, "_CHUNK_BYTES", 0)
    return entries


def test_chunks_of_an_array_stay_as_they_were_read(chunk: int) -> None:
    """Each of a program's counters on each CPU has a number of its own."""
    program = BpfProgram(CountSettings(counters=ROOM))
    counts = program.map("counts")
    values = [
        struct.pack(f"={counts.cpus}Q", *(index * 1000 + cpu for cpu in range(counts.cpus)))
        for index in range(ROOM)
    ]
    for index, value in enumerate(values):
        counts.update(index.to_bytes(4, "little"), value)
    chunks = list(kernel.map_lookup_batch(counts.fd, 4, counts.stride, ROOM))
    assert len(chunks) == -(-ROOM // chunk)
    assert b"".join(chunk for _, chunk in chunks) == b"".join(values)
    sums = [sum(struct.unpack(f"={counts.cpus}Q", value)) for value in values]
    assert counts.sums().tolist() == sums
    program.close()


def test_values_of_all_cpus_are_not_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 90,000 functions and 128 CPUs they are 92 MB."""
    monkeypatch.setattr(kernel, "_CHUNK_ENTRIES", 100)
    monkeypatch.setattr(kernel, "_CHUNK_BYTES", 0)
    program = BpfProgram(CountSettings(counters=50_000))
    counts = program.map("counts")
    tracemalloc.start()
    sums = counts.sums()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    program.close()
    assert most < 8 * len(sums) + 100 * (4 + counts.stride) * 4 + 50_000
    assert most < counts.max_entries * counts.stride


def test_chunks_of_a_hash_stay_as_they_were_read(
    program: BpfProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel returns whole buckets: a chunk has room for the longest."""
    monkeypatch.setattr(kernel, "_CHUNK_ENTRIES", 40)
    monkeypatch.setattr(kernel, "_CHUNK_BYTES", 0)
    frames = program.map("outer_calls")
    expected = dict(frame(number) for number in range(ROOM))
    for key, value in expected.items():
        frames.update(key, value)
    chunks = list(kernel.map_lookup_batch(frames.fd, frames.key_size, frames.stride, ROOM))
    assert len(chunks) >= ROOM // 40
    assert dict(frames.entries()) == expected
    for key in expected:
        frames.delete(key)


@pytest.mark.parametrize("has_batch", [True, False])
def test_array_is_written_at_once_as_one_by_one(
    program: BpfProgram, has_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = program.map("histograms")

    def refuse(*arguments: object) -> None:
        raise OSError(524, "ENOTSUPP")

    if not has_batch:
        monkeypatch.setattr(kernel, "map_update_batch", refuse)
    values = [bytes([number + has_batch]) * array.value_size for number in range(20)]
    array.update_array(7, values)
    array.update_array(0, [])
    assert [value for _, value in array.array_range(7, 20)] == values


def test_a_part_of_an_array_is_read_in_several_batches(
    program: BpfProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = program.map("histograms")
    monkeypatch.setattr(kernel, "_ARRAY_BYTES", 4 * (array.key_size + array.stride))
    values = [bytes([number + 1]) * array.value_size for number in range(array.max_entries)]
    array.update_array(0, values)
    for start in (0, 1, 7):
        for count in (0, 1, 3, 4, 5, 8, 9, array.max_entries - start):
            found = list(array.array_range(start, count))
            assert found == list(enumerate(values[start : start + count], start))


def test_array_is_read_where_there_is_no_batch(
    program: BpfProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = program.map("diagnostics")
    for index in range(array.max_entries):
        values = [index * 100 + cpu for cpu in range(array.cpus)]
        array.update(index.to_bytes(4, "little"), struct.pack(f"={array.cpus}Q", *values))
    expected = array.sums()
    assert expected[3] == sum(300 + cpu for cpu in range(array.cpus))

    def refuse(*arguments: int) -> tuple[bytes, bytes]:
        raise OSError(524, "ENOTSUPP")

    monkeypatch.setattr(kernel, "map_lookup_batch", refuse)
    assert array.sums() == expected
    for index in range(array.max_entries):
        array.update(index.to_bytes(4, "little"), bytes(array.stride))


def test_empty_queue_has_nothing(program: BpfProgram) -> None:
    assert program.map("ended").pop() is None


def test_possible_cpus_are_those_that_the_kernel_lists() -> None:
    listed = len(list(Path("/sys/devices/system/cpu").glob("cpu[0-9]*")))
    assert kernel.possible_cpus() >= listed >= (os.cpu_count() or 1)


def test_attaching_where_there_is_no_file_or_no_code(program: BpfProgram, tmp_path: Path) -> None:
    fd = program.load(["on_goexit"], AttachKind.UPROBE_MULTI)["on_goexit"]
    with pytest.raises(OSError) as missing:
        kernel.link_uprobe_multi(fd, str(tmp_path / "none"), [0], [0], 0)
    assert missing.value.errno in (errno.ENOENT, errno.EBADF)
    with pytest.raises(OSError):
        kernel.open_uprobe(str(tmp_path / "none"), 0)


def test_program_that_does_not_compile_is_explained() -> None:
    class Other(CountSettings):
        """Without the one setting that there must be."""

        def definitions(self) -> list[str]:
            return []

    with pytest.raises(LoadError, match=r"cannot compile bpf/count\.c: .*error") as raised:
        BpfProgram(Other(counters=1))
    assert "GOTRACE_COUNTERS" in raised.value.log


@pytest.mark.parametrize("options", range(8))
def test_every_variant_of_the_latency_program_passes_the_verifier(options: int) -> None:
    settings = LatencySettings(
        stacks=8,
        outer_calls=8,
        times=HistogramSettings.of(3, 2, 2, unit=1000 if options & 4 else 1),
        goroutines=16 if options & 1 else None,
        slower=1000 if options & 2 else None,
    )
    loaded = BpfProgram(settings)
    try:
        for function in ("on_entry", "on_return", "on_recovery", "on_goexit"):
            assert loaded.load([function], AttachKind.PERF_EVENT)[function] >= 0
    finally:
        loaded.close()


def test_programs_that_run_are_waited_for() -> None:
    """This one runs for a while: it tries to read from address 0, which faults, again and again."""
    begun, ended = 0, 8
    with ExitStack() as opened:

        def own(descriptor: int) -> int:
            opened.callback(os.close, descriptor)
            return descriptor

        counters = own(kernel.create_array_map(16))
        program = own(kernel.load_program(_slow_program(counters, begun, ended), b"GPL"))
        function = opened.enter_context(own_function(b"\x55\x5d\xc3"))
        own(kernel.link_uprobe_multi(program, function.path, [0], [0], os.getpid()))

        def count(place: int) -> int:
            values = kernel.map_lookup(counters, bytes(4), 16)
            assert values is not None
            return values[place]

        def call_and_wait(number: int) -> bool:
            """Return whether the program was still running when the wait began."""
            caller = threading.Thread(target=function.call)
            caller.start()
            while count(begun) < number:
                pass
            was_running = count(ended) < number
            kernel.wait_for_programs()
            assert count(ended) == number
            caller.join()
            return was_running

        assert any(call_and_wait(number) for number in range(1, 51))


def _slow_program(counters: int, begun: int, ended: int) -> bytes:
    def count(place: int) -> list[int]:
        # r1 = address of the map's value; r2 = 1; lock *(u64 *)(r1 + 0) += r2
        return [0x2118 | counters << 32, place << 32, 0x02B7 | 1 << 32, 0x21DB]

    body = [
        0xA1BF,  # r1 = r10
        0x0107 | (-8 & 0xFFFFFFFF) << 32,  # r1 += -8
        0x02B7 | 8 << 32,  # r2 = 8
        0x03B7,  # r3 = 0
        0x0085 | 112 << 32,  # call bpf_probe_read_user
        0x0607 | (-1 & 0xFFFFFFFF) << 32,  # r6 += -1
    ]
    again = 0x0655 | (-len(body) - 1 & 0xFFFF) << 16  # if r6 != 0 goto the first of them
    loop = [0x06B7 | 100_000 << 32, *body, again]  # r6 = 100,000
    return array("Q", [*count(begun), *loop, *count(ended), 0x00B7, 0x0095]).tobytes()


def test_runs_of_programs_are_counted_while_that_is_asked_for() -> None:
    with calibrate._empty_function(SiteForm.EMULATED) as (function, entry, _):
        groups = [calibrate._group(function, "on_entry", entry)]
        attached = attach(CountSettings(site=calibrate._here(), counters=1), groups)
        counting = kernel.enable_statistics()
        try:
            function.call()
            found = kernel.program_statistics(attached.functions["on_entry"])
            assert found.runs == sum(attached.program.map("counts").sums()) > 0
            assert found.ns > 0 and found.skipped == attached.program.skipped() == 0
        finally:
            os.close(counting)
            attached.close()


def test_kernels_structs_are_as_their_own_types_have_them() -> None:
    at = kernel._STATISTICS_AT
    fields = ("run_time_ns", "run_cnt", "recursion_misses")
    assert [kernel_field(("bpf_prog_info", field)) for field in fields] == [at, at + 8, at + 16]
    # struct syscall_event of bpf/syscalls.c
    for event, field in (("enter", "args"), ("exit", "ret")):
        row = f"trace_event_raw_sys_{event}"
        assert [kernel_field((row, name)) for name in ("id", field)] == [8, 16]


def test_tracepoint_has_its_number() -> None:
    """Whether tracefs is mounted or not: the kernel says which tracepoint an event is at."""
    with ExitStack() as opened:
        number = kernel.tracepoint_number("raw_syscalls/sys_exit")
        event = kernel.open_tracepoint(number)
        opened.callback(os.close, event)
        program = kernel.load_program(_EMPTY, b"GPL", kernel.PROGRAM_TRACEPOINT, 0)
        opened.callback(os.close, program)
        kernel.set_perf_event_program(event, program)
        name = bytearray(32)
        asked = (os.getpid(), event, 0, len(name), kernel._address(name), 0, 0, 0, 0)
        kernel._bpf(_TASK_FD_QUERY, bytearray(struct.pack("=IIIIQIIQQ", *asked)))
        assert name.rstrip(b"\0") == b"sys_exit"
    with pytest.raises(FileNotFoundError):
        kernel.tracepoint_number("raw_syscalls/none")


@pytest.mark.skipif(HOST is not AMD64, reason="the code is for amd64")
def test_programs_that_the_kernel_passes_by_are_counted() -> None:
    """A program follows frame pointers; one that leads nowhere faults, where it is to run again."""
    opened = ExitStack()
    meter = opened.enter_context(SyscallMeter(Target(process=Process(os.getpid())), None))
    with opened, own_function(_LEADS_NOWHERE) as function:
        program = meter.attached.program
        for loaded in program._loaded:
            opened.callback(os.close, kernel.open_raw_tracepoint("page_fault_kernel", loaded))
        before = meter.skipped()
        for _ in range(7):
            function.call()
        assert meter.skipped() >= before + 7
        meter.stop()
        last = meter.skipped()
        function.call()
        assert meter.skipped() == last == program.skipped()


#: push %rbp; mov $0x1000,%ebp; mov $110,%eax (getppid); syscall; pop %rbp; ret
_LEADS_NOWHERE = bytes.fromhex("55 bd00100000 b86e000000 0f05 5d c3")
_EMPTY = encode((0xB7, 0x00, 0, 0), (EXIT, 0, 0, 0))  # r0 = 0
_TASK_FD_QUERY = 20
