# SPDX-License-Identifier: Apache-2.0
"""Calls as objects, read from what gotrace --json writes."""

from __future__ import annotations

import datetime
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gotrace
from gotrace.calls import StackFrame
from gotrace.report.calls import Clock, TimeStyle, json_line
from gotrace.session.decode import DecodedCall, TracedFunction
from gotrace.session.events import Unwinding
from gotrace.values.model import (
    DurationValue,
    ErrorValue,
    Nil,
    SequenceValue,
    StringValue,
    StructValue,
    UnavailableValue,
    Value,
)
from gotrace.values.python import to_python

GET = TracedFunction("main.(*Store).Get", ("n", "req"), ("~r0", "err"), "/src/store.go", 57)
CLOCK = Clock(TimeStyle.TIME_OF_DAY, start=0, epoch=-1_700_000_000_000_000_000)
REQUEST = StructValue(
    "main.request",
    (("Method", StringValue(b"GET", 3)), ("Tags", SequenceValue("[]int", (1, 2), 2))),
)
REFUSED = ErrorValue("*errors.errorString", "refused", REQUEST)


def line(results: tuple[Value, ...] | None = (7, Nil("error")), **changes: Any) -> str:
    fields: dict[str, Any] = {
        "function": GET,
        "end_ns": 5_000,
        "pid": 12,
        "tid": 13,
        "goid": 18,
        "args": (-3, REQUEST),
        "results": results,
        "duration_ns": 31_200,
        "probe_hits": 2,
        "probe_ns": 900,
    }
    return json_line(DecodedCall(**(fields | changes)), CLOCK)


def one(text: str) -> gotrace.Call:
    (call,) = gotrace.read([text])
    return call


def test_a_call_has_what_its_line_says() -> None:
    call = one(line(stack=(StackFrame("main.handle", "/src/main.go", 12), StackFrame("0x4a"))))
    assert (call.function, call.file, call.line) == ("main.(*Store).Get", "/src/store.go", 57)
    assert (call.pid, call.tid, call.goid) == (12, 13, 18)
    assert (call.duration_ns, call.time_ns) == (31_200, 1_700_000_000_000_005_000)
    assert (call.probe_hits, call.probe_ns) == (2, 900)
    assert call.args["n"] == -3
    assert call.args["req"].Method == "GET"
    assert call.results == {"$ret1": 7, "err": None}
    assert (call.error, call.unwound, call.message, call.stack_cut) == (None, None, None, False)
    assert call.stack == [
        gotrace.StackFrame("main.handle", "/src/main.go", 12),
        gotrace.StackFrame("0x4a", None, None),
    ]


def test_the_error_is_the_last_result_where_that_is_one() -> None:
    error = one(line((7, REFUSED))).error
    assert isinstance(error, type(to_python(REFUSED)))
    assert (error.message, error.type) == ("refused", "*errors.errorString")
    unread = one(line((7, UnavailableValue("not readable")))).error
    assert isinstance(unread, gotrace.Unavailable)
    assert unread.why == "not readable"
    assert one(line((REFUSED, 7))).error is None
    assert one(line(None, duration_ns=None)).error is None


def test_a_call_that_did_not_return_says_why() -> None:
    call = one(line(None, unwound=Unwinding.PANIC))
    assert (call.results, call.error, call.unwound) == (None, None, "panic")


def test_a_row_is_flat_and_made_of_plain_objects() -> None:
    row = one(line((UnavailableValue("?"), REFUSED), message="x")).to_dict()
    assert row == {
        "time_ns": 1_700_000_000_000_005_000,
        "pid": 12,
        "tid": 13,
        "goid": 18,
        "function": "main.(*Store).Get",
        "duration_ns": 31_200,
        "error": "refused",
        "unwound": None,
        "args.n": -3,
        "args.req": {"Method": "GET", "Tags": [1, 2]},
        "results.$ret1": None,
        "results.err": "refused",
        "message": "x",
    }
    assert type(row["args.req"]) is dict
    took = gotrace.Call("f", {"d": to_python(DurationValue(5))}, None, None, 0, 1, 1, 1).to_dict()
    assert type(took["args.d"]) is int


def test_a_call_can_be_written_and_read_again(tmp_path: Path) -> None:
    stack = (StackFrame("main.handle", "/src/main.go", 12),)
    calls = [one(line(stack=stack, message="x")), one(line(None, unwound=Unwinding.PANIC))]
    for name in ("calls.ndjson", "calls.ndjson.gz"):
        gotrace.write(tmp_path / name, calls)
        assert list(gotrace.read(tmp_path / name)) == calls
    for call in calls:
        assert json.loads(json.dumps(call.to_dict())) == call.to_dict()
        assert pickle.loads(pickle.dumps(call)) == call
    with pytest.raises(gotrace.GotraceError, match="cannot write"):
        gotrace.write(tmp_path / "no" / "folder", calls)


def test_a_row_of_any_value_is_json() -> None:
    moment = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
    args = {"b": b"ok", "h": b"\xff", "c": complex(1, 2), "t": moment, "m": {(1, 2): 3}}
    row = gotrace.Call("f", args, None, None, 0, 1, 1, 1).to_dict()
    assert json.loads(json.dumps(row)) == row
    assert (row["args.b"], row["args.h"], row["args.m"]) == ("ok", "ff", {"(1, 2)": 3})
    assert row["args.t"] == "1970-01-01T00:00:00+00:00"


LOST = '{"kind":"lost","message":"?","what":"reader","calls":%d}\n'


def test_calls_that_are_missing_are_reported_at_the_end() -> None:
    lines = ['{"kind":"attached"}\n', LOST % 3, line(), LOST % 4, line()]
    assert len(list(gotrace.read(lines, lossy=True))) == 2
    seen: list[gotrace.Call] = []
    with pytest.raises(gotrace.LostCalls, match="7 calls are missing") as caught:
        seen.extend(gotrace.read(lines))
    assert len(seen) == 2
    assert caught.value.lost == {"reader": 7}
    assert isinstance(caught.value, gotrace.GotraceError)
    assert pickle.loads(pickle.dumps(caught.value)).lost == {"reader": 7}


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "run.ndjson"
    path.write_text(line() + line())
    assert len(list(gotrace.read(path))) == len(list(gotrace.read(str(path)))) == 2
    with path.open() as lines:
        assert len(list(gotrace.read(lines))) == 2
    path.write_text(line() + line()[:40])  # its writer was killed
    calls = gotrace.read(path)
    assert next(calls).function == "main.(*Store).Get"
    with pytest.raises(gotrace.GotraceError, match=r"run\.ndjson:2: not a line of gotrace"):
        next(calls)


def broken() -> Iterator[str]:
    row = json.loads(line())
    yield "[]"
    yield "TIME PID"
    yield json.dumps(row | {"args": None})
    yield json.dumps(row | {"args": {"n": {"$pointer": "x"}}})
    yield json.dumps(row | {"stack": [1]})
    yield json.dumps({"kind": "call"})
    yield '{"kind":"lost"}'


@pytest.mark.parametrize("text", list(broken()))
def test_what_is_no_trace_is_one_line_that_says_where(text: str) -> None:
    with pytest.raises(gotrace.GotraceError, match="the trace:1: not a ") as caught:
        list(gotrace.read([text]))
    assert "\n" not in str(caught.value)
    reasons = {"[]": "json: not an object", '{"kind":"lost"}': "json: no number of calls"}
    assert str(caught.value).endswith(reasons.get(text, ""))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(gotrace.GotraceError, match=r"cannot read .*none: No such file"):
        list(gotrace.read(tmp_path / "none"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(gotrace.GotraceError, match=r"cannot read .*binary: not UTF-8"):
        list(gotrace.read(tmp_path / "binary"))
