# SPDX-License-Identifier: Apache-2.0
"""Press the key in real shells: bash, zsh and fish ask the tools by the code in completions."""

from __future__ import annotations

import configparser
import importlib.util
import os
import pty
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from gotrace.cli.completion import stepwise
from gotrace.cli.shells import completion_files
from tests.live import skip_or_fail
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE, Fixture

FILES = CLONE / "completions"
#: What the shells have beside the environment of the tests.
ENVIRONMENT: dict[str, str] = {}
TOOLS = ("gofunccount", "gofunclatency", "gooffcpu", "gooncpu", "gostacks", "gotrace")

SCRIPT = """\
. "$0/bash/${1%% *}"
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9
_gotrace_complete ${1%% *}
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def program() -> Path:
    return build(FIXTURES / "live_count", newest())


def environment() -> dict[str, str]:
    if importlib.util.find_spec("argcomplete") is None:
        skip_or_fail("argcomplete is not installed")
    return {**os.environ, **ENVIRONMENT, "PATH": f"{CLONE / 'tools'}:{os.environ['PATH']}"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRONMENT, "XDG_CACHE_HOME", str(tmp_path / "cache"))


def press(line: str, directory: Path = CLONE) -> list[str]:
    """Return what bash is offered at the end of a line."""
    shell = ["bash", "--norc", "-c", SCRIPT, str(FILES), line]
    done = subprocess.run(
        shell, capture_output=True, text=True, env=environment(), cwd=directory, check=True
    )
    assert done.stderr == ""
    return [word for word in done.stdout.splitlines() if word]


@pytest.mark.parametrize("tool", sorted({*TOOLS} - {"gooffcpu", "gooncpu"}))
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
        for name in ("gooffcpu", "gooncpu"):
            offered = press(f"{name} -p {fixture.ready} --in main.smallF")
            assert offered == ["main.smallFrame "]
        assert press(f"gooncpu -p {fixture.ready} main.smallF") == ["main.smallFrame "]
        assert str(fixture.ready) in [word.strip() for word in press("gotrace -p ")]
        assert str(os.getpid()) not in press("gotrace -p ")
        assert press("gotrace -p live_cou") == ["live_count "]
        assert press(f"gotrace -p {fixture.ready},live_cou") == [f"{fixture.ready},live_count "]


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
        ("gotrace doct", ["doctor "]),
        ("gotrace doctor --js", ["--json "]),
        ("gofunclatency --returns la", ["landing "]),
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
    env = {**os.environ, "_ARGCOMPLETE": "1", "PYTHONPATH": f"{tmp_path}:{CLONE}"}
    run = [sys.executable, "-c", code, "main.x"]
    done = subprocess.run(run, capture_output=True, text=True, env=env)
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


def fish(line: str) -> list[str]:
    """Return what fish is offered at the end of a line."""
    if shutil.which("fish") is None:
        skip_or_fail("there is no fish: make setup-test")
    script = 'source $argv[1]/fish/(string split " " -- $argv[2])[1].fish; complete -C $argv[2]'
    shell = ["fish", "--no-config", "-c", script, str(FILES), line]
    done = subprocess.run(
        shell, capture_output=True, text=True, env=environment(), cwd=CLONE, check=True
    )
    assert done.stderr == ""
    return [word.split("\t")[0] for word in done.stdout.splitlines()]


def zsh(line: str, tmp_path: Path) -> str:
    """Return what zsh makes of a line when the key is pressed at its end."""
    if shutil.which("zsh") is None:
        skip_or_fail("there is no zsh: make setup-test")
    controller, terminal = pty.openpty()
    env = {**environment(), "TERM": "dumb", "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    (tmp_path / ".zshrc").write_text(
        f"fpath=({FILES}/zsh $fpath); autoload -Uz compinit; compinit -u -D\n"
        "unsetopt zle_bracketed_paste beep; PS1=; PROMPT_EOL_MARK=\n"
        "show() { print -r -- \"<<$BUFFER>>\"; exit }; zle -N show; bindkey '^X' show\n"
        "print ready\n"
    )
    shell = ["zsh", "-d", "-i"]
    with subprocess.Popen(
        shell, stdin=terminal, stdout=terminal, stderr=terminal, env=env, cwd=CLONE
    ) as running:
        os.close(terminal)
        shown = b""
        while b"ready" not in shown:
            shown += os.read(controller, 4096)
        os.write(controller, f"{line}\t\x18".encode())
        try:
            while data := os.read(controller, 4096):
                shown += data
        except OSError:  # the shell has ended
            pass
        running.wait(30)
    os.close(controller)
    found = re.search(r"<<(.*?)>>", shown.decode().replace("\r", "").replace("\n", ""))
    assert found is not None, shown
    return found[1]


def test_fish_is_offered_the_same(program: Path) -> None:
    assert fish("gotrace doct") == ["doctor"]
    assert fish(f"gotrace {program}:main.smallF") == [f"{program}:main.smallFrame"]
    assert fish(f"gotrace '{program}:runtime.(*mcache).ref") == [
        f"{program}:runtime.(*mcache).refill"
    ]
    assert fish("gostacks --state runn") == ["runnable", "running"]
    assert fish("gotrace nosuchprogram:main.") == []


def test_zsh_completes_the_same(program: Path, tmp_path: Path) -> None:
    assert zsh("gotrace doct", tmp_path).rstrip() == "gotrace doctor"
    words = f"gotrace {program}:main.smallF"
    assert zsh(words, tmp_path).rstrip() == f"{words}rame"
    quoted = f"gotrace '{program}:runtime.(*mcache).refi"
    assert zsh(quoted, tmp_path).rstrip("' ") == f"{quoted}ll"


def test_recipes() -> None:
    assert press("gotrace @http.serv") == ["@http.server "]
    assert {"@sql ", "@sql"} & set(press("gofunccount @sq"))
    assert press("gotrace @nosuchrecipe") == []
    assert press("gotrace recipes @http.serv") == ["@http.server "]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("gotrace '@:main.handle (r.Me", ["@:main.handle (r.Method"]),
        ("gotrace '@:main.handle (len(key) > 3 && r.tenant.N", ["r.tenant.Name"]),
        ("gotrace '@:main.handle (sh", ["(shard"]),
        ('gotrace \'@:main.handle (r.Method == "GET" && r.Si', ["r.Size"]),
        ('gotrace \'@:main.handle "%s", r.Me', ["r.Method"]),
        ("gotrace '@:main.handle ($dura", ["($duration"]),
        ("gotrace '@:main.handle (nosuch.Me", []),
        ("gotrace '@:main.handle (key.Me", []),
        ("gotrace '@:main.nosuch (r.Me", []),
        ("gofunccount @:main.handle --by r.S", ["r.Size "]),
        ("gofunccount @:main.handle --by 'r.Method, sha", ["r.Method, shard"]),
        ("gofunccount @:main.handle --by '$cal", ["$caller"]),
        ("gofunclatency @:main.handle --of $re", [r"\$ret", r"\$ret2"]),
    ],
)
def test_parameters_and_fields(words: str, offered: list[str]) -> None:
    keys = str(build(FIXTURES / "live_keys", newest()))
    found = press(words.replace("@", keys))
    assert len(found) == len(offered)
    assert all(
        word.endswith(end.replace("@", keys)) for word, end in zip(found, offered, strict=True)
    )


def test_files_are_as_they_are_written() -> None:
    setup = configparser.ConfigParser()
    setup.read(CLONE / "setup.cfg")
    scripts = setup["options.entry_points"]["console_scripts"].split("\n")
    files = completion_files([line.partition(" = ")[0] for line in scripts if line])
    there = {str(path.relative_to(FILES)): path for path in FILES.rglob("*") if path.is_file()}
    assert there.keys() == files.keys()
    for name, path in there.items():
        assert path.read_text() == files[name], "python3 -m gotrace.cli.shells writes these files"
    installed = setup["options.data_files"]
    listed = {line for place in installed.values() for line in place.split("\n") if line}
    assert {f"completions/{name}" for name in files} <= listed


def test_names_are_kept_by_build_id(program: Path, tmp_path: Path) -> None:
    names = tmp_path / "cache" / "gotrace" / "names"
    assert press(f"gotrace {program}:main.smallF") == ["main.smallFrame "]
    (kept,) = names.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600 and names.stat().st_mode & 0o777 == 0o700
    kept.write_bytes(b"gotrace names 1\n" + zlib.compress(b"main.smallFish"))
    assert press(f"gotrace {program}:main.smallF") == ["main.smallFish "]
    for damage in (b"", b"gotrace names 1\n", b"gotrace names 1\n\0\0", b"x" * 99):
        kept.write_bytes(damage)
        assert press(f"gotrace {program}:main.smallF") == ["main.smallFrame "]
    kept.write_bytes(b"gotrace names 1\n" + zlib.compress(b"main.smallFish"))
    kept.chmod(0o666)  # anyone may have written that
    assert press(f"gotrace {program}:main.smallF") == ["main.smallFrame "]
