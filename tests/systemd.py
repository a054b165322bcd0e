# SPDX-License-Identifier: Apache-2.0
"""A systemd of its own, which starts one unit as it is shipped and touches nothing of the machine.

It is process 1 of new namespaces, with units, control groups, /run, /etc and caches of its own, so
that sandboxing and capabilities are what systemd makes of the unit, also where the machine itself
was not started by it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.tools.harness import Process

_SYSTEMD = "/lib/systemd/systemd"
_PATIENCE = 100.0  # seconds
#: What a unit with default dependencies needs, and what is started.
_TARGETS = ("sysinit.target", "basic.target", "shutdown.target")
_LOG = "[Service]\nStandardOutput=append:/opt/gotrace/log\nStandardError=inherit\n"
#: $1 becomes /opt/gotrace, $2 has the units, $3 is the configuration, $4 has Python packages.
_BEGIN = """\
set -e
mount --make-rprivate /
for place in /run /var/lib /var/cache /var/log; do
    [ -d $place ] && mount -t tmpfs tmpfs $place
done
mkdir -p /run/units /run/etc/new /run/etc/work
cp -r "$2"/. /run/units
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc/new,workdir=/run/etc/work overlay /etc
cp "$3" /etc/gotraced.yaml
mount -t tmpfs tmpfs /opt
mkdir /opt/gotrace
mount --bind "$1" /opt/gotrace
mkdir -p /opt/gotrace/site
mount --bind "$4" /opt/gotrace/site
umount -l -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
export container=test SYSTEMD_UNIT_PATH=/run/units SYSTEMD_GENERATOR_PATH=/run/none
export SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/run/none
exec {systemd} --system --unit=test.target --show-status=0
"""


def why_no_systemd() -> str | None:
    """Return what is missing for a systemd of its own, None where it can be started."""
    if not os.access(_SYSTEMD, os.X_OK):
        return "there is no systemd here"
    if cgroup2() is None:
        return "no cgroup2 is mounted here"
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "this kernel has no overlay file system"
    return None


def cgroup2() -> Path | None:
    """Return where control groups of version 2 are mounted, None where they are not."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        if line.split()[2] == "cgroup2":
            return Path(line.split()[1])
    return None


class Systemd:
    """A running systemd that has been asked to start a unit; a context manager that ends it.

    ``tools`` becomes /opt/gotrace; its file ``log`` is what the unit prints, and ``site``
    has the Python packages of this process.
    """

    def __init__(self, unit: Path, tools: Path, config: Path) -> None:
        self._closing = ExitStack()
        self._log = tools / "log"
        place = Path(self._closing.enter_context(tempfile.TemporaryDirectory()))
        units = place / "units"
        (units / f"{unit.name}.d").mkdir(parents=True)
        shutil.copy(unit, units)
        (units / f"{unit.name}.d" / "log.conf").write_text(_LOG)
        for name in _TARGETS:
            (units / name).write_text("[Unit]\nDefaultDependencies=no\n")
        (units / "test.target").write_text(
            f"[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\nWants={unit.name}\n"
        )
        begin = place / "begin"
        begin.write_text(_BEGIN.replace("{systemd}", _SYSTEMD))
        mounted = cgroup2()
        assert mounted is not None
        group = Path(tempfile.mkdtemp(prefix="gotraced-test.", dir=mounted))
        self._closing.callback(remove_group, group)
        command: list[str | Path] = ["sh", "-c", 'echo $$ >"$0"/cgroup.procs && exec "$@"', group]
        command += ["unshare", "--cgroup", "--mount", "--pid", "--uts", "--ipc", "--fork"]
        command += ["--kill-child", "--mount-proc", "sh", begin, tools, units, config]
        command.append(sysconfig.get_path("purelib"))
        self._process = Process(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, patience=2 * _PATIENCE
        )

    @property
    def _first(self) -> int:
        """Return the number of systemd's process, as this process sees it."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def inside(self, *command: str | Path) -> list[str | Path]:
        """Return the command line that runs a command in systemd's namespaces."""
        return ["nsenter", f"--target={self._first}", "--mount", "--pid", *command]

    def run(self, *command: str | Path) -> str:
        """Run a command there that must succeed and return what it prints."""
        done = subprocess.run(
            self.inside(*command), capture_output=True, text=True, timeout=_PATIENCE
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.log}"
        return done.stdout

    @property
    def log(self) -> str:
        """Return what the unit has printed."""
        return self._log.read_text() if self._log.exists() else ""

    def wait_for(self, text: str) -> str:
        """Wait until the unit has printed a text, and return the rest of that line."""
        until, pause = time.monotonic() + _PATIENCE, threading.Event()
        while "\n" not in (rest := self.log.partition(text)[2]):
            assert time.monotonic() < until, f"no {text!r}: {self.log}"
            assert not self._process.ends_within(0), f"systemd has ended: {self.log}"
            pause.wait(0.1)
        return rest.partition("\n")[0]

    def __enter__(self) -> Systemd:
        return self

    def __exit__(self, *_: object) -> None:
        # unshare takes systemd with it, and systemd all in its namespace.
        with self._closing, self._process, suppress(ProcessLookupError):
            os.kill(self._process.pid, 9)


def remove_group(group: Path) -> None:
    """Remove a control group and those below, once what was killed in them is gone."""
    until, pause = time.monotonic() + _PATIENCE, threading.Event()
    for directory, _, _ in os.walk(group, topdown=False):
        while True:
            try:
                os.rmdir(directory)
                break
            except OSError:
                assert time.monotonic() < until, directory
                pause.wait(0.1)
