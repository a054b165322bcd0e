# SPDX-License-Identifier: Apache-2.0
"""Find a planted change among the noise of two recordings, and say it."""

from __future__ import annotations

import gzip
import io
import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.cli import gofunccount, gofunclatency, gooffcpu, gooncpu, gostacks
from gotrace.errors import GotraceError, UsageError, speak_as_command
from gotrace.histogram import BUCKETS, bucket_bounds
from gotrace.report.diff import write_diff
from gotrace.report.merged import write_merged
from gotrace.report.output import TextOutput
from gotrace.results.tails import Tail, changed_tail
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, tool

_NOISE = 0.05
_INTERVALS = 30
Row = dict[str, Any]
Rows = list[Row]


def frames(*names: str) -> list[dict[str, Any]]:
    return [{"func": name, "file": "/x.go", "line": 1} for name in names]


def around(chance: random.Random, value: float) -> int:
    return max(0, round(value * chance.gauss(1, _NOISE)))


def ended(seconds: float) -> dict[str, Any]:
    return {"kind": "detached", "message": "", "seconds": seconds}


def counts(chance: random.Random, usual: dict[str, float]) -> Rows:
    """Return the recording of a run with intervals, in which each count has its noise."""
    rows = [
        {"kind": "count", "func": name, "count": count, "ts": 100.0 + at, "interval_s": 1.0}
        for at in range(_INTERVALS)
        for name, value in usual.items()
        if (count := around(chance, value))
    ]
    return [*rows, ended(_INTERVALS)]


def waits(chance: random.Random, usual: dict[str, float]) -> Rows:
    rows: Rows = []
    for at in range(_INTERVALS):
        head = {"kind": "waits", "pid": 1, "ts": 100.0 + at, "seconds": 1.0, "count": 1}
        rows.append({**head, "delay_ns": 1, "others": {"count": 0, "delay_ns": 0}})
        for name, value in usual.items():
            wait: Row = {
                "kind": "wait",
                "state": "waiting",
                "reason": "sync.Mutex.Lock",
                "count": 100,
            }
            wait |= {"open": False, "woken_by": None, "waker": None}
            stack = frames("sync.(*Mutex).Lock", name, "main.main")
            rows.append({**wait, "delay_ns": around(chance, value), "stack": stack})
    return [*rows, ended(_INTERVALS)]


def stacks(chance: random.Random, usual: dict[str, float]) -> Rows:
    """Return how often paths to a function were taken."""
    rows: Rows = []
    for at in range(_INTERVALS):
        for name, value in usual.items():
            by = {"$stack": frames("main.serve", name, "main.main")}
            count = around(chance, value)
            row = {"kind": "count", "func": "main.f", "count": count, "by": by}
            rows.append({**row, "ts": 100.0 + at, "interval_s": 1.0})
    return [*rows, ended(_INTERVALS)]


def lines(rows: Rows) -> Iterator[str]:
    return map(json.dumps, rows)


def few_waits(chance: random.Random, usual: dict[str, float]) -> Rows:
    """Return so few waits that chance alone, if they were not regular, would make half of them."""
    rows = waits(chance, usual)
    return [row | {"count": 2} if row["kind"] == "wait" else row for row in rows]


@pytest.mark.parametrize(
    ("make", "factor"),
    [(counts, 2.0), (waits, 1.5), (few_waits, 1.5), (stacks, 1.1)],
    ids=["a function twice as often", "a lock", "a lock that is rare", "a path 10% more often"],
)
def test_a_planted_change_is_the_first(make: Any, factor: float) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        usual = {f"main.f{n}": 10 ** chance.uniform(2, 6) for n in range(40)}
        # Among those of the middle, so that the noise of the largest is more than its change.
        planted = sorted(usual, key=lambda name: usual[name])[chance.randrange(10, 30)]
        if factor < 1.5:
            planted = sorted(usual, key=lambda name: usual[name])[-1 - seed % 3]
        changed = {n: v * (factor if n == planted else 1) for n, v in usual.items()}
        found = gotrace.diff(lines(make(chance, usual)), lines(make(chance, changed)))
        first = found.changes[0]
        assert planted in (first.key.name, *first.key.stack), (seed, planted, first)
        assert first.after / first.before == pytest.approx(factor, rel=0.06)
        assert first.certain > 0


def test_what_chance_makes_is_not_certain() -> None:
    """Rows that nothing has changed: calls that come independently, whether often or rarely."""
    certain = rows = 0
    for seed, often in enumerate([0.1, 1, 10] * 4):
        chance = random.Random(seed)
        sides = []
        for _ in range(2):
            side = [
                {"kind": "count", "func": f"main.f{n}", "count": count, "interval_s": 1.0, "ts": at}
                for n in range(500)
                for at in range(6)
                if (count := sum(chance.random() < often / 40 for _ in range(40)))
            ]
            sides.append([*side, ended(6)])
        found = gotrace.diff(*map(lines, sides))
        certain += sum(1 for one in found.changes if one.certain)
        rows += len(found.changes)
    assert certain <= rows / 1000


def test_a_change_within_its_noise_comes_before_a_larger_one_that_is_more_like_noise() -> None:
    def made(quiet: int, loud: int) -> Rows:
        usual = {"main.quiet": (quiet - 40, quiet + 40), "main.loud": (0, loud)}
        rows = [
            {"kind": "count", "func": name, "count": pair[at % 2], "ts": at, "interval_s": 1.0}
            for at in range(6)
            for name, pair in usual.items()
        ]
        return [*rows, ended(6)]

    found = gotrace.diff(lines(made(1000, 50_000)), lines(made(1050, 51_000)))
    assert [one.key.name for one in found.changes] == ["main.quiet", "main.loud"]
    assert [one.certain for one in found.changes] == [0, 0]
    assert found.changes[0].change < found.changes[1].change


def test_the_largest_certain_change_is_first_and_those_within_noise_are_one_line() -> None:
    swings = {"main.steady": 0, "main.loud": 100, "main.noise": 900}

    def made(*usual: int) -> Rows:
        rows = [
            {"kind": "count", "func": name, "count": count + sign * swing, "ts": at}
            for at, sign in enumerate((-1, 1) * 4)
            for (name, swing), count in zip(swings.items(), usual, strict=True)
        ]
        return [*({**row, "interval_s": 1.0} for row in rows), ended(8)]

    found = gotrace.diff(lines(made(1000, 9000, 1000)), lines(made(1400, 9450, 1500)))
    assert [one.key.name for one in found.changes] == ["main.loud", "main.steady", "main.noise"]
    loud, steady, noise = found.changes
    assert 0 < loud.certain < steady.certain and noise.certain == 0
    shown = []
    for top in (None, 3):
        out = io.StringIO()
        write_diff(TextOutput(out, out), found, top)
        shown.append(out.getvalue().splitlines())
    assert [line.split()[-1] for line in shown[0][3:-1]] == ["main.loud", "main.steady"]
    assert shown[0][-1] == "1 change within the noise: --top 3 shows all, or record longer"
    assert [line.split()[-1] for line in shown[1][3:-1]] == [
        "main.loud",
        "main.steady",
        "main.noise",
    ]
    assert shown[1][-1] == "~ within the noise: the least like noise first"


def test_runs_without_intervals_are_compared_by_all_their_rows() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        usual = {f"main.f{n}": 10 ** chance.uniform(2, 6) for n in range(40)}
        planted = sorted(usual)[seed]
        sides = []
        for factor in (1, 2):
            rows = [
                {
                    "kind": "count",
                    "func": name,
                    "ts": 1.0,
                    "interval_s": 10.0 * factor,
                    "count": around(chance, 10 * factor * v * (factor if name == planted else 1)),
                }
                for name, v in usual.items()
            ]
            sides.append([*rows, ended(10.0 * factor)])
        found = gotrace.diff(*map(lines, sides))
        assert found.changes[0].key.name == planted
        assert found.changes[0].after / found.changes[0].before == pytest.approx(2, rel=0.3)


def histogram(at: int, **fields: Any) -> dict[str, Any]:
    row = {"kind": "histogram", "func": "main.f", "count": 10, "sum_ns": 1000}
    row |= {"min_ns": 1, "max_ns": 1000}
    row |= {"buckets": [[100, 104, 10]], "ts": 1.0 + at, "interval_s": 1.0}
    return {**row, **fields}


def test_counts_without_some_inlined_calls_are_not_comparable() -> None:
    """The compiler of another release inlines in other places."""
    whole, part = (
        [{**_counted(count), "places": 4, "uncounted_places": missing}, ended(2.0)]
        for count, missing in ((1000, 0), (400, 3))
    )
    for sides, when in (
        ((part, whole), "before"),
        ((whole, part), "after"),
        ((part, [{**part[0], "count": 900}, ended(2.0)]), "before and after"),
    ):
        out = io.StringIO()
        write_diff(TextOutput(out, out), gotrace.diff(*map(lines, sides)), None)
        assert f"not comparable: {when} some inlined calls are not counted" in out.getvalue()
    out = io.StringIO()
    more = [{**whole[0], "count": 9000}, ended(2.0)]
    write_diff(TextOutput(out, out), gotrace.diff(lines(whole), lines(more)), None)
    assert "+4000" in out.getvalue() and "comparable" not in out.getvalue()


def test_times_have_percentiles_and_the_share_of_each_part() -> None:
    def why(lock: int, running: int) -> dict[str, Any]:
        parts = {"sync.Mutex": lock, "running": running}
        return {"parts": {name: {"ns": ns, "calls": 5} for name, ns in parts.items()}}

    a = [histogram(0, why=why(600, 400)), ended(1.0)]
    slower = {"sum_ns": 5000, "buckets": [[100, 104, 5], [896, 928, 5]]}
    b = [histogram(0, **slower, why=why(4500, 500)), histogram(1, why=why(600, 400)), ended(2.0)]
    (change,) = gotrace.diff(lines(a), lines(b)).changes
    assert (change.before, change.after, change.change) == (1000, 3000, 2000)
    assert change.parts == {"sync.Mutex": 1950, "running": 50}
    assert (change.first.percentile(0.99), change.second.percentile(0.99)) == (102, 912)


def slow(chance: random.Random, calls: int, part: float) -> Rows:
    """Return the recording of calls, so many of which take some 40 ms in place of some 1 ms."""
    bounds = [bucket_bounds(bucket) for bucket in range(BUCKETS)]
    found: Counter[tuple[int, int]] = Counter()
    total = 0
    for _ in range(calls):
        usual, spread = (40e6, 0.8) if chance.random() < part else (1e6, 0.3)
        value = round(usual * chance.lognormvariate(0, spread))
        total += value
        found[next(pair for pair in bounds if value < pair[1])] += 1
    buckets = [[*pair, count] for pair, count in sorted(found.items())]
    return [histogram(0, count=calls, sum_ns=total, buckets=buckets), ended(10.0)]


def test_a_tail_that_grows_is_a_change_though_the_sum_is_within_its_noise() -> None:
    """A few slow calls are most of the noise of a sum: 20 times as much is within it."""
    sides = [slow(random.Random(1), 544, 0), slow(random.Random(2), 520, 0.042)]
    for before, after in (sides, sides[::-1]):
        found = gotrace.diff(lines(before), lines(after))
        (change,) = found.changes
        assert change.certain == 0 and change.is_certain
        assert change.tail is not None
        out = io.StringIO()
        write_diff(TextOutput(out, out), found, None)
        assert "within the noise" not in out.getvalue() and "p99 " in out.getvalue()
        seen = sorted((f"{change.tail.before} of", f"{change.tail.after} of"))
        assert seen[0] == "0 of" and all(text in out.getvalue() for text in seen)
    few = gotrace.diff(lines(sides[0]), lines(slow(random.Random(3), 540, 0.005)))
    out = io.StringIO()
    write_diff(TextOutput(out, out), few, None)
    assert out.getvalue().endswith("shows all, or record longer\n")


def test_chance_changes_no_tail() -> None:
    """Equal distributions, more and less of which are slow."""
    chance = random.Random(7)
    drawn = changed = 0
    for part in (0.0, 0.005, 0.02, 0.1):
        for _ in range(250):
            first, second = (Counter(chance.random() < part for _ in range(200)) for _ in "ab")
            sides = [{(int(k), int(k) + 1): n for k, n in one.items()} for one in (first, second)]
            drawn += 1
            changed += changed_tail(sides[0], sides[1], 1, 1.0) is not None
    assert changed < drawn / 100


def test_calls_that_are_slow_together_are_as_good_as_one() -> None:
    quick, mixed = {(1, 2): 540}, {(1, 2): 500, (40, 41): 20}
    assert changed_tail(quick, mixed, 1, 1.0) == Tail(40, 0, 20, 540, 520)
    assert changed_tail(quick, mixed, 1, 10.0) is None
    assert changed_tail(quick, mixed, 1_000_000, 1.0) is None
    many = {(1, 2): 990_000, (40, 41): 10_000}, {(1, 2): 985_000, (40, 41): 15_000}
    assert changed_tail(*many, 1, 1.0) is None


def test_values_and_stacks_are_rows_of_their_own() -> None:
    row = {"kind": "count", "func": "main.f", "ts": 1.0, "interval_s": 1.0}
    a = [{**row, "count": 5, "by": {"key": {"$string": "x"}}}, {**row, "count": 1, "by": None}]
    b = [{**row, "count": 9, "by": {"key": 3}, "program": "shop"}]
    found = gotrace.diff(lines(a), lines(b))
    assert {(one.key.name, one.change) for one in found.changes} == {
        ('main.f, key = {"$string": "x"}', -5),
        ("shop:main.f, key = 3", 9),
        ("(others)", -1),
    }


def test_errors_of_one_kind_are_one_row() -> None:
    errors = [{"$type": "*e", "$error": f"no user {n}", "$kind": "no user #"} for n in (7, 12)]
    row = {"kind": "count", "func": "main.f", "ts": 1.0, "interval_s": 1.0}
    a, b = ([{**row, "count": n, "by": {"$err": errors[n % 2]}}] for n in (4, 9))
    (one,) = gotrace.diff(lines(a), lines(b)).changes
    assert (one.key.name, one.change) == ('main.f, $err = "no user #" (*e)', 5)
    for merged in gotrace.merge(lines(a), lines(b)), gotrace.merge(lines(b), lines(a)):
        (both,) = merged.rows("count")
        assert (both["by"]["$err"], both["count"]) == (errors[1], 13)
        out = io.StringIO()
        write_merged(TextOutput(out, out), merged, None)
        assert 'like "no user 12" (*e)' in out.getvalue()


def goroutines(numbers: dict[str, int], dumps: int) -> Rows:
    rows: Rows = []
    for at in range(dumps):
        rows.append({"kind": "dump", "pid": 1, "ts": 1.0 + at, "goroutines": 1, "shown": 1})
        rows[-1]["moved"] = 0
        for name, count in numbers.items():
            one: Row = {"kind": "goroutine", "state": "waiting", "reason": "chan receive"}
            one |= {"waiting_ns": None}
            rows += [{**one, "stack": frames(name, "main.main")}] * count
    return rows


def write(path: Path, rows: Rows) -> str:
    with (gzip.open if path.name.endswith(".gz") else open)(path, "wt") as file:
        file.writelines(line + "\n" for line in lines(rows))
    return str(path)


def test_commands_say_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = {"kind": "lost", "message": "3 calls are missing", "what": "x", "calls": 3}
    base = {"kind": "count", "ts": 1.0}
    a = write(
        tmp_path / "a.ndjson",
        [{**base, "func": "main.f", "count": 100, "interval_s": 10.0}, lost, ended(10.0)],
    )
    b = write(
        tmp_path / "b.ndjson.gz",
        [{**base, "func": "main.f", "count": 10000, "interval_s": 20.0}, ended(20.0)],
    )
    assert gofunccount.main(["--diff", a, b]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"from {a} (10s) to {b} (20s): figures are per second"
    assert out.splitlines()[3].split() == ["+490", "20.4", "10", "500", "x50", "100.0%", "main.f"]
    assert err == f"{a}: 3 calls are missing\n"
    assert gofunccount.main(["--json", "--diff", a, b]) == 0
    head, change = map(json.loads, capsys.readouterr().out.splitlines()[-2:])
    assert (head["kind"], head["per"], head["a"]["units"]) == ("diff", "second", 10.0)
    assert (change["kind"], change["change"], change["certain"]) == ("change", 490.0, True)


def test_a_page_shows_stacks_and_escapes_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write(tmp_path / "a.ndjson", goroutines({"main.f": 3}, 2))
    b = write(tmp_path / "b.ndjson", goroutines({"main.f": 5, "main.<script>": 4}, 1))
    page = tmp_path / "x.html"
    assert gostacks.main(["-o", str(page), "--diff", a, b]) == 0
    assert capsys.readouterr().out == ""
    assert gostacks.main(["--diff", a, b]) == 0
    out = capsys.readouterr().out
    assert "(2 dumps)" in out and "(1 dump): figures are per dump" in out
    text = page.read_text()
    assert "main.&lt;script&gt;: 0 to 4 (+4)" in text and "<script" not in text
    assert "main.main: 3 to 9 (+6)" in text


@pytest.mark.parametrize(
    ("main", "rows", "words", "said"),
    [
        (gofunclatency.main, [histogram(0)], [], ""),
        (gofunccount.main, [histogram(0)], [], "is of gofunclatency: type gofunclatency --diff"),
        (gooffcpu.main, [], [], "has no results: those of"),
        (gooffcpu.main, [{"kind": "attached"}], [], "no results: nothing was seen in that run"),
        (gooffcpu.main, [{"kind": "wait"}], [], "not what --json writes"),
        (gofunclatency.main, [histogram(0)], ["-d", "1"], "two files: leave out --duration"),
        (gofunccount.main, [], ["main.*"], "two files: leave out [BINARY:]PATTERN"),
        (gooffcpu.main, [], ["-c", "ls"], "two files: leave out --cmd"),
        (gooncpu.main, [], ["--off", "-F", "5"], "two files: leave out --off, --frequency"),
        (gostacks.main, [], ["--state", "running"], "two files: leave out --state"),
        (
            gofunclatency.main,
            [histogram(0)],
            ["-o", "/x.html"],
            "-o /x.html draws stacks, and there are none: record with --by '$stack'",
        ),
        (
            gofunclatency.main,
            [histogram(0)],
            ["-o", "/x.pb.gz"],
            "is a profile, and --diff has none: give x.html, or type go tool pprof",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(
    main: Any,
    rows: Rows,
    words: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path / "a.ndjson", rows)
    assert (main([*words, "--diff", path, path]) == 0) == (not said)
    assert said in capsys.readouterr().err


def test_two_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is of gofunclatency and .* of gostacks: compare two"):
        gotrace.diff(lines([histogram(0)]), lines(goroutines({"main.f": 1}, 1)))
    both = [histogram(0), *goroutines({"main.f": 1}, 1)]
    short = [{"kind": "count", "func": "f", "count": 1, "ts": 1.0, "interval_s": 0.0}]
    with pytest.raises(GotraceError, match="does not say how long it is: record it again"):
        gotrace.diff(lines(short), lines(short))
    with pytest.raises(GotraceError, match="has results of gofunclatency and gostacks"):
        gotrace.diff(lines(both), lines(both))
    with pytest.raises(GotraceError, match="No such file"):
        gotrace.diff(tmp_path / "none", tmp_path / "none")


def of_a_second(path: Path) -> Iterator[str]:
    """Yield the lines of a recording as if its run had lasted a second."""
    with gzip.open(path, "rt") as lines:
        for row in map(json.loads, lines):
            yield json.dumps(row | dict.fromkeys(row.keys() & {"seconds", "interval_s"}, 1.0))


@pytest.mark.live
@pytest.mark.apart
def test_a_planted_change_of_a_live_program_is_the_first(tmp_path: Path) -> None:
    paths = []
    with Fixture([build(FIXTURES / "live_labels", newest()), "1"]) as fixture:
        for times in ("60", "120"):
            paths.append(tmp_path / f"{times}.ndjson.gz")
            words = ("-o", str(paths[-1]), "-p", str(fixture.ready))
            with tool("gofunccount", *words, "main.work", "runtime.chan*") as counting:
                fixture.work(times)
                counting.signal(signal.SIGINT)
                assert counting.result().status == 0
    found = gotrace.diff(*map(of_a_second, paths))
    first = found.changes[0]
    counts = first.first.count, first.second.count
    assert (first.key.name, *counts) == ("main.work", 60_000, 120_000)
    sends = next(one for one in found.changes if one.key.name == "runtime.chansend1")
    assert sends.first.count == sends.second.count == 1000


def test_samples_are_time_on_the_cpu_and_all_time_its_states() -> None:
    stack = {"stack": frames("main.f", "main.main")}
    head = {"pid": 1, "ts": 1.0, "seconds": 2.0}
    one = {"work": "program", "group": "main", "samples": 100, "cpu_ns": 10**9, **stack}
    first = {"kind": "cpu", **head, "period_ns": 10**7, "samples": 100, "cpu_ns": 10**9}
    first |= {"clock_ns": None, "others": 0}
    cpu = [first, {"kind": "cpu_stack", **one}]
    more = [first, {"kind": "cpu_stack", **one, "cpu_ns": 3 * 10**9}]
    (change,) = gotrace.diff(lines(cpu), lines(more)).changes
    assert (change.key.name, change.change) == ("[program]", 1e9)
    out = io.StringIO()
    other = {"kind": "cpu_stack", **one, "stack": frames("main.g", "main.main")}
    found = gotrace.diff(lines(cpu), lines([*more, other]))
    changed = {
        one.key.name: (one.change, one.whole and one.whole.change) for one in found.functions
    }
    assert changed == {"main.f": (1e9, 1e9), "main.g": (5e8, 5e8), "main.main": (0, 1.5e9)}
    write_diff(TextOutput(out, out), found, None)
    shown = [line.split()[-1] for line in out.getvalue().splitlines()[2:5]]
    assert (shown[0], sorted(shown[1:])) == ("FUNCTION", ["main.f", "main.g"])
    wall: dict[str, Any] = {"kind": "wall_stack", "state": "runnable", "reason": None}
    wall |= {"group": "main", "count": 3, **stack}
    first = {"kind": "wall", **head, "wall_ns": 10, "others": {"count": 0, "ns": 0}}
    a = [first, {**wall, "ns": 10}]
    b = [first, {**wall, "ns": 4}]
    (change,) = gotrace.diff(lines(a), lines(b)).changes
    assert (change.key.name, change.change) == ("[runnable]", -3)


def test_a_file_with_two_runs_is_as_long_as_both() -> None:
    run = [_counted(100), {"kind": "detached", "seconds": 2.0}]
    one, both = ([json.dumps(row) for row in run * times] for times in (1, 2))
    (change,) = gotrace.diff(one, both).changes
    assert change.before == change.after == 50


def test_system_calls_are_compared_by_name_first() -> None:
    begun = _attached(state="syscall", names=True)
    calls = [{**_wait("syscall"), "reason": name, "stack": frames(f)} for name, f in _CALLS]
    more = [{**row, "delay_ns": 4 * row["delay_ns"]} for row in calls]
    found = gotrace.diff(lines([begun, *_waits(), *calls]), lines([begun, *_waits(), *more]))
    changed = {one.key.name: one.change for one in found.functions}
    assert changed == {"[read]": 2 * changed["[futex]"], "[futex]": 3 * calls[0]["delay_ns"] / 30}
    out = io.StringIO()
    write_diff(TextOutput(out, out), found, 20)
    first, second = out.getvalue().split("\n\n")[1:]
    assert "main.f" not in first and "[futex]" in first and "main.g" in second


_CALLS = (("read", "main.f"), ("read", "main.g"), ("futex", "main.f"))


def _waits() -> Rows:
    return [row for row in waits(random.Random(1), {"main.f": 5}) if row["kind"] == "waits"]


def _counted(count: int) -> Row:
    return {"kind": "count", "func": "main.f", "count": count, "ts": 1.0, "interval_s": 2.0}


_HEAD = {"pid": 1, "ts": 1.0, "seconds": 1.0}
_CPU = {"kind": "cpu", **_HEAD, "period_ns": 10, "samples": 1, "cpu_ns": 10, "others": 0}
_CPU["clock_ns"] = None
_WALL = {"kind": "wall", **_HEAD, "wall_ns": 10, "others": {"count": 0, "ns": 0}}
_SAMPLES = {"kind": "cpu_stack", "work": "program", "group": "g", "samples": 1, "cpu_ns": 10}
_SAMPLES["stack"] = frames("main.f")
_DUMP = {"kind": "dump", "pid": 1, "ts": 1.0, "goroutines": 1, "shown": 1, "moved": 0}
_VALUES: Row = {
    "kind": "histogram",
    "func": "main.f",
    "of": "id",
    "unit": None,
    "count": 1,
    "sum": 5,
}
_VALUES |= {"ts": 1.0, "min": 5, "max": 5, "buckets": [[5, 6, 1]], "unknown": 0}


def _wait(state: str) -> Row:
    row = next(row for row in waits(random.Random(1), {"main.f": 5}) if row["kind"] == "wait")
    return {**row, "state": state, "ts": 1.0}


def _attached(**asked: object) -> Row:
    return {"kind": "attached", "message": "", **asked}


@pytest.mark.parametrize(
    ("row", "a", "b", "said"),
    [
        (None, {**(one := _counted(1)), "by": {"x": 1}}, one, "--by x, b no --by"),
        (None, {**one, "by": {"x": 1}}, {**one, "by": {"y": 1}}, "--by x, b --by y"),
        (None, _wait("runnable"), _wait("waiting"), "--state runnable, b --state waiting"),
        (None, _wait("waiting"), _wait("syscall"), "--state waiting, b --state syscall"),
        (None, _VALUES, histogram(0), "--of id, b no --of"),
        (None, _VALUES, {**_VALUES, "of": "n"}, "--of id, b --of n"),
        (None, histogram(0), histogram(0, pid=1, goid=1), "no -g, b -g"),
        (None, _CPU, _WALL, "no --off, b --off"),
        (_CPU, _SAMPLES, {**_SAMPLES, "by": {"k": "v"}}, "no --by, b --by k"),
        (_CPU, _attached(kernel=True), _attached(kernel=False), "-K, b no -K"),
        (_CPU, _attached(**{"in": ["main.*"]}), _attached(**{"in": []}), "--in main.*, b no --in"),
        (
            _wait("waiting"),
            _attached(reason=["select"]),
            _attached(reason=["chan *"]),
            "--reason select, b --reason chan *",
        ),
        (_wait("syscall"), _attached(names=False), _attached(names=True), "no --names, b --names"),
        (_wait("waiting"), _attached(open=True), _attached(open=False), "--open, b no --open"),
        (
            None,
            {**_DUMP, "states": ["waiting"]},
            {**_DUMP, "states": ["running", "syscall"]},
            "--state waiting, b --state running, syscall",
        ),
    ],
)
def test_recordings_of_different_questions_are_refused(
    row: Row | None, a: Row, b: Row, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither compared nor added up; also if one was added up before."""
    speak_as_command()
    monkeypatch.chdir(tmp_path)
    rows = [[one, *([row] if row else []), ended(1)] for one in (a, b)]
    for name, found in zip("ab", rows, strict=True):
        write(Path(name), found)
        write(Path(f"sum-{name}"), list(map(json.loads, gotrace.merge(lines(found)))))
    said = f"a has {said}: compare recordings of one question"
    for prefix in ("", "sum-"):
        with pytest.raises(UsageError) as caught:
            gotrace.diff(f"{prefix}a", "b")
        assert str(caught.value) == prefix + said
    with pytest.raises(UsageError, match="merge recordings of one question"):
        gotrace.merge("a", "b")
    # A recording that does not say what it was asked may be of the same question.
    if row:
        silent = [row, ended(1)]
        gotrace.diff("a", lines(silent))
        gotrace.merge("a", lines(silent))


def test_rows_that_may_not_have_been_traced_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def recording(name: str, function: str, *patterns: str) -> str:
        rows = [_attached(patterns=patterns), {**_counted(1), "func": function}, ended(1)]
        return write(tmp_path / name, rows)

    a, b = recording("a", "main.f", "main.f", "net.*"), recording("b", "main.g", "net.*", "main.f")
    assert gofunccount.main(["--diff", a, b]) == 0
    assert capsys.readouterr().err == ""  # the same patterns, of another release
    assert gofunccount.main(["--diff", a, recording("b", "main.g", "main.g")]) == 0
    said = f"{a} is of main.f, net.*, {b} is of main.g: a function that is new or gone"
    assert capsys.readouterr().err == f"{said} may be one not traced\n"
    assert gofunccount.main(["--diff", a, write(tmp_path / "c", [_counted(1), ended(1)])]) == 0
    assert capsys.readouterr().err == ""


def test_frequencies_do_not_matter(tmp_path: Path) -> None:
    """Time is per second; numbers of samples are not added up."""
    speak_as_command()
    a, b = ([_attached(hertz=h), {**_CPU, "period_ns": 10**9 // h}, _SAMPLES] for h in (49, 99))
    gotrace.diff(lines(a), lines(b))
    with pytest.raises(UsageError, match="has -F 99, others have -F 49"):
        gotrace.merge(lines(a), lines(b))


def test_results_are_short_in_a_notebook() -> None:
    """A recording that is shown at the end of a cell had 585,491 characters."""
    rows = counts(random.Random(1), {f"main.f{n}": 10.0 for n in range(500)})
    merged = gotrace.merge(map(json.dumps, rows))
    assert repr(merged) == "<gotrace.Merged: gofunccount, 1 recording, 500 rows>"
    found = gotrace.diff(merged, merged)
    assert repr(found) == f"<gotrace.Diff: {len(found.changes)} changes per second>"
    call = gotrace.Call("main.f", {}, {}, 5, 7, 1, 1, 1)
    request = gotrace.Request(gotrace.Node(call, "call", 0, (gotrace.Node(call, "call", 1),)))
    assert repr(request) == "<gotrace.Request: 5 ns, 2 calls>"
    shown = repr(gotrace.Recording(0, 5_000_000_000, [request], [call] * 9, {}))
    assert shown == "<gotrace.Recording: 5 s, 1 request, 9 calls, 0 changes of state>"


def test_a_recording_that_was_cut_says_so() -> None:
    rows = [{"kind": "attached", "message": "", "ts": 99.0}, *counts(random.Random(1), {"f": 9.0})]
    lines = [json.dumps(row) for row in rows]
    a, b = (gotrace.diff(lines, part) for part in (lines, lines[:-1]))
    assert a.b.lost == [] and b.b.lost == ["it has no end: the run was cut short"]
