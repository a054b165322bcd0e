# SPDX-License-Identifier: Apache-2.0
"""Hold what gotrace streams, by text and by JSON, against programs that know their own calls."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.toolchains import require
from tests.tools.harness import Fixture, of_kind, run_tool, tool
from tests.tools.trace import calls_of, lost, message_lines, program, text_calls, trace

pytestmark = pytest.mark.live

Json = dict[str, Any]

FIELDS = ("kind", "ts_ns", "pid", "tid", "goid", "func", "args", "results", "duration_ns")
METHODS = ["multi", "perf-cookie", "perf-ip"]
VERSIONS = ["1.15", "1.19", "1.27"]


def summary(result: Any, what: str) -> int:
    return sum(row["calls"] for row in of_kind(result, "summary") if row["what"] == what)


@pytest.mark.parametrize("method", METHODS)
def test_recursion_and_goroutines_are_never_mixed(method: str) -> None:
    """Every result stands beside the arguments that it was made from, on moving stacks too."""
    words = ("--json", "--attach", method, "main.nest", "main.echo", "main.grow")
    truth, result = trace(program(), "recursion goroutines", *words)
    nested = calls_of(result, "main.nest")
    assert [row["args"]["n"] for row in nested] == list(range(21))
    for row in nested:
        n = row["args"]["n"]
        assert row["results"] == {"$ret1": n * (n + 1) // 2, "$ret2": "r" + "." * 20}
        assert row["args"]["tag"] == "r" + "." * (20 - n)
    durations = [row["duration_ns"] for row in nested]
    assert durations == sorted(durations)
    echoed = calls_of(result, "main.echo")
    assert len(echoed) == truth["Echoed"]
    goroutines: dict[int, set[int]] = {}
    for row in echoed:
        assert list(row["args"].values()) == list(row["results"].values())
        goroutines.setdefault(row["args"]["id"], set()).add(row["goid"])
        number = row["args"]["id"] * 1000 + row["args"]["i"]
        assert row["args"]["f"] == number / 8
        assert row["args"]["text"] == f"goroutine {row['args']['id']} call {row['args']['i']}"
    assert {len(goids) for goids in goroutines.values()} == {1}
    assert len({min(goids) for goids in goroutines.values()}) == 8
    grown = Counter(row["args"]["n"] for row in calls_of(result, "main.grow"))
    assert grown == dict.fromkeys(range(41), 8 * 15)
    assert all(row["results"]["$ret"] == row["args"]["id"] for row in calls_of(result, "main.grow"))
    assert truth["Wrong"] == 0
    assert of_kind(result, "attached")[0]["attach"] == method
    assert of_kind(result, "lost") == []


@pytest.mark.parametrize("minor", VERSIONS)
def test_calls_that_a_panic_or_goexit_ends(minor: str) -> None:
    """They are shown with their arguments, the innermost first, and with what ended them."""
    names = ("main.throw", "main.relay", "main.recovering", "main.leaving")
    truth, result = trace(program(require(minor)), "panics", "--json", *names)
    thrown = {row["args"]["id"]: row["results"] for row in calls_of(result, "main.throw")}
    wanted = {n: -n if n % 3 == 2 else n for n in range(30) if n % 3 != 1}
    assert thrown == {n: {"result": wanted[n]} if n in wanted else None for n in range(30)}
    recovered = {row["args"]["id"]: row["results"] for row in calls_of(result, "main.recovering")}
    assert recovered == {n: {"result": wanted.get(n, 100 + n)} for n in range(30)}
    relayed = [(row["args"]["id"], row["args"]["n"]) for row in calls_of(result, "main.relay")]
    assert relayed == [(n, level) for n in range(1, 30, 3) for level in range(4)]
    # Each goroutine's end, which closes its calls, may come after that of the next.
    left = [row["args"]["id"] for row in calls_of(result, "main.leaving")]
    assert sorted(left) == list(range(4))
    ended = Counter(row.get("unwound") for row in of_kind(result, "call"))
    assert ended == {"panic": truth["Unwound"] - 4, "goexit": 4, None: 50}
    for row in of_kind(result, "call"):
        assert (row["results"] is None) is ("unwound" in row)
        assert row["duration_ns"] > 0
    assert summary(result, "unwound") == truth["Unwound"]
    assert of_kind(result, "lost") == []


def test_unwound_calls_have_the_floats_of_their_entry() -> None:
    truth, result = trace(program(), "halves", "--json", "main.halve")
    calls = calls_of(result, "main.halve")
    assert [row["args"]["id"] for row in calls if "unwound" in row] == list(range(1, 20, 2))
    assert len(calls) == 2 * truth["Odd"]
    read = [row for row in calls if not isinstance(row["args"]["x"], dict)]
    assert all(row["args"]["x"] == row["args"]["id"] + 0.5 for row in read)
    assert any("unwound" in row for row in read)


def test_unwound_calls_that_are_too_many_at_once_are_counted() -> None:
    truth, result = trace(program(), "falls", "--json", "main.fall", "main.climb")
    shown = [row["args"]["n"] for row in calls_of(result, "main.fall")]
    at_once = 34 * 32  # runs of the program, which the kernel limits, and calls in each
    assert shown == [*range(at_once), *range(10)]
    assert [row["results"] for row in calls_of(result, "main.climb")] == [
        {"result": 1499},
        {"result": 9},
    ]
    assert summary(result, "unwound") == truth["Fallen"]
    assert lost(result) == {"unwound_unseen": truth["Fallen"] - at_once - 10}


def test_calls_that_a_panic_has_ended() -> None:
    ids = [id for id in range(30) if id % 3 == 1]
    probes = {
        "main.throw ($panicked)": ids,
        "main.recovering ($panicked)": [],
        'main.relay (n > 2 && $panicked) "%t %d", $panicked, id': ids,
        'main.leaving (!$panicked) "%t %d", $panicked, id': range(4),  # by runtime.Goexit
    }
    _, result = trace(program(), "panics", "--json", *probes)
    for probe, wanted in probes.items():
        calls = calls_of(result, probe.split()[0])
        if "%t" in probe:
            shown = "false" if "!" in probe else "true"
            assert sorted(row["message"] for row in calls) == sorted(f"{shown} {n}" for n in wanted)
        else:
            assert [row["args"]["id"] for row in calls] == wanted
            assert all(row["unwound"] == "panic" for row in calls)


@pytest.mark.parametrize(
    ("key", "function"), [("$panicked", "main.throw"), ("id", "main.throw ($panicked)")]
)
def test_keys_know_of_no_panics(key: str, function: str) -> None:
    refused = run_tool("gofunccount", "-l", "--by", key, f"{program()}:{function}")
    assert refused.status == 2
    assert "$panicked is for gotrace: calls are added up where they return" in refused.errors


def test_predicates_of_unwound_calls() -> None:
    """What is known of them decides; of results nothing is, which is not true either way."""
    probes = {
        "main.relay (n > 1 && $duration > 0)": [2, 3] * 10,
        "main.throw ($ret < 100)": [id for id in range(30) if id % 3 != 1],
        "main.recovering (result >= 100 && id < 10)": [1, 4, 7],
        "main.leaving ($ret == 1 || id == 2)": [2],
    }
    _, result = trace(program(), "panics", "--json", *probes)
    for probe, wanted in probes.items():
        name = probe.split()[0]
        key = "n" if name == "main.relay" else "id"
        assert [row["args"][key] for row in calls_of(result, name)] == wanted
    assert of_kind(result, "lost") == []
    probe = 'main.relay (id == 1 && n < 2) "%d %v", n, $ret'
    _, result = trace(program(), "panics", probe)
    assert message_lines(result, "main.relay") == [
        f"{n} <unavailable: the call did not return> (panicked)" for n in range(2)
    ]


@pytest.mark.parametrize("order", ["floats", "notified"])
def test_reading_float_registers_does_no_harm(order: str) -> None:
    """The target computes what it always does, with its own SIGURG handler too."""
    truth, result = trace(program(), order, "--json", "main.scale")
    calls = calls_of(result, "main.scale")
    assert truth["Wrong"] == 0
    assert len(calls) == truth["Scaled"]
    read = 0
    for row in calls:
        x, f, n = row["args"].values()
        if isinstance(x, float | int) and isinstance(f, float | int):
            assert (x % 1.5, f) == (0, n / 4)
            read += 1
        else:
            assert set(x) == set(f) == {"$unavailable"}
        for value, whole in zip(row["results"].values(), (1.5, 0.5), strict=True):
            if not isinstance(value, dict):
                assert (value - 0.25 * (whole == 1.5)) % whole == 0
        if read and not isinstance(row["results"]["$ret1"], dict) and isinstance(x, float):
            assert row["results"]["$ret1"] == x * n + 0.25
            assert row["results"]["$ret2"] == f * 2
    # Signals that the runtime sends at the same time can take the place of ours.
    assert read > len(calls) * 0.9
    if order == "notified":
        assert truth["Urgent"] > 0  # what the manual says such programs will see


@pytest.mark.parametrize("minor", ["1.19", "1.27"])
def test_floats_of_a_function_without_a_frame(minor: str) -> None:
    """Its first instruction has made the product of the first; the others are as they were."""
    _, result = trace(program(require(minor)), "leaves", "--json", "main.leaf")
    calls = calls_of(result, "main.leaf")
    assert len(calls) == 20
    read = 0
    for n, row in enumerate(calls, 1):
        assert row["args"]["x"] == {"$unavailable": "in a float register that could not be read"}
        if not isinstance(row["args"]["y"], dict):
            assert (row["args"]["y"], row["args"]["z"]) == (2.5, -n)
            read += 1
    assert read > 15  # as above


def test_float_registers_left_alone() -> None:
    truth, result = trace(program(), "notified", "--json", "--no-fp", "main.scale")
    calls = calls_of(result, "main.scale")
    assert len(calls) == truth["Scaled"]
    why = {"$unavailable": "in a float register; --no-fp"}
    for row in calls:
        assert [row["args"]["x"], row["args"]["f"], *row["results"].values()] == [why] * 4
        assert isinstance(row["args"]["n"], int)


@pytest.mark.parametrize("minor", VERSIONS)
def test_stacks(minor: str) -> None:
    """From the caller on, with what is inlined there, each with its own line."""
    words = ("-U", "main.deepest")
    _, result = trace(program(require(minor)), "stack", "--json", *words)
    (call,) = calls_of(result, "main.deepest")
    source = (program(require(minor)).parent / "source" / "main.go").read_text().splitlines()

    def line(text: str) -> int:
        return next(number for number, found in enumerate(source, 1) if text in found)

    assert call["line"] == line("func deepest")
    wanted = [
        ("main.between", line("deepest(n) + 2")),
        ("main.outermost", line("between(n) + 3")),
        ("main.stack", line("outermost(1)")),
        ("main.main", line("scenarios[name]()")),
    ]
    shown = [(frame["func"], frame["line"]) for frame in call["stack"]]
    assert shown[:4] == wanted
    assert [func for func, _ in shown[4:]] == ["runtime.main", "runtime.goexit"]
    assert all(frame["file"].endswith("main.go") for frame in call["stack"][:4])
    _, result = trace(program(require(minor)), "stack", *words)
    at = next(n for n, text in enumerate(result.lines) if "main.deepest(n=1) = 2" in text)
    frames = [text.strip() for text in result.lines[at + 1 : at + 5]]
    assert frames == [f"{func} at main.go:{number}" for func, number in wanted]


@pytest.mark.parametrize("where", [[], ["--entry"]])
def test_a_stack_is_marked_where_it_has_more_frames_than_shown(where: list[str]) -> None:
    truth, result = trace(program(), "depths", "--json", "-U", *where, "main.bottom")
    calls = calls_of(result, "main.bottom")
    assert [row["args"]["n"] for row in calls] == list(range(truth["Depths"]))
    frames = [len(row["stack"]) for row in calls]
    whole = [frames[0] + n for n in range(truth["Depths"])]
    assert max(frames) == 256
    assert frames == [min(count, 256) for count in whole]
    assert [row.get("stack_cut", False) for row in calls] == [count > 256 for count in whole]
    _, result = trace(program(), "depths", "-U", *where, "main.bottom (n == 10 || n == 299)")
    names = [text.split()[0] for text in result.lines if text.startswith("        ")]
    assert [name for name in names if name != "main.deep"] == [
        *("main.depths", "main.main", "runtime.main", "runtime.goexit"),
        "...",
    ]


def test_stack_and_floats_in_one_record() -> None:
    _, result = trace(program(), "floats", "--json", "-U", "--entry", "main.scale")
    calls = calls_of(result, "main.scale")
    assert all(row["stack"][0]["func"] == "main.floats.func2" for row in calls)
    read = [row["args"]["x"] for row in calls if not isinstance(row["args"]["x"], dict)]
    assert {value % 1.5 for value in read} == {0}


def test_large_arguments_leave_room_for_the_rest() -> None:
    """Values of interfaces take what they find, but not from results, stack and floats."""
    words = ("--json", "-U", "-Z", "400", "main.greedy")
    _, result = trace(program(), "greed", *words)
    calls = calls_of(result, "main.greedy")
    assert [row["args"]["id"] for row in calls] == list(range(5))
    for row in calls:
        n = row["args"]["id"]
        refused, last = {"$unavailable": "capture limit reached"}, row["args"]["c"]["$value"]
        assert last == refused or refused in last.values()
        error = {"$error": "full", "$type": "*errors.errorString"}
        expected = {"n": n, "text": "of the result", "f": n / 2}
        assert {key: row["results"][key] for key in expected} == expected
        assert error.items() <= row["results"]["err"].items()
        assert row["stack"][0]["func"] == "main.greed"


def test_every_line_has_the_documented_fields() -> None:
    order = "recursion hostile pointers pauses forever"
    names = ("main.nest", "main.said", "main.wild", "main.pause", "main.forever")
    _, result = trace(program(), order, "--json", *names)
    rows = of_kind(result, "call")
    assert {row["func"] for row in rows} == set(names)
    for row in rows:
        assert tuple(row) == (*FIELDS, "file", "line", "probe_hits", "probe_ns")
        assert all(isinstance(row[field], int) for field in ("ts_ns", "pid", "tid", "goid", "line"))
        assert isinstance(row["args"], dict)
        returned = row["func"] != "main.forever"
        assert isinstance(row["results"], dict) is returned
        assert isinstance(row["duration_ns"], int) is returned
        assert Path(row["file"]).name == "main.go"
    assert {row["pid"] for row in rows} == {of_kind(result, "call")[0]["pid"]}
    kinds = {row["kind"] for row in result.objects}
    assert kinds <= {"attached", "call", "summary", "detached", "exited", "warning"}


def test_functions_that_never_return_are_shown_at_their_entry() -> None:
    _, result = trace(program(), "forever", "main.forever")
    (call,) = text_calls(result)
    assert call.startswith("main.forever(n=7) at main.go:")


def test_entries_alone() -> None:
    _, result = trace(program(), "recursion panics", "--json", "--entry", "main.nest", "main.throw")
    nested = calls_of(result, "main.nest")
    assert [row["args"]["n"] for row in nested] == list(range(20, -1, -1))
    assert {(row["results"], row["duration_ns"]) for row in nested} == {(None, None)}
    assert [row["args"]["id"] for row in calls_of(result, "main.throw")] == list(range(30))
    assert summary(result, "unwound") == 0


def test_order_of_time_over_processors() -> None:
    truth, result = trace(program(), "order", "--json", "main.ordered")
    calls = calls_of(result, "main.ordered")
    assert len(calls) == truth["Ordered"]
    assert all(one["ts_ns"] <= other["ts_ns"] for one, other in pairwise(calls))
    assert {row["args"]["processor"] for row in calls[: len(calls) // 2]} == {0, 1}
    for processor in (0, 1):
        own = [row["args"]["n"] for row in calls if row["args"]["processor"] == processor]
        assert own == sorted(own)
    assert summary(result, "late") == 0


@pytest.mark.parametrize("entry", [(), ("--entry",)], ids=["returns", "entries"])
def test_every_call_is_shown_or_counted_as_lost(entry: tuple[str, ...]) -> None:
    """The program is faster than any reader: what is not shown is in the footer, to the last."""
    with Fixture([program()]) as fixture:
        words = ("--json", *entry, "-p", str(fixture.ready), "main.flooded")
        with tool("gotrace", *words) as tracing:
            truth = fixture.work("flood")
            result = tracing.end()
        fixture.finish()
    shown = calls_of(result, "main.flooded")
    numbers = [row["args"]["n"] for row in shown]
    assert numbers == sorted(set(numbers))
    assert len(shown) + sum(lost(result).values()) == truth["Flooded"]
    assert truth["Sum"] == sum(range(truth["Flooded"])) + 200 * truth["Flooded"]


def test_tracer_that_does_not_get_to_run() -> None:
    """It is stopped while more comes than fits in its buffers: nothing hangs, all losses are told.

    They have 32 MiB together, of which a flood fills more than half.
    """
    floods = 2
    with Fixture([program()]) as fixture:
        words = ("--json", "-p", str(fixture.ready), "main.flooded")
        with tool("gotrace", *words) as tracing:
            tracing.signal(signal.SIGSTOP)
            truth = fixture.work(" ".join(["flood"] * floods))
            tracing.signal(signal.SIGCONT)
            result = tracing.end()
        fixture.finish()
    assert all(line.startswith("{") and line.endswith("}\n") for line in result.lines)
    shown = [line for line in result.lines if line.startswith('{"kind":"call"')]
    rest = [json.loads(line) for line in result.lines if not line.startswith('{"kind":"call"')]
    missing = sum(row["calls"] for row in rest if row["kind"] == "lost")
    assert missing > 0
    assert len(shown) + missing == floods * truth["Flooded"]


def test_lost_calls_that_did_not_return_are_counted() -> None:
    """Each fifth call panics while the tracer is stopped: it is shown, or among those lost.

    On one CPU, as the buffers of two would have room for all of them.
    """
    cpu = str(min(os.sched_getaffinity(0)))
    with Fixture(["taskset", "-c", cpu, program()]) as fixture:
        words = ("--json", "-p", str(fixture.ready), "main.crashed")
        with tool("gotrace", *words) as tracing:
            tracing.signal(signal.SIGSTOP)
            truth = fixture.work("crash")
            tracing.signal(signal.SIGCONT)
            result = tracing.end()
        fixture.finish()
    calls, missing = calls_of(result, "main.crashed"), dict(lost(result))
    unwound = missing.pop("unwound_lost")
    assert 0 < unwound < sum(missing.values())
    assert len(calls) + sum(missing.values()) == truth["Calls"]
    assert sum("unwound" in row for row in calls) + unwound == truth["Crashed"]
    assert "".join(result.lines).count("($panicked)") == 1


def as_json(text: bytes) -> object:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return {"$hex": text.hex()}


def test_hostile_strings() -> None:
    """No control character of a target reaches a terminal; JSON has the text as it was."""
    truth, result = trace(program(), "hostile", "main.said")
    shown = text_calls(result)
    assert len(shown) == len(truth["Said"])
    for line in result.lines:
        assert line.rstrip("\n").isprintable()
    assert shown[0].startswith(r'main.said(text="\x1b[2J\x1b]0;title\a") = "\x1b[2J')
    truth, result = trace(program(), "hostile", "--json", "-Z", "1000", "main.said")
    texts = [as_json(base64.b64decode(text)) for text in truth["Said"]]
    assert [row["args"]["text"] for row in calls_of(result, "main.said")] == texts
    assert all(line.rstrip("\n").isprintable() for line in result.lines)


def test_strings_are_cut_with_their_true_length() -> None:
    truth, result = trace(program(), "hostile", "--json", "-Z", "5", "main.said")
    for row, encoded in zip(calls_of(result, "main.said"), truth["Said"], strict=True):
        text = base64.b64decode(encoded)
        shown = as_json(text[:5].removesuffix(b"\xc3"))  # half a letter is left out
        cut = shown if isinstance(shown, dict) else {"$string": shown}
        assert row["args"]["text"] == row["results"]["$ret"] == {**cut, "$len": len(text)}


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_depth(depth: int) -> None:
    """Pointers are followed so many times; what cannot be read is told and shifts nothing."""
    _, result = trace(program(), "pointers", "--json", "--depth", str(depth), "main.wild")
    bad, fine = (row["args"] for row in calls_of(result, "main.wild"))
    found, followed = bad["r"], 0
    while "$pointer" not in found:
        assert found["Method"] == str(followed % 4 + 1)
        found, followed = found["Next"], followed + 1
    assert followed == depth
    unread = {"$unavailable": "memory not readable"}
    assert bad["p"] == (unread if depth else {"$pointer": "0x10010"})
    assert bad["text"] == unread
    assert bad["n"] == 77
    assert fine == {"p": None, "r": None, "text": "fine", "n": 78}


def test_what_was_not_known_of_an_undecided_call_is_said() -> None:
    probe = 'main.wild (contains(text, "x") || $comm == "another")'
    _, result = trace(program(), "pointers", "--json", probe)
    assert calls_of(result, "main.wild") == []
    (row,) = of_kind(result, "lost")
    assert (row["what"], row["calls"]) == ("undecided", 1)
    assert row["reasons"] == {"memory not readable": 1}
    assert row["message"].endswith("could not be decided: memory not readable (1)")


def test_greatest_number_of_events() -> None:
    with Fixture([program()]) as fixture:
        words = ("--json", "-M", "7", "-p", str(fixture.ready), "main.nest")
        with tool("gotrace", *words) as tracing:
            fixture.work("recursion")
            result = tracing.result()
        fixture.finish()
    assert result.status == 0
    assert [row["args"]["n"] for row in calls_of(result, "main.nest")] == list(range(7))


def test_greatest_number_counts_wanted_calls_only() -> None:
    with Fixture([program()]) as fixture:
        probe = 'main.nest (n > 4 && $comm == "trace_calls")'
        with tool("gotrace", "--json", "-M", "3", "-p", str(fixture.ready), probe) as tracing:
            fixture.work("recursion")
            result = tracing.result()
        fixture.finish()
    assert [row["args"]["n"] for row in calls_of(result, "main.nest")] == [5, 6, 7]


def test_duration_of_the_run() -> None:
    with Fixture([program()]) as fixture:
        with tool("gotrace", "-d", "0.2", "-p", str(fixture.ready), "main.nest") as tracing:
            result = tracing.result()
        fixture.finish()
    assert result.status == 0
    assert result.lines[-1] == "Detaching...\n"


@pytest.mark.parametrize(
    ("option", "pattern"), [("-T", r"\d\d:\d\d:\d\d\.\d{6}"), ("-t", r"\d+\.\d{6}")]
)
def test_time_columns(option: str, pattern: str) -> None:
    _, result = trace(program(), "recursion", option, "main.nest")
    times = [line.split()[0] for line in result.lines if "main.nest(" in line]
    assert len(times) == 21
    assert all(re.fullmatch(pattern, shown) for shown in times)
    assert times == sorted(times)


def test_command_is_traced_from_its_start() -> None:
    words = ("--json", "main.fault", "main.main")
    with tool("gotrace", *words, "--", str(program())) as tracing:
        tracing.say()
        result = tracing.result()
    assert result.status == 0
    # The command writes to the same output.
    rows = [json.loads(line) for line in result.lines if line.startswith("{")]
    assert [row["func"] for row in rows if row["kind"] == "call"] == ["main.fault", "main.main"]
    assert [row["status"] for row in rows if row["kind"] == "exited"] == [0]
