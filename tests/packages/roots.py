# SPDX-License-Identifier: Apache-2.0
"""Root file systems of Debian, made by debootstrap and kept; what is done in one is thrown away."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.live import skip_or_fail
from tests.toolchains import cache_dir

FULL = os.environ.get("GOTRACE_PACKAGES") == "1"
needs_all = pytest.mark.skipif(not FULL, reason="make test-packages: it takes minutes")
SUITE = "trixie"
_PATIENCE = 1800.0  # seconds
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"

#: $1 is the root, $2 a directory that is shared with it, the rest the command. Nothing of what it
#: writes elsewhere outlives it.
_IN_COPY = """\
set -e
mount --make-rprivate /
work=$(mktemp -d)
mount -t tmpfs none "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$work/upper,workdir=$work/work" "$work/root"
mkdir -p "$work/root/shared"
mount --bind "$2" "$work/root/shared"
mount -t proc proc "$work/root/proc"
mount --rbind /sys "$work/root/sys"
mount --rbind /dev "$work/root/dev"
root=$work/root
shift 2
exec chroot "$root" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
"""


def root(*packages: str, suite: str = SUITE) -> Path:
    """Return a root of the least that Debian is and these packages, made the first time.

    Skips, or fails with GOTRACE_LIVE=1, where that is not possible.
    """
    program = shutil.which("debootstrap", path=_PATH)
    if program is None or os.geteuid() != 0:
        skip_or_fail("no debootstrap here, or not as root: make setup-test")
    digest = hashlib.sha256(repr((suite, sorted(packages))).encode()).hexdigest()[:12]
    roots = cache_dir() / "roots"
    roots.mkdir(parents=True, exist_ok=True)
    place = roots / f"{suite}-{digest}"
    with (roots / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            unfinished = Path(tempfile.mkdtemp(prefix=f"{place.name}.", dir=roots))
            command = [program, "--variant=minbase"]
            command += [f"--include={','.join(packages)}"] if packages else []
            done = subprocess.run(
                [*command, suite, str(unfinished)],
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                env={**os.environ, "PATH": _PATH},
            )
            if done.returncode != 0:
                shutil.rmtree(unfinished)
                skip_or_fail(f"debootstrap: {(done.stdout + done.stderr)[-300:]}")
            unfinished.chmod(0o755)
            unfinished.rename(place)
    return place


def in_copy(place: Path, shared: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a root that is as it was afterwards; ``shared`` is /shared there."""
    words: Sequence[str | Path] = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
    return subprocess.run(
        [*words, "sh", "-c", _IN_COPY, "sh", place, shared, *command],
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )
