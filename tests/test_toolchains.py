# SPDX-License-Identifier: Apache-2.0
"""Check the toolchains and the fixture builder that other tests rely on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.toolchains import (
    BuildError,
    Toolchain,
    build,
    every_toolchain,
    expected_versions,
    newest,
    require,
)

HELLO = 'package main\n\nimport "runtime"\n\nfunc main() { println(runtime.Version()) }\n'


def output(program: Path) -> str:
    return subprocess.run([program], capture_output=True, text=True, check=True).stderr.strip()


@pytest.mark.parametrize("minor", expected_versions())
def test_expected_toolchain_is_there(minor: str) -> None:
    assert require(minor).minor == minor


@every_toolchain
def test_program_is_built_by_the_toolchain_asked_for(toolchain: Toolchain, tmp_path: Path) -> None:
    source = tmp_path / "hello.go"
    source.write_text(HELLO)
    assert output(build(source, toolchain)).startswith(f"go{toolchain.version}")


def test_build_is_kept_until_source_or_settings_change(tmp_path: Path) -> None:
    source = tmp_path / "hello"
    source.mkdir()
    (source / "main.go").write_text(HELLO)
    first = build(source, newest())
    inode = first.stat().st_ino
    assert build(source, newest()).stat().st_ino == inode
    assert build(source, newest(), flags=["-ldflags=-s -w"]) != first
    assert build(source, newest(), env={"CGO_ENABLED": "0"}) != first
    assert build(source, newest(), name="other").name == "other"
    (source / "main.go").write_text(HELLO.replace("Version()", 'GOOS + "!"'))
    assert output(build(source, newest())) == "linux!"


def test_compiler_messages_reach_the_test_report(tmp_path: Path) -> None:
    source = tmp_path / "broken.go"
    source.write_text("package main\n\nfunc main() { nonsense() }\n")
    with pytest.raises(BuildError, match="nonsense"):
        build(source, newest())
