# SPDX-License-Identifier: Apache-2.0
"""Build the programs that are traced, find their instructions, and drive them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import capstone

from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from tests.bench.tracers import TARGET_CPU, on_cpu
from tests.toolchains import FIXTURES, Toolchain, build, cache_dir, toolchains
from tests.tools.harness import Process

#: The function that all tools trace.
FRAMED = "main.framed"
#: One with a string, a number and two results.
NAMED = "main.named"

_MANY = (1, 100, 1000)


def newest_go() -> Toolchain:
    """Return the newest toolchain at hand. Raises SystemExit where there is none."""
    if not toolchains():
        raise SystemExit("bench: there is no Go: make setup-test")
    return toolchains()[-1]


def calls_program(stripped: bool = False) -> Path:
    """Return the program that calls one framed function."""
    flags = ("-ldflags=-s -w",) if stripped else ()
    return build(FIXTURES / "bench_calls", newest_go(), flags=flags)


def http_program() -> Path:
    """Return the server that keeps itself busy."""
    return build(FIXTURES / "bench_http", newest_go())


def large_program() -> Path:
    """Return a program of some 28 MB."""
    return build(FIXTURES / "bench_large", newest_go(), flags=_PLAIN_DWARF)


_PLAIN_DWARF = ("-ldflags=-compressdwarf=false",)


def larger_program(may_build: bool) -> Path | None:
    """Return the Go compiler with its DWARF, more than 50 MB; None if not built and not to be.

    The first time takes minutes.
    """
    go = newest_go()
    path = cache_dir() / "fixtures" / f"compile-with-dwarf-{go.version}"
    if not path.exists() and may_build:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        command = [str(go.go), "build", *_PLAIN_DWARF, "-o", str(unfinished), "cmd/compile"]
        subprocess.run(command, env=go.env(), cwd=path.parent, check=True)
        unfinished.rename(path)
    return path if path.exists() else None


def many_program() -> Path:
    """Return the program that calls a thousand functions and more in turn."""
    names = [(f"of{size}_{number}", number) for size in _MANY for number in range(size)]
    declared = "".join(
        f"//go:noinline\nfunc {name}(n int) int {{ return leaf(n) + {number} }}\n\n"
        for name, number in names
    )
    listed = "".join(f"\t{name},\n" for name, _ in names)
    text = f"package main\n\n{declared}var functions = []func(int) int{{\n{listed}}}\n"
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "bench_many"
        shutil.copytree(FIXTURES / "bench_many", source)
        (source / "functions.go").write_text(text)
        return build(source, newest_go())


@functools.cache
def function_names(path: Path) -> tuple[str, ...]:
    """Return the names of all functions of a binary."""
    with ElfImage.open(path) as image:
        return tuple(load_functions(image).names)


def compiler(functions: int = 14_000) -> Path:
    """Return the Go compiler whose number of functions is nearest to the given one.

    One with a symbol table where there is any: the other tracers need it.
    """
    found = [
        path
        for release in toolchains()
        for path in (release.go.parent.parent / "pkg" / "tool").glob("linux_*/compile")
    ]
    if not found:
        raise SystemExit("bench: no toolchain has a compiler: make setup-test")
    found = [path for path in found if _has_symbols(path)] or found
    return min(found, key=lambda path: abs(len(function_names(path)) - functions))


def _has_symbols(path: Path) -> bool:
    with ElfImage.open(path) as image:
        return image.section(".symtab") is not None


@dataclass(frozen=True, slots=True)
class Framed:
    """The addresses of ``main.framed`` and of those of its instructions that matter.

    ``branch`` is the stack check's, ``push`` saves the frame pointer; both are emulated by the
    kernel. ``entry`` and ``ret`` are single-stepped. ``bias`` turns addresses into file offsets.
    """

    binary: Path
    entry: int
    branch: int
    push: int
    ret: int
    bias: int


def find_framed(binary: Path, name: str = FRAMED) -> Framed:
    """Return the addresses, from decoding the function."""
    with ElfImage.open(binary) as image:
        table = load_functions(image)
        function = table.function(table.rows_named(name)[0])
        code = bytes(image.read(function.entry, function.end - function.entry))
        bias = function.entry - image.offset_of(function.entry)
    decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    first: dict[str, int] = {}
    for instruction in decoder.disasm(code, function.entry):
        first.setdefault(instruction.mnemonic, instruction.address)
    return Framed(binary, function.entry, first["jbe"], first["push"], first["ret"], bias)


class Calls(Process):
    """The program bench_calls, ready for orders."""

    def __init__(self, binary: Path, cpu: int | None = TARGET_CPU) -> None:
        with on_cpu(cpu):
            super().__init__([binary])
        self.read_until("ready ")

    def _order(self, *words: object) -> float:
        self.say(" ".join(map(str, words)))
        return float(self.read_until("done ")[0])

    def run(self, calls: int, order: str = "run") -> float:
        """Make the calls and return how many ns one took; ``order`` says of which function."""
        return self._order(order, calls) / calls

    def beside(self, calls: int, threads: int) -> float:
        """Make so many calls in each thread and return how many ns one took."""
        return self._order("beside", calls, threads) / calls

    def pace(self, calls: int, rate: float) -> float:
        """Make the calls at so many a second and return how many seconds they took."""
        return self._order("pace", calls, round(rate)) / 1e9

    def spin(self, calls: int, turns: int) -> float:
        """Call ``main.timed`` and return how many ns a call took by its own measure."""
        return self._order("spin", calls, turns) / calls

    def __enter__(self) -> Calls:
        return self


@contextmanager
def many_at_work() -> Iterator[int]:
    """Run bench_many and yield its pid."""
    with on_cpu(TARGET_CPU):
        process = Process([many_program()])
    with process:
        process.read_until("ready ")
        yield process.pid


@contextmanager
def compiler_at_work(path: Path) -> Iterator[None]:
    """Keep the Go compiler compiling, in one process after another, until left."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "p.go"
        source.write_text(_source())
        command = [str(path), "-p", "p", "-o", f"{directory}/p.o", str(source)]
        over = threading.Event()
        running: list[subprocess.Popen[bytes]] = []

        def work() -> None:
            while not over.is_set():
                with on_cpu(TARGET_CPU):
                    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
                running[:] = [process]
                while process.poll() is None and not over.wait(0.02):
                    pass
                process.kill()
                process.wait()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            yield
        finally:
            over.set()
            worker.join()


def _source() -> str:
    """Return a Go package that takes the compiler several seconds."""
    body = "\n".join(
        f"\tif a > {n} {{ b[a%{n + 7}] += s[{n}:] }} else {{ a += {n} }}" for n in range(60)
    )
    functions = (
        f"func F{n}(a int, b map[int]string, s string) int {{\n{body}\n\treturn a\n}}\n"
        for n in range(400)
    )
    return "package p\n\n" + "\n".join(functions)
