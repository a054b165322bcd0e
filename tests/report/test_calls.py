# SPDX-License-Identifier: Apache-2.0
"""Calls as lines and as JSON objects."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator

import pytest

from gotrace.calls import StackFrame
from gotrace.report.calls import (
    Clock,
    Columns,
    LineStyle,
    TimeStyle,
    json_line,
    text_line,
)
from gotrace.session.decode import DecodedCall, TracedFunction
from gotrace.session.events import Unwinding
from gotrace.values.model import (
    ErrorValue,
    InterfaceValue,
    Nil,
    PointerValue,
    StringValue,
    StructValue,
    UnavailableValue,
)
from tests.report.test_colour import Terminal

SECOND = 1_000_000_000
#: 1700000000.25 s after 1970 is 5.25 s on the kernel's clock; the run began at 1 s.
CLOCK = Clock(TimeStyle.TIME_OF_DAY, start=SECOND, epoch=(5 - 1_700_000_000) * SECOND)
SINCE_START = Clock(TimeStyle.SINCE_START, start=SECOND, epoch=CLOCK.epoch)
ENDED = 5 * SECOND + 250_000_999

GET = TracedFunction("main.(*Store).Get", ("n", "key"), ("~r0", "~r1"), "/src/app/store.go", 57)


@pytest.fixture(autouse=True)
def _half_past_five_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XXX-05:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def string(text: str) -> StringValue:
    return StringValue(text.encode(), len(text.encode()))


def get(**changes: object) -> DecodedCall:
    fields: dict[str, object] = {
        "function": GET,
        "end_ns": ENDED,
        "pid": 1234,
        "tid": 1240,
        "goid": 18,
        "args": (-3, string("user:42")),
        "results": (string(""), True),
        "duration_ns": 31_200,
    }
    return DecodedCall(**(fields | changes))  # type: ignore[arg-type]


def test_a_call_is_a_line_of_columns_under_their_heads() -> None:
    heading = "TIME            PID      TID      GOID       DURATION  CALL\n"
    assert Columns().heading("CALL") == heading
    assert text_line(get(), CLOCK) == (
        "03:43:20.250000 1234     1240     18         31.2us    "
        'main.(*Store).Get(n=-3, key="user:42") = ("", true) at store.go:57\n'
    )


@pytest.mark.parametrize(
    ("columns", "heads", "prefix"),
    [
        (Columns(False, False), "TIME GOID DURATION CALL", "03:43:20.250000 18 31.2us "),
        (Columns(False), "TIME TID GOID DURATION CALL", "03:43:20.250000 1240 18 31.2us "),
        (Columns(True, False), "TIME PID GOID DURATION CALL", "03:43:20.250000 1234 18 31.2us "),
        (
            Columns(False, True, True),
            "CPU TIME TID GOID DURATION CALL",
            "3 03:43:20.250000 1240 18 31.2us ",
        ),
    ],
)
def test_columns_that_are_left_out_have_no_room(columns: Columns, heads: str, prefix: str) -> None:
    style = LineStyle(columns=columns)
    heading, line = columns.heading("CALL"), text_line(get(cpu=3), CLOCK, style)
    assert heading.split() == heads.split()
    assert re.sub(" +", " ", line).startswith(prefix)
    assert line.index("main.(*Store).Get(") == heading.index("CALL") == columns.width


def test_time_can_count_from_the_start() -> None:
    assert text_line(get(), SINCE_START).startswith("4.250000        1234 ")
    assert text_line(get(end_ns=0), SINCE_START).startswith("0.000000 ")


def test_the_clock_follows_its_calls_across_a_second() -> None:
    moments = [5 * SECOND - 1, 5 * SECOND, 6 * SECOND - 1, 6 * SECOND, 5 * SECOND - 1]
    shown = ["19.999999", "20.000000", "20.999999", "21.000000", "19.999999"]
    assert [CLOCK.text(moment) for moment in moments] == ["03:43:" + text for text in shown]


def test_a_clock_that_starts_now_agrees_with_the_system() -> None:
    before = time.time_ns()
    clock = Clock.started_now(TimeStyle.SINCE_START)
    shown = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - clock.epoch
    assert abs(shown - before) < 10 * SECOND
    assert clock.text(time.clock_gettime_ns(time.CLOCK_MONOTONIC)).startswith("0.")


@pytest.mark.parametrize(
    ("results", "values", "shown"),
    [
        ((), (), "main.f(n=1) at f.go:3"),
        (("~r0",), (7,), "main.f(n=1) = 7 at f.go:3"),
        (("a", "b"), (7, 8), "main.f(n=1) = (7, 8) at f.go:3"),
    ],
)
def test_results_stand_behind_the_call(
    results: tuple[str, ...], values: tuple[int, ...], shown: str
) -> None:
    function = TracedFunction("main.f", ("n",), results, "f.go", 3)
    line = text_line(get(function=function, args=(1,), results=values), CLOCK)
    assert line.split(maxsplit=5)[5] == shown + "\n"


def test_a_call_seen_at_its_entry_only_has_neither_results_nor_a_duration() -> None:
    row = get(results=None, duration_ns=None)
    assert text_line(row, CLOCK).split(maxsplit=4)[4] == (
        '-         main.(*Store).Get(n=-3, key="user:42") at store.go:57\n'
    )
    found = json.loads(json_line(row, CLOCK))
    assert found["results"] is None
    assert found["duration_ns"] is None


def test_a_json_object_has_the_keys_of_the_schema_in_their_order() -> None:
    line = json_line(get(), CLOCK)
    assert line == (
        '{"kind":"call","ts_ns":1700000000250000999,"pid":1234,"tid":1240,"goid":18,'
        '"func":"main.(*Store).Get","args":{"n":-3,"key":"user:42"},'
        '"results":{"$ret1":"","$ret2":true},"duration_ns":31200,'
        '"file":"/src/app/store.go","line":57,"probe_hits":null,"probe_ns":null}\n'
    )
    found = json.loads(json_line(get(probe_hits=8, probe_ns=5_000), CLOCK))
    assert list(found.items())[-2:] == [("probe_hits", 8), ("probe_ns", 5_000)]


def test_an_unknown_place_is_left_out_of_lines_and_null_in_json() -> None:
    function = TracedFunction("main.f")
    row = get(function=function, args=(), results=())
    assert text_line(row, CLOCK).endswith(" main.f()\n")
    found = json.loads(json_line(row, CLOCK))
    assert (found["file"], found["line"]) == (None, None)
    assert (found["args"], found["results"]) == ({}, {})


def test_values_without_a_name_are_named_by_position_and_no_name_is_there_twice() -> None:
    function = TracedFunction("main.f", ("", "_", "a", "a", "arg1"), ("", "named", "~r2"))
    row = get(function=function, args=(1, 2, 3, 4, 5), results=(6, 7, 8))
    found = json.loads(json_line(row, CLOCK))
    assert found["args"] == {"arg1": 1, "arg2": 2, "a": 3, "a'": 4, "arg1'": 5}
    assert found["results"] == {"$ret1": 6, "named": 7, "$ret3": 8}
    assert TracedFunction("main.f", results=("~r0",)).result_labels == ("$ret",)
    assert "main.f(arg1=1, arg2=2, a=3, a'=4, arg1'=5) = (6, 7, 8)" in text_line(row, CLOCK)


def test_an_unavailable_value_says_why() -> None:
    row = get(args=(UnavailableValue("in a float register"), string("x")))
    assert "(n=<unavailable: in a float register>, key=" in text_line(row, CLOCK)
    (found,) = {json.dumps(json.loads(json_line(row, CLOCK))["args"]["n"])}
    assert "in a float register" in found


def test_a_stack_stands_below_its_call() -> None:
    stack = (StackFrame("main.handle", "/src/app/main.go", 12), StackFrame("0x4a1b2c"))
    first, *rest = text_line(get(stack=stack), CLOCK).splitlines()
    assert first == text_line(get(), CLOCK).rstrip("\n")
    assert rest == ["        main.handle at main.go:12", "        0x4a1b2c"]
    found = json.loads(json_line(get(stack=stack), CLOCK))
    assert found["stack"] == [
        {"func": "main.handle", "file": "/src/app/main.go", "line": 12},
        {"func": "0x4a1b2c", "file": None, "line": None},
    ]
    assert "stack_cut" not in found
    assert json.loads(json_line(get(stack=()), CLOCK))["stack"] == []
    cut = get(stack=stack, stack_cut=True)
    assert text_line(cut, CLOCK).splitlines()[1:] == [*rest, "        ..."]
    assert json.loads(json_line(cut, CLOCK)) == {**found, "stack_cut": True}


def test_generic_names_are_those_of_stack_dumps_but_for_json() -> None:
    function = TracedFunction("main.Map[go.shape.int,go.shape.string]")
    frame = StackFrame("main.(*T[go.shape.int]).m")
    row = DecodedCall(function, 1, 2, 3, 4, [], stack=[frame])
    first, second = text_line(row, CLOCK).splitlines()
    assert first.endswith(" main.Map[...]()")
    assert second == "        main.(*T[...]).m"
    found = json.loads(json_line(row, CLOCK))
    assert (found["func"], found["stack"][0]["func"]) == (function.name, frame.function)
    message = DecodedCall(function, 1, 2, 3, 4, [], message="x")
    assert text_line(message, CLOCK).endswith(" main.Map[...] x\n")


def test_a_call_that_did_not_return_says_why() -> None:
    for unwound, words in (
        (Unwinding.PANIC, "panicked"),
        (Unwinding.GOEXIT, "ended by runtime.Goexit"),
    ):
        row = get(results=None, unwound=unwound)
        assert f") {words} at " in text_line(row, CLOCK)
        found = json.loads(json_line(row, CLOCK))
        assert (found["results"], found["unwound"]) == (None, unwound.value)
        assert text_line(get(message="x", unwound=unwound), CLOCK).endswith(f" x ({words})\n")
    assert "unwound" not in json.loads(json_line(get(), CLOCK))


def test_the_users_own_format_takes_the_place_of_the_values() -> None:
    row = get(message="GET /index -> <nil>")
    assert text_line(row, CLOCK).split(maxsplit=4)[4] == (
        "31.2us    main.(*Store).Get GET /index -> <nil>\n"
    )
    found = json.loads(json_line(row, CLOCK))
    assert list(found)[-3] == "message"
    assert found["message"] == "GET /index -> <nil>"
    assert found["args"]["key"] == "user:42"
    found = json.loads(json_line(get(message="a\tb\udcff"), CLOCK))
    assert found["message"] == "a\\tb\\xff"


def test_nothing_of_the_target_steers_the_terminal() -> None:
    bad = "\x1b[2J\n\u202e"
    function = TracedFunction("f" + bad, ("n" + bad, "key"), ("",), "/a/b" + bad, 1)
    row = get(
        function=function,
        args=(1, string("s" + bad)),
        results=(string(bad),),
        stack=(StackFrame("g" + bad, "h" + bad, 2),),
    )
    for line in (text_line(row, CLOCK), text_line(get(message=bad), CLOCK)):
        assert all(char.isprintable() for char in line.replace("\n", ""))
    assert text_line(row, CLOCK).count("\n") == 2
    assert text_line(get(message=bad), CLOCK).count("\n") == 1
    line = json_line(row, CLOCK)
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line)["func"] == "f" + bad


def test_a_call_fits_a_width_by_cutting_values_and_nothing_else() -> None:
    long = string("k" * 500)
    for width in (160, 240, 400):
        line = text_line(get(args=(-3, long), results=(long, True)), CLOCK, LineStyle(width))
        assert len(line) - 1 in range(width - 8, width + 1)
        assert 'main.(*Store).Get(n=-3, key="kkk' in line
        assert line.count("... (len 500)") == 2
        assert line.endswith(", true) at store.go:57\n")
    message = get(message="m" * 500)
    assert text_line(message, CLOCK, LineStyle(160)) == text_line(message, CLOCK)


def test_a_call_that_does_not_fit_a_terminal_has_less_that_all_calls_have_in_common(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    columns = Columns(pid=False, tid=False)
    style = LineStyle.on(Terminal(), 240, False, columns)
    assert LineStyle.on(io.StringIO(), 240, False, columns) == LineStyle(240, columns=columns)
    long = "example.org/shop/internal/reservations.(*Store).Put"
    function = TracedFunction(long, ("s", "ctx", "r"), ("$ret",), "store.go", 57)
    inner = PointerValue("*context.cancelCtx", 0xC000128000)
    context = InterfaceValue("context.Context", inner.type, inner)
    request = StructValue("shop.Request", (("Key", string("k" * 300)),))
    values = (PointerValue("*shop.Store", 0xC000246000), context, request)
    row = get(function=function, args=values, results=(Nil("error"),))
    line = text_line(row, CLOCK, style)
    prefix = columns.width
    assert line[prefix:].startswith(
        'reservations.(*Store).Put(s=0xc000246000, ctx=0xc000128000, r=Request{Key: "kk'
    )
    assert line.endswith("...) = nil\n")
    assert len(line) - 1 in range(150, 161)
    short = get(function=TracedFunction("main.f", (), (), "store.go", 57), args=(), results=())
    assert text_line(short, CLOCK, style).endswith(" main.f() at store.go:57\n")
    message = get(function=function, message="GET /orders")
    assert text_line(message, CLOCK, style)[prefix:] == "reservations.(*Store).Put GET /orders\n"
    assert long in text_line(message, CLOCK, LineStyle(240))


def test_names_can_be_short() -> None:
    function = TracedFunction("go.etcd.io/etcd/v3/server.(*T[go.shape.int,net/http.H]).Put")
    frame = StackFrame("net/http.(*conn).serve", "server.go", 3)
    row = get(function=function, args=(), results=(), stack=[frame])
    first, second = text_line(row, CLOCK, LineStyle(short=True)).splitlines()
    assert first.endswith(" server.(*T[...]).Put()")
    assert second == "        http.(*conn).serve at server.go:3"
    assert text_line(row, CLOCK).count("/") == 4
    assert json.loads(json_line(row, CLOCK))["func"] == function.name


def test_colour_is_for_names_errors_and_slow_calls_and_takes_no_columns() -> None:
    colour = LineStyle(colour=True)
    error = ErrorValue("*errors.errorString", "no such key", 0)
    row = get(results=(string("v"), error), duration_ns=150_000_000)
    line = text_line(row, CLOCK, colour)
    assert "\x1b[33m150ms    \x1b[0m \x1b[1mmain.(*Store).Get\x1b[0m(n=-3, " in line
    assert '= ("v", \x1b[31m"no such key" (*errors.errorString)\x1b[0m) at ' in line
    assert re.sub(r"\x1b\[[\d;]*m", "", line) == text_line(row, CLOCK)
    for changes in ({"unwound": Unwinding.PANIC, "results": None}, {"message": "m"}, {}):
        for width in (None, 120, 300):
            row = get(duration_ns=2_000_000_000, args=(1, string("k" * 300)), **changes)
            line = text_line(row, CLOCK, LineStyle(width, colour=True))
            assert "\x1b[1;31m2s       \x1b[0m " in line
            assert re.sub(r"\x1b\[[\d;]*m", "", line) == text_line(row, CLOCK, LineStyle(width))
