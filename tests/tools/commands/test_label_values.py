# SPDX-License-Identifier: Apache-2.0
"""Labels of goroutines in expressions: each one is what the program itself says it is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.toolchains import (
    BUILD_MODES,
    FIXTURES,
    Toolchain,
    build,
    each_since,
    minor,
    newest,
    toolchains,
)
from tests.tools.harness import Fixture, Result, of_kind, run_tool, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

KEY = "method"
LABEL = f'$label("{KEY}")'
#: A map with more is not searched in the kernel: bpf/labels.h.
MOST_IN_MAP = 208
Labels = Mapping[str, Mapping[str, str]]


def value(labels: Mapping[str, str]) -> str:
    """Return what runtime/pprof.Label returns: a label that is not there is empty."""
    return labels.get(KEY, "")


def check(toolchain: Toolchain, mode: str = "default") -> None:
    seed = random.randrange(1 << 30)
    path = build(FIXTURES / "live_labels", toolchain, flags=BUILD_MODES[mode])
    with Fixture([path, str(seed)]) as fixture:
        words = ("-p", str(fixture.ready), "--json")
        shown = f'main.work "%x,%d", {LABEL}, len({LABEL})'
        with (
            tool("gotrace", *words, shown) as tracing,
            tool("gotrace", *words, f'main.work (prefix({LABEL}, "a"))') as choosing,
            tool("gofunccount", *words, "--by", LABEL, "main.work") as counting,
        ):
            truth = fixture.work("2")["Labels"]
            traced, chosen, counted = tracing.end(), choosing.end(), counting.end()
        assert fixture.finish() == 0
    print("seed", seed)
    assert traced.status == chosen.status == counted.status == 0
    known = {
        goid: labels
        for goid, labels in truth.items()
        if minor(toolchain) >= 24 or len(labels) <= MOST_IN_MAP
    }
    check_values(traced, truth, known)
    check_choice(chosen, known)
    wanted = Counter[str]()
    for labels in known.values():
        wanted[value(labels)] += 2
    rows = {row["by"][LABEL]: row["count"] for row in of_kind(counted, "count")}
    assert rows.items() >= wanted.items()
    assert sum(rows.values()) == 2 * len(truth)


def check_values(traced: Result, truth: Labels, known: Labels) -> None:
    calls = of_kind(traced, "call")
    assert len(calls) == 2 * len(truth) == 2000
    for call in calls:
        goid = str(call["goid"])
        if goid in known:
            text = value(known[goid]).encode()
            assert call["message"] == f"{text.hex()},{len(text)}"
        else:
            assert call["message"].startswith("<unavailable")


def check_choice(chosen: Result, known: Labels) -> None:
    seen = Counter(str(call["goid"]) for call in of_kind(chosen, "call"))
    for goid, labels in known.items():
        assert seen[goid] == (2 if value(labels).startswith("a") else 0)


@each_since(19)
def test_each_of_a_thousand_goroutines_has_its_own(toolchain: Toolchain) -> None:
    check(toolchain)


@pytest.mark.parametrize("mode", ["stripped", "pie"])
def test_so_they_have_without_symbols(mode: str) -> None:
    check(newest(), mode)
    check(next(each for each in toolchains() if each.minor == "1.23"), mode)


def test_what_is_no_key_is_refused() -> None:
    path = build(FIXTURES / "live_labels", newest())
    for expression, reason in (
        ("$label", 'takes a key in parentheses, as in $label("user")'),
        ("$label(1)", "expected a label's key"),
        (f'$label("{"k" * 65}")', "at most 64 bytes here, and this one 65"),
    ):
        result = run_tool("gotrace", f'{path}:main.work "%s", {expression}')
        assert result.status == 2 and reason in result.errors
