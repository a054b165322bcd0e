# SPDX-License-Identifier: Apache-2.0
"""Read command lines as users write them, with options anywhere."""

from __future__ import annotations

import importlib
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gotrace.cli import gotrace
from gotrace.cli.options import CallsOptions, FunctionOptions, OptionParser, parse
from gotrace.errors import UsageError
from gotrace.session.choices import MAX_TEXT_BYTES
from gotrace.session.trace_plan import TraceChoices
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE, run_tool

TOOLS = ("gofunccount", "gofunclatency", "gotrace")


def read(tool: str, *words: str) -> FunctionOptions:
    parser: OptionParser[FunctionOptions] = importlib.import_module(f"gotrace.cli.{tool}")._parser()
    return parse(parser, words)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    "words",
    [
        ("-x", "skip", "-p", "7", "--json", "a", "b", "c"),
        ("a", "-x", "skip", "b", "-p", "7", "c", "--json"),
        ("a", "b", "c", "-p7", "--json", "--exclude=skip"),
    ],
    ids=["before", "between", "behind"],
)
def test_options_stand_anywhere(tool: str, words: Sequence[str]) -> None:
    options = read(tool, *words)
    assert options.patterns == ["a", "b", "c"]
    assert (options.exclude, options.named.pid, options.json) == (["skip"], 7, True)
    assert options.named.command is None


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("words", "probes"),
    [
        (["main.f", "(status == 999)"], ["main.f (status == 999)"]),
        (["main.f", "(a) && (b)"], ["main.f", "(a) && (b)"]),
        (["main.f", ' (s == ")") ', '"%d", n'], ['main.f  (s == ")")  "%d", n']),
        (["main.f", "`%d`, n", "main.g"], ["main.f `%d`, n", "main.g"]),
        (["main.f", "(*Store).Get"], ["main.f", "(*Store).Get"]),
        (["@http.server", "(status >= 400)"], ["@http.server (status >= 400)"]),
        (["main.f", "(*Store).Get", "(n > 1)"], ["main.f", "(*Store).Get (n > 1)"]),
    ],
)
def test_predicates_and_formats_may_be_words(
    tool: str, words: list[str], probes: list[str]
) -> None:
    """As users of bcc write them; none is dropped."""
    by = ["--by", "$goid"] if tool != "gotrace" else []
    assert read(tool, *words, *by).patterns == probes


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("word", ["(n > 3)", '"%d", n'])
def test_predicates_and_formats_follow_a_function(tool: str, word: str) -> None:
    with pytest.raises(UsageError, match="give the function before it"):
        read(tool, word)


@pytest.mark.parametrize("tool", TOOLS)
def test_regular_expressions_keep_their_parentheses(tool: str) -> None:
    assert read(tool, "-r", "main.f", "(main.g|main.h)").patterns == ["main.f", "(main.g|main.h)"]


@pytest.fixture(autouse=True)
def _as_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gotrace.errors._speaks_as_command", True)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    "name",
    [
        "main.Keep[go.shape.func(int) (bool, error)]",
        'main.Keep[go.shape.struct { Name string "json:\\"name\\"" }]',
        "/bin/sh:main.Keep[go.shape.func(int) (bool, error)]",
    ],
)
def test_names_that_are_listed_are_taken(tool: str, name: str) -> None:
    """Blanks, quotes and parentheses in the brackets of an instance begin nothing."""
    assert read(tool, name).patterns == [name]
    if tool != "gotrace":
        with pytest.raises(UsageError, match=r"takes '\(n == 0\)' only with --by"):
            read(tool, f"{name} (n == 0)")


@pytest.mark.parametrize("tool", ["gofunccount", "gofunclatency"])
@pytest.mark.parametrize(
    ("probe", "words"),
    [
        ('Get "%s", $err', "--by '$err' Get"),
        ('Get "%s: %d", key, n + 1', "--by 'key, n + 1' Get"),
        ('Get (key == "a") `%s`, $err', "--by '$err' 'Get (key == \"a\")'"),
        ('Get "called"', "--by '$func' Get"),
    ],
)
def test_a_format_becomes_what_calls_are_counted_by(tool: str, probe: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tool, probe)
    assert str(caught.value) == f"{tool} prints no format: type {tool} {words}"
    typed = read(tool, *shlex.split(words))
    assert isinstance(typed, CallsOptions)
    assert typed.by and typed.patterns == [shlex.split(words)[-1]]


@pytest.mark.live
@pytest.mark.parametrize("tool", TOOLS)
def test_nothing_starts_with_a_probe_that_cannot_be_read(tool: str) -> None:
    """The text of a predicate that is wrong is refused, with others that are right beside it."""
    program = build(FIXTURES / "live_count", newest())
    words = [tool, f"{program}:main.main", f"{program}:main.plain", "(n >)", "-d", "20"]
    result = run_tool(*words)
    assert (result.status, result.lines) == (2, [])
    assert ("column" if tool == "gotrace" else "only with --by") in result.errors


@pytest.mark.parametrize("tool", TOOLS)
def test_command_keeps_its_own_options_and_dashes(tool: str) -> None:
    options = read(tool, "a", "-r", "b", "--", "./server", "-x", "--json", "--", "-p")
    assert options.patterns == ["a", "b"]
    assert options.named.command == ["./server", "-x", "--json", "--", "-p"]
    assert (options.exclude, options.json, options.named.pid) == ([], False, None)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("a", "--nothing", "b"), "--nothing"),
        (("a", "-p", "7", "b", "-c", "true"), "not allowed with"),
        (("a", "-p", "7", "b", "--", "true"), "only one of"),
        (("-x", "a"), "which functions"),
        (("a", "-x"), "expected one argument"),
    ],
)
def test_mistakes_are_told(tool: str, words: Sequence[str], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        read(tool, *words)


def test_the_bound_of_strings_is_the_documented_one() -> None:
    bound = TraceChoices.of(1 << 20, 1, entry_only=False, floats=True).limits.text_bytes
    assert bound == MAX_TEXT_BYTES
    assert f"no more than {bound:,})" in " ".join(gotrace._parser().format_help().split())
    for page in ("man/gotrace.8", "limits.md"):
        assert f"no more than {bound:,} whatever" in (CLONE / "docs" / page).read_text()


def test_without_pyelftools_the_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "elftools.py").write_text("raise ImportError('it is not here')")
    program = build(FIXTURES / "live_count", newest())
    done = subprocess.run(
        [CLONE / "tools" / "gotrace", "-l", f"{program}:main.leaf (n > 1)"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("gotrace: cannot read debugging information: pyelftools cannot be")
    assert "python3-pyelftools" in line
