# SPDX-License-Identifier: Apache-2.0
"""The fixtures that go into a guest, compiled on the host."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from gotrace.architecture import ARCHITECTURES, HOST, Architecture
from gotrace.doctor.precompile import common_settings
from gotrace.kernel.program_cache import package_program, program_key
from gotrace.settings import ProgramSettings
from tests.debian import FetchError
from tests.kernels.order import (
    CGO,
    DECODER,
    GCCGO,
    HOST_OF_LIBRARY,
    LIBRARY,
    MANY,
    MANY_FUNCTIONS,
    OLDEST,
    PIE,
    PLUGIN,
    STRIPPED,
)
from tests.real.targets import HOME
from tests.toolchains import (
    FIXTURES,
    FOR_ARM64,
    Toolchain,
    build,
    cache_dir,
    gccgo_build,
    toolchain,
)
from tests.tools.gofunccount.test_many import write_program
from tests.tools.harness import CLONE
from tests.tools.libraries import build_host

MINORS = ("1.19", "1.27")
NAMES = (
    *("live_count", "live_latency", "live_oncpu", "live_parked", "live_relay", "live_requests"),
    *("live_steps", "live_syscalls", "live_waits", "live_why", "trace_values"),
)

#: Programs that are position-independent too, that have threads of C, and whose calls the daemon
#: adds up, or whose costs are measured: by the newer release only.
_INDEPENDENT, _WITH_C = ("live_latency", "trace_values"), "live_cgo_threads"
_FURTHER, _MEASURED = ("live_keys", "bench_calls"), "bench_calls"
_CC = {"amd64": "gcc", "arm64": "aarch64-linux-gnu-gcc"}
_GCCGO = {"amd64": "gccgo", "arm64": "aarch64-linux-gnu-gccgo"}

#: What the oldest release compiles as well.
_OLD = ("live_count", "live_latency", "trace_values")

#: A server and its client, of tests/real, by the newer release only.
_SERVER = ("serve", "client")

#: Where the text of the older releases' programs begins. By perf-ip, sites are found by address
#: alone, and no two programs at once may have one there. arm64's linker wants room for the headers.
_TEXT = {
    "amd64": {OLDEST: "0x8000000", "1.19": "0x4000000"},
    "arm64": {OLDEST: "0x8001000", "1.19": "0x4001000"},
}


def programs(arch: str) -> dict[str, Path]:
    """Return the compiled fixtures by their names in a guest. Raises FetchError without a Go."""
    found = {}
    env = FOR_ARM64 if arch == "arm64" else {}
    names = [name for name in NAMES if arch == "amd64" or name != "live_steps"]
    for minor in MINORS:
        for name in names:
            found[f"{name}-{minor}"] = _placed(name, minor, arch)
    for name in _INDEPENDENT:
        flags = ["-buildmode=pie"]
        found[f"{name}-{PIE}"] = build(FIXTURES / name, _go(MINORS[-1]), flags=flags, env=env)
    with_c = {**env, "CGO_ENABLED": "1", "CC": _CC[arch]}
    found[f"{_WITH_C}-{CGO}"] = build(FIXTURES / _WITH_C, _go(MINORS[-1]), env=with_c)
    for name in _FURTHER:
        found[f"{name}-{MINORS[-1]}"] = build(FIXTURES / name, _go(MINORS[-1]), env=env)
    flags = ["-ldflags=-s -w"]
    found[f"{_MEASURED}-{STRIPPED}"] = build(
        FIXTURES / _MEASURED, _go(MINORS[-1]), flags=flags, env=env
    )
    for name in _OLD:
        found[f"{name}-{OLDEST}"] = _placed(name, OLDEST, arch)
    for name in _SERVER:
        found[f"{name}-{MINORS[-1]}"] = build(HOME / name, _go(MINORS[-1]), env=env)
    with TemporaryDirectory() as directory:
        source = write_program(Path(directory) / MANY, MANY_FUNCTIONS)
        found[f"{MANY}-{MINORS[-1]}"] = build(source, _go(MINORS[-1]), env=env)
    return found | _libraries(with_c) | _others(arch, env)


def _placed(name: str, minor: str, arch: str) -> Path:
    """Compile a fixture whose code is where that of no other release is."""
    text = _TEXT[arch].get(minor)
    flags = [f"-ldflags=-T {text}"] if text else []
    return build(FIXTURES / name, _go(minor), flags=flags, env=FOR_ARM64 if arch == "arm64" else {})


def _libraries(env: Mapping[str, str]) -> dict[str, Path]:
    """Return a library and a plugin, and the programs that load them."""
    go, found = _go(MINORS[-1]), {}
    modes = {f"live_library-{LIBRARY}": "c-shared", f"live_plugin-{PLUGIN}": "plugin"}
    for key, mode in modes.items():
        name = key.partition("-")[0]
        flags = [f"-buildmode={mode}"]
        found[key] = build(FIXTURES / name, go, flags=flags, env=env, name=f"{name}.so")
    found[f"live_plugin_host-{MINORS[-1]}"] = build(FIXTURES / "live_plugin_host", go, env=env)
    host = cache_dir() / "kernels" / f"live_library_host-{env['CC']}"
    host.parent.mkdir(parents=True, exist_ok=True)
    build_host(host, env["CC"])
    return found | {f"live_library_host-{HOST_OF_LIBRARY}": host}


def _others(arch: str, env: Mapping[str, str]) -> dict[str, Path]:
    """Return a program by gccgo, and Go's own reader of traces."""
    flags = ("-static-libgo", "-static-libgcc")
    compiled = gccgo_build(FIXTURES / "live_gccgo", flags, _GCCGO[arch])
    go = _go(MINORS[-1])
    source = go.go.parent.parent / "src" / "cmd" / "trace"
    decoder = cache_dir() / "kernels" / f"{DECODER}-{arch}-{go.version}"
    if not decoder.exists():
        with TemporaryDirectory(dir=decoder.parent) as directory:
            made = Path(directory) / "trace"
            command = [str(go.go), "build", "-o", str(made), "."]
            settings = {**go.env(), "GOFLAGS": "", "CGO_ENABLED": "0", **env}
            subprocess.run(command, cwd=source, env=settings, check=True)
            made.rename(decoder)
    return {f"live_gccgo-{GCCGO}": compiled, f"{DECODER}-{MINORS[-1]}": decoder}


def compiled_programs(arch: str) -> Path | None:
    """Return a folder with BPF programs for the guests of an architecture, compiled here.

    A guest of this machine's architecture takes a second for each, others half a minute or more.
    """
    if HOST is None or arch == HOST.name:
        return None
    wanted = next(each for each in ARCHITECTURES if each.name == arch)
    folder = cache_dir() / "kernels" / f"compiled-{arch}"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {program_key(each, wanted): each for each in common_settings()}
    for key in settings.keys() ^ {path.name for path in folder.iterdir()}:
        if key in settings:
            with TemporaryDirectory(prefix="compile.", dir=folder.parent) as unfinished:
                _compile(settings[key], Path(unfinished), wanted)
                (Path(unfinished) / key).rename(folder / key)
        else:
            (folder / key).unlink(missing_ok=True)
    return folder


def bundle(arch: str) -> Path:
    """Return what make bundle makes for an architecture. Raises FetchError."""
    folder = cache_dir() / "kernels" / "packages"
    wheel = _packaged(folder, "wheel", "--arch", arch)
    return _packaged(folder, "bundle", wheel)


def _packaged(folder: Path, *words: str | Path) -> Path:
    """Return what tools/package.py makes, in a folder."""
    command: list[str | Path] = [sys.executable, CLONE / "tools" / "package.py", *words]
    done = subprocess.run([*command, "-o", folder], capture_output=True, text=True)
    if done.returncode != 0:
        raise FetchError(f"no {words[0]}: {done.stderr.strip().splitlines()[-1]}")
    return Path(done.stdout.strip())


def _compile(settings: ProgramSettings, folder: Path, arch: Architecture) -> None:
    """Compile a program, in a process of its own: LLVM is a library with state."""
    process = multiprocessing.get_context("fork").Process(
        target=package_program, args=(settings, folder, arch)
    )
    process.start()
    process.join()
    if process.exitcode != 0:
        raise FetchError(f"bpf/{settings.source} does not compile for {arch.name}")


def _go(minor: str) -> Toolchain:
    go = toolchain(minor)
    if go is None:
        raise FetchError(f"no Go {minor} here: make setup-test")
    return go
