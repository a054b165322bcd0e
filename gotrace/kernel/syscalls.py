# SPDX-License-Identifier: Apache-2.0
"""Call bpf(2) and perf_event_open(2) where BCC has no binding, or one that loses the cookie.

Layouts: include/uapi/linux/bpf.h (union bpf_attr) and include/uapi/linux/perf_event.h (struct
perf_event_attr).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from fcntl import ioctl
from functools import cache
from pathlib import Path

from gotrace.architecture import HOST
from gotrace.errors import GotraceError
from gotrace.kernel.instructions import EXIT, INSTRUCTION, LD_IMM64, encode
from gotrace.records import dataclass

ATTACH_TYPE_UPROBE_MULTI = 48
_ATTACH_TYPE_PERF_EVENT = 41
# BPF_PROG_TYPE_...
PROGRAM_KPROBE, PROGRAM_TRACEPOINT, PROGRAM_PERF_EVENT, PROGRAM_RAW_TRACEPOINT = 2, 5, 7, 17
PROGRAM_SLEEPS = 1 << 4  # BPF_F_SLEEPABLE

# Of a machine that is not known, numbers for which there is no call.
_SYS_BPF = HOST.bpf if HOST else -1
_SYS_PERF_EVENT_OPEN = HOST.perf_event_open if HOST else -1
_MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE, _MAP_POP = 1, 2, 3, 21
_MAP_LOOKUP_BATCH, _MAP_UPDATE_BATCH = 24, 26
_BTF_LOAD = 18
_OBJECT_INFO, _ENABLE_STATS = 15, 32
_MAP_CREATE, _PROG_LOAD, _RAW_TRACEPOINT_OPEN, _LINK_CREATE = 0, 5, 17, 28
_MAP_TYPE_ARRAY, _MAP_TYPE_ARRAY_OF_MAPS = 2, 12
_PERF_FLAG_FD_CLOEXEC = 8
_PERF_ATTR_SIZE = 128
_FUNCTION_INFO_SIZE = 8
_LOG_BYTES = 1 << 16
_IOC_ENABLE, _IOC_SET_BPF = 0x2400, 0x40042408
_POSSIBLE_CPUS = Path("/sys/devices/system/cpu/possible")
_ONLINE_CPUS = Path("/sys/devices/system/cpu/online")
_PERF_TYPE_SOFTWARE, _PERF_COUNT_SW_BPF_OUTPUT, _PERF_SAMPLE_RAW = 1, 10, 1 << 10
_PERF_DISABLED, _PERF_BACKWARD = 1, 1 << 27
#: Kinds of software events (enum perf_sw_ids).
CPU_CLOCK = 0
_PERF_TYPE_TRACEPOINT = 2
# The same on all machines.
_FSOPEN, _FSCONFIG, _FSMOUNT, _FSCONFIG_CREATE, _CLOSE_ON_EXEC = 430, 431, 432, 6, 1
_UPROBE_PMU = Path("/sys/bus/event_source/devices/uprobe/type")

_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes | bytearray) -> int:
    kind = ctypes.c_char * len(attributes)
    # Bytes that the kernel writes into a bytearray count, whatever the result.
    is_written = isinstance(attributes, bytearray)
    buffer = kind.from_buffer(attributes) if is_written else kind.from_buffer_copy(attributes)
    result: int = _libc.syscall(_SYS_BPF, command, buffer, len(attributes))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _address(buffer: array[int] | bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@cache
def possible_cpus() -> int:
    """Return the number of CPUs for which the kernel keeps a per-CPU map's values.

    Source: /sys/devices/system/cpu/possible, a list of ranges such as ``0-3,8``. Raises
    GotraceError where it cannot be read: a guess would let the kernel write behind a buffer.
    """
    return len(_cpus(_POSSIBLE_CPUS, "find how many CPUs the kernel keeps values for"))


def online_cpus() -> list[int]:
    """Return the CPUs that run now. Raises GotraceError where that cannot be read."""
    return _cpus(_ONLINE_CPUS, "find which CPUs are online")


def _cpus(path: Path, what: str) -> list[int]:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise GotraceError(
            f"cannot {what}: {path}: {error.strerror}: mount sysfs there (a container needs all of"
            " /sys)"
        ) from error
    ranges = [part.split("-") for part in text.split(",")]
    return [cpu for r in ranges for cpu in range(int(r[0]), int(r[-1]) + 1)]


def link_uprobe_multi(
    program: int, path: str, offsets: Sequence[int], cookies: Sequence[int], pid: int
) -> int:
    """Attach a program to many places of one file and return the link's descriptor.

    ``offsets`` are file offsets, ``cookies`` what ``bpf_get_attach_cookie`` gives there; ``pid`` 0
    means every process. All are removed when the descriptor is closed, however the process ends.
    Raises OSError: EINVAL where the kernel (before 6.6) does not know the attachment, ESRCH, and
    what registering one of the places gave. Source: kernel commit 89ae89f53d20.
    """
    c_path = ctypes.create_string_buffer(os.fsencode(path))
    c_offsets, c_cookies = array("Q", offsets), array("Q", cookies)
    attributes = struct.pack(
        "=IIIIQQQQIII",
        *(program, 0, ATTACH_TYPE_UPROBE_MULTI, 0),
        *(ctypes.addressof(c_path), _address(c_offsets), 0, _address(c_cookies)),
        *(len(c_offsets), 0, pid),
    )
    return _bpf(_LINK_CREATE, attributes)


def enable_statistics() -> int:
    """Count and time the runs of BPF programs while the descriptor is open.

    That costs each run some 20 ns. Raises OSError: EINVAL before Linux 5.8, EPERM without
    CAP_SYS_ADMIN. Source: kernel commit d46edd671a14.
    """
    return _bpf(_ENABLE_STATS, struct.pack("=I", 0))  # BPF_STATS_RUN_TIME


_STATISTICS = struct.Struct("=QQQ")  # of struct bpf_prog_info: run_time_ns to recursion_misses
_STATISTICS_AT = 192


@dataclass(frozen=True, slots=True)
class ProgramStatistics:
    """How often a loaded program has run while that was counted, for how many ns, and was skipped.

    ``skipped`` is counted at all times: how often the kernel passed the program by, since it or
    another one was in the middle of running on that CPU. It is 0 before Linux 5.12 (commit
    9ed9e9ba2337), and up to 6.6 (dd8657894c11) for programs that are not at raw tracepoints.
    """

    runs: int
    ns: int
    skipped: int


def program_statistics(program: int) -> ProgramStatistics:
    """Return the kernel's counts for a loaded program. Raises OSError."""
    info = bytearray(_STATISTICS_AT + _STATISTICS.size)
    _bpf(_OBJECT_INFO, struct.pack("=IIQ", program, len(info), _address(info)))
    ns, runs, skipped = _STATISTICS.unpack_from(info, _STATISTICS_AT)
    return ProgramStatistics(runs, ns, skipped)


def open_raw_tracepoint(name: str, program: int) -> int:
    """Attach a program to a tracepoint of the kernel and return the descriptor that keeps it there.

    Raises OSError: ENOENT where there is no such tracepoint, EINVAL where the program reads more
    arguments than that has. Needs no tracefs. Source: bpf_raw_tracepoint_open in
    kernel/bpf/syscall.c.
    """
    c_name = ctypes.create_string_buffer(name.encode())
    attributes = struct.pack("=QI", ctypes.addressof(c_name), program)
    return _bpf(_RAW_TRACEPOINT_OPEN, attributes)


def tracepoint_number(name: str) -> int:
    """Return the number under which perf events know a tracepoint, as ``raw_syscalls/sys_enter``.

    It is in tracefs, of which this opens an instance of its own, as it may not be mounted. Raises
    OSError: ENOSYS before Linux 5.2, EPERM without CAP_SYS_ADMIN.
    """
    with ExitStack() as opened:

        def call(number: int, *arguments: int | bytes | None) -> int:
            result: int = _libc.syscall(number, *arguments)
            if result < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            return result

        context = call(_FSOPEN, b"tracefs", _CLOSE_ON_EXEC)
        opened.callback(os.close, context)
        call(_FSCONFIG, context, _FSCONFIG_CREATE, None, None, 0)
        mount = call(_FSMOUNT, context, _CLOSE_ON_EXEC, 0)
        opened.callback(os.close, mount)
        file = os.open(f"events/{name}/id", os.O_RDONLY | os.O_CLOEXEC, dir_fd=mount)
        opened.callback(os.close, file)
        return int(os.read(file, 32))


def open_tracepoint(number: int) -> int:
    """Open a perf event for a tracepoint, on all CPUs for its program, and return it.

    ``number`` is ``tracepoint_number``'s. Raises OSError.
    """
    attributes = struct.pack("=IIQQ", _PERF_TYPE_TRACEPOINT, _PERF_ATTR_SIZE, number, 1)
    return _perf_event_open(attributes, 0)


def create_array_map(value_size: int) -> int:
    """Create a BPF array of one entry and return its descriptor. Raises OSError."""
    return _bpf(_MAP_CREATE, struct.pack("=IIII", _MAP_TYPE_ARRAY, 4, value_size, 1))


def create_map(
    kind: int, key_size: int, value_size: int, max_entries: int, flags: int, name: str
) -> int:
    """Create a BPF map and return its descriptor; parameters as for bpf(2). Raises OSError."""
    attributes = struct.pack(
        "=IIIIIII16s", kind, key_size, value_size, max_entries, flags, 0, 0, name.encode()[:15]
    )
    return _with_memory(_MAP_CREATE, attributes)


def wait_for_programs() -> None:
    """Return once every BPF program that runs now has ended, those of other tasks on all CPUs.

    That is what an update of a map of maps does: synchronize_rcu. Programs of uprobes run within a
    read-side section, also where they can be preempted. Sources: maybe_wait_bpf_programs in
    kernel/bpf/syscall.c (Linux 5.0, commit 1ae80cf31938), bpf_prog_run_array_uprobe in
    include/linux/bpf.h, uprobe_prog_run in kernel/trace/bpf_trace.c. Raises OSError.
    """
    with ExitStack() as opened:
        inner = create_array_map(8)
        opened.callback(os.close, inner)
        attributes = struct.pack("=IIIIII", _MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 1, 0, inner)
        outer = _bpf(_MAP_CREATE, attributes)
        opened.callback(os.close, outer)
        map_update(outer, bytes(4), inner.to_bytes(4, "little"))


def load_counting_program(counter: int) -> int:
    """Load a uprobe-multi program that adds one to the first value of an array map.

    Needs no compiler. Raises OSError.
    """
    instructions = encode(
        (LD_IMM64, 0x21, 0, counter),  # r1 = address of the map's value (two slots)
        (0, 0, 0, 0),
        (0xB7, 0x02, 0, 1),  # r2 = 1
        (0xDB, 0x21, 0, 0),  # lock *(u64 *)(r1 + 0) += r2
        (0xB7, 0x00, 0, 0),  # r0 = 0
        (EXIT, 0, 0, 0),
    )
    return load_program(instructions, b"GPL")


def load_program(
    instructions: bytes,
    license_text: bytes,
    kind: int = PROGRAM_KPROBE,
    attach_type: int = ATTACH_TYPE_UPROBE_MULTI,
    name: str = "",
    log: bytearray | None = None,
    types: int = 0,
    functions: bytes = b"",
    flags: int = 0,
) -> int:
    """Load a program and return its descriptor; by default one for uprobe-multi links.

    ``kind``, ``attach_type`` and ``flags`` are the UAPI's, ``name`` is what bpftool shows. The
    verifier writes to ``log``, a text that ends with a zero byte. Where there are several
    functions, ``functions`` says where each begins and what type it has among ``types`` (struct
    bpf_func_info). Raises OSError: EINVAL where the kernel (before 6.6) has no such links, EACCES
    and others where the verifier refuses the program, ENOSPC where its log has no room.
    """
    code = ctypes.create_string_buffer(instructions, len(instructions))
    words = ctypes.create_string_buffer(license_text)
    logging = (1, len(log), _address(log)) if log else (0, 0, 0)
    of_functions = ctypes.create_string_buffer(functions, len(functions))
    attributes = struct.pack(
        "=IIQQIIQII16sIIIIQI4x",
        *(kind, len(instructions) // INSTRUCTION.size),
        *(ctypes.addressof(code), ctypes.addressof(words), *logging, _version(), flags),
        *(name.encode()[:15], 0, attach_type),
        *(types, _FUNCTION_INFO_SIZE if functions else 0),
        ctypes.addressof(of_functions) if functions else 0,
        len(functions) // _FUNCTION_INFO_SIZE,
    )
    return _with_memory(_PROG_LOAD, attributes)


def load_types(types: bytes) -> int:
    """Load BTF, and return its descriptor. Raises OSError."""
    data = ctypes.create_string_buffer(types, len(types))
    attributes = struct.pack("=QQII", ctypes.addressof(data), 0, len(types), 0)
    return _with_memory(_BTF_LOAD, attributes)


@cache
def _version() -> int:
    """Return the kernel's version as LINUX_VERSION_CODE has it, which is asked for before 5.0."""
    major, minor, *rest = re.findall(r"\d+", os.uname().release)
    patch = int(rest[0]) if rest else 0
    return int(major) << 16 | int(minor) << 8 | min(patch, 255)


def _with_memory(command: int, attributes: bytes) -> int:
    """Call bpf(2), with no limit on locked memory where there may be too little.

    Before Linux 5.11 (commit 5b29d26b39ad) maps and programs count as locked memory, which is
    reported as EPERM.
    """
    try:
        return _bpf(command, attributes)
    except PermissionError:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        if resource.getrlimit(resource.RLIMIT_MEMLOCK) == unlimited:
            raise
        with suppress(OSError, ValueError):  # not permitted either
            resource.setrlimit(resource.RLIMIT_MEMLOCK, unlimited)
        return _bpf(command, attributes)


def verifier_log(instructions: bytes) -> str | None:
    """Return the verifier's log on a refused program of the kprobe type, None if it accepts it.

    Raises OSError where the kernel does not get so far: EPERM.
    """
    code = ctypes.create_string_buffer(instructions, len(instructions))
    log, words = ctypes.create_string_buffer(_LOG_BYTES), ctypes.create_string_buffer(b"GPL")
    attributes = struct.pack(
        "=IIQQIIQ",
        *(PROGRAM_KPROBE, len(instructions) // INSTRUCTION.size),
        *(ctypes.addressof(code), ctypes.addressof(words)),
        *(1, _LOG_BYTES, ctypes.addressof(log)),
    )
    try:
        os.close(_bpf(_PROG_LOAD, attributes.ljust(72, b"\0")))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EACCES):
            raise
        return log.value.decode(errors="replace")
    return None


def open_uprobe(path: str, offset: int) -> int:
    """Open a perf event for a uprobe at a file offset, in every process, and return it.

    Raises OSError as perf_event_open(2), ENOENT where the kernel has no uprobe PMU (before 4.17).
    """
    try:
        pmu = int(_UPROBE_PMU.read_text(encoding="ascii"))
    except FileNotFoundError:
        raise OSError(errno.ENOENT, "the kernel has no uprobe event source") from None
    c_path = ctypes.create_string_buffer(os.fsencode(path))
    attributes = struct.pack("=IIQQ", pmu, _PERF_ATTR_SIZE, 0, 1).ljust(56, b"\0")
    attributes += struct.pack("=QQ", ctypes.addressof(c_path), offset)
    return _perf_event_open(attributes, 0)


def _perf_event_open(attributes: bytes, cpu: int) -> int:
    """Open a perf event of every process on a CPU. Raises OSError."""
    fd: int = _libc.syscall(
        _SYS_PERF_EVENT_OPEN,
        attributes.ljust(_PERF_ATTR_SIZE, b"\0"),
        -1,
        cpu,
        -1,
        ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC),
    )
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


def open_bpf_output(cpu: int, backward: bool = False) -> int:
    """Open the perf event through which BPF programs on a CPU write records, and return it.

    With ``wakeup_events`` 0, as here, no record wakes a reader. ``backward``: each record is
    written before the one that was written last. Raises OSError.
    """
    attributes = struct.pack(
        "=IIQQQQQ",
        *(_PERF_TYPE_SOFTWARE, _PERF_ATTR_SIZE, _PERF_COUNT_SW_BPF_OUTPUT),
        *(1, _PERF_SAMPLE_RAW, 0, _PERF_BACKWARD if backward else 0),
    )
    fd = _perf_event_open(attributes, cpu)
    try:
        ioctl(fd, _IOC_ENABLE, 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def open_software_event(cpu: int, number: int, period: int) -> int:
    """Open a perf event of a CPU, at every ``period`` of what it counts, and return it.

    It does not count yet. Raises OSError, EINVAL of CPU_CLOCK, which counts ns, if
    kernel.perf_event_max_sample_rate is below that.
    """
    attributes = struct.pack(
        "=IIQQQQQ",
        *(_PERF_TYPE_SOFTWARE, _PERF_ATTR_SIZE, number),
        *(period, 0, 0, _PERF_DISABLED),
    )
    return _perf_event_open(attributes, cpu)


def link_perf_event(program: int, event: int, cookie: int) -> int:
    """Attach a program to an open perf event with a cookie and return the link's descriptor.

    Raises OSError, EINVAL where the kernel (before 5.15) has no such link. Source: kernel commit
    82e6b1eee6a8.
    """
    return _bpf(
        _LINK_CREATE,
        struct.pack("=IIIIQ", program, event, _ATTACH_TYPE_PERF_EVENT, 0, cookie),
    )


def set_perf_event_program(event: int, program: int) -> None:
    """Attach a program, without a cookie, to an open perf event for as long as that is open."""
    ioctl(event, _IOC_SET_BPF, program)
    ioctl(event, _IOC_ENABLE, 0)


def map_update(fd: int, key: bytes, value: bytes) -> None:
    """Store a value in a BPF map. Raises OSError, E2BIG when the map is full."""
    c_key, c_value = bytearray(key), bytearray(value)
    _bpf(_MAP_UPDATE, struct.pack("=IIQQQ", fd, 0, _address(c_key), _address(c_value), 0))


def map_push(fd: int, value: bytes) -> None:
    """Put a value into a BPF queue. Raises OSError, E2BIG when it is full."""
    c_value = bytearray(value)
    _bpf(_MAP_UPDATE, struct.pack("=IIQQQ", fd, 0, 0, _address(c_value), 0))


def map_update_batch(fd: int, keys: bytes, values: bytes, count: int) -> None:
    """Store ``count`` entries in a BPF map, their keys and their values one after the other.

    Raises OSError, EINVAL or ENOTSUPP where the kernel has no batch operation (before 5.6).
    """
    c_keys, c_values = bytearray(keys), bytearray(values)
    attributes = struct.pack(
        "=QQQQIIQQ", 0, 0, _address(c_keys), _address(c_values), count, fd, 0, 0
    )
    _bpf(_MAP_UPDATE_BATCH, attributes)


def map_lookup(fd: int, key: bytes, value_size: int) -> bytes | None:
    """Return a value of a BPF map, or None where the key is not in it.

    ``value_size`` is what the kernel writes: for a per-CPU map the value's size rounded up to 8,
    times ``possible_cpus()``.
    """
    c_key, c_value = bytearray(key), bytearray(value_size)
    try:
        _bpf(
            _MAP_LOOKUP,
            struct.pack("=IIQQQ", fd, 0, _address(c_key), _address(c_value), 0),
        )
    except FileNotFoundError:
        return None
    return bytes(c_value)


def map_delete(fd: int, key: bytes) -> bool:
    """Remove an entry of a BPF map; return whether it was there."""
    c_key = bytearray(key)
    try:
        _bpf(_MAP_DELETE, struct.pack("=IIQQQ", fd, 0, _address(c_key), 0, 0))
    except FileNotFoundError:
        return False
    return True


def map_pop(fd: int, value_size: int) -> bytes | None:
    """Take the oldest value of a BPF queue, None when it is empty."""
    c_value = bytearray(value_size)
    try:
        _bpf(_MAP_POP, struct.pack("=IIQQQ", fd, 0, 0, _address(c_value), 0))
    except FileNotFoundError:
        return None
    return bytes(c_value)


def map_lookup_batch(
    fd: int, key_size: int, value_size: int, count: int, start: int | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """Yield all keys and values of a BPF map of at most ``count`` entries, in chunks.

    With ``start`` the map is an array, and its ``count`` entries from that index on are yielded.
    Each chunk is a copy of whole entries, concatenated. ``value_size`` is as for ``map_lookup``.
    Raises OSError, EINVAL or ENOTSUPP where the kernel has no batch operation for the map's type
    (per-CPU arrays: before 5.13).
    """
    # A hash map's bucket is returned in whole: a chunk must hold the longest.
    chunk = min(count, max(_CHUNK_ENTRIES, _CHUNK_BYTES // (key_size + value_size)))
    if start is not None:  # an array has no buckets
        chunk = min(chunk, max(1, _ARRAY_BYTES // (key_size + value_size)))
    position = bytearray(max(key_size, 8))
    keys, values = bytearray(key_size * chunk), bytearray(value_size * chunk)
    key_view, value_view = memoryview(keys), memoryview(values)
    first, more = True, True
    if start:  # the kernel begins with the entry after the one that it is given
        position[:4] = (start - 1).to_bytes(4, "little")
        first = False
    while more:
        if start is not None:
            chunk = min(chunk, count)
        attributes = bytearray(
            struct.pack(
                "=QQQQIIQQ",
                *(0 if first else _address(position), _address(position)),
                *(_address(keys), _address(values), chunk, fd, 0, 0),
            )
        )
        try:
            _bpf(_MAP_LOOKUP_BATCH, attributes)
        except FileNotFoundError:  # ENOENT: the end of the map; the entries before it are there
            more = False
        got = struct.unpack_from("=I", attributes, 32)[0]
        if got:
            # Copies: the kernel writes the next chunk to the same place.
            yield bytes(key_view[: got * key_size]), bytes(value_view[: got * value_size])
        if start is not None:
            count -= got
            more = more and count > 0
        first = False


_CHUNK_ENTRIES = 256
_CHUNK_BYTES = 1 << 20
#: Of larger ones, each thread that reads many arrays keeps some MB for ever.
_ARRAY_BYTES = 1 << 16
