# SPDX-License-Identifier: Apache-2.0
"""The fixtures that go into a guest, compiled on the host."""

from __future__ import annotations

from pathlib import Path

from tests.debian import FetchError
from tests.toolchains import FIXTURES, build, toolchain

__all__ = ["MINORS", "NAMES", "programs"]

MINORS = ("1.19", "1.27")
NAMES = ("live_count", "live_latency", "live_relay", "live_steps", "trace_values")

#: Where the text of the older release's programs begins. By perf-ip, sites are found by address
#: alone, and no two programs at once may have one there.
_TEXT = "0x4000000"


def programs() -> dict[str, Path]:
    """Return the compiled fixtures by their names in a guest. Raises FetchError without a Go."""
    found = {}
    for minor in MINORS:
        go = toolchain(minor)
        if go is None:
            raise FetchError(f"there is no Go {minor}: make setup-test")
        flags = [f"-ldflags=-T {_TEXT}"] if minor == MINORS[0] else []
        for name in NAMES:
            found[f"{name}-{minor}"] = build(FIXTURES / name, go, flags=flags)
    return found
