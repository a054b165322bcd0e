# SPDX-License-Identifier: Apache-2.0
"""Compiled programs kept from one run to the next, so that a start needs no compiler.

They are in the user's own cache, ``gotrace/bpf`` in ``XDG_CACHE_HOME`` or ``~/.cache``, a file for
each source and shape. Its programs are loaded into the kernel: they are used only if no other user
could have written them. It can be removed at any moment.

A file is found by a digest of the sources and of the settings that shape them; it says which files
the compiler consisted of, and the kernel. Where one of these has changed, the program is compiled
again. Where there is no compiler, it is taken as it is: the verifier looks at what it does in any
case.

A package can carry compiled programs in ``gotrace/_compiled``, which are looked for first. Their
names are the same digests, so that none is used whose sources are not those of the package. They
are trusted as the package's modules are.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path

from gotrace.architecture import HOST, Architecture
from gotrace.errors import GotraceError
from gotrace.kept import OTHERS_WRITE, KeptFolder, kept_folder, trusted_bytes
from gotrace.kernel.children import Child
from gotrace.kernel.compiler import (
    Compiled,
    LoadError,
    MapShape,
    NoCompilerError,
    ProgramOrigin,
    bpf_directory,
    compile_program,
    compiler_flags,
    file_state,
    joined_source,
    load_compiler,
)
from gotrace.kernel.compiling import say_compiling
from gotrace.kernel.instructions import CALL, INSTRUCTION
from gotrace.records import dataclass, replace
from gotrace.settings import ProgramSettings

#: The beginning of a file; changes with how programs are compiled or put down.
_FORMAT = b"gotrace compiled program 1\n"
_MAX_FILE_BYTES = 4 << 20
_MAX_BYTES, _MAX_FILES = 64 << 20, 1024


_apart = False


def compile_apart() -> None:
    """Compile programs in a process of their own from now on.

    The compiler stays in the memory of a process that has loaded it, some 100 MB of it, which is
    nothing for a tool and much for one that goes on for days.
    """
    global _apart
    _apart = True


def _compiled(settings: ProgramSettings, arch: Architecture | None) -> Compiled:
    """Compile a program, in a forked process if that is asked for or somebody waits at a terminal.

    No signal is handled while the compiler's C code runs; a wait for a process ends at once.
    Raises LoadError, NoCompilerError among these, as ``compile_program`` does.
    """
    if not _apart:
        load_compiler()  # if there is none, nothing is compiled
        if not say_compiling():
            return compile_program(settings, arch)
    child = Child("that compiles", partial(_compile_here, settings, arch))
    try:
        data = child.whole_answer()
    finally:
        child.end()
    if not data:
        raise LoadError(f"cannot compile the BPF program: {child.why_ended()}")
    compiled, error = pickle.loads(data)
    if error is not None:
        raise error
    found: Compiled = compiled
    return found


def _compile_here(settings: ProgramSettings, arch: Architecture | None, answer: int) -> None:
    """Compile, and write the result (runs in the child)."""
    outcome: tuple[Compiled | None, GotraceError | OSError | None]
    try:
        outcome = compile_program(settings, arch), None
    except (GotraceError, OSError) as error:
        outcome = None, error
    with open(answer, "wb", closefd=False) as results:
        pickle.dump(outcome, results)


def cached_program(settings: ProgramSettings, arch: Architecture | None = HOST) -> Compiled:
    """Return a source compiled for these settings: of the package, as kept, or compiled and kept.

    Raises LoadError, and NoCompilerError where it is not kept and cannot be compiled.
    """
    key = program_key(settings, arch)
    packaged = _packaged(key)
    if packaged is not None:
        return packaged
    with _folder() as folder:
        if folder is None:
            with _without_compiler(settings):
                return _compiled(settings, arch)
        name = f"{key}-{_kernel()}"
        found = _kept(folder, name)
        if found is not None and all(map(_is_unchanged, found.made_by)):
            return found
        try:
            with _without_compiler(settings):
                compiled = _compiled(settings, arch)
                folder.write(name, _packed(compiled))
                return compiled
        except NoCompilerError:
            if found is None:
                # That of whatever kernel, and by what compiler.
                names = (name for name in folder.names() if name.startswith(f"{key}-"))
                found = next(filter(None, (_kept(folder, name) for name in names)), None)
            if found is None:
                raise
            return found


@contextmanager
def _without_compiler(settings: ProgramSettings) -> Iterator[None]:
    """Add to the error of a missing compiler the options that the package's programs lack."""
    try:
        yield
    except NoCompilerError as error:
        packaged = packaged_programs()
        if packaged is None:
            raise
        if packaged.problem is not None:
            raise NoCompilerError(
                f"the package's BPF programs are not used: {packaged.problem}; and {error}"
            ) from error
        from gotrace.kernel.unpackaged import what_to_leave_out

        shapes = packaged.shapes.get(settings.source, ())
        omitted = what_to_leave_out(shape_of(settings), shapes)
        cure = f", or leave out {omitted}" if omitted else ""
        raise NoCompilerError(
            f"this run needs a BPF program that the package does not have, and {error}{cure}"
        ) from error


def fresh_program(settings: ProgramSettings, arch: Architecture | None = HOST) -> Compiled:
    """Compile a source for these settings, keep and return it; raise as ``cached_program``."""
    compiled = _compiled(settings, arch)
    with _folder() as folder:
        if folder is not None:
            folder.write(f"{program_key(settings, arch)}-{_kernel()}", _packed(compiled))
    return compiled


def _folder(
    refused: list[tuple[Path, str]] | None = None,
) -> AbstractContextManager[KeptFolder | None]:
    return kept_folder("bpf", _MAX_FILES, _MAX_BYTES, refused)


def _kept(folder: KeptFolder, name: str) -> Compiled | None:
    """Return the program in a file, None where there is none that can be used."""
    data = folder.read(name)
    compiled = _unpacked(data) if data is not None else None
    return None if compiled is None else replace(compiled, origin=ProgramOrigin.CACHE)


def _is_unchanged(state: str) -> bool:
    """Return whether a file of the compiler is as ``file_state`` found it."""
    return file_state(state.split(" ", 2)[2]) == state


def program_key(settings: ProgramSettings, arch: Architecture | None = HOST) -> str:
    """Return a digest that only one source and shape has, for an architecture."""
    texts = [joined_source(settings.source), *_system_headers()]
    texts += compiler_flags(settings, arch)
    digest = hashlib.blake2b(_FORMAT, digest_size=20)
    digest.update("\0".join(texts).encode())
    return digest.hexdigest()


@cache
def _system_headers() -> list[str]:
    """Return the texts of the stand-ins for the kernel's headers."""
    paths = sorted((bpf_directory() / "include").rglob("*.h"))
    return [path.read_text(encoding="ascii") for path in paths]


def _kernel() -> str:
    """Return a digest of this kernel's release for a file's name."""
    return hashlib.blake2b(os.uname().release.encode(), digest_size=4).hexdigest()


def _packed(compiled: Compiled) -> bytes:
    """Return a file's bytes: format, digest of the rest, a description, instructions."""
    described = {
        "license": compiled.license,
        "made_by": compiled.made_by,
        "maps": [
            [each.name, each.type, each.key_size, each.value_size, each.max_entries, each.flags]
            for each in compiled.maps
        ],
        "functions": [[name, len(code)] for name, code in compiled.functions.items()],
    }
    rest = json.dumps(described).encode() + b"\n" + b"".join(compiled.functions.values())
    return _FORMAT + hashlib.blake2b(rest).digest() + rest


def _unpacked(data: bytes) -> Compiled | None:
    """Return the program that ``_packed`` put down; None if the data is something else."""
    digest_end = len(_FORMAT) + hashlib.blake2b().digest_size
    rest = data[digest_end:]
    if not data.startswith(_FORMAT):
        return None
    if hashlib.blake2b(rest).digest() != data[len(_FORMAT) : digest_end]:
        return None
    # A file with the digest was written here, by this format.
    text, _, code = rest.partition(b"\n")
    described = json.loads(text)
    functions, at = {}, 0
    for name, size in described["functions"]:
        functions[name] = code[at : at + size]
        at += size
    maps = tuple(MapShape(*each) for each in described["maps"])
    return Compiled(described["license"], maps, functions, tuple(described["made_by"]))


#: A package's description of its programs.
MANIFEST = "manifest.json"


def _package_folder() -> Path:
    """Return where a package has its compiled programs; a clone has none."""
    return Path(__file__).parent.parent / "_compiled"


def _package_problem(found: os.stat_result) -> str | None:
    """Return why a package's programs are not trusted as its modules are, None if they are.

    Whoever can write to a module needs no compiled program.
    """
    module = os.stat(__file__)
    if found.st_uid not in (0, os.geteuid(), module.st_uid):
        return "it belongs to another user than the package's modules"
    others = found.st_mode & OTHERS_WRITE & ~module.st_mode
    if others or (found.st_mode & stat.S_IWGRP and found.st_gid != module.st_gid):
        return "others can write to it, and not to the package's modules"
    return None


def _packaged(key: str) -> Compiled | None:
    """Return a program of the package, None where it has none that can be used."""
    folder = _package_folder()
    try:
        if _package_problem(os.stat(folder)):
            return None
    except OSError:
        return None
    data = trusted_bytes(folder / key, None, _package_problem, _MAX_FILE_BYTES)
    if data is None:
        return None
    try:
        compiled = _unpacked(zlib.decompress(data))
    except zlib.error:
        return None
    return None if compiled is None else replace(compiled, origin=ProgramOrigin.PACKAGE)


def is_packaged(settings: ProgramSettings) -> bool:
    return _packaged(program_key(settings)) is not None


def package_program(
    settings: ProgramSettings, folder: Path, arch: Architecture | None = HOST
) -> tuple[str, tuple[str, ...]]:
    """Put a program, as it is kept or compiled now, into a package's folder.

    Return its key, and the files of the compiler: what is written does not have these, as they are
    this machine's. Raises as ``cached_program``.
    """
    key = program_key(settings, arch)
    compiled = cached_program(settings, arch)
    if _is_for_old_kernels(compiled):  # it was compiled, and kept, by somebody with fewer rights
        compiled = fresh_program(settings, arch)
    if _is_for_old_kernels(compiled):
        raise LoadError(
            f"bpf/{settings.source} was compiled for kernels before Linux 5.5: make the package"
            " where /proc/kallsyms names bpf_probe_read_user"
        )
    data = _packed(replace(compiled, made_by=()))
    (folder / key).write_bytes(zlib.compress(data, 9))
    return key, compiled.made_by


#: bpf_probe_read: BCC has it called in the place of bpf_probe_read_user and bpf_probe_read_kernel
#: if /proc/kallsyms does not name these (seen of BCC 0.26). Nothing else of a machine was found to
#: change what it compiles.
_PROBE_READ = 4


def _is_for_old_kernels(compiled: Compiled) -> bool:
    return any(_PROBE_READ in calls for calls in map(_helpers, compiled.functions.values()))


def _helpers(code: bytes) -> set[int]:
    """Return the numbers of the helpers that instructions call."""
    found = set()
    for at in range(0, len(code), INSTRUCTION.size):
        operation, registers, _, constant = INSTRUCTION.unpack_from(code, at)
        if operation == CALL and registers >> 4 == 0:
            found.add(constant)
    return found


def shape_of(settings: ProgramSettings) -> frozenset[str]:
    """Return the definitions that distinguish a program from others of its source."""
    definitions = (each.removeprefix("GOTRACE_") for each in settings.definitions())
    return frozenset(re.sub(r"=SETTING\(.*", "", each) for each in definitions)


@dataclass(frozen=True, slots=True)
class PackagedPrograms:
    """The programs of a package: its folder, their number and size, who compiled them.

    ``problem`` says why they are not used, None where they are. ``shapes`` has, by source, the
    definitions of each program.
    """

    path: Path
    programs: int
    size: int
    compiler: str
    problem: str | None
    shapes: Mapping[str, Sequence[frozenset[str]]]


def packaged_programs() -> PackagedPrograms | None:
    """Return this package's programs, None if it has none, as a clone has not."""
    folder = _package_folder()
    try:
        found = os.stat(folder)
        text = (folder / MANIFEST).read_text(encoding="utf-8")
        manifest = json.loads(text)
        shapes: dict[str, list[frozenset[str]]] = {}
        size = 0
        for each in manifest["programs"]:
            shapes.setdefault(each["source"], []).append(frozenset(each["shape"]))
            size += (folder / each["file"]).stat().st_size
        problem = _package_problem(found)
        if manifest["machine"] != os.uname().machine:
            problem = (
                f"they are for {manifest['machine']}, and this machine is {os.uname().machine}"
            )
        count = len(manifest["programs"])
        return PackagedPrograms(folder, count, size, manifest["compiler"]["name"], problem, shapes)
    except (OSError, ValueError, LookupError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class CachedPrograms:
    """The kept programs: the folder, their number and size in bytes.

    ``refused`` are folders that are not used, and why; ``path`` is None where none is.
    """

    path: Path | None
    programs: int
    size: int
    refused: tuple[tuple[Path, str], ...]


def cached_programs() -> CachedPrograms:
    refused: list[tuple[Path, str]] = []
    with _folder(refused) as folder:
        if folder is None:
            return CachedPrograms(None, 0, 0, tuple(refused))
        sizes = [size for _, size, name in folder.entries() if name[0] != "."]
        return CachedPrograms(folder.path, len(sizes), sum(sizes), tuple(refused))
