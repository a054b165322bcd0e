# SPDX-License-Identifier: Apache-2.0
"""Hold what ``--by`` adds up against a program that knows how often it made which call."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.session.keys import KeyOptions, KeyRequest, key_of
from gotrace.session.request import Asked
from gotrace.session.run import open_run
from gotrace.target.target import Target
from gotrace.values.to_json import to_json
from tests.toolchains import (
    BUILD_MODES,
    FIXTURES,
    Toolchain,
    build,
    each_toolchain,
    newest,
    require,
)
from tests.tools.harness import Fixture, Result, of_kind, run_tool, tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

Json = dict[str, Any]
HANDLE = "main.handle"
SIGNATURE = "main.handle(r *int, key string, shard int32, deep bool) (n int, err error)"


#: Types of the program's errors, by how their messages begin.
ERROR_TYPES = {
    "nil": "nil",
    "EOF": "*errors.errorString",
    "shard": "*fmt.wrapError",
    "open": "*io/fs.PathError",
}


def run(
    command: str,
    *arguments: str,
    order: str = "1 1000 20",
    toolchain: Toolchain | None = None,
    mode: str = "default",
) -> tuple[Json, Result]:
    """Run a command on the fixture at work; return the program's truth and how the tool ended."""
    path = build(FIXTURES / "live_keys", toolchain or newest(), flags=BUILD_MODES[mode])
    with Fixture([path]) as fixture:
        with tool(command, "--json", "-p", str(fixture.ready), *arguments) as tracing:
            truth = fixture.work(order)
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    return truth, result


def counts_by(result: Result, *expressions: str) -> Counter[str]:
    """Return calls by the text of these expressions' values."""
    found: Counter[str] = Counter()
    for row in of_kind(result, "count") + of_kind(result, "histogram"):
        by = row["by"]
        name = "others" if by is None else " ".join(shown(by[text]) for text in expressions)
        found[name] += row["count"]
    return found


def shown(value: object) -> str:
    """Return the text that the fixture knows a value by."""
    if isinstance(value, dict):
        known = value.get("$kind") or value.get("$error") or value.get("$string")
        return str(known or f"unknown: {value['$unavailable']}")
    return "nil" if value is None else str(value)


def kinds(errors: Mapping[str, int]) -> Counter[str]:
    """Return errors by their texts without numbers."""
    found: Counter[str] = Counter()
    for text, calls in errors.items():
        found[re.sub("[0-9]+", "#", text)] += calls
    return found


@each_toolchain
def test_texts_errors_and_callers(toolchain: Toolchain) -> None:
    order = "4 1000 20"
    truth, result = run(
        "gofunccount", "-Z", "256", "--by", "key", HANDLE, order=order, toolchain=toolchain
    )
    assert counts_by(result, "key") == truth["Keys"]
    truth, result = run(
        *("gofunccount", "--by", "$ret2, type($ret2), $caller", HANDLE),
        order=order,
        toolchain=toolchain,
    )
    assert counts_by(result, "$ret2") == kinds(truth["Errors"])
    types: Counter[str] = Counter()
    for text, calls in truth["Errors"].items():
        (name,) = (name for start, name in ERROR_TYPES.items() if text.startswith(start))
        types[name] += calls
    found = counts_by(result, "type($ret2)")
    if "*os.PathError" in found:  # its name up to Go 1.15
        found["*io/fs.PathError"] = found.pop("*os.PathError")
    assert found == types
    callers = counts_by(result, "$caller")
    assert callers["main.viaFirst"] == truth["First"]
    assert callers["main.viaSecond"] == truth["Calls"] - truth["First"]
    assert of_kind(result, "lost") == []


@pytest.mark.parametrize("rung", ["multi", "perf-cookie", "perf-ip"])
def test_parts_of_arguments_on_each_rung(rung: str) -> None:
    truth, result = run(
        "gofunccount", "--attach", rung, "--by", "r.Method, r.Size", HANDLE, order="2 500 20"
    )
    assert counts_by(result, "r.Method", "r.Size") == truth["Sizes"]


@pytest.mark.parametrize("mode", ["stripped", "pie"])
def test_without_debug_information(mode: str) -> None:
    probe = SIGNATURE if mode == "stripped" else HANDLE
    truth, result = run("gofunccount", "--by", "key, $ret2", probe, "-Z", "256", mode=mode)
    assert counts_by(result, "key") == truth["Keys"]
    assert counts_by(result, "$ret2") == kinds(truth["Errors"])


def test_errors_of_one_kind_take_no_more_room_than_two() -> None:
    """Each file has a number of its own, as requests have."""
    with (
        Fixture([build(FIXTURES / "live_keys", newest())]) as fixture,
        closing(Target.of(fixture.ready, None)) as target,
    ):
        request = KeyRequest(
            target=target,
            asked=Asked([HANDLE]),
            verb="count",
            done="counted",
            key=key_of(["$ret2"]),
            options=KeyOptions(rows=60),
        )
        wanted: Counter[str] = Counter()
        with open_run(request) as run:
            run.begin()
            for keys in range(50, 350, 6):
                wanted += kinds(fixture.work(f"1 50 {keys}")["Errors"])
                run.meter.poll()
            period = run.meter.take()
        assert fixture.finish() == 0
    # A text that is longer than a key is of the others.
    wanted["others"] = wanted.pop(next(text for text in wanted if "-long" in text))
    found = [
        (shown(to_json(row.values[0])) if row.values else "others", row.calls)
        for row in period.rows
    ]
    assert dict(found) == wanted and len(found) == len(wanted)


def test_durations() -> None:
    truth, result = run("gofunclatency", "--by", "shard", HANDLE, order="3 700 20")
    assert counts_by(result, "shard") == truth["Shards"]
    for row in of_kind(result, "histogram"):
        assert sum(count for *_, count in row["buckets"]) == row["count"]
        assert row["min_ns"] * row["count"] <= row["sum_ns"] <= row["max_ns"] * row["count"]


def test_at_full_speed() -> None:
    truth, result = run(
        "gofunccount", "--by", "key, $goid", HANDLE, "-Z", "256", order="8 40000 20"
    )
    assert counts_by(result, "key") == truth["Keys"]
    assert len(counts_by(result, "$goid")) == 8
    assert of_kind(result, "lost") == []


def test_intervals_add_up_to_the_calls() -> None:
    for command in ("gofunccount", "gofunclatency"):
        truth, result = run(command, "-i", "0.2", "--by", "shard", HANDLE, order="2 20000 20")
        assert counts_by(result, "shard") == truth["Shards"]


def test_more_values_than_rows() -> None:
    truth, result = run("gofunccount", "--rows", "5", "--by", "key", HANDLE)
    found = counts_by(result, "key")
    assert found.total() == truth["Calls"]
    assert len(found) == 6 and found["others"] == truth["Calls"] - 5 * 50
    [summary] = [row for row in of_kind(result, "summary") if row["what"] != "cost"]
    assert summary["what"] == "others" and summary["calls"] == found["others"]


def test_texts_that_are_cut_share_a_row() -> None:
    truth, result = run("gofunccount", "-Z", "6", "--by", "key", HANDLE)
    found = counts_by(result, "key")
    expected: Counter[str] = Counter()
    for key, count in truth["Keys"].items():
        expected[key[:6]] += count
    assert found == expected
    assert {"$string": "user:1", "$cut": True} in [
        row["by"]["key"] for row in of_kind(result, "count")
    ]


def test_what_cannot_be_read_is_unknown() -> None:
    truth, result = run("gofunccount", "--by", "r.tenant.Name", HANDLE)
    third = truth["Calls"] // 3
    found = counts_by(result, "r.tenant.Name")
    assert found == {"blue": third + 1, "green": third, "unknown: nil pointer": third}


def test_predicates_and_conditions() -> None:
    truth, result = run(
        "gofunccount", "--by", "$ret2 != nil", f"{HANDLE} (shard < 4 && $duration < 1s)"
    )
    calls = sum(count for shard, count in truth["Shards"].items() if int(shard) < 4)
    found = counts_by(result, "$ret2 != nil")
    assert found == {"False": calls // 4, "True": 3 * calls // 4}
    assert {row["what"] for row in of_kind(result, "summary")} <= {"cost"}


def test_a_value_in_place_of_the_time() -> None:
    truth, result = run("gofunclatency", "--of", "len(key)", HANDLE, order="3 500 20")
    [row] = of_kind(result, "histogram")
    lengths = Counter({len(key): 0 for key in truth["Keys"]})
    for key, count in truth["Keys"].items():
        lengths[len(key)] += count
    assert (row["of"], row["unit"], row["unknown"]) == ("len(key)", "bytes", 0)
    assert row["count"] == lengths.total() == truth["Calls"]
    assert row["sum"] == sum(length * count for length, count in lengths.items())
    assert (row["min"], row["max"]) == (min(lengths), max(lengths))
    for low, high, count in row["buckets"]:
        assert count == sum(lengths[length] for length in range(low, high))


def test_a_value_by_another_and_by_interval() -> None:
    arguments = ("--of", "$ret", "--by", "shard", "-i", "0.2", HANDLE)
    truth, result = run("gofunclatency", *arguments, order="2 20000 20")
    sums: Counter[str] = Counter()
    for row in of_kind(result, "histogram"):
        sums[str(row["by"]["shard"])] += row["sum"]
    assert counts_by(result, "shard") == truth["Shards"]
    assert sums["4"] == 4 * truth["Shards"]["4"] and sums["9"] == 9 * truth["Shards"]["9"]


def test_values_that_cannot_be_read_are_counted() -> None:
    truth, result = run("gofunclatency", "--of", "len(r.tenant.Name)", HANDLE)
    [row] = of_kind(result, "histogram")
    third = truth["Calls"] // 3
    assert (row["count"], row["unknown"]) == (truth["Calls"] - third, third)
    assert (row["min"], row["max"], row["sum"]) == (4, 5, 4 * (third + 1) + 5 * third)


@pytest.mark.parametrize("command", ["gofunccount", "gofunclatency"])
def test_stacks(command: str) -> None:
    truth, result = run(command, "--by", "$stack, $caller", HANDLE, order="2 500 20")
    found: Counter[str] = Counter()
    for row in of_kind(result, "count") + of_kind(result, "histogram"):
        frames = [frame["func"] for frame in row["by"]["$stack"]]
        assert frames[0] == row["by"]["$caller"] and frames[1] == "main.work"
        found[frames[0]] += row["count"]
    first = truth["First"]
    assert found == {"main.viaFirst": first, "main.viaSecond": truth["Calls"] - first}


@pytest.mark.parametrize("command", ["gofunccount", "gotrace"])
def test_stacks_for_speedscope(command: str, tmp_path: Path) -> None:
    path, flame = build(FIXTURES / "live_keys", newest()), tmp_path / "calls.speedscope.json"
    with Fixture([path]) as fixture:
        with tool(command, "-p", str(fixture.ready), "-o", str(flame), HANDLE) as tracing:
            truth = fixture.work("1 100 20")
            assert tracing.end().status == 0
        assert fixture.finish() == 0
    made = json.loads(flame.read_text())
    names = [frame["name"] for frame in made["shared"]["frames"]]
    (profile,) = made["profiles"]
    pairs = zip(profile["samples"], profile["weights"], strict=True)
    calls = {names[sample[-2]]: weight for sample, weight in pairs}
    first = truth["First"]
    assert calls == {"main.viaFirst": first, "main.viaSecond": truth["Calls"] - first}
    assert {names[sample[-1]] for sample in profile["samples"]} == {HANDLE}


def test_stacks_folded_and_as_a_profile(tmp_path: Path) -> None:
    path, profile = build(FIXTURES / "live_keys", newest()), tmp_path / "calls.pb.gz"
    with Fixture([path]) as fixture:
        for arguments in (["-f"], ["-o", str(profile), "--by", "deep"]):
            words = ("-p", str(fixture.ready), *arguments, HANDLE)
            # Folded stacks have standard output to themselves.
            with tool("gofunccount", *words, stderr=subprocess.STDOUT) as tracing:
                truth = fixture.work("1 1000 20")
                result = tracing.end()
            assert result.status == 0, result.errors
            if not profile.exists():
                counts = [line.split(";main.") for line in result.lines if ";" in line]
        assert fixture.finish() == 0
    first, calls = truth["First"], truth["Calls"]
    assert sorted(row[-2:] for row in counts) == [
        ["viaFirst", f"handle {first}\n"],
        ["viaSecond", f"handle {calls - first}\n"],
    ]
    command = [str(newest().go), "tool", "pprof", "-traces", str(profile)]
    env = newest().env()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert re.search(
        rf"deep:\s+true\s+{first}\s+main.handle\s+main.viaFirst\s+main.work", done.stdout
    )


@pytest.mark.parametrize("minor", ["1.24", "1.27"])
def test_expressions(minor: str) -> None:
    """Each of them narrows the calls down by what the fixture knows of them."""
    predicate = (
        'shard % 5 == 3 && len(key) &^ 1 == 6 && lower(r.Method) != "get" && suffix(key, ":1")'
        ' && r.header["Host"][shard - shard + 1] == "there" && r.header["X-None"] == nil'
        ' && (r.header["X-Tenant"] == nil || r.header["X-Tenant"][0] == "acme")'
        ' && $err.(*io/fs.PathError).Op == "open" && $exit(r.Size) == 100 + r.Size'
    )
    probe = f"{HANDLE} ({predicate})"
    arguments = f'{probe} "%d %s %q %d", shard << 4, $err, r.header["X-Tenant"], $exit(r.Size)'
    _, result = run("gotrace", arguments, order="1 200 20", toolchain=require(minor))
    calls = of_kind(result, "call")
    # Of 200 calls by one goroutine: number i has shard i % 10, key user:(7i % 20), method i % 3.
    expected = [
        f"{(i % 10) << 4} open user:1: file does not exist {['acme'] if i % 4 == 1 else []}"
        f" {100 + i % 4}"
        for i in range(200)
        if i % 5 == 3 and i * 7 % 20 == 1 and i % 3
    ]
    shown = [call["message"].replace("[]string(nil)", "[]") for call in calls]
    assert shown == [text.replace("'", '"') for text in expected] and expected
    assert not of_kind(result, "lost")


def test_a_look_up_leaves_room_for_what_is_shown() -> None:
    wanted = 'r.header["X-Tenant"] != nil && r.header["X-Tenant"][0] == "acme"'
    _, result = run("gotrace", f"{HANDLE} ({wanted})", order="1 200 20")
    calls = of_kind(result, "call")
    assert len(calls) == 50  # one in four has a tenant
    for call in calls:
        shown = call["args"]["r"]
        assert {"Method", "Size", "tenant", "header"} <= shown.keys()
        assert shown["Size"] == 1


def test_several_probes_on_one_function() -> None:
    probes = (
        f'{HANDLE} (shard == 3) "three %s", key',
        f"{HANDLE} (shard > 7)",
        'main.handle (shard == 9 && $ret == 9) "nine", ',
    )
    truth, result = run("gotrace", *(probe.rstrip(", ") for probe in probes), order="1 200 20")
    calls = [call for call in of_kind(result, "call") if call["func"] == HANDLE]
    messages = Counter(call.get("message", "whole").split()[0] for call in calls)
    shards = truth["Shards"]
    assert messages == {"three": shards["3"], "whole": shards["8"] + shards["9"], "nine": 20}
    for call in calls:
        has_values = {"shard": 8, "deep": True}.keys() <= call["args"].keys()
        assert has_values is ("message" not in call)


def test_several_processes_by_number() -> None:
    path = build(FIXTURES / "live_keys", newest())
    with Fixture([path]) as one, Fixture([path]) as other, Fixture([path]) as third:
        numbers = f"{one.ready} {third.ready}"
        with tool("gofunccount", "--json", "-p", numbers, "--by", "$pid", HANDLE) as tracing:
            truths = [fixture.work("1 200 20") for fixture in (one, other, third)]
            result = tracing.end()
        assert [fixture.finish() for fixture in (one, other, third)] == [0, 0, 0]
    calls = [truth["Calls"] for truth in truths]
    expected = {str(one.ready): calls[0], str(third.ready): calls[2]}
    assert counts_by(result, "$pid") == expected


@pytest.mark.parametrize("command", ["gofunccount", "gotrace"])
def test_dynamic_types_in_processes_that_have_a_file_at_different_places(command: str) -> None:
    path = build(FIXTURES / "live_keys", newest(), flags=BUILD_MODES["pie"])
    words = ["--by", "$err", f"{path}:{HANDLE}"]
    if command == "gotrace":
        words = [f'{path}:{HANDLE} "%v|%T", $err, $err']
    errors: Counter[str] = Counter()
    with Fixture([path]) as one, Fixture([path]) as other:
        with tool(command, "--json", *words) as tracing:
            for fixture in (one, other):
                errors.update(fixture.work("1 200 20")["Errors"])
            result = tracing.end()
        assert (one.finish(), other.finish()) == (0, 0)
    found = counts_by(result, "$err")
    for call in of_kind(result, "call"):
        message, of = call["message"].split("|")
        found[message.replace("<nil>", "nil")] += 1
        assert ("open" in message) is (of == "*fs.PathError")
    assert found == (errors if command == "gotrace" else kinds(errors))


def test_what_the_kernel_computes_and_what_it_does_not() -> None:
    truth, result = run("gofunccount", "--by", "shard % 3 - 1, lower(r.Method)", HANDLE)
    found = counts_by(result, "shard % 3 - 1")
    expected: Counter[str] = Counter()
    for shard, count in truth["Shards"].items():
        expected[str(int(shard) % 3 - 1)] += count
    assert found == expected
    assert set(counts_by(result, "lower(r.Method)")) == {"get", "put", "delete"}


def test_values_below_zero() -> None:
    truth, result = run("gofunclatency", "--of", "shard - 5", HANDLE)
    [row] = of_kind(result, "histogram")
    assert (row["count"], row["min"], row["max"]) == (truth["Calls"], -5, 4)
    assert row["sum"] == sum((int(s) - 5) * n for s, n in truth["Shards"].items())
    for low, high, count in row["buckets"]:
        assert count == sum(n for s, n in truth["Shards"].items() if low <= int(s) - 5 < high)


def test_calls_that_did_not_return_are_reported() -> None:
    _, result = run("gofunccount", "--by", "$ret", "main.fails")
    assert counts_by(result, "$ret") == {"1": 1}
    assert [row["calls"] for row in of_kind(result, "summary")] == [1]


@pytest.mark.parametrize(
    ("by", "probe", "reason"),
    [
        ("nosuch", HANDLE, "main.handle has no 'nosuch'"),
        ("key,", HANDLE, "expected"),
        (
            "r",
            "main.fails(r map[string]int, n int) int",
            "cannot be added up by r, a map[string]int",
        ),
        (
            "$ret == key",
            "main.fails(key string) string",
            "of which a part is known at the call and the rest at the return: give the parts,"
            " as in --by '$ret,key'",
        ),
        ('r.header["Host"][0]', HANDLE, "an entry of a map, or an element, which the kernel"),
        ("key", f'{HANDLE} "%s", key', "--by takes no format"),
        ("key", f'{HANDLE} (key < "a")', "the kernel cannot decide this"),
        ("contains($stack, 1)", HANDLE, "looks for a constant"),
    ],
)
def test_what_cannot_be_done_is_refused(by: str, probe: str, reason: str) -> None:
    path = build(FIXTURES / "live_keys", newest())
    result = run_tool("gofunccount", "--by", by, f"{path}:{probe}")
    assert result.status == 2 and reason in result.errors
    assert result.errors.count("\n") == 1


def test_two_conditions_for_one_function_are_refused() -> None:
    """The second would be ignored."""
    path = build(FIXTURES / "live_keys", newest())
    probes = (f'{path}:{HANDLE} (key == "a")', f'{path}:{HANDLE} (key == "b")')
    result = run_tool("gofunccount", "--by", "key", *probes)
    assert result.status == 2 and "with conditions joined by ||" in result.errors
    assert result.errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--of", "key"], "this is a string: --of needs a whole number"),
        (["--of", "shard, deep"], "give one value to make histograms of"),
        (
            ["--of", "len(key[1:])"],
            "histograms are made in the kernel, which cannot read this int",
        ),
        (["--of", "shard", "--why"], "leave out -u, -m and --why"),
        (["--of", "shard", "-u"], "leave out -u, -m and --why"),
        (["-f", "-i", "1"], "-f has all stacks of the run: leave out -i"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], reason: str) -> None:
    path = build(FIXTURES / "live_keys", newest())
    result = run_tool("gofunclatency", *arguments, f"{path}:{HANDLE}")
    assert result.status == 2 and reason in result.errors
    assert result.errors.count("\n") == 1


@pytest.mark.parametrize("rest", ['($caller == "main.viaFirst")', '"%s", $caller'])
def test_the_caller_of_a_reported_call_is_refused(rest: str) -> None:
    """It would be unknown, and such a predicate never true."""
    path = build(FIXTURES / "live_keys", newest())
    result = run_tool("gotrace", f"{path}:{HANDLE} {rest}")
    assert result.status == 2 and "$caller is for --by" in result.errors


def test_the_library_adds_up_by_the_same_expressions(tmp_path: Path) -> None:
    with (
        Fixture([build(FIXTURES / "live_keys", newest())]) as fixture,
        gotrace.attach(fixture.ready) as go,
    ):
        truths: list[Json] = []

        def work() -> None:
            truths.append(fixture.work("2 500 20"))
            go.stop()

        shards = go.count(HANDLE, by="shard, $ret2 != nil", ready=work)
        stacks = go.latency(HANDLE, by=["$stack", "$caller"], ready=work)
        lengths = go.latency(HANDLE, of="len(key)", ready=work)
        few = go.count(HANDLE, by="shard", rows=4, ready=work)
        with pytest.raises(gotrace.UsageError, match="by='\\$goid'"):
            go.latency(HANDLE, by_goroutine=True, by="shard")  # type: ignore[call-overload]
        with pytest.raises(gotrace.UsageError, match="give one value"):
            go.latency(HANDLE, of="shard, key")
        with pytest.raises(gotrace.UsageError, match="use latency"):
            go.count(HANDLE, by="$blocked > 1ms")
        assert fixture.finish() == 0
    found: Counter[str] = Counter()
    for group in shards:
        found[str(group.by["shard"])] += group.calls
        assert isinstance(group.by["$ret2 != nil"], bool)
        with pytest.raises(gotrace.UsageError, match="no times"):
            print(group.times)
    assert found == truths[0]["Shards"] and shards.others == 0
    assert [group.calls for group in shards] == sorted((g.calls for g in shards), reverse=True)
    assert f"<td>{shards[0].by['shard']}</td>" in shards._repr_html_()
    with pytest.raises(gotrace.UsageError, match="no stacks"):
        shards.to_folded(tmp_path / "x.folded")
    called: Counter[str] = Counter()
    for group in stacks:
        assert group.times.count == group.calls
        assert [frame.function for frame in group.by["$stack"]][:2] == [
            *(group.by["$caller"], "main.work")
        ]
        called[group.by["$caller"]] += group.calls
    first = truths[1]["First"]
    assert called == {"main.viaFirst": first, "main.viaSecond": truths[1]["Calls"] - first}
    stacks.to_folded(tmp_path / "x.folded")
    lines = (tmp_path / "x.folded").read_text().splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == sum(
        group.times.sum for group in stacks
    )
    [one] = lengths
    assert one.values.count == truths[2]["Calls"] == one.calls
    assert one.values.sum == sum(len(key) * n for key, n in truths[2]["Keys"].items())
    assert few.others + sum(group.calls for group in few) == truths[3]["Calls"]
    assert few.others > 0 and len(few) == 4
