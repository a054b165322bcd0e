# SPDX-License-Identifier: Apache-2.0
"""Hold the documentation to what the tools do: options, links, and every command line shown."""

from __future__ import annotations

import configparser
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gotrace.assertions.grammar import parse_assertion, parse_open
from gotrace.cli.habits import _FORMS, SUBCOMMANDS, module_of
from gotrace.cli.options import OptionParser, parse, parse_plain
from gotrace.doctor.precompile import packaged_settings
from gotrace.gotypes.from_text import parse_signature
from gotrace.gotypes.types import Kind, basic_type
from gotrace.hosts.names import are_pods, host_names, selections
from gotrace.kernel.program_cache import cached_programs, program_key
from gotrace.probes.pattern import Pattern, is_recipe
from gotrace.probes.recipes import find_recipe, split_recipe
from gotrace.probes.spec import parse_probe
from tests.toolchains import WHEEL_VERSIONS, newest
from tests.tools.harness import run_tool

CLONE = Path(__file__).parent.parent
#: The commands that look at a program: a module each.
TOOLS = sorted({path.stem for path in (CLONE / "gotrace" / "cli").glob("go*.py")} - {"gofleet"})
PAGES = [*sorted(CLONE.glob("*.md")), *sorted((CLONE / "docs").rglob("*.md"))]
SHOWN_IN = [
    CLONE / "README.md",
    *sorted(path for path in (CLONE / "docs").rglob("*") if path.suffix in {".md", ".txt", ".8"}),
]
#: What stands for the example server's process in the documents' commands.
SERVER = "$(pidof server)"

_ROFF = {r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(ha": "^", r"\(ti": "~", r"\&": "", r"\e": "\\"}
#: A path in the clone, and perhaps what is defined there: `bpf/plan.h`: `OP_END`, `MAX_OPS`.
_PLACE = re.compile(r"`((?:gotrace|bpf|tests|docs|tools)/[\w./-]+)`(?:: ((?:`\w+`(?:, )?)+))?")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_ANY_PID = re.compile(r"\$\(pidof [\w-]+\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def test_every_command_is_wherever_commands_are() -> None:
    setup = configparser.ConfigParser()
    setup.read(CLONE / "setup.cfg")
    scripts = re.findall(
        r"^(\w+) =", setup["options.entry_points"]["console_scripts"], re.MULTILINE
    )
    every = sorted([*TOOLS, "gofleet", "gotraced"])
    assert sorted(scripts) == every
    assert sorted(path.name for path in (CLONE / "tools").glob("go*")) == every
    for page in ("README.md", "docs/README.md", "docs/completion.md"):
        text = (CLONE / page).read_text()
        assert [name for name in every if name not in text] == [], page


def parser_of(tool: str) -> OptionParser[Any]:
    """Return a tool's own parser."""
    made: OptionParser[Any] = importlib.import_module(f"gotrace.cli.{tool}")._parser()
    return made


def subcommand_parser(word: str) -> OptionParser[Any]:
    """Return the parser of the words after a first word of gotrace."""
    made: OptionParser[Any] = importlib.import_module(module_of(word)).parser()
    return made


def page_text(path: Path) -> str:
    """Return a document's text; of a man page, with its escapes resolved."""
    text = path.read_text()
    if path.suffix != ".8":
        return text
    text = re.sub(r"\\f[BIR]", "", text)
    return re.sub(r"\\(?:\(..|[-&e])", lambda match: _ROFF[match[0]], text)


def section(page: str, name: str) -> str:
    """Return a section of a man page."""
    found = re.search(rf"^\.SH {name}\n(.*?)(?=^\.SH |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {name}"
    return found[1]


@dataclass(frozen=True)
class Command:
    """A command line shown in a document, up to the first pipe, in words."""

    page: Path
    text: str

    @property
    def words(self) -> list[str]:
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars="|")
        lexer.whitespace_split = True
        lexer.commenters = ""
        words = list(lexer)
        return words[: words.index("|")] if "|" in words else words

    @property
    def tool(self) -> str:
        return self.words[0]

    def __str__(self) -> str:
        return f"{self.page.name}: {self.text}"


def command_lines() -> Iterator[tuple[Path, str]]:
    """Yield, with its page, every command line of a tool that follows a root prompt."""
    for path in SHOWN_IN:
        text = page_text(path)
        if path.suffix == ".md":
            text = "".join(re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        for line in re.findall(r"^# (.*)$", text, re.MULTILINE):
            if line.split(" ", 1)[0] in TOOLS:
                yield path, line


def server_commands() -> list[str]:
    """Return, each once, the command lines that are meant for the example server."""
    return list(dict.fromkeys(text for _, text in command_lines() if SERVER in text))


COMMANDS = [Command(path, _ANY_PID.sub("1", text)) for path, text in command_lines()]


@pytest.mark.parametrize("tool", [*TOOLS, "gofleet"])
def test_man_page_has_the_parsers_options(tool: str) -> None:
    page = page_text(CLONE / "docs" / "man" / f"{tool}.8")
    tags = re.findall(r"^\.TP\n(-.*)$", section(page, "OPTIONS"), re.MULTILINE)
    documented = {word for tag in tags for word in re.findall(r"(?<!\S)--?[\w-]+", tag)} - {"--"}
    actions = parser_of(tool)._actions
    assert documented == {option for action in actions for option in action.option_strings}
    synopsis = section(page, "SYNOPSIS")
    for action in actions:
        hidden = {"--help", "--version"} & set(action.option_strings)
        if action.option_strings and not hidden:
            shortest = min(action.option_strings, key=len)
            assert re.search(rf"\[{shortest}[] |]|\| {shortest}[] ]", synopsis), shortest


@pytest.mark.parametrize("word", SUBCOMMANDS)
def test_man_page_has_the_options_of_subcommands(word: str) -> None:
    page = page_text(CLONE / "docs" / "man" / "gotrace.8")
    assert re.search(rf"^gotrace {word} ", section(page, "SYNOPSIS"), re.MULTILINE)
    own = "".join(re.findall(rf"^\.TP\n{word}\b.*$", section(page, "SUBCOMMANDS"), re.MULTILINE))
    of_gotrace = parser_of("gotrace")._option_string_actions
    options = subcommand_parser(word)._option_string_actions
    assert {*re.findall(r"--[\w-]+", own)} == options.keys() - of_gotrace.keys()
    of_all = section(page, "SUBCOMMANDS").partition(".TP")[0]
    named = {*re.findall(r"(?<!\S)-[-\w]+", of_all)}
    absent = {option for option in of_gotrace if option not in options}
    if word in _FORMS:
        assert {min(of_gotrace[one].option_strings, key=len) for one in absent} <= named
    if word == "record":
        assert named <= absent


@pytest.mark.parametrize("tool", TOOLS)
def test_man_page_has_its_sections(tool: str) -> None:
    page = page_text(CLONE / "docs" / "man" / f"{tool}.8")
    assert re.findall(r"[^\n -~]", page) == []  # no character that a terminal does not show
    names = re.findall(r"^\.SH (.*)$", page, re.MULTILINE)
    syntax = "PROBE SYNTAX" if tool == "gotrace" else "PATTERNS"
    files = () if tool == "gostacks" else ("FILES",)  # it loads no programs
    if tool in ("gofunclatency", "gotrace"):  # which read records at the end
        files = ("ENVIRONMENT", *files)
    assert names == [
        *("NAME", "SYNOPSIS", "DESCRIPTION", "REQUIREMENTS", "OPTIONS"),
        *(("SUBCOMMANDS",) if tool == "gotrace" else ()),
        *(syntax, "EXAMPLES"),
        *("FIELDS", "EXIT STATUS", *files, "OVERHEAD", "LIMITS", "SEE ALSO"),
    ]


def fleet_examples() -> list[Command]:
    """Return the command lines of gofleet that its own help and documents show."""
    pages = ("README.md", "docs/gofleet.md", "docs/man/gofleet.8")
    texts = [page_text(CLONE / page) for page in pages] + [parser_of("gofleet").epilog or ""]
    found = [re.findall(r"^(?:[#$] |  )(gofleet --.*?)(?:   .*)?$", text, re.M) for text in texts]
    assert all(found)
    return [Command(CLONE, line) for lines in found for line in lines]


def test_examples_of_gofleet_parse() -> None:
    for command in fleet_examples():
        words = command.words[1:]
        at = words.index("--") if "--" in words else len(words)
        options = parse_plain(parser_of("gofleet"), words[:at])
        assert bool(options.on) == bool(words[at:]), command
        if options.on:
            are_all_pods = all(map(are_pods, options.on))
            assert selections(options.on) if are_all_pods else host_names(options.on)
            tool, *rest = words[at + 1 :]
            known = parser_of(tool)._option_string_actions
            options_given = {word for word in rest if word.startswith("-")}
            assert options_given <= known.keys(), command


def test_man_pages_are_installed() -> None:
    setup = configparser.ConfigParser()
    setup.read(CLONE / "setup.cfg")
    listed = setup["options.data_files"]["share/man/man8"].split()
    pages = (CLONE / "docs" / "man").iterdir()
    assert sorted(listed) == sorted(str(page.relative_to(CLONE)) for page in pages)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            headings = _HEADING.findall(file.read_text())
            assert anchor in {_anchor(heading) for heading in headings}, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_places_in_the_clone_are_there(page: Path) -> None:
    for path, names in _PLACE.findall(page.read_text()):
        place = CLONE / path
        assert "NAME" in path or place.exists(), path
        if names:
            defined = set(re.findall(r"\w+", place.read_text()))
            assert set(re.findall(r"\w+", names)) <= defined, f"{path}: {names}"


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "Makefile",
        "docs/support.md",
        "docs/man/goalloc.8",
        "docs/man/gofunccount.8",
        "docs/man/gofunclatency.8",
        "docs/man/gooffcpu.8",
        "docs/man/gooncpu.8",
        "docs/man/gostacks.8",
        "docs/man/gotop.8",
        "docs/man/gotrace.8",
    ],
)
def test_the_releases_that_are_tested_are_named(page: str) -> None:
    oldest, last = (
        release.rpartition(".")[0] for release in (WHEEL_VERSIONS[0], WHEEL_VERSIONS[-1])
    )
    assert f"{oldest} to {last}" in " ".join((CLONE / page).read_text().split())


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_command_lines_parse(command: Command) -> None:
    if command.tool == "gostacks":
        for text in parse_plain(parser_of("gostacks"), command.words[1:]).patterns:
            Pattern(text)
        return
    if command.tool == "gotop":
        for text in parse_plain(parser_of("gotop"), command.words[1:]).functions:
            Pattern(text)
        return
    if command.words[1] == "examine":
        assert parse_plain(subcommand_parser("examine"), command.words[2:]).processes
        return
    if command.words[1] == "assert":
        asserted = parse(subcommand_parser("assert"), command.words[2:])
        for text in asserted.patterns:
            bound = parse_open(text) if asserted.record else parse_assertion(text)
            for probe in (*bound.probes, bound.root or "main.main"):
                assert parse_probe(probe).pattern
        return
    is_form = command.words[1] in _FORMS
    parser = subcommand_parser(command.words[1]) if is_form else parser_of(command.tool)
    options = parse(parser, command.words[1 + is_form :])
    if command.tool in ("goalloc", "gooffcpu", "gooncpu"):
        for text in [*options.inside, *getattr(options, "functions", ())]:
            Pattern(text)
        return
    assert options.patterns
    for text in options.patterns:
        if is_recipe(text):
            assert find_recipe(split_recipe(text)[1]).probes
            continue
        if command.tool != "gotrace":
            Pattern(text, regex=options.regexp)
            continue
        spec = parse_probe(text, regex=options.regexp, split=_split)
        if spec.signature:
            parse_signature(spec.signature, lambda name: [basic_type(Kind.UINTPTR, name)])


def _split(text: str) -> tuple[str | None, str]:
    """Take a probe apart as the tools do, whether its file is there or not."""
    return None, text


def test_every_tool_is_shown_in_every_kind_of_document() -> None:
    shown = {(command.page.suffix, command.tool) for command in COMMANDS}
    assert shown == {(suffix, tool) for suffix in (".md", ".txt", ".8") for tool in TOOLS}


#: Commands that are shown for the error that they give, with its status.
FAILING = {
    "gofunccount -p $(pidof server) main.Handle": 3,
    "gofunclatency -p $(pidof server) main.handlePanic": 3,
    "gotrace -p $(pidof server) 'main.(*Store).Get (keys == 3)'": 2,
    "gotrace -p $(pidof server) 'main.(*Store).Get (len(key) > \"a\")'": 2,
}


#: Lines that stand around results.
FRAME = re.compile(
    r"Tracing |Sampling |Detaching|FUNC |TIME |NAME |\d\d:\d\d:\d\d$|$|"
    r"no (?:calls|samples|system calls)$|"
    r'{"kind":"(?!count|histogram|call)'
)


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """Run the example server, kept busy, and give its process's number."""
    toolchain = newest()
    command = [sys.executable, str(CLONE / "tools" / "demo" / "demo.py"), "serve"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=toolchain.env(), cwd=CLONE
    ) as process:
        assert process.stdout is not None
        numbers = (re.search(r"runs as process (\d+)", line) for line in process.stdout)
        try:
            yield next(int(found[1]) for found in numbers if found)
        finally:
            process.terminate()


@dataclass(frozen=True)
class Packaged:
    """A cache that begins with those programs that a package carries, if they are compiled."""

    base: Path
    keys: frozenset[str]

    def others(self) -> set[str]:
        """Return the keys of programs that have been compiled, and that no package carries."""
        kept = {path.name.partition("-")[0] for path in self.base.glob("gotrace/bpf/*-*")}
        return kept - self.keys


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packaged]:
    """Return a cache from which it is seen whether the commands run from the wheel alone.

    What is compiled there is kept for the next run of the tests.
    """
    keys = frozenset(map(program_key, packaged_settings()))
    base = tmp_path_factory.mktemp("cache")
    folder = base / "gotrace" / "bpf"
    for place in (base, folder.parent, folder):
        place.mkdir(0o700, exist_ok=True)
        place.chmod(0o700)
    if (kept := cached_programs().path) is not None:
        for path in kept.glob("*-*"):
            if path.name.partition("-")[0] in keys:
                shutil.copy2(path, folder)
    yield Packaged(base, keys)
    for path in folder.glob("*-*"):
        if kept and path.name.partition("-")[0] in keys and not (kept / path.name).exists():
            temporary = kept / f".{path.name}.{os.urandom(8).hex()}"
            shutil.copy2(path, temporary)
            temporary.replace(kept / path.name)


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("text", server_commands())
def test_command_runs_on_the_example_server(
    text: str, server: int, packaged: Packaged, tmp_path: Path
) -> None:
    words = Command(CLONE, text.replace(SERVER, str(server))).words
    # Shown durations are for readers; what ends by itself, by -M or an error, does so before.
    repeats = words[0] not in ("gostacks", "gotop") or {"-i", "--watch"} & set(words)
    shortened = ["-d", "20" if "-M" in words else "0.2"] if repeats else []
    environment = {**os.environ, "XDG_CACHE_HOME": str(packaged.base)}
    before = packaged.others()
    done = run_tool(*words, *shortened, cwd=tmp_path, env=environment)
    assert done.status == FAILING.get(text, 0), done.errors
    assert packaged.others() <= before, "it loads a program that no package carries"
    if text in FAILING:
        assert done.errors.startswith(f"{words[0]}: ")
    else:
        printed = [line for line in done.lines if not FRAME.match(line)]
        assert printed or any(made.stat().st_size for made in tmp_path.iterdir())


def api_examples() -> list[str]:
    """Return the programs shown in the API's documentation."""
    page = (CLONE / "docs" / "api.md").read_text()
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_type_checkers_accept_the_api_examples(tmp_path: Path) -> None:
    """Each as a script of a user, and frames of all results that have them."""
    results = "allocations", "count", "latency", "syscalls", "waits", "on_cpu", "wall"
    calls = [*(f"go.{name}()" for name in results), 'go.count(by="x")', 'go.latency(of="x")']
    calls += ["go.latency(by_goroutine=True)", 'gotrace.diff("a", "b")']
    frames = "".join(f"    {call}.to_frame()\n" for call in calls)
    scripts = []
    for number, example in enumerate([f"{api_examples()[0]}{frames}", *api_examples()]):
        scripts.append(tmp_path / f"example{number}.py")
        scripts[-1].write_text(f"pid = 1\n{example}")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--scripts-are-modules", *map(str, scripts)],
        cwd=CLONE,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == (
        f"Success: no issues found in {len(scripts)} source files\n",
        0,
    )


@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("example", api_examples())
def test_api_example_runs_on_the_example_server(example: str, server: int, tmp_path: Path) -> None:
    if "run.ndjson" in example:
        words = [
            str(CLONE / "tools" / "gotrace"),
            "--json",
            "-M",
            "3",
            "-p",
            str(server),
            "main.(*Store).Get",
        ]
        with (tmp_path / "run.ndjson").open("wb") as trace:
            subprocess.run(words, stdout=trace, check=True, timeout=60)
    for day in ("monday.ndjson", "tuesday.ndjson.gz"):
        if day in example:
            words = ["gofunccount", "-d", "0.5", "-o", str(tmp_path / day), "-p", str(server)]
            assert run_tool(*words, "main.*").status == 0
    # As with commands: what ends by itself does so before.
    code = f"pid = {server}\n" + re.sub(r"seconds=1\b", "seconds=0.2", example)
    run = [sys.executable, "-c", code]
    env = newest().env() | {"PYTHONPATH": str(CLONE)}
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    # The go command has such functions, as most programs do.
    warned = [line for line in done.stderr.splitlines() if "only inlined" not in line]
    assert warned == []
    assert done.stdout or "print" not in example


@pytest.mark.parametrize("tool", [*TOOLS, "gofleet"])
def test_man_page_renders_without_warnings(tool: str) -> None:
    if shutil.which("groff") is None:
        pytest.skip("there is no groff")
    page = CLONE / "docs" / "man" / f"{tool}.8"
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tutf8", page], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert f"{tool.upper()}(8)" in re.sub(r"\x1b\[\d*m", "", done.stdout)
