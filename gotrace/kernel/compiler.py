# SPDX-License-Identifier: Apache-2.0
"""BPF programs compiled: their C sources joined, and BCC used as a compiler without kernel headers.

A compiled program does not depend on the run that it was compiled for, so that it can be kept
(``kernel.program_cache``): instructions name maps by number, and have marks in the place of values.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from gotrace.architecture import HOST, Architecture
from gotrace.errors import GotraceError, said
from gotrace.kernel.instructions import INSTRUCTION, LD_IMM64, MAP_REFERENCE
from gotrace.records import dataclass, field
from gotrace.settings import ProgramSettings

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
            included = _OWN_INCLUDE.match(line) if line.startswith("#include") else None
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


@dataclass(frozen=True, slots=True)
class MapShape:
    """A source's declaration of a map; numbers are those of BPF_MAP_CREATE.

    ``max_entries`` is 0 where there is an entry for each CPU.
    """

    name: str
    type: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


class ProgramOrigin(Enum):
    """Where a compiled program comes from."""

    PACKAGE = "the package"
    CACHE = "the user's cache"
    COMPILER = "the compiler"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled source: each function's instructions, and the maps that they refer to by number.

    ``made_by`` are the compiler's files, as ``file_state`` has them.
    """

    license: str
    maps: tuple[MapShape, ...]
    functions: Mapping[str, bytes]
    made_by: tuple[str, ...] = ()
    origin: ProgramOrigin = field(default=ProgramOrigin.COMPILER, compare=False)


_MARK = 0x676F_7472_6163  # SETTING of bpf/common.h, above 16 bits of number


def patched(code: bytes, maps: Sequence[int], values: Mapping[int, int]) -> bytes:
    """Return instructions for a run: ``maps`` has descriptors, ``values`` those of settings.

    Both by the numbers that compiled instructions have. Raises LookupError where one is missing.
    """
    patched = bytearray(code)
    for at, source, constant in _wide(code):
        if source == MAP_REFERENCE:
            struct.pack_into("=i", patched, at + 4, maps[constant])
        elif constant >> 16 == _MARK:
            value = values[constant & 0xFFFF]
            struct.pack_into("=I", patched, at + 4, value & 0xFFFFFFFF)
            struct.pack_into("=I", patched, at + 12, value >> 32 & 0xFFFFFFFF)
    return bytes(patched)


def _wide(code: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield offset, source and constant of each instruction that loads 64 bits."""
    at = code.find(_LD_IMM64_BYTE)
    while at >= 0:
        if at % INSTRUCTION.size == 0 and at + 16 <= len(code):
            _, registers, _, low = INSTRUCTION.unpack_from(code, at)
            high = struct.unpack_from("=I", code, at + 12)[0]
            yield at, registers >> 4, high << 32 | low & 0xFFFFFFFF
            at += 2 * INSTRUCTION.size - 1
        at = code.find(_LD_IMM64_BYTE, at + 1)


_LD_IMM64_BYTE = bytes([LD_IMM64])


def compiler_flags(settings: ProgramSettings, arch: Architecture | None = HOST) -> list[str]:
    """Return the compiler's arguments beside the source."""
    # A function that is not declared would be found missing by the verifier only.
    flags = ["-Werror=implicit-function-declaration"]
    if arch is not None:
        flags.append(f"-DARCHITECTURE_{arch.name.upper()}")
    return flags + [f"-D{definition}" for definition in settings.definitions()]


def compile_program(settings: ProgramSettings, arch: Architecture | None = HOST) -> Compiled:
    """Compile the source of these settings for the kernels of an architecture.

    BCC creates its maps meanwhile, with one entry where settings say how many: that takes the
    privileges that loading takes. Raises LoadError, and GotraceError where BCC cannot be imported.
    """
    bcc = load_compiler()
    os.environ["BCC_KERNEL_SOURCE"] = str(bpf_directory())
    text = joined_source(settings.source).encode()
    what = f"cannot compile bpf/{settings.source}"
    flags = compiler_flags(settings, arch)
    theirs = os.environ.pop("ARCH", None)  # of the user's kernel; BCC would compile for it
    try:
        module = _quietly(what, lambda: bcc.BPF(text=text, cflags=flags))
    finally:
        if theirs is not None:
            os.environ["ARCH"] = theirs
    try:
        return _taken_out(bcc.libbcc.lib, module.module)
    finally:
        module.cleanup()


def _taken_out(lib: Any, module: int) -> Compiled:
    """Copy the program that BCC has compiled."""

    def ask(name: str, result: Any, *arguments: int | bytes) -> Any:
        # Of most functions the binding does not declare that they take a pointer, and ctypes passes
        # 32 bits of an int: too few where Python is position independent.
        kinds = [ctypes.c_char_p if isinstance(a, bytes) else ctypes.c_size_t for a in arguments]
        function = ctypes.CFUNCTYPE(result, ctypes.c_void_p, *kinds)((name, lib))
        return function(module, *arguments)

    maps, numbers = [], {}
    for number in range(ask("bpf_num_tables", ctypes.c_size_t)):
        kind = ask("bpf_table_type_id", ctypes.c_int, number)
        entries = ask("bpf_table_max_entries_id", ctypes.c_size_t, number)
        table = MapShape(
            ask("bpf_table_name", ctypes.c_char_p, number).decode(),
            kind,
            ask("bpf_table_key_size_id", ctypes.c_size_t, number),
            ask("bpf_table_leaf_size_id", ctypes.c_size_t, number),
            0 if kind in _OF_CPUS else entries,
            ask("bpf_table_flags_id", ctypes.c_int, number),
        )
        maps.append(table)
        numbers[ask("bpf_table_fd_id", ctypes.c_int, number)] = number
    functions = {}
    for number in range(ask("bpf_num_functions", ctypes.c_size_t)):
        name = ask("bpf_function_name", ctypes.c_char_p, number)
        start = ask("bpf_function_start", ctypes.c_void_p, name)
        code = bytearray(ctypes.string_at(start, ask("bpf_function_size", ctypes.c_size_t, name)))
        for at, source, constant in _wide(bytes(code)):
            if source == MAP_REFERENCE:
                struct.pack_into("=i", code, at + 4, numbers[constant])
        functions[name.decode()] = bytes(code)
    license_text = ask("bpf_module_license", ctypes.c_char_p).decode()
    return Compiled(license_text, tuple(maps), functions, _own_files())


#: Maps that have an entry for each CPU: BPF_MAP_TYPE_PERF_EVENT_ARRAY.
_OF_CPUS = {4}


def file_state(path: str) -> str | None:
    """Return a text that changes with a file: its path, size and time of modification."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return f"{found.st_size} {found.st_mtime_ns} {path}"


def _own_files() -> tuple[str, ...]:
    """Return the state of the files that the compiler in this process consists of."""
    import bcc

    paths = {bcc.__file__}
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        path = line[line.find("/") :]
        if _COMPILER_LIBRARY.search(path):
            paths.add(path)
    return tuple(state for path in sorted(paths) if (state := file_state(path)) is not None)


_COMPILER_LIBRARY = re.compile(r"/lib(bcc|bpf|LLVM|clang)[^/]*$")


def import_binding() -> Any:
    """Return the module that is installed as bcc; raise ImportError, or OSError without libbcc."""
    import bcc

    return bcc


class NoCompilerError(LoadError):
    """No BCC that could compile, or no room for it."""


def _import_bcc() -> Any:
    try:
        bcc = import_binding()
    except (ImportError, OSError) as error:  # OSError: libbcc itself is missing
        raise NoCompilerError(
            f"the BCC binding cannot be imported ({error}): install python3-bpfcc (Debian, Ubuntu)"
            " or python3-bcc (Fedora) and run under the system's python3"
        ) from error
    if not hasattr(bcc, "BPF"):
        raise NoCompilerError(
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
        raise NoCompilerError(
            f"cannot load the BPF compiler: {max(0, limit - used) >> 20} MiB of address space are"
            f" left and {_COMPILER_BYTES >> 20} are needed: raise ulimit -v"
        )


#: The libraries (180 MiB), the compiler at work (60 MiB), gotrace's event buffers (32 MiB).
_COMPILER_BYTES = 320 << 20


@cache
def load_compiler() -> Any:
    """Return the BCC binding, with the compiler in it.

    Raises NoCompilerError where it cannot be imported, or has too little room.
    """
    _need_memory()
    return _import_bcc()


_T = TypeVar("_T")


@contextmanager
def _stderr_to(log: Any) -> Iterator[None]:
    """Send file descriptor 2, which LLVM writes to from C, into ``log``."""
    saved = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _quietly(what: str, action: Callable[[], _T]) -> _T:
    """Run ``action``, keep C code's output meanwhile, and turn its failure into a LoadError."""
    import tempfile

    with tempfile.TemporaryFile() as log:
        try:
            with _stderr_to(log):
                return action()
        except Exception as error:  # bcc raises the bare class
            log.seek(0)
            detail = log.read().decode(errors="replace")
            raise load_error(what, str(error), detail) from error


_ROOT_OR_CAPABILITIES = "run as root, or with CAP_BPF and CAP_PERFMON"


def load_error(what: str, error: str, log: str) -> LoadError:
    """Return the error for a program that failed; its message begins with ``what`` failed.

    ``log`` is what the compiler or the verifier said, if anything.
    """
    if "Operation not permitted" in f"{error} {log}":
        return LoadError(f"{what}: the kernel does not permit it: {_ROOT_OR_CAPABILITIES}", log)
    why = _reason(log) or error
    return LoadError(f"{what}: {why}: {said('run with --debug for', 'log has')} the whole log", log)


def _reason(log: str) -> str:
    """Return the line with the fault: the compiler's first, or the verifier's last.

    The verifier lists the instructions that it has followed, then says what it does not like, then
    counts: "processed 23 insns ...".
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if number and line.startswith("processed "):
            return f"the kernel's verifier refuses it: {lines[number - 1]}"
    return next((line for line in lines if "error" in line.lower()), "")
