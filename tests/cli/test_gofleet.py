# SPDX-License-Identifier: Apache-2.0
"""What gofleet is asked: names of hosts, commands, and recordings."""

from __future__ import annotations

import io
import json
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gotrace.cli.asking import _Answers
from gotrace.cli.gofleet import main
from gotrace.errors import UsageError
from gotrace.hosts.names import host_names
from gotrace.hosts.remote import HostError, RemoteRun, remote_script
from gotrace.hosts.run import HostResult
from gotrace.hosts.ssh import Ssh
from gotrace.profiles.write import is_profile
from tests.tools.gofleet.test_on import pack


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("ssh:web1", ["web1"]),
        ("ssh:web[08-10]", ["web08", "web09", "web10"]),
        ("ssh:web[1,3-4].eu", ["web1.eu", "web3.eu", "web4.eu"]),
        ("ssh:r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("ssh:ann@db,db,db", ["ann@db", "db"]),
        ("ssh:[::1]", ["[::1]"]),
    ],
)
def test_names_of_hosts(place: str, expected: list[str]) -> None:
    assert host_names([place]) == expected


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("web1", "as in ssh:web"),
        ("k8s:deploy/shop", "as in ssh:web"),
        ("ssh:", "not the name of a host"),
        ("ssh:-oProxyCommand=x", "not the name"),
        ("ssh:a b", "not the name"),
        ("ssh:$(x)", "not the name"),
        ("ssh:web[3-1]", "the last is before the first"),
        ("ssh:web[1-99999999999999999999]", r"\[1-9*\]: these are more than 10,000 hosts"),
        ("ssh:a[1-999]b[1-999]c[1-999]", "--on .ssh:a.*: these are more than 10,000 hosts"),
    ],
)
def test_other_names_are_refused(place: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        host_names([place])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--on", "ssh:a"], "give what to run on the hosts after --"),
        (["--on", "ssh:a", "--", "rm", "x"], "what can be added up is gofunccount"),
        (["--on", "ssh:a", "--", "gotrace", "f"], "what can be added up is gofunccount"),
        (["--on", "ssh:a", "--", "gooncpu", "--top", "3"], "gofleet --top N"),
        (["--on", "ssh:a", "--", "gooncpu", "-o", "x"], "gofleet -o FILE"),
        (["--on", "ssh:a", "--", "gostacks", "--by", "k"], "are by stack"),
        (["--on", "ssh:a", "--push", "/nowhere", "--", "gooncpu"], "make bundle makes one"),
        (["--on", "ssh:a", "--ssh", "'", "--", "gooncpu"], "No closing quotation"),
        (["--merge", "x", "--", "gooncpu"], "leave out -- and the command"),
        (["--merge", "/nowhere"], "cannot read /nowhere"),
        ([], "one of the arguments --on --merge is required"),
    ],
)
def test_mistakes_are_said_in_a_line(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) in (1, 2)
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1


def test_a_bundle_for_no_machine_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = pack(tmp_path / "x.tar.gz", "a/b", b"")
    words = ["--on", "ssh:a", "--push", str(bundle), "--", "gofunccount", "f"]
    assert main(words) == 2
    assert "its programs are for 'a/b': make bundle makes one" in capsys.readouterr().err


def test_a_profile_is_not_made_of_results_without_stacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = record(tmp_path / "a.ndjson", rows(kind="count", func="main.f", count=3))
    assert main(["--merge", path, "-o", "x.pb.gz"]) == 2
    assert "-o x.pb.gz has stacks, and there are none in these results" in capsys.readouterr().err


def rows(**fields: Any) -> list[dict[str, Any]]:
    return [{"ts": 5.0, "interval_s": 2.0, **fields}, {"kind": "detached", "seconds": 2.0}]


def record(path: Path, found: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return str(path)


_FRAMES = [{"func": name, "file": "/x.go", "line": 3} for name in ("main.f", "main.main")]
_HISTOGRAM: dict[str, Any] = {"count": 2, "sum_ns": 30, "min_ns": 10, "max_ns": 20}
_HISTOGRAM |= {"buckets": [[10, 11, 1], [20, 21, 1]], "probe_hits": 0, "probe_ns": None}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {
                "kind": "count",
                "func": "main.f",
                "count": 3,
                "by": {"key": "a b", "$stack": _FRAMES},
            },
            ['main.f                               "a b"        6 100.0%', "main.main at x.go:3"],
        ),
        (
            {"kind": "count", "func": "main.f", "count": 3, "by": {"e": {"$unavailable": "x"}}},
            ["unknown (x)"],
        ),
        ({"kind": "count", "func": None, "count": 3, "by": None}, ["(others)"]),
        (
            {"kind": "histogram", "func": "main.f", "by": {"k": None}, **_HISTOGRAM},
            ["k = nil", "avg = 15ns, total: 60ns, count: 4", "p50 = 10ns", "max = 20ns"],
        ),
        (
            {
                "count": 2,
                "kind": "histogram",
                "func": "main.f",
                "of": "n",
                "unit": "bytes",
                "sum": -3,
                "min": -4,
                "max": 1,
                "buckets": [[-4, -3, 1], [1, 2, 1]],
                "unknown": 1,
            },
            ["Function = main.f", "min = -4"],
        ),
    ],
    ids=["stack", "unavailable", "others", "times", "values"],
)
def test_recordings_are_shown_as_their_command_does(
    row: dict[str, Any], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [record(tmp_path / f"web0{number}.ndjson", rows(**row)) for number in (1, 2)]
    assert main(["--merge", *files]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2 recordings: web01, web02\n")
    for text in expected:
        assert text in said
    assert main(["--merge", *files, "--by-host"]) == 0
    assert "web01" in capsys.readouterr().out.partition("\n")[2]


@pytest.mark.parametrize("name", ["x.ndjson", "x.ndjson.gz", "x.folded", "x.html", "x.txt"])
def test_results_are_written_as_their_names_say(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"kind": "count", "func": "main.f", "count": 3, "by": {"$stack": _FRAMES}}
    files = [record(tmp_path / f"web0{number}.ndjson", rows(**row)) for number in (1, 2)]
    path = tmp_path / name
    assert main(["--merge", *files, "-o", str(path)]) == 0
    if "ndjson" in name:
        assert main(["--merge", str(path)]) == 0
        assert " 6 100.0%" in capsys.readouterr().out
    elif name == "x.folded":
        assert path.read_text() == "main.main;main.f;main.f 6\n"
    else:
        assert "main.f" in path.read_text()
    if is_profile(name):
        assert "wrote 1 stack to" in capsys.readouterr().err


def test_the_largest_rows_are_those_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("main.a", "main.b", "main.c")
    found = [
        row
        for number, name in enumerate(names, 1)
        for row in rows(kind="count", func=name, count=number)[:1]
    ]
    file = record(tmp_path / "web01.ndjson", found)
    assert main(["--merge", file, "--top", "2", "--json"]) == 0
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    kept = [(row["func"], row["share"]) for row in lines if row["kind"] == "count"]
    assert kept == [("main.b", round(2 / 6, 6)), ("main.c", 0.5)]


def test_a_remote_command_is_quoted_whatever_it_holds() -> None:
    words = ["echo", "a b", "$HOME", "'", '"', "`x`", "main.(*T).f", "\\", "é"]
    ssh = Ssh(["ssh"], 5)
    *_, host, shell = ssh.words("web01", words)
    assert host == "web01"
    with subprocess.Popen(
        ["sh", "-c", shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    ) as done:
        assert done.stdout is not None
        assert done.stdout.read() == " ".join(words[1:]) + "\n"
    assert shlex.split(shell)[:2] == ["sh", "-c"]


@pytest.mark.parametrize("status", [0, 3, 127])
def test_a_remote_status_comes_back(status: int) -> None:
    script = remote_script(["sh", "-c", f"exit {status}"], 5)
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE) as shell:
        assert shell.wait(10) == status


def test_the_end_of_input_ends_a_remote_command() -> None:
    caught = "trap 'echo ended; exit 0' TERM; echo begun; while :; do sleep 0.05; done"
    script = remote_script(["sh", "-c", caught], 60)
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdin is not None and shell.stdout is not None
        assert shell.stdout.readline() == "begun\n"
        shell.stdin.close()
        assert shell.stdout.read() == "ended\n"
        # A timeout that gets the signal while it forks ends by it, and its group does all the same.
        assert shell.wait(10) in (0, 128 + signal.SIGTERM)


def test_a_host_that_ends_no_line_is_given_up() -> None:
    lines = "yes 123456789 | head -c 6000000"  # of any number
    assert RemoteRun(["sh", "-c", lines], 60).wait(lambda: None) == 0
    run = RemoteRun(["sh", "-c", "head -c 1G /dev/zero; exec sleep 60"], 60)
    with pytest.raises(HostError, match="it prints a line of more than 4 MB"):
        run.wait(lambda: None)
    assert run.output.tell() < 5 << 20


def _printed(host: str, *rows: dict[str, Any]) -> HostResult:
    text = "".join(json.dumps(row) + "\n" for row in rows)
    return HostResult(host, io.BytesIO(text.encode()), 0)


def test_an_odd_host_spoils_its_own_answer_alone() -> None:
    """Also if it is the first, and has rows of another question, host or command."""
    honest = {"kind": "count", "func": "main.f", "count": 5, "ts": 1.0, "interval_s": 1.0}
    asked = {"kind": "attached", "message": "", "patterns": ["main.f"]}
    answers = _Answers(False, ["gofunccount", "main.f"])
    assert answers.take(_printed("odd", {**asked, "patterns": ["main.*"]}, honest)) is None
    assert answers.take(_printed("web01", asked, honest)) is None
    assert answers.take(_printed("deep", {"kind": "lost", "message": [[1]]})) is not None
    other = {"kind": "cpu_function", "func": "main.f", "self_ns": 1, "total_ns": 1}
    said = answers.take(_printed("other", other))
    assert said == "it has rows of gooncpu, and was asked for gofunccount"
    assert answers.take(_printed("silent")) == "it printed nothing"
    merged, others = answers.agreed()
    assert list(merged.hosts) == ["web01"]
    assert [row["count"] for row in merged.rows("count")] == [5]
    assert others == [("odd", "it says that it was asked something else than most hosts")]
    assert answers.take(_printed("web02", asked, {**honest, "host": "web01"})) is None
    assert [row["count"] for row in answers.agreed()[0].rows("count")] == [10]
