# SPDX-License-Identifier: Apache-2.0
"""Words of the command line."""

from __future__ import annotations

import gzip
import importlib
import re
from dataclasses import MISSING, FrozenInstanceError, fields
from pathlib import Path

import pytest

import gotrace.cli
from gotrace.cli.gofunclatency import _parser
from gotrace.cli.habits import SUBCOMMANDS, module_of
from gotrace.cli.help import fit_help
from gotrace.cli.latency_options import GofunclatencyOptions
from gotrace.cli.options import Files, Heading, duration, parse, seconds
from gotrace.cli.stream import ResultFile
from gotrace.errors import UsageError
from gotrace.report.listing import by_kind

TOOLS = sorted(path.stem for path in Path(gotrace.cli.__path__[0]).glob("go*.py"))


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("5", 5_000_000_000),
        ("0.5", 500_000_000),
        (".5s", 500_000_000),
        ("500ms", 500_000_000),
        ("1s", 1_000_000_000),
        ("1.5s", 1_500_000_000),
        ("200us", 200_000),
        ("200µs", 200_000),
        ("7ns", 7),
        ("2m", 120_000_000_000),
        ("1h", 3_600_000_000_000),
        ("1m30s", 90_000_000_000),
    ],
)
def test_durations_mean_one_thing_in_all_options(text: str, ns: int) -> None:
    options = parse(_parser(), ["--slower", text, "-d", text, "-i", text, "main.f"])
    assert options.slower == duration(text) == ns
    assert options.duration == options.interval == seconds(text) == ns / 1e9


@pytest.mark.parametrize(
    "text", ["", "s", "1  s", "-1", "1e3", "1d", "1s2", "inf", "0x1", "9" * 200]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match=r"-d/--duration: invalid length of time"):
        parse(_parser(), [f"--duration={text}", "main.f"])


def test_a_files_name_says_what_is_in_it(tmp_path: Path) -> None:
    for name, as_json in (("a.txt", False), ("a.ndjson", True), ("a.ndjson.gz", True)):
        assert parse(_parser(), ["-o", name, "main.f"]).has_json is as_json
    for name in ("a", "a.gz"):
        with ResultFile(str(tmp_path / name)) as file:
            for _ in range(1000):
                file.write("grüße\n")
                file.flush()
    text = (tmp_path / "a").read_bytes()
    assert text.decode() == "grüße\n" * 1000
    packed = (tmp_path / "a.gz").read_bytes()
    assert gzip.decompress(packed) == text
    assert len(packed) < 200  # not brought up to date at each flush


@pytest.mark.parametrize("name", ["x.pb.gz", "x.pprof", "x.speedscope.json", "x.folded", "x.html"])
def test_a_files_name_asks_for_a_profile(name: str) -> None:
    options = parse(_parser(), ["-o", name, "main.f"])
    assert (options.files, options.json) == (Files(profiles=(name,)), False)
    assert options.by == ["$stack"]
    with pytest.raises(UsageError, match=f"^-o {name} has all stacks of the run: leave out --top"):
        parse(_parser(), ["-o", name, "--top", "2", "main.f"])
    options = parse(_parser(), ["-o", name, "-o", "x.ndjson", "--top", "2", "main.f"])
    assert (options.files, options.json) == (Files(json="x.ndjson", profiles=(name,)), False)
    assert parse(_parser(), ["-o", name, "--json", "main.f"]).only_stacks is False
    if name != "x.folded":
        with pytest.raises(UsageError, match=f"^-o {name} and -f cannot be combined"):
            parse(_parser(), ["-f", "-o", name, "main.f"])


@pytest.mark.parametrize(
    ("words", "text", "json", "is_printed"),
    [
        ("-o x.txt -o x.ndjson", "x.txt", "x.ndjson", False),
        ("-o x.ndjson.gz -o x.log -o x.html", "x.log", "x.ndjson.gz", False),
        ("--json -o x.txt", "x.txt", None, True),
        ("--json -o x.txt -o x.ndjson", "x.txt", "x.ndjson", False),
        ("--json -o x", None, "x", False),
        ("--json -o x.html", None, None, True),
        ("-o x", "x", None, False),
    ],
)
def test_text_and_json_have_places_of_their_own(
    words: str, text: str | None, json: str | None, is_printed: bool
) -> None:
    options = parse(_parser(), [*words.split(), "main.f"])
    assert (options.files.text, options.files.json) == (text, json)
    assert options.json is is_printed
    for again in ("-o y.txt -o x.txt", "--json -o x -o x.ndjson", "-o x.json -o x.ndjson"):
        with pytest.raises(UsageError, match="have the same results: give one of them"):
            parse(_parser(), [*again.split(), "main.f"])


def test_folded_stacks_go_to_a_file_with_and_without_their_option() -> None:
    for words in (["-o", "x.folded"], ["-f", "-o", "x.folded"]):
        options = parse(_parser(), [*words, "main.f"])
        assert (options.files.profiles, options.folded) == (("x.folded",), False)
    options = parse(_parser(), ["-f", "-o", "x.txt", "main.f"])
    assert (options.files, options.folded) == (Files(text="x.txt"), True)


@pytest.mark.parametrize("tool", TOOLS)
def test_each_option_of_a_parser_is_a_field(tool: str) -> None:
    """A field that may be None is one that is None if it is not given."""
    parser = importlib.import_module(f"gotrace.cli.{tool}")._parser()
    actions = {action.dest: action for action in parser._actions}
    declared = fields(parser.kind)
    options = {each.name: each for each in declared if each.default is MISSING}
    assert options.keys() == actions.keys() - {"help", "version"}
    assert all(option.metadata for option in options.values())
    for name, option in options.items():
        action = actions[name]
        may_be_none = action.default is None and action.nargs != "*"
        assert str(option.type).endswith(" | None") == may_be_none, name


@pytest.mark.parametrize("tool", TOOLS)
def test_help_has_the_same_headings_in_one_order(tool: str) -> None:
    parser = importlib.import_module(f"gotrace.cli.{tool}")._parser()
    titles = [group.title for group in parser._action_groups if group._group_actions]
    headings = [heading.value for heading in Heading]
    assert titles[0] == "options"
    assert titles[1:] == [title for title in headings if title in titles]


@pytest.mark.parametrize("tool", [*TOOLS, *SUBCOMMANDS])
def test_help_fits_a_small_terminal(tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    module = importlib.import_module(module_of(tool))
    parser = module.parser() if tool in SUBCOMMANDS else module._parser()
    for line in parser.format_help().splitlines():
        # Commands without a note can be copied.
        assert len(line) <= 80 or re.match(rf"  {parser.prog} .*\S -?-\S.*\Z", line), line
        assert "  " not in line[80:].strip()


def test_lists_of_help_have_notes_in_one_column() -> None:
    text = f"examples:\n  one -p 1  {'a note ' * 12}\n  {'two ' * 12} it is long\n  three -x"
    assert fit_help(text).splitlines() == [
        "examples:",
        "  one -p 1  a note a note a note a note a note a note a note a note a note a",
        "            note a note a note",
        f"  {'two ' * 11}two",
        "            it is long",
        "  three -x",
    ]
    text = f"{'word ' * 12}\nand {'word ' * 12}"
    assert fit_help(text).split() == text.split() and len(fit_help(text).splitlines()) == 2


def test_options_are_not_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(latency_options(), "json", True)  # noqa: B010


def latency_options(*words: str) -> GofunclatencyOptions:
    return parse(_parser(), [*words, "main.f"])


def test_a_page_is_of_latency_over_time_or_of_stacks() -> None:
    for words in (["-i", "2", "-o", "x.html"], ["--heat", "-i", "2", "-o", "x.html"]):
        options = latency_options(*words)
        assert options.files == Files(page="x.html")
        assert options.is_drawn and options.interval == 2 and not options.by
    options = latency_options("--heat")
    assert (options.files, options.interval, options.is_drawn) == (Files(), 1.0, True)
    options = latency_options("--heat", "-o", "x.txt")
    assert options.files == Files(text="x.txt")
    options = latency_options("-o", "x.html")
    assert (options.files, options.is_drawn) == (Files(profiles=("x.html",)), False)
    options = latency_options("-i", "2", "-o", "x.txt")
    assert (options.files, options.is_drawn) == (Files(text="x.txt"), False)


@pytest.mark.parametrize(
    "words",
    [
        ("--heat", "--json"),
        ("--heat", "-f"),
        ("--heat", "--by", "$stack"),
        ("--heat", "--of", "$ret"),
        ("--heat", "-o", "x.ndjson"),
        ("--heat", "-o", "x.pb.gz"),
        ("-i", "1", "-o", "x.html", "--json"),
        ("-i", "1", "-o", "x.html", "--of", "$ret"),
        ("-i", "1", "-o", "x.html", "-f"),
        ("-i", "1", "-o", "x.html", "--by", "$stack"),
    ],
)
def test_what_cannot_be_drawn_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r" draws latency: leave out --json, |has all stacks"):
        latency_options(*words)


def test_warnings_of_a_kind_are_one_line() -> None:
    refused = "the kernel allows no probe on its first instruction: no support for opcode"
    avx = [f"gc.expand{n} cannot be measured: gc.expand{n}: {refused} 62 f{n}" for n in range(6)]
    jumps = [f"main.{n}: no exact entry site: the jump at {n:#x} leads back" for n in (17, 18)]
    problems = [*avx[:3], "a file is odd", *jumps, *avx[3:], "main.f: something else"]
    assert by_kind(problems) == [
        f"{avx[0]} (the same of gc.expand1, gc.expand2, gc.expand3 and 2 more)",
        "a file is odd",
        f"{jumps[0]} (the same of main.18)",
        "main.f: something else",
    ]
