# SPDX-License-Identifier: Apache-2.0
"""Press the key in a real shell: bash asks the tools through argcomplete's own function."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gotrace.cli.completion import stepwise
from tests.live import skip_or_fail
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE, Fixture

TOOLS = ("gofunccount", "gofunclatency", "gooffcpu", "gostacks", "gotrace")

SCRIPT = """\
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
_python_argcomplete ${1%% *}
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def program() -> Path:
    return build(FIXTURES / "live_count", newest())


@functools.cache
def shell_function() -> str:
    """Return what the documentation has users evaluate."""
    code = "import argcomplete, sys; print(argcomplete.shellcode(sys.argv[1:]))"
    run = [sys.executable, "-c", code, *TOOLS]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout


def press(line: str, directory: Path = CLONE) -> list[str]:
    """Return what bash is offered at the end of a line."""
    if importlib.util.find_spec("argcomplete") is None:
        skip_or_fail("argcomplete is not installed")
    environment = {**os.environ, "PATH": f"{CLONE / 'tools'}:{os.environ['PATH']}"}
    shell = ["bash", "--norc", "-c", shell_function() + SCRIPT, "bash", line]
    done = subprocess.run(
        shell, capture_output=True, text=True, env=environment, cwd=directory, check=True
    )
    assert done.stderr == ""
    return [word for word in done.stdout.splitlines() if word]


@pytest.mark.parametrize("tool", sorted({*TOOLS} - {"gooffcpu"}))
def test_functions_of_a_binary(tool: str, program: Path) -> None:
    """Words are offered from the last colon on, where bash itself splits them."""
    assert press(f"{tool} {program}:main.smallF") == ["main.smallFrame "]


def test_functions_in_quotes_need_no_escapes(program: Path) -> None:
    offered = press(f"gotrace '{program}:runtime.(*mcache).re")
    assert f"{program}:runtime.(*mcache).refill" in offered
    assert all(word.startswith(f"{program}:runtime.(*mcache).re") for word in offered)


def test_functions_without_quotes_are_escaped(program: Path) -> None:
    assert r"runtime.\(\*mcache\).refill" in press(rf"gotrace {program}:runtime.\(\*mcache\).re")


def test_functions_of_a_command(program: Path) -> None:
    assert press(f"gotrace -c '{program} words' main.smallF") == ["main.smallFrame "]


def test_functions_to_be_excluded(program: Path) -> None:
    assert press(f"gofunccount '{program}:main.*' -x main.smallF") == ["main.smallFrame "]


def test_functions_of_a_process_and_the_process(program: Path) -> None:
    with Fixture([program]) as fixture:
        assert press(f"gofunclatency -p {fixture.ready} main.smallF") == ["main.smallFrame "]
        offered = press(f"gooffcpu -p {fixture.ready} --in main.smallF")
        assert offered == ["main.smallFrame "]
        assert str(fixture.ready) in [word.strip() for word in press("gotrace -p ")]
        assert str(os.getpid()) not in press("gotrace -p ")


def test_programs_and_directories(tmp_path: Path, program: Path) -> None:
    (tmp_path / "server").symlink_to(program)
    (tmp_path / "services").mkdir()
    (tmp_path / "sentence").write_text("no program")
    assert press("gotrace ./se", tmp_path) == ["./server:", "./services/"]


def test_names_that_would_steer_the_terminal_are_not_offered(program: Path, tmp_path: Path) -> None:
    content = program.read_bytes().replace(b"main.smallFrame\0", b"main.small\x1b[2J\n\0")
    (tmp_path / "seemly").write_bytes(content)
    (tmp_path / "seemly").chmod(0o755)
    (tmp_path / "see\x1b[2Jly").symlink_to(program)
    assert press("gotrace ./see", tmp_path) == ["./seemly:"]
    assert press("gotrace ./seemly:main.smal", tmp_path) == []


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gotrace --doc", ["--doctor "]),
        ("gotrace --attach perf", ["perf-cookie", "perf-ip"]),
        ("gofunccount --attach m", ["multi "]),
        ("gooffcpu --state ru", ["runnable "]),
        ("gostacks --state run", ["runnable", "running"]),
        ("gotrace --depth ", ["0", "1", "2", "3", "4", "5"]),
        ("gotrace -d ", []),
        ("gotrace nosuchprogram:main.", []),
        ("gotrace /etc/passwd:main.", []),
        ("gotrace -p 999999999 main.", []),
        ("gotrace -p nonsense main.", []),
    ],
)
def test_other_words(line: str, offered: list[str]) -> None:
    assert press(line) == offered


def test_nothing_is_offered_without_argcomplete(tmp_path: Path) -> None:
    (tmp_path / "argcomplete.py").write_text("raise ImportError")
    code = "import sys; from gotrace.cli.gotrace import main; sys.exit(main())"
    environment = {**os.environ, "_ARGCOMPLETE": "1", "PYTHONPATH": f"{tmp_path}:{CLONE}"}
    run = [sys.executable, "-c", code, "main.x"]
    done = subprocess.run(run, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_commands_start_without_completion_and_doctor() -> None:
    code = """if True:
        import sys
        from gotrace.cli.gotrace import main
        status = main(["-p", "999999999", "main.x"])
        loaded = {"argcomplete", "gotrace.cli.completion", "gotrace.cli.doctor"} & set(sys.modules)
        print(status, loaded, file=sys.stderr)"""
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=CLONE, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "1 set()"


def test_few_names_are_all_given() -> None:
    names = ["main.a", "main.b", "os.Open"]
    assert stepwise(names, "main.", most=2) == ["main.a", "main.b"]


def test_many_names_are_given_up_to_the_next_dot_or_slash() -> None:
    names = ["main.a", "net/http.Get", "net/http.Put", "net/http/pprof.Index", "net.Dial"]
    assert stepwise(names, "", most=2) == ["main.", "net.", "net/"]
    assert stepwise(names, "net/", most=2) == ["net/http.", "net/http/"]


def test_what_all_names_share_is_passed_over() -> None:
    names = ["main.(*Store).Get", "main.(*Store).Put", "main.(*Server).Run", "main.(*Server).End"]
    assert stepwise(names, "ma", most=3) == ["main.(*Server).", "main.(*Store)."]
    assert stepwise(names, "x", most=3) == []
