# SPDX-License-Identifier: Apache-2.0
"""BPF programs: their C sources joined, compiled by BCC without kernel headers, and loaded."""

from __future__ import annotations

import ctypes
import errno
import inspect
import os
import re
import resource
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from gotrace.errors import GotraceError
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.lacking import what_is_lacking
from gotrace.kernel.rings import Rings

__all__ = [
    "AttachKind",
    "BpfProgram",
    "LackingError",
    "LoadError",
    "Map",
    "bpf_directory",
    "import_binding",
    "joined_source",
    "load_compiler",
]

_OWN_INCLUDE = re.compile(r'^#include "([\w.]+)"$')


@cache
def bpf_directory() -> Path:
    """Return the directory that holds ``*.c``, ``*.h`` and the stand-in header tree ``include/``.

    An installed package carries it as ``gotrace/_bpf``, a clone as ``bpf`` beside the package.
    Raises GotraceError when neither is there.
    """
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_bpf", package.parent / "bpf"):
        if (candidate / "count.c").is_file():
            return candidate
    raise GotraceError(f"the BPF programs are missing beside {package}: reinstall gotrace")


def joined_source(name: str) -> str:
    """Return the C source of program ``name`` with this project's own headers put in place.

    BCC turns map operations into helper calls only in the main file, never in an included one, so
    quoted includes are expanded here, each once, with ``#line`` keeping the compiler's messages
    right. Includes in angle brackets stay.
    """
    seen: set[str] = set()

    def expand(file: str) -> list[str]:
        if file in seen:
            return []
        seen.add(file)
        lines = [f'#line 1 "{file}"']
        text = (bpf_directory() / file).read_text(encoding="ascii")
        for number, line in enumerate(text.splitlines(), 1):
            included = _OWN_INCLUDE.match(line)
            if included:
                lines += [*expand(included[1]), f'#line {number + 1} "{file}"']
            elif line != "#pragma once":
                lines.append(line)
        return lines

    return "\n".join(expand(name)) + "\n"


class LoadError(GotraceError):
    """A program that did not compile or that the kernel refused.

    ``log`` is what the compiler or the verifier printed.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class LackingError(LoadError):
    """A program that no kernel as old as this one can run, however it is attached."""


class AttachKind(Enum):
    """What a program will be attached through, which the kernel wants to know at loading."""

    PERF_EVENT = "perf event"
    UPROBE_MULTI = "uprobe-multi link"


_T = TypeVar("_T")


def import_binding() -> Any:
    """Return the module that is installed as bcc; raise ImportError, or OSError without libbcc."""
    import bcc

    return bcc


def _import_bcc() -> Any:
    try:
        bcc = import_binding()
    except (ImportError, OSError) as error:  # OSError: libbcc itself is missing
        raise GotraceError(
            f"the BCC binding cannot be imported ({error}): install python3-bpfcc (Debian, Ubuntu)"
            " or python3-bcc (Fedora) and run under the system's python3"
        ) from error
    if not hasattr(bcc, "BPF"):
        raise GotraceError(
            f"{bcc.__file__} is PyPI's unrelated package 'bcc': uninstall it and install"
            " python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora)"
        )
    return bcc


def _need_memory() -> None:
    """Refuse to compile within a small RLIMIT_AS: LLVM aborts the process where it gets no more."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    if limit - used < _COMPILER_BYTES:
        raise GotraceError(
            f"cannot load the BPF compiler: {max(0, limit - used) >> 20} MiB of address space are"
            f" left and {_COMPILER_BYTES >> 20} are needed: raise ulimit -v"
        )


@cache
def load_compiler() -> Any:
    """Return the BCC binding, with the compiler in it.

    Raises GotraceError where it cannot be imported, or has too little room.
    """
    _need_memory()
    return _import_bcc()


@contextmanager
def _stderr_to(log: Any) -> Iterator[None]:
    """Send file descriptor 2, which LLVM and the verifier write to from C, into ``log``."""
    saved = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


_ROOT_OR_CAPABILITIES = "run as root, or with CAP_BPF and CAP_PERFMON"


def _quietly(what: str, action: Callable[[], _T], cure: str = _ROOT_OR_CAPABILITIES) -> _T:
    """Run ``action``, keep what C code prints meanwhile, and turn its failure into a LoadError.

    ``cure`` says what to do where the kernel does not permit it.
    """
    with tempfile.TemporaryFile() as log:
        try:
            with _stderr_to(log):
                return action()
        except Exception as error:  # bcc raises the bare class
            log.seek(0)
            raise _load_error(what, error, log.read().decode(errors="replace"), cure) from error


def _load_error(what: str, error: Exception, detail: str, cure: str) -> LoadError:
    if "Operation not permitted" in f"{error} {detail}":
        return LoadError(f"{what}: the kernel does not permit it: {cure}", detail)
    why = _reason(detail) or str(error)
    return LoadError(f"{what}: {why}: run with --debug for the whole log", detail)


def _reason(log: str) -> str:
    """Return the line that says what is wrong: the compiler's first, or the verifier's last.

    The verifier lists the instructions that it has followed, then says what it does not like, then
    counts: "processed 23 insns ...".
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if number and line.startswith("processed "):
            return f"the kernel's verifier refuses it: {lines[number - 1]}"
    return next((line for line in lines if "error" in line.lower()), "")


@dataclass(frozen=True, slots=True)
class Map:
    """One BPF map, read and written as bytes.

    ``value_size`` is the size of one CPU's value; ``cpus`` is 0 for maps that are not per CPU.
    """

    fd: int
    key_size: int
    value_size: int
    max_entries: int
    cpus: int

    @property
    def stride(self) -> int:
        """Return how many bytes the kernel writes for one entry."""
        return -(-self.value_size // 8) * 8 * self.cpus if self.cpus else self.value_size

    def update(self, key: bytes, value: bytes) -> None:
        """Store one entry; raises OSError, E2BIG when the map is full."""
        kernel.map_update(self.fd, key, value)

    def lookup(self, key: bytes) -> bytes | None:
        """Return one entry's ``stride`` bytes, or None."""
        return kernel.map_lookup(self.fd, key, self.stride)

    def read_array(self) -> bytes:
        """Return the values of an array map, ``max_entries`` times ``stride`` bytes."""
        try:
            values = b"".join(values for _, values in self._batches())
        except OSError:
            values = b""
        if len(values) == self.max_entries * self.stride:
            return values
        # No batch operation for this kind of map before Linux 5.13.
        return b"".join(value for _, value in self.array_range(0, self.max_entries))

    def _batches(self) -> Iterator[tuple[memoryview, memoryview]]:
        return kernel.map_lookup_batch(self.fd, self.key_size, self.stride, self.max_entries)

    def array_range(self, start: int, count: int) -> Iterator[tuple[int, bytes]]:
        """Yield index and value, ``stride`` bytes, of ``count`` entries of an array map."""
        for index in range(start, start + count):
            yield index, self.lookup(index.to_bytes(4, "little")) or bytes(self.stride)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values of a hash map as they are now; others may change it."""
        for keys, values in self._batches():
            for index in range(len(keys) // self.key_size):
                key = keys[index * self.key_size : (index + 1) * self.key_size]
                value = values[index * self.stride : (index + 1) * self.stride]
                yield bytes(key), bytes(value)

    def delete(self, key: bytes) -> None:
        """Remove one entry of a hash map, where it is there."""
        kernel.map_delete(self.fd, key)

    def pop(self) -> bytes | None:
        """Take the oldest value of a queue, None when it is empty."""
        return kernel.map_pop(self.fd, self.value_size)


def _takes(function: Callable[..., Any], parameter: str) -> bool:
    return parameter in inspect.signature(function).parameters


def _literal(value: int) -> str:
    return f"{value}ULL" if value >> 31 else str(value)


class BpfProgram:
    """One compiled BPF source file: its functions, to be loaded, and its maps."""

    def __init__(self, source: str, defines: Mapping[str, int]) -> None:
        """Compile ``source`` (a file name in the BPF directory) with ``-DGOTRACE_NAME=VALUE``.

        Raises LoadError, and GotraceError where BCC cannot be imported.
        """
        bcc = load_compiler()
        os.environ["BCC_KERNEL_SOURCE"] = str(bpf_directory())
        # A function that is not declared would be found missing by the verifier only.
        flags = ["-Werror=implicit-function-declaration"]
        flags += [f"-DGOTRACE_{name}={_literal(value)}" for name, value in defines.items()]
        text = joined_source(source)
        self.source = source
        self._rings: list[Rings] = []
        self._loaded: list[int] = []  # descriptors of programs that BCC does not know of
        self._lib = bcc.libbcc.lib
        self._kprobe = bcc.BPF.KPROBE
        self._raw_tracepoint = bcc.BPF.RAW_TRACEPOINT
        self._bpf = _quietly(
            f"cannot compile bpf/{source}", lambda: bcc.BPF(text=text.encode(), cflags=flags)
        )

    def load(self, functions: Iterable[str], kind: AttachKind) -> dict[str, int]:
        """Load functions and return their descriptors, which live as long as the program.

        They are loaded at the same time: the verifier takes most of it. Raises LoadError.
        """
        arguments: tuple[Any, ...] = (self._kprobe,)
        for_multi = kind is AttachKind.UPROBE_MULTI
        if for_multi:
            arguments += (None, kernel.ATTACH_TYPE_UPROBE_MULTI)
        # BCC before 0.25 cannot ask for the kind of attachment.
        by_bcc = not for_multi or _takes(self._bpf.load_func, "attach_type")

        def load_one(function: str) -> tuple[str, int]:
            name = function.encode()
            return function, (
                self._bpf.load_func(name, *arguments).fd if by_bcc else self._load_for_multi(name)
            )

        def load_all() -> dict[str, int]:
            wanted = sorted(set(functions))
            with suppress(RuntimeError), ThreadPoolExecutor() as pool:
                return dict(pool.map(load_one, wanted))
            return dict(map(load_one, wanted))  # no thread could be started

        try:
            return _quietly(f"cannot load bpf/{self.source}", load_all)
        except LoadError as error:
            raise self._what_is_lacking(functions, error.log) or error from error

    def attach_tracepoint(self, tracepoint: str, functions: Sequence[str]) -> int:
        """Load functions for a tracepoint of the kernel, attach the first that it takes, return it.

        One that reads more arguments than the tracepoint has in this kernel is not taken. It is
        detached when the program is closed. Raises LoadError.
        """
        for function in functions:
            load = partial(self._bpf.load_func, function.encode(), self._raw_tracepoint)
            loaded = _quietly(f"cannot load bpf/{self.source}", load).fd
            try:
                self._loaded.append(kernel.open_raw_tracepoint(tracepoint, loaded))
                return int(loaded)
            except OSError as error:
                if error.errno == errno.EINVAL and function != functions[-1]:
                    continue
                what = f"cannot attach to the kernel's tracepoint {tracepoint}"
                raise LoadError(f"{what}: {error.strerror}") from error
        raise AssertionError("no function given")

    def _load_for_multi(self, name: bytes) -> int:
        license_text = self._lib.bpf_module_license(self._bpf.module)
        loaded = kernel.load_program(self._code(name), license_text)
        self._loaded.append(loaded)
        return loaded

    def _code(self, name: bytes) -> bytes:
        """Return a function's instructions as they were compiled."""
        module = self._bpf.module
        start = self._lib.bpf_function_start(module, name)
        return ctypes.string_at(start, self._lib.bpf_function_size(module, name))

    def _what_is_lacking(self, functions: Iterable[str], log: str) -> LackingError | None:
        """Return what to say of refused functions that need what the kernel does not know."""
        for function in sorted(set(functions)):
            found = what_is_lacking(self._code(function.encode()))
            if found is not None:
                name, release = found
                tool = _TOOLS.get(self.source, f"bpf/{self.source}")
                return LackingError(
                    f"{tool} needs Linux {release} or newer: this kernel's BPF does not know"
                    f" {name}",
                    log,
                )
        return None

    def map(self, name: str) -> Map:
        """Return the map that the source declares under ``name``."""
        # Of most of these functions the binding does not declare that they take a pointer, and
        # ctypes passes 32 bits of an int: too few where Python is position independent.
        module = ctypes.c_void_p(self._bpf.module)
        number = ctypes.c_size_t(self._lib.bpf_table_id(module, name.encode()))
        value_size = int(self._lib.bpf_table_leaf_size_id(module, number))
        per_cpu = int(self._lib.bpf_table_type_id(module, number)) in _PER_CPU_TYPES
        return Map(
            int(self._lib.bpf_table_fd_id(module, number)),
            int(self._lib.bpf_table_key_size_id(module, number)),
            value_size,
            int(self._lib.bpf_table_max_entries_id(module, number)),
            kernel.possible_cpus() if per_cpu else 0,
        )

    def open_events(self, name: str, pages: int) -> Rings:
        """Return the buffers of ``BPF_PERF_OUTPUT(name)``, ``pages`` pages for each CPU.

        They are closed with the program. Raises LoadError.
        """
        events = self.map(name)

        def assign(cpu: int, event: int) -> None:
            events.update(cpu.to_bytes(4, "little"), event.to_bytes(4, "little"))

        what = f"cannot open {pages} pages of event buffer for each CPU"
        try:
            rings = Rings(pages, assign)
        except PermissionError as error:
            cure = "run as root or with CAP_IPC_LOCK, or raise ulimit -l"
            raise LoadError(f"{what}: the kernel does not permit it: {cure}") from error
        except OSError as error:
            raise LoadError(f"{what}: {error.strerror}") from error
        self._rings.append(rings)
        return rings

    def close(self) -> None:
        """Unload everything, and close event buffers; attachments must be closed before."""
        while self._rings:
            self._rings.pop().close()
        while self._loaded:
            os.close(self._loaded.pop())
        self._bpf.cleanup()


#: The libraries (180 MiB), the compiler at work (60 MiB), gotrace's event buffers (32 MiB).
_COMPILER_BYTES = 320 << 20
_TOOLS = {"count.c": "gofunccount", "latency.c": "gofunclatency", "trace.c": "gotrace"}
_PER_CPU_TYPES = {5, 6, 10}  # BPF_MAP_TYPE_PERCPU_HASH, _PERCPU_ARRAY, _LRU_PERCPU_HASH
