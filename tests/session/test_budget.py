# SPDX-License-Identifier: Apache-2.0
"""What has to cost less."""

from __future__ import annotations

from gotrace.kernel.attach import Point, ProbeGroup
from gotrace.session.budget import WINDOW, Budget, counting_hits, removable
from gotrace.session.landings import MAX_FUNCTIONS
from gotrace.settings import CountSettings

MS = 1_000_000


def test_within_the_budget_nothing_goes() -> None:
    budget: Budget[str] = Budget(0.02)
    spent = {"a": 5_000 * MS, "b": 0}  # what was before counts for nothing
    for second in range(60):
        assert budget.exceeding(second, spent) == {}
        spent = {"a": spent["a"] + 15 * MS, "b": spent["b"] + 4 * MS}


def test_the_dearest_goes_first_and_no_more_than_need_be() -> None:
    budget: Budget[str] = Budget(0.02)
    assert budget.exceeding(0, {"a": 0, "b": 0, "c": 0}) == {}
    over = budget.exceeding(1, {"a": 150 * MS, "b": 100 * MS, "c": 10 * MS})
    assert over == {"a": 0.15, "b": 0.1}  # without them it is 1%
    assert budget.exceeding(2, {"c": 20 * MS}) == {}
    assert list(budget.exceeding(3, {"c": 215 * MS})) == ["c"]


def test_many_that_cost_little_go_together() -> None:
    budget: Budget[int] = Budget(0.02)
    budget.exceeding(0, {})
    spent = dict.fromkeys(range(60), 4 * MS)
    over = budget.exceeding(1, spent, last=(0,))
    assert len(over) == 55 and 0 not in over
    assert budget.exceeding(2, {row: ns + 3 * MS for row, ns in spent.items()}) == {}


def test_what_goes_last_goes_last() -> None:
    budget: Budget[int] = Budget(0.02)
    budget.exceeding(0, {})
    assert list(budget.exceeding(1, {0: 900 * MS, 1: 1 * MS}, last=(0,))) == [1, 0]


def test_a_burst_is_stopped_before_the_window_ends() -> None:
    budget: Budget[str] = Budget(0.02)
    budget.exceeding(0, {"a": 0})
    assert budget.exceeding(0.5, {"a": 201 * MS}) == {"a": 0.402}


def test_a_probe_that_comes_later_is_counted_from_its_beginning() -> None:
    budget: Budget[str] = Budget(0.02)
    budget.exceeding(0, {})
    assert budget.exceeding(5, {"a": 0}) == {}
    assert list(budget.exceeding(6, {"a": 300 * MS})) == ["a"]
    assert budget.exceeding(WINDOW, {"a": 0}) == {}


def test_a_probe_that_is_attached_anew_begins_anew() -> None:
    budget: Budget[str] = Budget(0.02)
    budget.exceeding(0, {"a": 0})
    assert list(budget.exceeding(1, {"a": 300 * MS})) == ["a"]
    assert budget.exceeding(2, {"a": 10 * MS}) == {}
    assert list(budget.exceeding(3, {"a": 220 * MS})) == ["a"]


def test_a_probe_that_costs_less_from_now_on_is_forgiven() -> None:
    budget: Budget[str] = Budget(0.02)
    budget.exceeding(0, {"a": 0})
    budget.forgive("a", 150 * MS)
    assert budget.exceeding(2, {"a": 300 * MS}) == {}
    assert list(budget.exceeding(3, {"a": 360 * MS})) == ["a"]


def test_what_all_have_cost_in_the_window() -> None:
    budget: Budget[str] = Budget(0.02)
    budget.exceeding(0, {"a": 100 * MS})
    assert budget.total(2, {"a": 120 * MS, "b": 40 * MS}) == 0.03


def ret_groups(functions: int) -> list[ProbeGroup]:
    points = [Point(0x10 * one, 0x10 * one, one) for one in range(functions) for _ in range(2)]
    return [ProbeGroup("on_return", "x", "x", points, 0, 0)]


def test_functions_can_be_removed_one_by_one_up_to_a_number() -> None:
    groups, by_number = removable(ret_groups(MAX_FUNCTIONS), MAX_FUNCTIONS)
    assert [len(group.points) for group in groups] == [2] * MAX_FUNCTIONS
    assert list(by_number) == list(range(MAX_FUNCTIONS))
    many = ret_groups(MAX_FUNCTIONS + 1)
    assert removable(many, MAX_FUNCTIONS + 1) == (many, {})
    settings = CountSettings(counters=MAX_FUNCTIONS + 1)
    assert counting_hits(settings, MAX_FUNCTIONS).site.hit_rows == MAX_FUNCTIONS + 1
    assert counting_hits(settings, MAX_FUNCTIONS + 1).site.hit_rows == 1
