# SPDX-License-Identifier: Apache-2.0
"""The fixtures that go into a guest, compiled on the host."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.debian import FetchError
from tests.kernels.order import MANY, MANY_FUNCTIONS
from tests.real.targets import HOME
from tests.toolchains import FIXTURES, Toolchain, build, toolchain
from tests.tools.gofunccount.test_many import write_program

__all__ = ["MINORS", "NAMES", "programs"]

MINORS = ("1.19", "1.27")
NAMES = ("live_count", "live_latency", "live_relay", "live_steps", "live_waits", "trace_values")

#: A server and its client, of tests/real, by the newer release only.
_SERVER = ("serve", "client")

#: Where the text of the older release's programs begins. By perf-ip, sites are found by address
#: alone, and no two programs at once may have one there.
_TEXT = "0x4000000"


def programs() -> dict[str, Path]:
    """Return the compiled fixtures by their names in a guest. Raises FetchError without a Go."""
    found = {}
    for minor in MINORS:
        flags = [f"-ldflags=-T {_TEXT}"] if minor == MINORS[0] else []
        for name in NAMES:
            found[f"{name}-{minor}"] = build(FIXTURES / name, _go(minor), flags=flags)
    for name in _SERVER:
        found[f"{name}-{MINORS[-1]}"] = build(HOME / name, _go(MINORS[-1]))
    with TemporaryDirectory() as directory:
        source = write_program(Path(directory) / MANY, MANY_FUNCTIONS)
        found[f"{MANY}-{MINORS[-1]}"] = build(source, _go(MINORS[-1]))
    return found


def _go(minor: str) -> Toolchain:
    go = toolchain(minor)
    if go is None:
        raise FetchError(f"no Go {minor} here: make setup-test")
    return go
