# SPDX-License-Identifier: Apache-2.0
"""What has to cost less."""

from __future__ import annotations

from array import array
from typing import Any, cast

from gotrace.fleet.pauses import LastPrice, Pauses
from gotrace.kernel.attach import Point, ProbeGroup
from gotrace.overhead import ProbeCost
from gotrace.session.budget import (
    WINDOW,
    Budget,
    HitCounts,
    HitRow,
    Hits,
    RunBudget,
    counting_hits,
    removable,
)
from gotrace.session.calibrate import Calibration
from gotrace.session.landings import MAX_FUNCTIONS
from gotrace.settings import HIT_KINDS, CountSettings

MS = 1_000_000
COST = ProbeCost(600, 5_000, ProbeCost(800, 1_000), first=ProbeCost(9_000, 9_000))


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


def test_a_dear_probe_that_has_just_come_goes_before_a_cheap_one() -> None:
    budget: Budget[str] = Budget(0.02)
    budget.exceeding(0, {"a": 0, "b": 0})
    assert budget.exceeding(8, {"a": 72 * MS, "b": 72 * MS}) == {}
    assert budget.exceeding(9, {"a": 81 * MS, "b": 81 * MS, "c": 60 * MS}) == {"c": 0.06}


def test_a_probe_is_tried_again_if_its_share_fits_what_others_leave() -> None:
    budget: Budget[str] = Budget(0.02)
    budget.exceeding(0, {"a": 0})
    assert budget.exceeding(10, {"a": 150 * MS}) == {}
    assert budget.has_room(0.004, 200 * MS) and not budget.has_room(0.006, 200 * MS)
    budget.expect("b", 0.004, 200 * MS)
    assert not budget.has_room(0.002, 200 * MS)
    assert budget.exceeding(20, {"a": 300 * MS, "b": 10 * MS}) == {}
    assert budget.has_room(0.003, 200 * MS)  # it takes less than expected


def test_a_try_in_vain_is_saved_for() -> None:
    budget: Budget[str] = Budget(0.02)
    budget.exceeding(0, {"a": 0})
    assert list(budget.exceeding(1, {"a": 300 * MS})) == ["a"]  # it owes 280
    tries = []
    for second in range(2, 120):
        budget.exceeding(second, {})
        if budget.has_room(0.3, 300 * MS):
            budget.expect("a", 0.3, 300 * MS)
            tries.append(second)
    assert tries == [31, 51, 61, 81, 91, 111]


def test_debts_and_savings_are_those_of_a_minute() -> None:
    budget: Budget[str] = Budget(0.02)
    budget.exceeding(0, {"a": 0})
    budget.exceeding(1, {"a": 10_000 * MS})
    assert not any(budget.has_room(1, 1) or budget.exceeding(at, {}) for at in range(2, 71))
    assert budget.exceeding(71, {}) == {} and budget.has_room(1, 1)
    for second in range(72, 600):
        budget.exceeding(second, {})
    assert budget.has_room(1, 10_000 * MS)
    budget.expect("a", 1, 10_000 * MS)
    assert not budget.has_room(1, 1)


def paid_for(dear: int, cheap: int, seconds: int, share: float) -> tuple[list[int], set[str]]:
    """Return what a busy target pays for its probes in each minute, and which cheap ones stop.

    A dear one takes a tenth of a CPU, a cheap one a thousandth.
    """
    budget: Budget[str] = Budget(share)
    pauses: Pauses[str] = Pauses()
    price = {f"dear {one}": 100 * MS for one in range(dear)}
    price |= {f"cheap {one}": 1 * MS for one in range(cheap)}
    spent = dict.fromkeys(price, 0)
    minutes, stopped = [0] * (seconds // 60), set[str]()
    for second in range(seconds):
        for key, known in pauses.waiting(second):
            if budget.has_room(*known):
                budget.expect(key, *known)
                pauses.admit(key)
        for key in price.keys() - spent.keys():
            if pauses.is_over(key, second):
                spent[key] = 0
        for key in spent:
            spent[key] += price[key]
            minutes[second // 60] += price[key]
        for key, part in budget.exceeding(second + 1, dict(spent)).items():
            pauses.pause(key, second + 1, LastPrice(part, spent.pop(key)))
            stopped.add(key)
    return minutes, {key for key in stopped if key.startswith("cheap")}


def test_many_dear_probes_of_a_busy_target_do_not_take_more_together() -> None:
    for dear in (1, 2, 20):
        minutes, stopped = paid_for(dear, 8, 1200, 0.02)
        assert not stopped
        # Nobody knows the prices at first, which is a look at all of them.
        whole = 0.02 * 60_000 * MS
        assert minutes[0] <= whole + 2 * dear * 100 * MS
        assert all(paid <= whole + 200 * MS for paid in minutes[1:])
        assert sum(minutes) <= 20 * whole
        assert sum(minutes) > 20 * 480 * MS + 4 * 200 * MS  # they are tried for all that


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


def counts(*rows: HitRow, stepped: int = -1) -> HitCounts:
    return HitCounts(rows, [row == stepped for row in range(len(rows))])


def test_a_hit_has_the_price_of_its_way() -> None:
    assert (COST.emulated, COST.ret, COST.stepped_entry) == (1_000, 9_000, 9_000)
    trap = ProbeCost(800, 2_400).plus(200)  # without landings, and with a longer program
    assert (trap.emulated, trap.ret, trap.stepped_entry) == (1_000, 4_200, 4_200)
    both = counts(HitRow(), HitRow(100, 10, 80, 10), HitRow(5, 5), stepped=2)
    assert both.spent(COST) == [0, 360_000, 90_000]
    assert (both.emulated(COST).hits, both.emulated(COST).ns) == (180, 180_000)
    assert (both.single_stepped(COST).hits, both.single_stepped(COST).ns) == (30, 270_000)


def test_what_belongs_to_no_function_is_told_apart() -> None:
    some = counts(HitRow(entries=7, switches=10), HitRow(1))
    assert some.spent(COST) == [8_500, 1_000]
    assert (some.switches.hits, some.switches.ns) == (10, 1_500)
    assert counts(HitRow(7, 2)).spent(COST) == [25_000]  # functions without rows of their own


def test_landings_that_end_no_call_are_spread_by_the_calls_meanwhile() -> None:
    some = counts(HitRow(3, landings=91, stepped=1), HitRow(90), HitRow(10))
    assert some.spent(COST) == [3_000, 180_000, 20_000]
    assert counts(HitRow(landings=100), HitRow()).spent(COST) == [100_000, 0]


def test_a_calls_own_part_is_of_where_its_function_has_returned() -> None:
    some = counts(HitRow(), HitRow(20, 10, 10), HitRow(5, 5), HitRow(1, 1), HitRow(), stepped=3)
    found = some.cost(COST)
    assert {number: each.own for number, each in found.functions.items()} == {
        0: 700,
        1: 600,
        2: 9_000,
    }
    assert found.every.own == (20 * 700 + 5 * 600 + 9_000) // 26
    assert found.of(1).hit == found.every.hit == (35 * 1_000 + 17 * 9_000) // 52
    assert found.of(None) == found.of(3) == found.every
    nothing = counts(HitRow(), HitRow()).cost(COST)
    assert (nothing.every.own, nothing.every.hit) == (600, 5_000)


def test_counts_of_an_interval() -> None:
    now, before = counts(HitRow(9, 8, 7, 6, 5, 4)), counts(HitRow(5, 4, 3, 2, 1, 0))
    assert now.since(before).rows == [HitRow(4, 4, 4, 4, 4, 4)]
    assert now.since(None) is now


class Map:
    """A map of hits on two CPUs, and the numbers that were read of it."""

    stride, max_entries = 16, 4 * HIT_KINDS

    def __init__(self) -> None:
        self.values, self.read = array("Q", [0]) * (2 * self.max_entries), 0

    def hit(self, row: int, cpu: int) -> None:
        self.values[2 * row * HIT_KINDS + cpu] += 1

    def array(self, start: int, count: int) -> bytes:
        self.read += count
        return self.values[2 * start : 2 * (start + count)].tobytes()


def test_new_hits_are_read_of_rows_that_are_asked_for_and_are_there() -> None:
    """Beyond a map there is another one's memory, or nothing."""
    hits, there = object.__new__(Hits), Map()
    hits._hits, hits._before, hits._stepped = cast(Any, there), bytearray(), [False] * 4
    assert hits.new([range(2), range(3, 9), range(7, 9), range(2, 2)]) is None
    assert there.read == 3 * HIT_KINDS
    for row, cpu in ((1, 0), (1, 1), (2, 0), (3, 1)):
        there.hit(row, cpu)
    new = hits.new([range(2), range(3, 9)])
    assert new is not None and new.numbers == [0, 1, 3]
    assert [row.entries for row in new.rows] == [0, 2, 1]
    assert hits.new([range(2), range(3, 9)]) is None
    new = hits.new([range(9)])  # what nobody has asked for is not lost
    assert new is not None and new.numbers == [0, 2]


class Counted(Hits):
    """Hits that a test has."""

    def __init__(self) -> None:
        self.now = counts(HitRow(), HitRow(), HitRow())

    def read(self) -> HitCounts:
        return self.now


def test_a_function_that_rests_has_no_share_in_what_others_cost() -> None:
    hits = Counted()
    with Calibration(lambda: ProbeCost(1_000, 5_000)) as trap:
        trap.cost(10)
        budget = RunBudget(0.02, hits, trap, 0.0)
        for second in range(30):  # 0.3 s in all, some of it for landings that end no call
            calls = second * 4_000
            hits.now = counts(HitRow(landings=calls // 2), HitRow(calls, 0, calls), HitRow())
            assert budget.look(second) is None
        rests = hits.now.rows[1]
        for second in range(30, 297):
            calls = (second - 29) * 4_000
            missed = HitRow(landings=hits.now.rows[0].landings + 2_000)
            hits.now = counts(missed, rests, HitRow(calls, 0, calls))
            assert budget.look(second) is None
        hits.now = counts(missed, rests, HitRow(calls + 300_000, 0, calls))
        exceeded = budget.look(297)
        assert exceeded is not None and list(exceeded.functions) == [1]
