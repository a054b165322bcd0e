# SPDX-License-Identifier: Apache-2.0
"""How much of a call's values its line shows, live."""

from __future__ import annotations

import gzip
import json
import os
import re
import urllib.request
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import (
    Fixture,
    Process,
    Running,
    json_counts,
    of_kind,
    run_tool,
    tool,
    tool_command,
)
from tests.tools.trace import calls_of, program, trace

pytestmark = [pytest.mark.live, pytest.mark.apart]

GET, HANDLE = "main.(*Store).Get", "main.handle"


def lines_of(*arguments: str, columns: int = 80) -> dict[str, str]:
    """Return the last line of each of the server's functions, from the call on."""
    path = build(FIXTURES / "trace_server", newest())
    env = {"PATH": "/usr/bin:/bin", "COLUMNS": str(columns)}
    with Fixture([path]) as fixture:
        words = ("-p", str(fixture.ready), *arguments, GET, HANDLE)
        with tool("gotrace", *words, env=env) as tracing:
            fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    if "--json" in arguments:
        return {row["func"]: str(row["args"]) for row in of_kind(result, "call")}
    calls = [line for line in result.lines if " main." in line]
    assert all(len(line) - 1 <= 3 * columns or "-" in arguments[0] for line in calls)
    return {name: line for name in (GET, HANDLE) for line in calls if name in line}


def test_a_line_has_addresses_of_receivers_and_large_structs_and_fits_three_rows() -> None:
    shown = lines_of("-x", "none")
    assert re.search(r"Get\(s=\(\*main\.Store\)\(0x[0-9a-f]+\), key=\"", shown[GET])
    assert re.search(r"r=\(\*http\.Request\)\(0x[0-9a-f]+\)\) at ", shown[HANDLE])
    narrow = lines_of("-x", "none", columns=60)
    assert len(narrow[HANDLE]) <= 3 * 60 + 1


@pytest.mark.parametrize("asked", [("-v",), ("--depth", "1"), ("-Z", "256"), ("--elements", "8")])
def test_all_is_shown_to_who_asks_for_it(asked: tuple[str, ...]) -> None:
    shown = lines_of(*asked)
    assert "s=&main.Store{items: map[string]main.Item{" in shown[GET]
    assert 'r=&http.Request{Method: "POST", URL: ' in shown[HANDLE]
    assert len(shown[HANDLE]) > 500


def test_json_has_all() -> None:
    shown = lines_of("--json")
    assert "'items': " in shown[GET]
    assert "'Method': 'POST'" in shown[HANDLE]


def test_elements_say_how_many_are_shown() -> None:
    path = build(FIXTURES / "trace_server", newest())
    with Fixture([path]) as fixture:
        words = ("-p", str(fixture.ready), "--elements", "1", "main.total")
        with tool("gotrace", *words) as tracing:
            fixture.work()
            result = tracing.end()
    (line,) = (line for line in result.lines if "main.total(" in line)
    assert line.count("ID:") == 1
    assert re.search(r"\.\.\. \(len \d\)", line)


def test_results_go_to_a_file_and_words_to_the_terminal(tmp_path: Path) -> None:
    path = build(FIXTURES / "trace_server", newest())
    file = tmp_path / "run.ndjson.gz"
    with Fixture([path]) as fixture:
        words = ("-p", str(fixture.ready), "-o", str(file), HANDLE)
        with tool("gotrace", *words) as tracing:
            requests = fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    assert [line.split()[0] for line in result.lines] == ["Tracing", "Detaching..."]
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    assert [row["kind"] for row in rows if row["kind"] != "warning"] == [
        "attached",
        *["call"] * int(str(requests)),
        "detached",
    ]


def test_a_quiet_run_has_nothing_but_results() -> None:
    path = build(FIXTURES / "trace_server", newest())
    with Fixture([path]) as fixture:
        words = ("-q", "-p", str(fixture.ready), "-M", "1", HANDLE)
        with Process(tool_command("gotrace", *words)) as tracing:
            # Nothing says when it is attached: requests are made until one is shown.
            while not tracing.ends_within(0.2):
                urllib.request.urlopen(f"http://{listening(fixture.ready)}/").read()
            lines = tracing.rest()
    assert len(lines) == 1
    assert " main.handle(" in lines[0]
    assert tracing.errors == ""


def listening(pid: int) -> str:
    """Return the address on which a process listens, from proc_pid_net(5)."""
    owned = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *rest = line.split()
        if state == "0A" and f"socket:[{rest[5]}]" in owned:
            return f"127.0.0.1:{int(local.partition(':')[2], 16)}"
    raise AssertionError("it does not listen")


def test_a_run_without_calls_says_so() -> None:
    """All tools at once, on a program that makes calls and on one that does not."""
    path = build(FIXTURES / "trace_server", newest())
    names = ("gofunccount", "gofunclatency", "gotrace")
    with Fixture([path]) as calling, Fixture([path]) as silent, ExitStack() as opened:

        def started(fixture: Fixture) -> list[Running]:
            words = ("-p", str(fixture.ready), "-d", "5500ms", HANDLE)
            return [opened.enter_context(tool(name, *words)) for name in names]

        seen = started(calling)
        calling.work()
        unseen = started(silent)
        for tracing in seen:
            assert "no call seen" not in tracing.result().errors
        for tracing in unseen:
            assert "no call seen in 5 s" in tracing.result().errors


def test_only_calls_of_a_goroutine_or_thread_are_shown() -> None:
    """Those of others are not even reported, and lines are made without decoding."""
    _, every = trace(program(), "goroutines", "--json", "main.echo")
    goids = Counter(row["goid"] for row in calls_of(every, "main.echo"))
    assert set(goids.values()) == {150}
    with Fixture([program()]) as fixture:
        main_thread = str(fixture.ready)
        words = ("--json", "-p", main_thread)
        with tool("gotrace", *words, "--goid", "1", "main.nest", "main.echo") as tracing:
            fixture.work("recursion goroutines")
            result = tracing.end()
        assert {row["goid"] for row in of_kind(result, "call")} == {1}
        assert not calls_of(result, "main.echo")
        none = run_tool("gotrace", *words, "--tid", "4194304", "-d", "1", "main.nest (n > 0)")
        assert not of_kind(none, "call")


def test_processes_of_another_user_are_left_out() -> None:
    path = build(FIXTURES / "live_count", newest())
    for user, some in ((str(os.getuid()), True), ("nobody", False)):
        with Fixture([path]) as fixture:
            words = ("--json", "--uid", user, "-p", str(fixture.ready), "main.*")
            with tool("gofunccount", *words) as counting:
                fixture.work()
                result = counting.end()
            assert fixture.finish() == 0
        assert bool(of_kind(result, "count")) is some


def test_the_outermost_of_nested_calls_is_measured() -> None:
    with Fixture([program()]) as fixture:
        words = ("--json", "-p", str(fixture.ready), "main.nest")
        counts = []
        for outermost in ((), ("--outermost",)):
            with tool("gofunclatency", *outermost, *words) as measuring:
                fixture.work("recursion")
                result = measuring.end()
            counts.append(sum(row["count"] for row in of_kind(result, "histogram")))
    assert counts == [21, 1]


def test_the_cpu_has_a_column() -> None:
    cpu = max(os.sched_getaffinity(0))
    path = program()
    for words, shown in ((("-C",), r"(\d+) +[\d:.]+ "), (("-C", "--json"), r'.*"cpu":(\d+)}')):
        with Fixture([path], preexec_fn=lambda: os.sched_setaffinity(0, {cpu})) as fixture:
            with tool("gotrace", *words, "-p", str(fixture.ready), "main.echo") as tracing:
                fixture.work("goroutines")
                result = tracing.end()
            assert fixture.finish() == 0
        calls = [line for line in result.lines if "main.echo" in line and "Tracing" not in line]
        found = [
            re.match(shown, line) for line in calls if '"kind":"call"' in line or words[1:] == ()
        ]
        assert found and {match and match[1] for match in found} == {str(cpu)}


def test_as_much_of_the_stack_as_is_asked_for() -> None:
    """The frames of --stack-depth are the innermost of those that -U has."""
    stacks = []
    for words in (("-U",), ("--stack-depth", "3"), ("--stack-depth", "999")):
        _, result = trace(program(), "stack", "--json", *words, "main.deepest")
        (call,) = calls_of(result, "main.deepest")
        stacks.append(([frame["func"] for frame in call["stack"]], call.get("stack_cut", False)))
    whole, cut, most = stacks
    assert whole[0][:3] == ["main.between", "main.outermost", "main.stack"] and not whole[1]
    # One of the three return addresses is in two functions, of which one was inlined.
    assert cut == (whole[0][:4], True) and len(whole[0]) > 4
    assert most == whole


def test_only_a_control_groups_processes() -> None:
    """Of two processes of one program, one is in the group."""
    roots = [
        line.split()[1]
        for line in Path("/proc/self/mounts").read_text().splitlines()
        if line.split()[2] == "cgroup2"
    ]
    if not roots:
        pytest.skip("no control groups of version 2 are mounted here")
    group = Path(roots[0]) / f"gotrace-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    path = build(FIXTURES / "live_count", newest())
    try:
        with Fixture([path]) as inside, Fixture([path]) as outside:
            (group / "cgroup.procs").write_text(str(inside.ready))
            words = ("--json", "--by", "$pid", "--cgroup", str(group), f"{path}:main.*")
            with tool("gofunccount", *words) as counting:
                outside.work()
                truth = inside.work()
                result = counting.end()
            assert outside.finish() == inside.finish() == 0
        pids = {row["by"]["$pid"] for row in of_kind(result, "count")}
        assert pids == {inside.ready}
        assert json_counts(result, truth["calls"]) == truth["calls"]
    finally:
        group.rmdir()
