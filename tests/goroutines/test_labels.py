# SPDX-License-Identifier: Apache-2.0
"""Compare the labels of goroutines with what the program itself has of them."""

from __future__ import annotations

import io
import os
import re

import pytest

import gotrace
from gotrace.goroutines.groups import GoroutineFilter, grouped
from gotrace.goroutines.profile import profile_of
from gotrace.profiles.pprof import pprof
from gotrace.report.goroutines import labels_text, write_goroutines
from tests.goroutines.test_parked import take
from tests.toolchains import BUILD_MODES, FIXTURES, Toolchain, build, each_toolchain, newest
from tests.tools.harness import Fixture, of_kind, run_tool

pytestmark = [pytest.mark.live, pytest.mark.apart]

LABELS = FIXTURES / "live_labels"


@each_toolchain
@pytest.mark.parametrize("mode", ["default", "stripped"])
def test_labels_are_what_the_program_has_set(toolchain: Toolchain, mode: str) -> None:
    program = build(LABELS, toolchain, flags=BUILD_MODES[mode])
    for seed in ("1", "2"):
        with Fixture([program, seed]) as fixture:
            dump = take(fixture.ready)
            truth = fixture.work("dump")["Labels"]
            assert fixture.finish() == 0
        read = {str(one.goid): dict(dump.labels_of(one)) for one in dump.goroutines}
        assert len(truth) == 1000
        assert {goid: read[goid] for goid in truth} == truth


def test_tracebacks_have_them_as_go_prints_them() -> None:
    env = {**os.environ, "GODEBUG": "tracebacklabels=1"}
    with Fixture([build(LABELS, newest()), "3"], env=env) as it:
        dump = take(it.ready)
        stacks = it.work("dump")["Stacks"]
    text = io.StringIO()
    write_goroutines(text, dump.program, GoroutineFilter().of(dump), False, labels=dump.labels)
    header = re.compile(r"^(goroutine \d+) \[[^]]*\]( \{.*\})?:$", re.MULTILINE)
    ours, theirs = (dict(header.findall(part)) for part in (text.getvalue(), stacks))
    assert len(theirs) >= 1000 and sum(map(bool, theirs.values())) > 500
    assert ours == theirs


def test_what_needs_quotes_has_them() -> None:
    shown = labels_text((("a/b.c_9", ""), ("a b", 'x"\\\n\t\r'), ("λ世", "\x1b\U0001f600\udcff")))
    assert shown == (r' {a/b.c_9: , "a b": "x\"\\\n\t\r", "\u03bb\u4e16": "\u001b\U0001f600\xff"}')


def test_groups_by_label_and_all_other_forms() -> None:
    with Fixture([build(LABELS, newest()), "4"]) as fixture:
        dump = take(fixture.ready)
        truth = fixture.work("dump")["Labels"]
        pid = str(fixture.ready)
        result = run_tool("gostacks", "--json", "-p", pid)
        text = run_tool("gostacks", "--by", '$label("method")', "-p", pid, "main.run")
        with gotrace.attach(fixture.ready) as session:
            states = {str(one.goid): one.labels for one in session.goroutines("main.run")}
    assert {str(row["goid"]): row["labels"] for row in of_kind(result, "goroutine")} == {
        "1": {},
        **truth,
    }
    assert states == truth
    methods = {labels.get("method") for labels in truth.values()}
    groups = grouped(dump, GoroutineFilter(functions=("main.run",)).of(dump), by=["method"])
    assert {dict(group.key[4]).get("method") for group in groups} == methods
    for group in groups:
        for one in group.goroutines:
            assert truth[str(one.goid)].get("method") == dict(group.labels).get("method")
    assert len(groups) == len(methods) == sum("[chan receive" in line for line in text.lines)
    profile = profile_of(dump, GoroutineFilter(functions=("main.run",)).of(dump), 0)
    assert sum(row.values[0] for row in profile.rows) == 1000
    by_method = [row.labels.get("method") for row in profile.rows]
    assert set(by_method) == methods and pprof(profile)
