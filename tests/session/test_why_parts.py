# SPDX-License-Identifier: Apache-2.0
"""Every wait reason of every release has a part of its own, and so have those of later ones."""

from __future__ import annotations

import pytest

import gotrace
from gotrace.elf.image import ElfImage
from gotrace.errors import GotraceError
from gotrace.gotypes.binary import Binary
from gotrace.session.why import parts as why_parts
from gotrace.session.why.parts import BLOCKED, GC, call_parts, part_class, part_names
from tests.toolchains import FIXTURES, Toolchain, build, every_toolchain, newest
from tests.tools.harness import Fixture

FIRST = 16  # WHY_REASONS of bpf/why.h


@every_toolchain
def test_each_reason_of_a_release_has_its_part(toolchain: Toolchain) -> None:
    with Binary(ElfImage.open(build(FIXTURES / "abi_runtime", toolchain))) as binary:
        reasons = binary.wait_reasons
    assert reasons
    names = part_names(reasons)
    assert len(names) == 64, "a release needs more memory for --why: say so in docs/performance.md"
    for number, reason in enumerate(reasons):
        assert names[FIRST + number] in {
            prefix + (reason or "for no reason given") for prefix in (BLOCKED, GC)
        }


@pytest.mark.parametrize(
    ("count", "parts"), [(48, 64), (49, 128), (112, 128), (113, 256), (120, 256), (240, 256)]
)
def test_later_releases_have_room(count: int, parts: int) -> None:
    names = part_names(tuple(f"reason {number}" for number in range(count)))
    assert len(names) == parts
    found = names[FIRST : FIRST + count]
    assert found == tuple(f"{BLOCKED}reason {number}" for number in range(count))
    assert all(part_class(name) is not None for name in found)
    bits = parts.bit_length() - 1
    last = FIRST + count - 1
    head = bytes(24) + bytes([0, 0, 1, 0, 0, 0, bits, 0])
    cell = (7 << bits | last).to_bytes(8, "little")
    assert call_parts(head + cell, names).parts == {names[last]: 7}


def test_more_reasons_than_the_programs_can_hold_are_refused() -> None:
    with pytest.raises(GotraceError, match=r"room for 240 .*the program has 241"):
        part_names(tuple(f"reason {number}" for number in range(241)))


@pytest.mark.live
@pytest.mark.parametrize("parts", [64, 128, 256])
def test_calls_add_up_with_any_number_of_parts(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(why_parts, "_MIN_PARTS", parts)
    with Fixture([build(FIXTURES / "live_why", newest())]) as fixture:
        with gotrace.attach(fixture.ready) as go:
            functions = ("main.outer", "main.recovers", "main.panics", "main.inner*")
            with go.trace(*functions, why=True, force=True) as stream:
                fixture.work("nested")
                stream.stop()
                calls = list(stream)

            def work() -> None:
                fixture.work("nested")
                go.stop()

            times = go.latency("main.outer", why=True, force=True, ready=work)["main.outer"]
        assert fixture.finish() == 0
    # Those that a panic ends have all parts in their records, and these are subtracted here.
    assert any(call.unwound for call in calls)
    for call in calls:
        assert call.why is not None
        assert sum(call.why.parts.values()) == call.duration_ns
    assert sum(times.why.values()) == times.sum
