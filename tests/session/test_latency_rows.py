# SPDX-License-Identifier: Apache-2.0
"""Turn measurements of several processes into rows that can be told apart."""

from __future__ import annotations

from collections import Counter

from gotrace.cli.gofunclatency import _parser
from gotrace.cli.measuring import _choice
from gotrace.cli.options import parse
from gotrace.histogram import Histogram
from gotrace.overhead import ProbeCost, RunCost
from gotrace.session.goroutines import OTHER_NAMESPACE, GoroutineKey, GoroutineTimes
from gotrace.session.latency import Measurement
from gotrace.session.latency_rows import LatencyChoice, interval_of
from gotrace.session.order import Order
from tests.cli.plans import plan_of


def rows(*, names_processes: bool) -> list[tuple[int, int | None, str | None]]:
    """Return process, goroutine and description of the rows that are shown."""
    times = [Histogram(1, 9 - n, 9 - n, 9 - n, Counter({9 - n: 1})) for n in range(4)]
    keys = [(5, 1234), (5, 77), (5, OTHER_NAMESPACE | 3), (0, 77)]
    goroutines = {
        GoroutineKey(goid, tgid, 0): GoroutineTimes(0, 0, each)
        for (goid, tgid), each in zip(keys, times, strict=True)
    }
    total = Histogram()
    for each in times:
        total.merge(each)
    choice = LatencyChoice(by_goroutine=True, names_processes=names_processes)
    period = Measurement({0: total}, goroutines, {})
    shown = interval_of(choice, plan_of("main.f"), period, None, (0.0, 1.0, 1), None)
    assert not shown.rest
    return [(group.pid, group.goid, group.goroutine) for group in shown.groups]


def test_goroutines_of_several_processes_name_them() -> None:
    assert rows(names_processes=True) == [
        (1234, 5, "goroutine 5 of process 1234"),
        (77, 5, "goroutine 5 of process 77"),
        (0, 5, "goroutine 5 of a process of another pid namespace"),
        (77, 0, "no goroutine [process 77]"),
    ]


def test_goroutines_of_one_process_are_as_in_a_stack_dump() -> None:
    assert rows(names_processes=False)[0] == (1234, 5, "goroutine 5")


def test_processes_are_named_where_only_a_file_is_given() -> None:
    given = (["-p", "1234", "main.f"], ["main.f", "--", "./server"], ["./server:main.f"])
    choices = [_choice(parse(_parser(), ["-g", *words]), by_function=False) for words in given]
    assert [choice.names_processes for choice in choices] == [False, False, True]
    assert all(choice.by_goroutine for choice in choices)


def test_functions_are_ranked_by_the_time_that_is_their_own() -> None:
    busy = Histogram(1, 9_000, 9_000, 9_000, Counter({9: 1}))
    traced_within = Histogram(1, 90_000, 90_000, 90_000, Counter({9: 1}), Counter(), 850)
    period = Measurement({0: busy, 1: traced_within}, {}, {})
    choice, plan = LatencyChoice(by_function=True), plan_of("main.f", "main.outer")
    dear, cheap = ProbeCost(0, 100), ProbeCost(0, 10)
    for cost, last in (
        (None, "main.outer"),
        (RunCost(dear), "main.f"),
        (RunCost(dear, {1: cheap}), "main.outer"),
    ):
        shown = interval_of(choice, plan, period, None, (0.0, 1.0, 1), cost)
        assert shown.groups[-1].function == last


def test_functions_are_ordered_as_asked() -> None:
    few = Histogram(1, 9_000, 9_000, 9_000, Counter({150: 1}))
    many = Histogram(9, 900, 100, 100, Counter({80: 9}))
    period, plan = Measurement({0: few, 1: many}, {}, {}), plan_of("main.f", "main.a")
    for order, names in (
        (None, ["main.a", "main.f"]),
        (Order.COUNT, ["main.f", "main.a"]),
        (Order.P99, ["main.a", "main.f"]),
        (Order.NAME, ["main.a", "main.f"]),
    ):
        choice = LatencyChoice(by_function=True, order=order)
        shown = interval_of(choice, plan, period, None, (0.0, 1.0, 1), None)
        assert [group.function for group in shown.groups] == names
        assert shown.total == 9_900
