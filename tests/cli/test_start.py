# SPDX-License-Identifier: Apache-2.0
"""Modules that commands import: the parser's alone until a command line is understood."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.toolchains import build, newest

FIXTURES = Path(__file__).parents[1] / "fixtures"
COMMANDS = sorted(
    path.stem for path in (Path(__file__).parents[2] / "gotrace" / "cli").glob("go*.py")
)
_MOST = 22  # modules of ours that a parser needs
_SCRIPT = """\
import sys
before = set(sys.modules)
from gotrace.{}.{} import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*set(sys.modules) - before, file=sys.stderr)
"""


def imported(package: str, command: str, *words: str) -> set[str]:
    """Return the modules that a command has imported when it ends."""
    script = [sys.executable, "-c", _SCRIPT.format(package, command), *words]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout
    return set(done.stderr.split())


@pytest.mark.parametrize("word", ["--version", "--help"])
@pytest.mark.parametrize(
    ("package", "command"), [*(("cli", command) for command in COMMANDS), ("fleet", "gotraced")]
)
def test_a_parser_alone_is_imported(package: str, command: str, word: str) -> None:
    found = imported(package, command, word)
    assert len([name for name in found if name.startswith("gotrace")]) <= _MOST
    assert not found & {"bcc", "ctypes", "inspect", "json", "tempfile"}


def test_counting_imports_nothing_of_values() -> None:
    program = build(FIXTURES / "live_count", newest())
    found = imported("cli", "gofunccount", "-l", f"{program}:main.leaf")
    rooms = {name.split(".")[1] for name in found if name.startswith("gotrace.")}
    needless = {"abi", "calls", "capture", "live", "profiles", "requests", "values"}
    assert "session" in rooms and not rooms & needless
    assert not found & {"gotrace.probes.parser", "dataclasses", "logging"}
