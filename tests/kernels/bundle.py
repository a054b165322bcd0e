# SPDX-License-Identifier: Apache-2.0
"""The bundle in a guest, as on a host with Python alone: no libraries of Debian's, and no BCC."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from tests.kernels.order import BUNDLE
from tests.kernels.runs import MINORS, fixture_program
from tests.tools import harness

#: Where the guest's Python has what packages bring: BCC's binding, capstone and so on.
_PACKAGES = "/usr/lib/python3/dist-packages"
#: Runs a command where there is nothing there, and keeps its process.
_ALONE = f"""\
#!/bin/sh
exec unshare --mount /bin/sh -c '/bin/mount -t tmpfs none {_PACKAGES} && exec "$0" "$@"' \\
    {{command}} "$@"
"""


@contextmanager
def unpacked() -> Iterator[str]:
    """Have tests run the bundle's commands, and yield how long installing and a result took.

    Holds that the programs of all commands come with the bundle, and that none is compiled.
    """
    with TemporaryDirectory() as folder:
        place, cache = Path(folder), Path(folder) / "cache"
        cache.mkdir(mode=0o700)
        began = time.monotonic()
        packed = fixture_program("live_count", MINORS[-1]).with_name(BUNDLE)
        subprocess.run(["/bin/busybox", "tar", "xzf", packed, "-C", place], check=True)
        unpacking = time.monotonic() - began
        (place / "tools").mkdir()
        for command in (place / "gotrace" / "bin").iterdir():
            script = place / "tools" / command.name
            script.write_text(_ALONE.format(command=command))
            script.chmod(0o755)
        environment = {"XDG_CACHE_HOME": str(cache)}
        with patch.object(harness, "CLONE", place), patch.dict(os.environ, environment):
            times = [f"{_first_result():.1f} s" for _ in range(2)]
            yield (
                f"{packed.stat().st_size / 1e6:.1f} MB unpacked in {unpacking:.1f} s,"
                f" from a command to its result {' and again '.join(times)}; {_origins()}"
            )
        assert not [*cache.rglob("bpf/*")], "a program was compiled"


def _first_result() -> float:
    """Return how long gofunccount takes, whose modules are not compiled at first."""
    with harness.Fixture([fixture_program("live_count", MINORS[-1])]) as fixture:
        began = time.monotonic()
        truth, result = harness.count_on(fixture, "main.leaf")
        took = time.monotonic() - began
        assert fixture.finish() == 0
    assert harness.json_counts(result)["main.leaf"] == truth["calls"]["main.leaf"]
    return took


def _origins() -> str:
    """Hold that the doctor knows of no BCC, and of programs that come with the package alone."""
    result = harness.run_tool("gotrace", "doctor", "--json")
    rows = {row["check"]: row for row in harness.of_kind(result, "check")}
    assert rows["bcc"]["state"] == "warn", rows["bcc"]
    assert rows["packaged programs"]["state"] == "ok", rows["packaged programs"]
    found = {name: row["found"] for name, row in rows.items() if name.startswith("program of ")}
    others = {n: text for n, text in found.items() if not text.startswith("comes with the package")}
    assert found and not others, others or rows
    return f"the programs of {len(found)} commands come with it"
