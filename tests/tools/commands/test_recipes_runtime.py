# SPDX-License-Identifier: Apache-2.0
"""Recipes of the runtime, sync, context and fmt, in each way that a program has.

| package | the way | passes |
|---|---|---|
| context | WithDeadline, WithTimeout, also with Cause; ended by anything | timerCtx.cancel |
| context | WithCancel, AfterFunc, WithoutCancel, a later deadline than the parent's | no timerCtx |
| errors | fmt.Errorf since Go 1.26, also by value | fmt.errorf: nil for a text alone |
| errors | errors.New, errors.Join | inlined |
| gc | runtime.GC, debug.FreeOSMemory, the heap | startCycle, gcMarkTermination |
| goroutines | go, time.AfterFunc, context.AfterFunc, WaitGroup.Go | newproc |
| goroutines | iter.Pull | newcoro |
| locks | Mutex.Lock, Locker, Once.Do, Cond.Wait, RWMutex.Lock behind a writer | Mutex.lockSlow |
| locks | RWMutex.RLock and Lock since Go 1.20 | runtime_SemacquireRWMutexR, ...RWMutex |
| locks | the same before | runtime_SemacquireMutex, with no frame to skip |
| panics | panic, the runtime's errors, log.Panic, a panic again | gopanic |
| panics | fatal errors | throw, fatal: neither returns, and so they are shown at their entry |
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from gotrace.probes.recipes import find_recipe
from gotrace.probes.spec import parse_probe
from tests.toolchains import FIXTURES, build, require
from tests.tools.harness import Fixture, count_on, of_kind, tool

_NAMES = ("context", "errors", "gc", "goroutines", "locks", "panics")
_OWNERS = {
    parse_probe(probe.function).pattern: name
    for name in _NAMES
    for probe in find_recipe(name).probes
}
#: Functions whose place has another name; arguments are of no function of their own before Go 1.17.
_PLACES = {
    "main.argued": "main.goArgued",
    "main.(*worker).direct": "main.goMethod",
    "main.worker.work": "main.goInterface",
    "sync.(*WaitGroup).Go": "main.goGroup",
    "iter.Pull": "main.pulls",
}


def _comparable(name: str, text: str) -> str:
    """Return a message without what is not known of it beforehand."""
    if name == "goroutines":  # the compiler's own functions
        start = re.split(r"\.func|\.gowrap|\[", text)[0]
        return _PLACES.get(start, start)
    if name == "panics" and re.match(r"&?\{|failure|interface conversion", text):
        return "fields"
    return text


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize(
    ("minor", "order"),
    [
        ("1.15", "panic"),
        pytest.param("1.19", "panic", marks=pytest.mark.thorough),
        ("1.27", "fatal"),
    ],
)
def test_each_way_is_seen_once(minor: str, order: str) -> None:
    path = build(FIXTURES / "live_recipes_runtime", require(minor))
    with Fixture([path]) as fixture:
        words = [f"@{name}" for name in _NAMES]
        with tool("gotrace", "--json", "-p", str(fixture.ready), *words) as tracing:
            truth = fixture.work(order)
            assert fixture.finish() == 2
            result = tracing.result()
    shown: dict[str, Counter[str]] = {name: Counter() for name in _NAMES}
    for call in of_kind(result, "call"):
        name = _OWNERS[call["func"].removeprefix("internal/")]  # sync's, since Go 1.24
        shown[name][_comparable(name, call["message"])] += 1
    wanted = {n: Counter(_comparable(n, text) for text in truth[n]) for n in _NAMES}
    pauses = [text for text in shown["gc"] if text.startswith("pause of")]
    if pauses:
        [total] = [text for text in wanted["gc"] if text.isdecimal()]
        del wanted["gc"][total]
        assert sum(int(text.split()[2]) for text in pauses) == int(total)
    others = set(shown["goroutines"]) - set(wanted["goroutines"])
    assert not [text for text in others if re.match(r"main\.(go|plain|via)", text)]
    for text in (*pauses, *others):
        del (shown["gc"] if text in pauses else shown["goroutines"])[text]
    assert shown == wanted
    assert of_kind(result, "lost") == []
    said = [row["recipe"] for row in of_kind(result, "warning") if row.get("what") == "unseen"]
    assert said == ["@errors"]


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("minor", [pytest.param("1.15", marks=pytest.mark.thorough), "1.27"])
def test_calls_are_added_up_by_the_paragraphs_that_fit(minor: str) -> None:
    path = build(FIXTURES / "live_recipes_runtime", require(minor))
    with Fixture([path]) as fixture:
        truth, result = count_on(fixture, "@context")
    wanted = Counter(text.split(",")[0] for text in truth["context"])
    assert {row["by"]["err"]["$error"]: row["count"] for row in of_kind(result, "count")} == wanted
