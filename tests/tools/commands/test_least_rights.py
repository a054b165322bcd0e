# SPDX-License-Identifier: Apache-2.0
"""Answer as root does with the capabilities that are shipped, and in a container without more."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE, Fixture, Process, Result, Running, json_counts, of_kind
from tests.tools.unprivileged import PublicCopy, make_cache, public_copy

pytestmark = pytest.mark.live

#: Neither root nor who runs the tools.
_OWNER = ("setpriv", "--reuid=1", "--regid=1", "--clear-groups")
_DAEMON_SET = (CLONE / "deploy" / "kubernetes" / "base" / "daemonset.yaml").read_text()
#: The capabilities that a pod gets.
SHIPPED = re.findall(r"\w+", re.findall(r"\n +add: \[(.*)\]", _DAEMON_SET)[0].lower())
_GRANTED = ",".join(["-all", *(f"+{name}" for name in SHIPPED)])

#: Nobody with these capabilities.
_USER = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--bounding-set={_GRANTED}"),
    *(f"--inh-caps={_GRANTED}", f"--ambient-caps={_GRANTED}"),
)
#: What a container has of a file system: nothing to write but /tmp and the cache, no tracefs and
#: debugfs, and little of /dev.
_CONTAINER = """
mount --make-rprivate /
mount -t tmpfs tmpfs /tmp
umount -l -R /sys
mount -t sysfs -o ro sysfs /sys
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mkdir /tmp/dev
for name in null zero full random urandom; do
    touch /tmp/dev/$name
    mount --bind /dev/$name /tmp/dev/$name
done
mount --rbind /tmp/dev /dev
mount --bind $XDG_CACHE_HOME $XDG_CACHE_HOME
mount -o remount,bind,ro /
exec "$@"
"""
#: Root of a container, with these capabilities, that can gain none.
_POD = (
    *("unshare", "--mount", "sh", "-ec", _CONTAINER, "sh"),
    *("setpriv", "--no-new-privs", f"--bounding-set={_GRANTED}", f"--inh-caps={_GRANTED}"),
)


@dataclass(frozen=True)
class Setting:
    """Who runs the tools, and where; ``cache`` belongs to them."""

    public: PublicCopy
    starter: Sequence[str]
    cache: Path

    def command(self, name: str, *words: str | Path) -> list[str]:
        tool = ["env", *self.public.python_command(name), *map(str, words)]
        return ["env", f"HOME={self.cache}", f"XDG_CACHE_HOME={self.cache}", *self.starter, *tool]

    def start(self, name: str, *words: str | Path) -> Running:
        return Running(self.command(name, *words), cwd="/")

    def run(self, name: str, *words: str | Path) -> Result:
        with Process(self.command(name, *words), cwd="/") as process:
            lines = process.rest()
            return Result(process.wait(), lines, process.errors)

    def program(self, name: str, mode: int = 0o755) -> Fixture:
        """Start a program of another user, whose file has this mode."""
        program = self.public.add(build(FIXTURES / name, newest()))
        program.chmod(mode)
        os.chown(program, 1, 1)
        return Fixture([*_OWNER, program], cwd="/")


@pytest.fixture(scope="module")
def public() -> Iterator[PublicCopy]:
    with public_copy() as copy:
        yield copy


@pytest.fixture(params=[(_USER, 65534), (_POD, 0)], ids=["user", "pod"])
def setting(public: PublicCopy, request: pytest.FixtureRequest) -> Setting:
    starter, user = request.param
    cache = make_cache(public.directory / f"cache-{user}", user, has_programs=True)
    return Setting(public, starter, cache)


def test_the_rights_are_no_others(setting: Setting) -> None:
    """The tests below try what they say."""
    assert sorted(SHIPPED) == ["bpf", "ipc_lock", "perfmon", "sys_ptrace"]
    words = [
        "sh",
        "-c",
        "grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status; touch /var/x || echo refused",
    ]
    command = ["env", f"XDG_CACHE_HOME={setting.cache}", *setting.starter, *words]
    with Process(command, cwd="/") as process:
        *sets, refused = process.rest()
    bits = sum(1 << number for number in (39, 38, 19, 14))  # linux/capability.h
    assert [int(line.split()[1], 16) for line in sets] == [bits] * 3
    assert refused == "refused\n"


def test_calls_are_counted(setting: Setting) -> None:
    """By a program that is compiled with these rights, too."""
    user = setting.cache.stat().st_uid
    cache = make_cache(setting.cache.with_name(f"empty-{user}"), user)
    setting = replace(setting, cache=cache)
    with setting.program("live_count") as fixture:
        with setting.start("gofunccount", "--json", "-p", str(fixture.ready), "main.*") as counting:
            truth = fixture.work()["calls"]
            result = counting.end()
        assert fixture.finish() == 0
    assert (result.status, result.errors) == (0, "")
    assert json_counts(result, truth) == truth


def test_calls_are_measured(setting: Setting) -> None:
    with setting.program("live_count") as fixture:
        words = ("--json", "-F", "-p", str(fixture.ready), "main.leaf", "main.largeFrame")
        with setting.start("gofunclatency", *words) as measuring:
            truth = fixture.work()["calls"]
            result = measuring.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    rows = {row["func"]: row["count"] for row in of_kind(result, "histogram")}
    assert rows == {name: truth[name] for name in ("main.leaf", "main.largeFrame")}


def test_calls_are_shown(setting: Setting) -> None:
    """With floats, which take a signal, and stacks."""
    with setting.program("trace_calls") as fixture:
        words = ("--json", "-U", "-p", str(fixture.ready), "main.echo")
        with setting.start("gotrace", *words) as tracing:
            made = fixture.work("goroutines")["Echoed"]
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    rows = of_kind(result, "call")
    assert len(rows) == made
    assert {type(row["args"]["f"]) for row in rows} == {float}
    assert all(row["stack"] for row in rows)


def test_waits_are_added_up(setting: Setting) -> None:
    with setting.program("live_waits") as fixture:
        with setting.start("gooffcpu", "--json", "--force", "-p", str(fixture.ready)) as tracing:
            truth = fixture.work("ways")
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    rows = of_kind(result, "wait")
    for name, known in truth.items():
        mine = [row for row in rows if f"main.{name}" in [each["func"] for each in row["stack"]]]
        assert sum(row["count"] for row in mine) == known["count"], name
        assert known["least"] <= sum(row["delay_ns"] for row in mine) <= known["most"], name


def test_cpu_time_is_sampled(setting: Setting) -> None:
    with setting.program("live_oncpu") as fixture:
        words = ("--json", "-F", "997", "-p", str(fixture.ready))
        with setting.start("gooncpu", *words) as sampling:
            truth = fixture.work("hot 1s")
            result = sampling.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    (sums,) = of_kind(result, "cpu")
    assert sums["clock_ns"] == pytest.approx(truth["ns"], rel=0.1)
    functions = {frame["func"] for row in of_kind(result, "cpu_stack") for frame in row["stack"]}
    assert functions >= {"main.four", "main.three", "main.spins"}


def test_goroutines_are_read(setting: Setting) -> None:
    """Though /proc/PID/mem is a file of another user."""
    with setting.program("live_parked") as fixture:
        result = setting.run("gostacks", "--json", "-p", str(fixture.ready), "main.waitMutex")
        own = fixture.work("dump")["Stacks"]
        assert fixture.finish() == 0
    assert (result.status, result.errors) == (0, "")
    known = re.findall(
        r"goroutine (\d+) \[sync\.Mutex\.Lock[^\n]*\n(?:.+\n)*main\.waitMutex\(", own
    )
    assert {row["goid"] for row in of_kind(result, "goroutine")} == set(map(int, known))
    assert len(known) == 5


def test_what_is_kept_for_root_is_named(setting: Setting) -> None:
    """Ways to attach that take more are refused, with the capability, and doctor finds the rest."""
    with setting.program("live_count") as fixture:
        for method in ("perf-cookie", "perf-ip"):
            words = ("--attach", method, "-d", "0.1", "-p", str(fixture.ready), "main.leaf")
            refused = setting.run("gofunccount", *words)
            assert refused.status == 1 and "CAP_SYS_ADMIN" in refused.errors, refused
        result = setting.run("gotrace", "doctor", "--json", "-p", str(fixture.ready))
        fixture.work()
        assert fixture.finish() == 0
    assert result.status == 0
    rows = {row["check"]: row for row in of_kind(result, "check")}
    limited = {name for name, row in rows.items() if row["state"] != "ok"}
    assert limited == {"perf_event_open(2)", "attach: perf-cookie", "attach: perf-ip"}, [
        rows[name] for name in limited
    ]


def test_a_program_that_only_its_owner_can_read(setting: Setting) -> None:
    with setting.program("live_brief", 0o700) as fixture:
        for name, words in (("gofunccount", ["main.main"]), ("gostacks", [])):
            refused = setting.run(name, "-p", str(fixture.ready), *words)
            assert refused.status == 1 and "CAP_DAC_READ_SEARCH" in refused.errors, refused


def test_another_users_home_has_no_recipes(public: PublicCopy, setting: Setting) -> None:
    home = public.directory / "home"
    home.mkdir(exist_ok=True)
    os.chown(home, 1, 1)
    home.chmod(0o700)
    command = [
        f"HOME={home}" if word.startswith("HOME=") else word
        for word in setting.command("gotrace", "recipes")
    ]
    with Process(command, cwd="/") as process:
        lines = process.rest()
        assert process.wait() == 0, process.errors
    assert any("@http.server" in line for line in lines)
