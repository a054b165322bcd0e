# SPDX-License-Identifier: Apache-2.0
"""Run checks in a QEMU guest with another kernel, and read their results as they come."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.debian import FetchError
from tests.kernels import images
from tests.kernels.order import Order, Result, parse_result
from tests.kernels.releases import Release

_CLONE = Path(__file__).parents[2]
_MEMORY_MB = 2048

#: What the guest gets of the clone.
_PARTS = ("gotrace", "bpf", "tools", "tests")


class GuestError(Exception):
    """Report a guest that did not come to its end, in one line."""


@dataclass(frozen=True, slots=True)
class Guest:
    """One guest to run: its kernel, processors, further words of its command line, time in s.

    ``together`` has one thread of QEMU emulate all processors by turns; ``emulator`` are further
    words of QEMU's own command line.
    """

    release: Release
    cpus: int
    boot: str
    limit: float
    together: bool = False
    emulator: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Board:
    """What QEMU is to emulate: a machine of it, its processors, and how a second port is added.

    ``boot`` are words for the kernel's command line.
    """

    emulator: str
    machine: str
    cpu: str
    second_port: Sequence[str]
    boot: str


_BOARDS = {
    "amd64": _Board(
        "qemu-system-x86_64",
        "q35",
        # QEMU 7.2 has been seen to leave garbage in the flags after cmpxchg16b (a double fault
        # within seconds of booting Linux 6.12).
        "max,-cx16",
        ("-serial", "stdio"),
        # On a busy host the timer's first ticks come late, which kernels would take for a broken
        # one.
        "console=ttyS0 no_timer_check",
    ),
    "arm64": _Board(
        "qemu-system-aarch64",
        "virt,gic-version=3",  # the older controller knows eight processors
        # The algorithm that signs pointers on real processors takes most of the time there.
        "max,pauth-impdef=on",
        ("-chardev", "stdio,id=results", "-device", "pci-serial,chardev=results"),
        "console=ttyAMA0",
    ),
}


@contextmanager
def work_image(
    order: Order, fixtures: Mapping[str, Path], compiled: Path | None = None
) -> Iterator[Path]:
    """Give a file system with the clone, compiled fixtures and an order, for as long as needed.

    ``compiled`` are BPF programs, which the guest then need not compile.
    """
    with tempfile.TemporaryDirectory(prefix="gotrace-guest.") as directory:
        tree, image = Path(directory) / "tree", Path(directory) / "work.ext4"
        clone = tree / "clone"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *_PARTS],
            cwd=_CLONE,
            capture_output=True,
            text=True,
        )
        names = [name for name in listed.stdout.split("\0") if name]
        if listed.returncode != 0 or not names:
            raise FetchError(f"git ls-files: {listed.stderr.strip() or 'no files'}")
        for name in names:
            if (_CLONE / name).is_file() and not name.startswith("tests/fixtures/"):
                (clone / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(_CLONE / name, clone / name)
        if compiled is not None:
            shutil.copytree(compiled, clone / "gotrace" / "_compiled")
        (tree / "fixtures").mkdir()
        for key, path in fixtures.items():
            shutil.copy2(path, tree / "fixtures" / key)
        (tree / "order.json").write_text(order.to_json())
        images.file_system(tree, image, spare=1 << 20)
        yield image


def command_line(
    guest: Guest, kernel: images.Kernel, root: Path, initrd: Path, work: Path, console: Path
) -> list[str]:
    """Return the command that runs a guest; its second serial port is the standard output."""
    disks = (f"file={path},if=virtio,format=raw,snapshot=on" for path in (root, work))
    threads = "multi" if guest.cpus > 1 and not guest.together else "single"
    board = _BOARDS[guest.release.arch]
    boot = f"{board.boot} quiet panic=-1 random.trust_cpu=on {guest.boot}".strip()
    cpus = guest.cpus
    if guest.release.possible:
        boot, cpus = f"{boot} maxcpus={cpus}", guest.release.possible
    return [
        # A guest ends with whoever runs it, however that ends.
        *("setpriv", "--pdeathsig", "KILL", "nice", "-n", "5", board.emulator),
        *("-accel", f"tcg,thread={threads}", "-M", board.machine),
        *("-cpu", board.cpu, "-smp", str(cpus), "-m", str(_MEMORY_MB)),
        *("-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot"),
        *("-kernel", str(kernel.image), "-initrd", str(initrd), "-append", boot),
        *(word for disk in disks for word in ("-drive", disk)),
        *("-serial", f"file:{console}", *board.second_port),
        *guest.emulator,
    ]


def run(guest: Guest, work: Path, log: Path) -> Iterator[tuple[Result, float]]:
    """Run a guest and yield the results of its checks, with the processor time spent so far in s.

    ``log`` gets its console.
    Raises GuestError where it ends without having said that it is done, or takes too long.
    """
    kernel = images.kernel(guest.release)
    root = images.root(guest.release.arch)
    with tempfile.TemporaryDirectory(prefix="gotrace-guest.") as directory:
        initrd = Path(directory) / "initrd"
        init = _CLONE / "tests" / "kernels" / "guest" / "init"
        initrd.write_bytes(images.initramfs(kernel, root / "busybox", init))
        command = command_line(guest, kernel, root / "root.ext4", initrd, work, log)
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, errors="replace", **options
        ) as process:
            late = threading.Event()

            def expire() -> None:
                late.set()
                process.kill()

            watchdog = threading.Timer(guest.limit, expire)
            watchdog.start()
            try:
                assert process.stdout is not None and process.stderr is not None
                done = False
                for line in process.stdout:
                    result = parse_result(line)
                    done = done or (result is not None and result.last)
                    if result is not None:
                        yield result, _processor_time(process.pid)
                errors = process.stderr.read().strip()
            finally:
                watchdog.cancel()
                process.kill()
        if late.is_set():
            raise GuestError(f"took longer than {guest.limit:.0f} s: see {log}")
        if not done:
            raise GuestError(f"ended early: {errors.splitlines()[-1] if errors else f'see {log}'}")


def _processor_time(pid: int) -> float:
    """Return the processor time of a process and its threads in seconds, 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
