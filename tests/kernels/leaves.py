# SPDX-License-Identifier: Apache-2.0
"""Functions that lead straight to a RET, which is where gofunccount counts and carries them out."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tests.tools.harness import Fixture, json_counts, of_kind, tool

__all__ = ["carried_out"]

#: Functions of tests/fixtures/live_count: called by others and jumped to, by way of an interface,
#: and in assembly with arguments on the stack.
_LEAVES = ("main.leaf", "main.square.area", "main.bare")


def carried_out(program: Path, method: str) -> str:
    """Hold that leaves are counted without a step, and with one each where that is not asked for.

    Then three tools are at the same RETs: what was attached last comes first there. Last, the
    functions' results are looked at by the program itself.
    """
    emulated = ("--json", "--emulate-ret=on", "--attach", method)
    plain = ("--json", "--attach", method)
    for words in (emulated, plain):
        with Fixture([program]) as fixture:
            with tool("gofunccount", *words, "-p", str(fixture.ready), *_LEAVES) as counting:
                truth = _leaves(fixture.work())
                counts = json_counts(counting.end(), truth)
            stepped = "[uprobes]" in Path(f"/proc/{fixture.pid}/maps").read_text()
            assert fixture.finish() == 0
        assert counts == truth, f"{' '.join(words)}: {counts} of {truth}"
        assert stepped == (words == plain), "a leaf was stepped" if stepped else "none was stepped"
    with Fixture([program]) as fixture, ExitStack() as stack:
        target = ("-p", str(fixture.ready), *_LEAVES)
        first, measuring, last = (
            stack.enter_context(tool(name, *words, *target))
            for name, words in (
                ("gofunccount", emulated),
                ("gofunclatency", (*emulated, "-F")),
                ("gofunccount", emulated),
            )
        )
        truth = _leaves(fixture.work())
        for counting in (first, last):
            assert json_counts(counting.end(), truth) == truth
        measured = measuring.end()
        assert fixture.finish() == 0
    for name, calls in truth.items():
        rows = [row for row in of_kind(measured, "histogram") if row["func"] == name]
        assert sum(row["count"] for row in rows) == calls, f"{name}: {rows} for {calls} calls"
    with Fixture([program]) as fixture:
        with tool("gofunccount", *emulated, "-p", str(fixture.ready), "main.leaf") as counting:
            fixture.say("busy")
            fixture.read_until("busy")
            fixture.say()
            busy = fixture.answer()["calls"]
            counts = json_counts(counting.end(), ["main.leaf"])
        assert fixture.finish() == 0
    assert busy["wrong"] == 0, f"{busy['wrong']} wrong results"
    assert counts == {"main.leaf": busy["main.leaf"]}, f"{counts} of {busy}"
    calls = sum(truth.values())
    return (
        f"{calls:,} calls without a step, {calls:,} by three tools; {counts['main.leaf']:,} results"
    )


def _leaves(answer: dict[str, dict[str, int]]) -> dict[str, int]:
    return {name: answer["calls"][name] for name in _LEAVES}
