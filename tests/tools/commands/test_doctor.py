# SPDX-License-Identifier: Apache-2.0
"""Ask gotrace doctor on this machine as it is, and with something taken away."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.toolchains import BUILD_MODES, FIXTURES, build, newest, require
from tests.tools.harness import (
    CLONE,
    Fixture,
    Process,
    run_tool,
    tool_command,
    without_compiler,
)

pytestmark = pytest.mark.live

Checks = Mapping[str, Mapping[str, Any]]

METHODS = ("multi", "perf-cookie", "perf-ip")
SYS_BPF, SYS_PERF_EVENT_OPEN = 321, 298  # arch/x86/entry/syscalls/syscall_64.tbl


def ask(*arguments: str | Path, prefix: Sequence[str] = (), **options: Any) -> tuple[int, Checks]:
    """Run the doctor, as the last words of ``prefix``; return its status and its checks."""
    command = [*prefix, *tool_command("gotrace", "doctor", "--json", *arguments)]
    with Process(command, **options) as process:
        rows = [json.loads(line) for line in process.rest()]
        status = process.wait()
    *checks, verdict = rows
    assert [row["kind"] for row in rows] == ["check"] * len(checks) + ["verdict"]
    assert verdict["possible"] == (status == 0)
    assert {row["state"] for row in checks} <= {"ok", "warn", "fail"}
    assert all(row["advice"] for row in checks if row["state"] != "ok")
    found = {row["check"]: row for row in checks}
    assert len(found) == len(checks)
    mend = [row for row in checks if row["state"] == "fail"]
    assert status == (1 if mend else 0), mend
    return status, found


def capabilities(*names: str) -> list[str]:
    """Return a command that runs another with these capabilities only."""
    return ["setpriv", "--bounding-set=" + ",".join(["-all", *(f"+{name}" for name in names)])]


@pytest.fixture(scope="module")
def here() -> Checks:
    status, checks = ask()
    assert status == 0
    return checks


@pytest.fixture(scope="module")
def kept(here: Checks, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return an environment without a compiler: programs are kept since ``here``."""
    return without_compiler(tmp_path_factory.mktemp("broken"))


def test_all_is_checked(here: Checks) -> None:
    assert list(here) == [
        *("architecture", "kernel", "mounts", "privileges", "bpf(2)", "perf_event_open(2)"),
        *("lockdown", "unprivileged_bpf_disabled", "ptrace_scope", "pid namespace", "BTF"),
        *(
            "open files",
            "locked memory",
            "python",
            "bcc",
            "packaged programs",
            "kept programs",
            "capstone",
            "pyelftools",
            "tabulate",
        ),
        *("program of gofunccount", "program of gofunclatency", "program of gotrace"),
        *("event buffers", "program of gooffcpu", "program of --names"),
        *("program of gooncpu", "program of goalloc"),
        *(f"attach: {method}" for method in METHODS),
        *("atomic fetch", "signals from BPF"),
    ]


@pytest.mark.parametrize("method", METHODS)
def test_rung_is_fine_where_a_tool_can_use_it(here: Checks, method: str) -> None:
    program = build(FIXTURES / "live_count", newest())
    done = run_tool("gofunccount", "--attach", method, "-d", "0.01", f"{program}:main.leaf")
    works = here[f"attach: {method}"]["found"].startswith("works")
    assert works == (done.status == 0)


def test_text_says_the_same(here: Checks, kept: Mapping[str, str]) -> None:
    result = run_tool("gotrace", "doctor", env=kept)
    assert (result.status, result.errors) == (0, "")
    lines = [line for line in result.lines if not line.startswith(" ")]
    rows = {re.split(r"  +", line, maxsplit=1)[0] for line in lines[:-2]}
    assert rows <= {"ok", "warn"}
    assert len(lines) == len(here) + 2
    assert lines[-2] == "\n"
    assert lines[-1].startswith("Tracing works")


def test_without_any_right_nothing_else_is_tried() -> None:
    status, checks = ask(prefix=capabilities())
    assert status == 1
    assert checks["privileges"]["found"] == "no CAP_BPF, CAP_PERFMON"
    assert not {"bpf(2)", "attach: multi", "program of gotrace"} & set(checks)
    assert checks["bcc"]["state"] == "ok"


def test_event_buffers_are_bounded_without_ipc_lock(here: Checks, kept: Mapping[str, str]) -> None:
    """What the kernel allows is computed here; whether it does is tried there."""
    prefix = ["prlimit", "--memlock=65536", *capabilities("bpf", "perfmon")]
    status, checks = ask(prefix=prefix, env=kept)
    wanted = int(here["event buffers"]["found"].split()[0])  # kB for each CPU
    allowed = int(Path("/proc/sys/kernel/perf_event_mlock_kb").read_text())
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    bound = wanted + 4 > allowed and paranoid > -1
    assert (checks["event buffers"]["state"] == "fail") == bound
    assert status == int(bound)
    if bound:
        advised = re.search(r"perf_event_mlock_kb=(\d+)", checks["event buffers"]["advice"])
        assert advised is not None
        assert int(advised[1]) == wanted + 4
    assert "-p cannot name processes of others" in checks["privileges"]["advice"]
    assert checks["attach: multi"]["found"].startswith("works")


def test_few_open_files_fall_back(kept: Mapping[str, str]) -> None:
    prefix = ["prlimit", "--nofile=64:64", "setpriv", "--bounding-set=-sys_resource"]
    status, checks = ask(prefix=prefix, env=kept)
    assert status == 0
    assert checks["open files"]["state"] == "warn"
    assert "ulimit -n" in checks["open files"]["advice"]


def test_pid_namespace_falls_back_and_works() -> None:
    status, checks = ask(prefix=["unshare", "--pid", "--fork", "--mount-proc"])
    assert status == 0
    assert checks["pid namespace"]["state"] == "warn"
    assert checks["attach: multi"]["found"].startswith("works")
    assert checks["signals from BPF"]["state"] == "ok"


def test_proc_of_another_pid_namespace_is_seen() -> None:
    status, checks = ask(prefix=["unshare", "--pid", "--fork"])
    assert status == 1
    assert checks["mounts"]["found"] == "/proc is another pid namespace's"


def test_missing_sys_is_seen() -> None:
    script = 'mount -t tmpfs none /sys && exec "$@"'
    status, checks = ask(prefix=["unshare", "--mount", "sh", "-c", script, "sh"])
    assert status == 1
    assert checks["mounts"]["found"] == "/sys is not mounted"


def forbid(call: int) -> None:
    """Have this process's calls of one number fail with EPERM, as a container's filter does.

    Sources: seccomp(2), struct sock_filter and struct sock_fprog in linux/filter.h.
    """
    load_number, equal, give = 0x20, 0x15, 0x06
    allow, error = 0x7FFF0000, 0x00050000
    instructions = [(load_number, 0, 0, 0), (equal, 0, 1, call), (give, 0, 0, error | 1)]
    instructions.append((give, 0, 0, allow))
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
    code = ctypes.create_string_buffer(packed)
    program = struct.pack("=HxxxxxxQ", len(instructions), ctypes.addressof(code))
    no_new_privileges, seccomp, filter_mode = 38, 22, 2
    libc = ctypes.CDLL(None)
    assert libc.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(seccomp, filter_mode, program) == 0


def test_seccomp_filter_against_bpf_is_seen() -> None:
    status, checks = ask(preexec_fn=lambda: forbid(SYS_BPF))
    assert status == 1
    assert checks["bpf(2)"]["state"] == "fail"
    assert "seccomp=unconfined" in checks["bpf(2)"]["advice"]
    assert checks["perf_event_open(2)"]["state"] == "ok"


def test_seccomp_filter_against_perf_events_is_seen() -> None:
    status, checks = ask(preexec_fn=lambda: forbid(SYS_PERF_EVENT_OPEN))
    assert status == 1
    assert checks["bpf(2)"]["state"] == "ok"
    assert "seccomp=unconfined" in checks["perf_event_open(2)"]["advice"]


@pytest.mark.parametrize(
    ("source", "state", "part"),
    [
        ("", "fail", "PyPI's package"),
        ("raise ImportError('no such thing')", "fail", "no such thing"),
        ("raise OSError('libbcc.so.0: cannot open')", "fail", "libbcc.so.0"),
        ("class BPF:\n    def load_func(self, name, type): ...", "ok", "unknown version"),
    ],
    ids=["unrelated", "broken", "no library", "old"],
)
def test_wrong_binding_is_seen(tmp_path: Path, source: str, state: str, part: str) -> None:
    package = tmp_path / "bcc"
    package.mkdir()
    (package / "__init__.py").write_text(source)
    cache = tmp_path / "cache"  # nothing is kept there
    status, checks = ask(prefix=["env", f"PYTHONPATH={tmp_path}", f"XDG_CACHE_HOME={cache}"])
    assert status == 1
    assert checks["bcc"]["state"] == state
    assert part in checks["bcc"]["found"]


def test_kept_programs_do_without_a_binding(kept: Mapping[str, str]) -> None:
    status, checks = ask(env=kept)
    assert status == 0
    assert int(checks["kept programs"]["found"].split(",")[0]) > 0
    assert checks["bcc"]["state"] == "warn"
    assert checks["program of gotrace"]["found"].startswith("is kept")
    program = build(FIXTURES / "live_count", newest())
    words = ("-d", "0.01", f"{program}:main.leaf")
    assert run_tool("gofunccount", *words).status == 0
    assert run_tool("gofunccount", *words, env=kept).status == 0


def with_target(env: Mapping[str, str], *arguments: Any, **options: Any) -> Checks:
    """Return what is found about a fixture program."""
    with Fixture([build(FIXTURES / "live_count", *arguments, **options)]) as fixture:
        status, checks = ask("-p", str(fixture.ready), env=env)
        assert fixture.work()
        assert fixture.finish() == 0
    assert status == 0
    return checks


@pytest.mark.parametrize("minor", ["1.15", "1.19", "1.27"])
def test_target_of_a_release(minor: str, kept: Mapping[str, str]) -> None:
    toolchain = require(minor)
    checks = with_target(kept, toolchain)
    assert checks["Go version"]["found"] == f"go{toolchain.version}"
    assert checks["attach to it"]["found"].startswith("works through ")
    assert checks["symbols"]["found"] == "not stripped"
    assert checks["DWARF"]["state"] == "ok"
    assert checks["goroutines"]["state"] == "ok"
    register = "g register" in checks["goroutines"]["found"]
    assert register == (tuple(map(int, toolchain.minor.split("."))) >= (1, 17))


def test_stripped_target_falls_back(kept: Mapping[str, str]) -> None:
    checks = with_target(kept, newest(), flags=BUILD_MODES["stripped"])
    assert checks["symbols"]["found"].startswith("stripped")
    assert checks["DWARF"]["state"] == "warn"
    assert "signature" in checks["DWARF"]["advice"]
    assert "the release" in checks["goroutines"]["found"]


def test_position_independent_target(kept: Mapping[str, str]) -> None:
    checks = with_target(kept, newest(), flags=BUILD_MODES["pie"])
    assert "position independent" in checks["program"]["found"]
    assert checks["attach to it"]["state"] == "ok"


def test_target_that_is_no_go_program(kept: Mapping[str, str]) -> None:
    with Process([sys.executable, "-c", "input()"]) as python:
        checks = ask("-p", str(python.pid), env=kept)[1]
    assert checks["process"]["state"] == "ok"
    assert "Go version" not in checks or checks["Go version"]["state"] == "warn"


def test_target_that_has_ended(kept: Mapping[str, str]) -> None:
    with Process(["true"]) as ended:
        ended.wait()
        status, checks = ask("-p", str(ended.pid), env=kept)
    assert status == 1
    assert checks["process"]["found"] == f"there is no process {ended.pid}"


@pytest.mark.parametrize("words", [["main.x"], ["-c", "true"], ["--", "true"]])
def test_doctor_traces_nothing(words: list[str]) -> None:
    result = run_tool("gotrace", "doctor", *words)
    assert (result.status, result.lines) == (2, [])
    assert "gotrace doctor traces nothing" in result.errors


def test_debug_shows_what_the_compiler_said(tmp_path: Path) -> None:
    """A clone whose program is damaged stands for a compiler that does not take it."""
    for part in ("gotrace", "bpf"):
        shutil.copytree(CLONE / part, tmp_path / part)
    with (tmp_path / "bpf" / "latency.c").open("a") as file:
        file.write("nonsense\n")
    code = "import sys; from gotrace.cli.gotrace import main; sys.exit(main())"
    run = [sys.executable, "-c", code, "doctor", "--debug"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(r"^fail +program of gofunclatency ", done.stdout, re.MULTILINE)
    assert re.search(r"^ok +program of gotrace ", done.stdout, re.MULTILINE)
    assert "unknown type name 'nonsense'" in done.stderr


def test_objects_have_the_documented_fields(here: Checks, kept: Mapping[str, str]) -> None:
    page = (CLONE / "docs" / "json.md").read_text().partition("### `gotrace doctor`")[2]
    for row in here.values():
        assert set(row) == {"kind", "check", "state", "found", "advice"}
        assert all(f"`{field}`" in page for field in row if field != "kind")
        assert f"`{row['state']}`" in page
    verdict = run_tool("gotrace", "doctor", "--json", env=kept).objects[-1]
    assert set(verdict) == {"kind", "possible", "message"}
    assert all(f"`{field}`" in page for field in verdict if field != "kind")
