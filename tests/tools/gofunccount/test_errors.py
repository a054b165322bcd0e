# SPDX-License-Identifier: Apache-2.0
"""See what a user is told when something is wrong: one line, and an exit status that says which."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import skip_or_fail
from tests.toolchains import FIXTURES, build, newest, program_of
from tests.tools.harness import Fixture, Process, Result, run_tool, tool, tool_command

pytestmark = pytest.mark.live

TOOLS = ("gofunccount", "gofunclatency")


program = program_of("live_count")


@pytest.fixture
def fixture() -> Iterator[Fixture]:
    with Fixture([program()]) as ready:
        yield ready


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copy(program(), tmp_path / "program"))


def assert_error(result: Result, status: int, *parts: str) -> None:
    """Hold that a tool ended with one line on stderr that has these parts, and nothing else."""
    assert result.lines == []
    assert re.match(r"gofunc\w+: .+\n\Z", result.errors), result.errors
    assert len(result.errors.splitlines()) == 1
    for part in parts:
        assert part in result.errors
    assert result.status == status


@pytest.mark.parametrize("name", TOOLS)
def test_no_such_function_has_a_suggestion(name: str, fixture: Fixture) -> None:
    result = run_tool(name, "-p", str(fixture.ready), "main.smalFrame")
    assert_error(result, 3, "main.smalFrame", "main.smallFrame")


def test_inlined_function_is_explained(fixture: Fixture) -> None:
    result = run_tool("gofunccount", "-p", str(fixture.ready), "main.inlined")
    said = "main.inlined exists only inlined, in 1 place, where no call can be seen: "
    assert_error(result, 3, said)


@pytest.mark.parametrize("name", ["x.ndjson", "x.txt", "x.json.gz"])
def test_a_run_that_fails_keeps_an_earlier_recording(
    name: str, fixture: Fixture, tmp_path: Path
) -> None:
    earlier, new = tmp_path / name, tmp_path / f"new-{name}"
    earlier.write_bytes(b"results of an earlier run\n" * 999)
    words = ("-p", str(fixture.ready), "-d", "0.1", "-o")
    for command, *asked in (
        *((command, "main.nosuch") for command in TOOLS),
        ("gotrace", "main.leaf (nope > 3)"),
        ("gooffcpu", "--reason", "mutex"),
    ):
        for file in (earlier, new):
            failed = run_tool(command, *words, file, *asked)
            assert failed.status in (2, 3) and "wrote" not in failed.errors
        assert earlier.read_bytes() == b"results of an earlier run\n" * 999 and not new.exists()
    result = run_tool("gofunccount", *words, "/nowhere/x.txt", "main.nosuch")
    assert_error(result, 1, "/nowhere/x.txt: No such file or directory")
    done = run_tool("gofunccount", *words, earlier, "main.leaf")
    assert done.status == 0 and done.errors.endswith(f"wrote {earlier}\n")
    assert b"earlier run" not in earlier.read_bytes()


def test_one_of_several_patterns_may_match_nothing(fixture: Fixture) -> None:
    with tool("gofunccount", "-p", str(fixture.ready), "main.leaf", "main.none") as counting:
        result = counting.end()
    assert result.status == 3
    assert "main.none" in result.errors


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "PATTERN"),
        (["--nonsense", "main.x"], "--nonsense"),
        (["-p", "0", "main.x"], "0"),
        (["-p", "one", "main.x"], "one"),
        (["-i", "0", "-p", "1", "main.x"], "-i"),
        (["-d", "soon", "-p", "1", "main.x"], "soon"),
        (["-p", "1", "-c", "true", "main.x"], "-c"),
        (["-p", "1", "main.x", "--", "true"], "only one of"),
        (["-c", "true 'x", "main.x"], "true 'x"),
        (["main.x", "--"], "no command"),
        (["main.x"], "nothing to trace"),
        (["main.x ($panicked)"], "type gotrace 'main.x ($panicked)'"),
        (["/no/such/file:main.x"], "/no/such/file"),
        (["nosuchprogramhere:main.x"], "nosuchprogramhere"),
        (["-r", "-c", "true", "main.("], "main.("),
        (["--attach", "glue", "-p", "1", "main.x"], "glue"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_wrong_usage(words: list[str], part: str) -> None:
    assert_error(run_tool("gofunccount", *words), 2, part)


@pytest.mark.parametrize("text", ["", "ms", "-1ms", "1  h", "1e3", "99999999999s"])
@pytest.mark.parametrize("option", ["--slower", "--duration", "--interval"])
def test_wrong_duration(option: str, text: str) -> None:
    result = run_tool("gofunclatency", f"{option}={text}", "-p", "1", "main.x")
    assert_error(result, 2, text, option)


def test_processes_by_their_names() -> None:
    """A name is as good as a number, and several of one program as good as one."""
    name = "gotrace-sleeps-9"[:15]
    with contextlib.ExitStack() as stack:
        script = ["bash", "-c", f"echo -n {name} > /proc/self/comm; echo ready; read"]
        first = stack.enter_context(Process(script))
        first.read_until("ready")
        result = run_tool("gofunccount", "-p", name, "main.x")
        assert_error(result, 3, "/bash")
        second = stack.enter_context(Process(script))
        second.read_until("ready")
        for both in (name, f"{first.pid} {second.pid}", f"{first.pid},{name}"):
            assert_error(run_tool("gofunccount", "-p", both, "main.x"), 3, "/bash")
        different = f"{os.getpid()} {first.pid}"
        result = run_tool("gofunccount", "-p", different, "main.x")
        assert_error(result, 3, "/bash", "/python")
    assert_error(run_tool("gofunccount", "-p", name, "main.x"), 2, f"no process is named '{name}'")


def test_what_is_not_a_go_program_is_called_so() -> None:
    shell = os.path.realpath("/bin/bash")
    assert_error(run_tool("gofunccount", f"{shell}:main.*"), 3, f"{shell}, which is not a Go progr")
    listed = run_tool("gofunccount", "-l", f"{shell}:*")
    assert listed.status == 0
    assert f"{shell} is not a Go program: its functions are those of its symbols\n" in listed.errors
    own = run_tool("gofunccount", "-l", f"{program()}:main.leaf")
    assert "not a Go program" not in own.errors


def test_help_and_version_end_well() -> None:
    for name in TOOLS:
        shown = run_tool(name, "--help")
        assert (shown.status, shown.errors) == (0, "")
        assert shown.lines[0].startswith(f"usage: {name} ")
        version = run_tool(name, "--version")
        assert re.fullmatch(rf"{name} \d+\.\d+.*\n", "".join(version.lines))


@pytest.mark.parametrize("name", TOOLS)
def test_no_such_process(name: str) -> None:
    with Process(["true"]) as ended:
        ended.wait()
        result = run_tool(name, "-p", str(ended.pid), "main.x")
    assert_error(result, 1, f"there is no process {ended.pid}")


def test_zombie() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        result = run_tool("gofunccount", "-p", str(child), "main.x")
    finally:
        os.waitpid(child, 0)
    assert_error(result, 1, f"process {child} is a zombie")


def test_kernel_thread() -> None:
    for status in Path("/proc").glob("[0-9]*/status"):
        text = status.read_text()
        if "VmSize" not in text and "\nPPid:\t2\n" in text:
            break
    else:
        skip_or_fail("no kernel thread can be seen here")
    pid = status.parent.name
    result = run_tool("gofunccount", "-p", pid, "main.x")
    assert_error(result, 1, f"process {pid} is a kernel thread")


def test_file_that_is_no_program(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("#!/bin/sh\ntrue\n")
    assert_error(run_tool("gofunccount", f"{text}:main.x"), 1, str(text), "not an ELF file")


def test_program_for_32_bits(copied: Path) -> None:
    patch(copied, 4, b"\x01")  # EI_CLASS = ELFCLASS32
    assert_error(run_tool("gofunccount", f"{copied}:main.x"), 1, str(copied), "32-bit")


def test_program_for_another_architecture(copied: Path) -> None:
    patch(copied, 18, struct.pack("<H", 243))  # e_machine = EM_RISCV
    assert_error(run_tool("gofunccount", f"{copied}:main.x"), 1, str(copied), "RISC-V")


@pytest.mark.parametrize("size", [0, 10, 100, 5000, 700_000])
def test_truncated_program(copied: Path, size: int) -> None:
    os.truncate(copied, size)
    assert_error(run_tool("gofunccount", f"{copied}:main.leaf"), 1, str(copied))


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_program_that_is_not_go_is_searched_by_its_symbols() -> None:
    result = run_tool("gofunccount", "-c", "/bin/true", "main.x")
    assert result.lines == []
    assert result.status in (1, 3)
    assert len(result.errors.splitlines()) == 1


@pytest.mark.parametrize("name", TOOLS)
def test_command_that_is_not_there(name: str) -> None:
    result = run_tool(name, "main.x", "--", "/no/such/command")
    assert_error(result, 1, "/no/such/command")


def test_command_that_cannot_be_run(tmp_path: Path) -> None:
    """A Go program whose interpreter is missing is found out only by the kernel."""
    path = tmp_path / "program"
    shutil.copy(build(FIXTURES / "live_cgo", newest()), path)
    text = path.read_bytes()
    at = text.index(b"/lib64/ld-linux")
    patch(path, at, b"/lib65")
    with Process(tool_command("gofunccount", "main.main", "--", path)) as process:
        process.rest()
        status = process.wait()
    assert status == 1
    assert process.errors == f"gofunccount: cannot start {path}: No such file or directory\n"


def test_library_that_is_not_mapped(fixture: Fixture, copied: Path) -> None:
    result = run_tool("gofunccount", "-p", str(fixture.ready), f"{copied}:main.leaf")
    assert_error(result, 1, f"process {fixture.ready} does not have {copied} mapped")


def test_lowest_rung_cannot_know_where_a_position_independent_program_will_be() -> None:
    pie = build(FIXTURES / "live_count", newest(), flags=["-buildmode=pie"])
    result = run_tool("gofunccount", "--attach", "perf-ip", f"{pie}:main.leaf")
    assert_error(result, 1, "position independent", "-p PID")


def test_error_leaves_no_process_behind(tmp_path: Path) -> None:
    """The command that was to be traced never runs when there is nothing to trace in it."""
    mark = tmp_path / "mark"
    result = run_tool("gofunccount", "main.x", "--", "touch", mark)
    assert result.status != 0
    assert not mark.exists()


def test_limit_of_open_files_is_named(fixture: Fixture) -> None:
    command = tool_command(
        "gofunccount", "--attach", "perf-cookie", "-p", str(fixture.ready), "runtime.*"
    )
    # Root may raise any limit, so the right to do so has to go.
    limited = ["prlimit", "--nofile=64:64", "setpriv", "--bounding-set=-sys_resource", *command]
    with Process(limited) as process:
        result = Result(0, process.rest(), process.errors)
        assert_error(Result(process.wait(), result.lines, process.errors), 1, "ulimit -n")


def test_debug_shows_where() -> None:
    result = run_tool("gofunccount", "--debug", "-c", "true", "main.(", "-r")
    assert result.status == 2
    assert result.errors.startswith("Traceback")
    assert result.errors.rstrip().splitlines()[-1].startswith("gofunccount: ")


@pytest.mark.parametrize("name", [*TOOLS, "gotrace"])
def test_sys_that_is_not_mounted(name: str) -> None:
    """As in a container: what the kernel has to tell cannot be guessed."""
    script = 'mount -t tmpfs none /sys && exec "$@"'
    command = tool_command(name, "-d", "0.01", f"{program()}:main.leaf")
    with Process(["unshare", "--mount", "sh", "-c", script, "sh", *command]) as process:
        assert process.rest() == []
        assert process.wait() == 1
    assert re.fullmatch(
        f"{name}: .*/sys/devices/system/cpu/(possible|online).*: mount .*\n", process.errors
    )
