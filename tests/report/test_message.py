# SPDX-License-Identifier: Apache-2.0
"""Messages on a terminal: every one that there is fits it, and none loses a word."""

from __future__ import annotations

import io
import re

import pytest

from gotrace.cli.command import run_command
from gotrace.errors import GotraceError
from gotrace.report.message import laid_out
from gotrace.report.output import Notice, NoticeKind, TextOutput
from tests.messages import CLONE
from tests.report.test_colour import Terminal

_LONG = "NAME: arguments are shown by their shape, since nothing describes them; give a signature, "
_LONG += "as in 'NAME(x int) error'"
_ROWS = [
    "NAME: arguments are shown by their shape, since nothing describes them;",
    "  give a signature, as in 'NAME(x int) error'",
]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_every_message_fits_and_keeps_its_words(columns: int) -> None:
    texts = re.findall(
        r"^- (`+)(.*)\1$", (CLONE / "docs" / "messages.md").read_text(), re.MULTILINE
    )
    assert len(texts) > 900
    for _, text in texts:
        shown = laid_out(text, columns, "gotrace: ")
        lines = shown.splitlines()
        assert re.sub(r"\n *", " ", shown) == re.sub(r" +", " ", f"gotrace: {text}".rstrip())
        for line in lines:
            assert len(line) <= columns or re.search(r"['\"]|\S{20}", line), line
        assert all(line.startswith("  ") for line in lines[1:])


def test_what_can_be_done_has_lines_of_its_own() -> None:
    assert laid_out(_LONG, 80).splitlines() == _ROWS
    assert laid_out(_LONG, None) == laid_out(_LONG, len(_LONG)) == _LONG
    quoted = (
        f"no function is called 'a: type b': it is a {'very ' * 9}long story: type 'main: give'"
    )
    assert laid_out(quoted, 80).splitlines()[-1] == "  type 'main: give'"
    to = f"@errors: {'some are missing ' * 5}here: to count all of them, type 'main.f'"
    assert laid_out(to, 80).splitlines()[-1] == "  to count all of them, type 'main.f'"
    tracing = f'Tracing 3 functions for "{"main.f, " * 8}"... Hit Ctrl-C to end.'
    assert laid_out(tracing, 80).splitlines()[-1] == "  Hit Ctrl-C to end."
    indented = f"   {'a finding ' * 9}"
    assert laid_out(indented, 80).splitlines()[0].startswith("   a finding")
    option = f"main.f: {'it is so ' * 9}; -l has them all"
    assert laid_out(option, 80).splitlines()[-1] == "  -l has them all"
    assert laid_out("--by cannot be so" + " long" * 20, 80, "gotrace: ").startswith("gotrace: --by")


def test_notices_and_errors_are_laid_out_on_terminals_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")

    def fail(arguments: object) -> int:
        raise GotraceError(_LONG)

    def written(err: io.StringIO) -> tuple[str, str]:
        TextOutput(io.StringIO(), err).notice(Notice(NoticeKind.WARNING, _LONG))
        notice = err.getvalue()
        monkeypatch.setattr("sys.stderr", err)
        assert run_command("g", fail, []) == 1
        return notice, err.getvalue().removeprefix(notice)

    assert written(io.StringIO()) == (f"{_LONG}\n", f"g: {_LONG}\n")
    notice, error = written(Terminal())
    assert notice.splitlines() == _ROWS
    assert error.splitlines() == [f"g: {_ROWS[0]}", _ROWS[1]]
