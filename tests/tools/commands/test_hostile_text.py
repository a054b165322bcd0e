# SPDX-License-Identifier: Apache-2.0
"""Texts and names made to mislead whoever prints them: escaped in text, faithful in JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, Result, of_kind, run_tool, tool, without_compiler

pytestmark = [pytest.mark.live, pytest.mark.apart]

TOOLS = ("gofunccount", "gofunclatency", "gotrace")

#: A name of a file: colours, a title, a line end, a byte that is no UTF-8, a reversal of order.
EVIL = b"e\x1b[31m\x1b]0;x\x07\n\xff\xe2\x80\xae".decode(errors="surrogateescape")
SHOWN = r"e\x1b[31m\x1b]0;x\x07\n\xff\u202e"
AS_JSON = "e\x1b[31m\x1b]0;x\x07\n\\xff\u202e"


def program() -> Path:
    return build(FIXTURES / "hostile_text", newest(), flags=["-ldflags=-compressdwarf=false"])


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """Return a copy of the program with such a name."""
    path = tmp_path / EVIL
    shutil.copy(program(), path)
    return path


def assert_harmless(result: Result, lines: int | None = None) -> None:
    """Check that a terminal would be shown plain lines."""
    for line in [*result.lines, *result.errors.splitlines(keepends=True)]:
        assert line.endswith("\n")
        assert line[:-1].isprintable(), line
    if lines is not None:
        assert len(result.errors.splitlines()) == lines


def traced(
    name: str,
    path: Path,
    *words: str,
    environment: dict[str, str] | None = None,
    status: int = 0,
) -> tuple[list[bytes], Result]:
    """Run a tool while the program shows its texts; return these and how the tool ended."""
    env = {**os.environ, **(environment or {})}
    with Fixture([path]) as fixture, tool(name, "-p", str(fixture.ready), *words, env=env) as run:
        fixture.say()
        texts = json.loads(fixture.read_until("truth ")[0])
        result = run.end()
    assert result.status == status, result.errors
    return [bytes.fromhex(text) for text in texts], result


def undone(value: object) -> bytes:
    """Return the bytes of a string of JSON, of a cut one as far as they go."""
    if isinstance(value, dict):
        if "$hex" in value:
            return bytes.fromhex(value["$hex"])
        return str(value["$string"]).encode()
    assert isinstance(value, str)
    return value.encode()


def assert_same(value: object, text: bytes) -> None:
    if isinstance(value, dict) and "$len" in value:
        assert value["$len"] == len(text) > 256
        assert text.startswith(undone(value)) and len(undone(value)) >= 254 - 3
    else:
        assert undone(value) == text


def test_values_are_escaped_in_text() -> None:
    words = ("main.show*", "main.plain", 'main.plain "%s %v", text, text', "-U")
    texts, result = traced("gotrace", program(), *words[:2], words[3])
    assert_harmless(result)
    calls = [line for line in result.lines if "main.plain(" in line and "main.show" not in line]
    assert len([line for line in calls if "text=" in line]) == len(texts)
    assert any(r"\x1b[2J\x1b]0;owned\a" in line for line in result.lines)
    assert any(r"\u202egnp.exe\u200b\u2028" in line for line in result.lines)


def test_formats_are_escaped_in_text() -> None:
    texts, result = traced("gotrace", program(), 'main.plain "%s|%v|%q|%x", text, text, text, text')
    assert_harmless(result)
    assert len([line for line in result.lines if " main.plain " in line]) == len(texts)


def test_values_are_whole_in_json() -> None:
    texts, result = traced("gotrace", program(), "--json", "main.show*", "main.plain")
    rows = of_kind(result, "call")
    for name in ("main.showWords", "main.plain"):
        calls = [row for row in rows if row["func"] == name]
        assert len(calls) == len(texts)
        for call, text in zip(calls, texts, strict=True):
            assert_same(call["args"]["text"], text)
    words = [row for row in rows if row["func"] == "main.showWords"]
    for call, text in zip(words, texts, strict=True):
        assert_same(call["args"]["data"], text)
        assert_same(call["results"]["$ret"], text)
    held = [row for row in rows if row["func"] == "main.showHeld"]
    assert len(held) == len(texts)
    for call, text in zip(held, texts, strict=True):
        if len(text) < 200:
            assert_same(call["args"]["list"][0], text)
            assert_same(call["results"]["err"]["$error"], text)
    assert all(line.isascii() for line in result.lines)


def with_names(path: Path, copy: Path, names: dict[bytes, bytes]) -> Path:
    """Copy a program and change names in all of its tables to others of the same length."""
    content = path.read_bytes()
    for old, new in names.items():
        assert len(old) == len(new)
        assert old + b"\0" in content
        content = content.replace(old + b"\0", new + b"\0")
    copy.write_bytes(content)
    copy.chmod(0o755)
    return copy


HOSTILE_NAMES = {
    b"main.plain": b"main.\x1b[2J\n",
    b"main.showWords": b"main.\xff\xe2\x80\xae\t\x07\x9b[m",
    b"main.showHeld": "main.日本\r\n".encode(),
}
NAMES_SHOWN = [r"main.\x1b[2J\n", r"main.\xff\u202e\t\x07\x9b[m", r"main.日本\r\n"]
NAMES_IN_JSON = ["main.\x1b[2J\n", "main.\\xff\u202e\t\x07\\x9b[m", "main.日本\r\n"]
_OPTIONS: dict[str, list[list[str]]] = {
    "gofunccount": [[]],
    "gofunclatency": [["-F"], ["-g"], ["--slower=1ns"]],
    "gotrace": [[], ["-U"], ["--entry"]],
}
RUNS = [
    pytest.param(name, more, id=" ".join([name, *more]))
    for name in TOOLS
    for more in _OPTIONS[name]
]


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_names(program(), tmp_path_factory.mktemp("names") / "program", HOSTILE_NAMES)


@pytest.mark.parametrize(("name", "more"), RUNS)
def test_names_of_functions_are_escaped_in_text(name: str, more: list[str], renamed: Path) -> None:
    _, result = traced(name, renamed, "main.*", "-x", "main.main", *more)
    assert_harmless(result)
    shown = "".join(result.lines)
    if "-g" not in more:
        assert all(each in shown for each in NAMES_SHOWN)


@pytest.mark.parametrize(
    ("name", "more"), [("gofunccount", []), ("gofunclatency", ["-F"]), ("gotrace", ["-U"])]
)
def test_names_of_functions_are_whole_in_json(name: str, more: list[str], renamed: Path) -> None:
    _, result = traced(name, renamed, "--json", "main.*", "-x", "main.main", *more)
    names = {row["func"] for row in result.objects if row.get("func")}
    assert set(NAMES_IN_JSON) <= names
    assert all(line.isascii() for line in result.lines)


@pytest.mark.parametrize("name", TOOLS)
def test_names_of_functions_are_escaped_in_lists(name: str, renamed: Path) -> None:
    result = run_tool(name, "-l", f"{renamed}:main.*")
    assert_harmless(result)
    assert all(any(line.startswith(each) for line in result.lines) for each in NAMES_SHOWN)
    listed = of_kind(run_tool(name, "-l", "--json", f"{renamed}:main.*"), "function")
    assert set(NAMES_IN_JSON) <= {row["func"] for row in listed}


@pytest.mark.parametrize(
    ("name", "pattern"), list(zip(TOOLS, ["main.plian", "-r main.pl", "main.日本"], strict=True))
)
def test_names_of_functions_are_escaped_in_errors(name: str, pattern: str, renamed: Path) -> None:
    *options, wanted = pattern.split()
    result = run_tool(name, *options, f"{renamed}:{wanted}")
    assert result.status == 3
    assert_harmless(result, lines=1)


def test_an_endless_name_widens_no_table(tmp_path: Path) -> None:
    content = bytearray(program().read_bytes())
    start = content.index(b"main.plain\0")
    content[start : start + 4000] = content[start : start + 4000].replace(b"\0", b"x")
    path = tmp_path / "program"
    path.write_bytes(content)
    result = run_tool("gofunccount", "-l", f"{path}:main.*")
    assert_harmless(result)
    assert max(map(len, result.lines)) < 3000


@pytest.mark.parametrize("name", TOOLS)
def test_names_of_files_are_escaped(name: str, evil: Path) -> None:
    listed = run_tool(name, "-l", f"{evil}:main.plain")
    assert listed.status == 0
    assert_harmless(listed)
    (row,) = of_kind(run_tool(name, "-l", "--json", f"{evil}:main.plain"), "function")
    assert row["binary"] == f"{evil.parent}/{AS_JSON}"
    missing = run_tool(name, f"{evil}:main.nothing")
    assert_harmless(missing, lines=1)
    assert f"{evil.parent}/{SHOWN}" in missing.errors
    evil.write_bytes(b"no program")
    broken = run_tool(name, f"{evil}:main.plain")
    assert broken.status == 1
    assert_harmless(broken, lines=1)
    assert SHOWN in broken.errors
    evil.unlink()
    gone = run_tool(name, f"{evil}:main.plain")
    assert gone.status == 2
    assert_harmless(gone, lines=1)


@pytest.mark.parametrize("name", TOOLS)
def test_a_process_and_its_file_of_such_a_name(name: str, evil: Path) -> None:
    words = ["main.plain"] if name == "gotrace" else ["main.plain", "main.nothing"]
    status = 0 if len(words) == 1 else 3  # that of the pattern that matches nothing
    _, result = traced(name, evil, *words, status=status)
    assert_harmless(result)
    assert len(words) == 1 or SHOWN in result.errors
    _, result = traced(name, evil, "--json", *words, status=status)
    assert all(line.isascii() for line in result.lines)
    warnings = of_kind(result, "warning")
    assert len(words) == 1 or any(SHOWN in row["message"] for row in warnings)


def test_comm_of_a_process_is_escaped(evil: Path) -> None:
    probe = 'main.plain "%s|%q", $comm, $comm'
    comm = EVIL.encode(errors="surrogateescape")[:15]
    assert comm == b"e\x1b[31m\x1b]0;x\x07\n\xff\xe2"
    texts, result = traced("gotrace", evil, probe)
    assert_harmless(result)
    shown = r"e\x1b[31m\x1b]0;x\a\n\xff\xe2"
    assert sum(f'main.plain {shown}|"{shown}"' in line for line in result.lines) == len(texts)
    texts, result = traced("gotrace", evil, "--json", probe)
    calls = of_kind(result, "call")
    assert [call["message"] for call in calls] == [f'{shown}|"{shown}"'] * len(texts)


@pytest.mark.parametrize(("name", "form"), [("gofunccount", "-c"), ("gotrace", "--")])
def test_commands_are_escaped(name: str, form: str, evil: Path) -> None:
    word = f"{evil}x"
    order = ["-c", f"'{word}'", "main.x"] if form == "-c" else ["main.x", "--", word]
    result = run_tool(name, *order)
    assert result.status == 1
    assert_harmless(result, lines=1)
    evil.chmod(0o644)
    assert_harmless(run_tool(name, "main.x", "--", str(evil)), lines=1)
    broken = run_tool(name, "-c", "'\x1b[2J", "main.x")
    assert broken.status == 2
    assert_harmless(broken, lines=1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gotrace", ["-p", "1\x1b[2J", "main.x"]),
        ("gofunclatency", ["--attach", "\x1b[2J\n", "main.x"]),
        ("gofunccount", ["-p", "1", "\x1b[2J\n\udcff"]),
        ("gotrace", ["-p", "1", "\x1b[2J\n\udcff"]),
        ("gofunclatency", ["-p", "1", "-r", "(\x1b[2J\n"]),
        ("gofunccount", ["-p", "1", "-x", "\u202e", "main.\u202e"]),
        ("gotrace", ["--\x1b[2J"]),
        ("gofunclatency", ["\x1b/nowhere/\n:main.x"]),
        ("gofunccount", ["x" * 5000 + ":main.x"]),
    ],
)
def test_what_was_typed_is_escaped(name: str, words: list[str]) -> None:
    result = run_tool(name, *words)
    assert result.status in (1, 2, 3)
    assert_harmless(result, lines=1)
    assert run_tool(name, "--json", *words).errors == result.errors


def test_tracebacks_are_escaped(evil: Path) -> None:
    result = run_tool("gofunccount", "--debug", f"{evil}:main.nothing")
    assert "Traceback" in result.errors
    assert_harmless(result)


def test_doctor(evil: Path, tmp_path: Path) -> None:
    env = without_compiler(tmp_path)
    with Fixture([evil]) as fixture:
        result = run_tool("gotrace", "doctor", "-p", str(fixture.ready), env=env)
        assert_harmless(result)
        assert SHOWN in "".join(result.lines)
        as_json = run_tool("gotrace", "doctor", "--json", "-p", str(fixture.ready), env=env)
    assert any(AS_JSON in row["found"] for row in of_kind(as_json, "check"))


def test_odd_symbols_of_a_c_program(tmp_path: Path) -> None:
    """The assembler takes any name in quotes."""
    source = tmp_path / "odd.s"
    names = [b"red\x1b[31m", b"two\\nlines", "r\u202eev".encode(), b"bad\xff"]
    functions = [
        b'.globl "%b"\n.type "%b",@function\n"%b": nop\nret\n.size "%b", 2\n' % ((name,) * 4)
        for name in names
    ]
    source.write_bytes(b".globl main\nmain: ret\n" + b"".join(functions))
    path = tmp_path / "odd"
    subprocess.run(["gcc", "-o", path, source], check=True, capture_output=True)
    result = run_tool("gofunccount", "-l", f"{path}:*")
    assert_harmless(result)
    shown = "".join(result.lines)
    assert all(name in shown for name in (r"red\x1b[31m", r"two\nlines", r"r\u202eev", r"bad\xff"))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_the_terminal_lacks(encoding: str, renamed: Path) -> None:
    environment = {"PYTHONIOENCODING": encoding}
    _, result = traced("gotrace", renamed, "main.*", "-x", "main.main", environment=environment)
    assert r"main.\u65e5\u672c\r\n(" in "".join(result.lines)
