# SPDX-License-Identifier: Apache-2.0
"""Run gotrace the ways that users get it: installed from a source archive, and from a clone."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.toolchains import build, newest

CLONE = Path(__file__).parent.parent

SEVEN_CALLS = """package main

//go:noinline
func work(n int) int { return n * n }

func main() {
	for i := 0; i < 7; i++ {
		work(i)
	}
}
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command that must succeed and return what it says on standard output."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} -> {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a source archive, install it with pip, and return the new environment's directory."""
    directory = tmp_path_factory.mktemp("packaging")
    # A build leaves files in its tree, and would find the stale ones of another.
    tree = directory / "tree"
    not_sources = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")
    shutil.copytree(CLONE, tree, ignore=not_sources)
    backend = "from setuptools import build_meta; build_meta.build_sdist('..')"
    run(sys.executable, "-c", backend, cwd=tree)
    (archive,) = directory.glob("gotrace-*.tar.gz")
    environment = directory / "environment"
    run(sys.executable, "-m", "venv", "--system-site-packages", environment, cwd=directory)
    run(environment / "bin" / "python", "-m", "pip", "install", archive, cwd=directory)
    return environment


@pytest.fixture(params=[pytest.param("installed", marks=pytest.mark.slow), "clone"])
def gofunccount(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the command: on an installation's PATH, or a link to the clone's script."""
    if request.param == "installed":
        environment: Path = request.getfixturevalue("installation")
        return environment / "bin" / "gofunccount"
    link = tmp_path / "gofunccount"
    link.symlink_to(CLONE / "tools" / "gofunccount")
    return link


@pytest.mark.slow
def test_installation_is_complete(installation: Path) -> None:
    (package,) = installation.glob("lib/python3*/site-packages/gotrace")
    installed = {str(path.relative_to(package)) for path in package.rglob("*")}
    sources = [path for path in (CLONE / "bpf").rglob("*") if path.suffix in {".c", ".h"}]
    assert sources
    assert {f"_bpf/{path.relative_to(CLONE / 'bpf')}" for path in sources} <= installed
    modules = (CLONE / "gotrace").rglob("*.py")
    assert {str(path.relative_to(CLONE / "gotrace")) for path in modules} <= installed
    assert "py.typed" in installed


def test_command_explains_itself(gofunccount: Path, tmp_path: Path) -> None:
    assert run(gofunccount, "--help", cwd=tmp_path).startswith("usage: gofunccount")


def script(path: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of the clone, for the time of a test."""
    file = CLONE / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("user", "command", "message"),
    [
        (1000, "sudo", "cannot run sudo: No such file or directory: run it as root"),
        (0, "tools/gofunccount", "cannot run tools/gofunccount: No such file or directory"),
    ],
)
def test_demo_names_the_command_that_cannot_be_run(
    user: int, command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = script("tools/demo/demo.py", monkeypatch)

    def popen(words: list[str], **options: object) -> None:
        assert words[0] == command
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), words[0])

    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(demo.subprocess, "Popen", popen)
    server = SimpleNamespace(process=SimpleNamespace(pid=1234))
    with pytest.raises(demo.DemoError) as caught:
        demo.trace(demo.STEPS[0], server)
    assert str(caught.value) == message


def test_clone_names_the_python_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = script("tools/_clone.py", monkeypatch)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # there is no .venv
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    assert clone.command("gofunccount") == 1
    assert capsys.readouterr().err == (
        "gofunccount: gotrace needs Python 3.10 or newer; /usr/bin/python3 is 3.9.2\n"
    )


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("version", ["2.7.18", "3.9.2"])
def test_setup_names_the_python_that_it_needs(version: str, tmp_path: Path) -> None:
    """It does so before it installs anything."""
    (tmp_path / "tools").mkdir()
    shutil.copy(CLONE / "tools" / "setup.sh", tmp_path / "tools")
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\necho {version}\n")
    python.chmod(0o755)
    script = 'mount --bind "$0" /usr/bin/python3 && exec tools/setup.sh'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, python],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    needed = f"gotrace needs Python 3.10 or newer; /usr/bin/python3 is {version}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", needed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["python3", "tools"]


@pytest.mark.live
@pytest.mark.apart
def test_command_counts(gofunccount: Path, tmp_path: Path) -> None:
    source = tmp_path / "seven.go"
    source.write_text(SEVEN_CALLS)
    program = build(source, newest())
    output = run(gofunccount, "-c", str(program), "main.work", cwd=tmp_path)
    assert re.search(r"^main\.work +7 +100\.0%$", output, re.MULTILINE)


@pytest.mark.live
@pytest.mark.apart
def test_demo_agrees_with_its_server(tmp_path: Path) -> None:
    output = run(sys.executable, CLONE / "tools" / "demo" / "demo.py", cwd=tmp_path)
    counted = re.search(r"counted (\d+) calls of main\.computeE, gofunccount saw (\d+)", output)
    assert counted is not None
    assert int(counted[1]) == int(counted[2]) > 0


@pytest.mark.parametrize("argument", ["", "demo", "demo-fleet", "test"])
def test_setup_installs_what_all_commands_need(argument: str) -> None:
    script = (CLONE / "tools" / "setup.sh").read_text()
    code = script[script.index("import configparser") : script.index("\nPYTHON\n")]
    listed = run(sys.executable, "-c", code, argument, cwd=CLONE).split()
    for name in (
        "capstone",
        "pyelftools",
        "tabulate",
        "PyYAML",
        "opentelemetry-sdk",
        "prometheus-client",
    ):
        assert any(line.startswith(name) for line in listed), name
    assert any(line.startswith("pytest>") for line in listed) == (argument == "test")


def test_no_page_names_a_package_of_ours_on_an_index() -> None:
    """gotrace is on none: what is there by this name is someone else's."""
    pages = [*CLONE.glob("*.md"), *(CLONE / "docs").rglob("*"), *(CLONE / "gotrace").rglob("*.py")]
    pages += [path for path in (CLONE / "deploy").rglob("*") if path.is_file()]
    wrong = re.compile(r"gotrace\[|pip3? install (-\S+ )*['\"]?gotrace|pipx \w+ gotrace")
    for page in pages:
        if page.suffix in {".md", ".8", ".txt", ".py", ".yaml", ".service", ""} and page.is_file():
            assert not wrong.search(page.read_text()), page
