# SPDX-License-Identifier: Apache-2.0
"""Programs that are kept busy and know whether what they do is right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.real.report import FULL
from tests.toolchains import Toolchain, build, toolchains
from tests.tools.harness import Fixture

HOME = Path(__file__).parent
TARGETS = ("work", "serve")
HANGS = 1800  # seconds

#: The releases that matter most: the oldest, Debian 12's and the newest. One where time counts.
RELEASES = ("1.15", "1.19")


def releases() -> list[Toolchain]:
    """Return the toolchains for long runs: three, or the newest alone."""
    old = [found for found in toolchains()[:-1] if FULL and found.minor in RELEASES]
    return [*old, *toolchains()[-1:]]


@contextmanager
def busy(what: str, toolchain: Toolchain) -> Iterator[Fixture]:
    """Run a program; see in the end that it has done its work, all of it right.

    ``work`` checks its own results; a client, which nobody traces, checks those of ``serve``.
    """
    with Fixture([build(HOME / what, toolchain)], patience=HANGS) as target:
        target.say()
        addresses = target.read_until("busy")[0].split()
        if what == "work":
            yield target
            truth = target.work("end")
            assert truth["wrong"] == 0, target.errors
            assert truth["done"] > 0
        else:
            with Fixture([build(HOME / "client", toolchain), *addresses], patience=HANGS) as client:
                client.say()
                yield target
                truth = client.work("end")
                assert client.finish() == 0
            assert truth["wrong"] == 0, client.errors
            assert target.work("end")["answered"] == truth["done"] > 0
        assert target.finish() == 0
