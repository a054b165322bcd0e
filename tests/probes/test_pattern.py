# SPDX-License-Identifier: Apache-2.0
"""What the user typed: binary and pattern apart, and which names a pattern means."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.errors import UsageError
from gotrace.probes.pattern import NameList, Pattern, split_target
from gotrace.text import quote

FILES = {"/srv/app", "/srv/a:b", "/srv/a", "bin/app", "local", "./type"}
ON_PATH = {"prometheus": "/usr/bin/prometheus", "go": "/usr/bin/go", "local": "/usr/bin/local"}


def split(text: str) -> tuple[str | None, str]:
    return split_target(text, FILES.__contains__, ON_PATH.get)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("main.main", (None, "main.main")),
        ("net/http.(*Server).Serve", (None, "net/http.(*Server).Serve")),
        ("*", (None, "*")),
        ("/srv/app:main.*", ("/srv/app", "main.*")),
        ("bin/app:main.*", ("bin/app", "main.*")),
        ("/srv/app:type:.eq.main.T", ("/srv/app", "type:.eq.main.T")),
        ("/srv/a:b:main.*", ("/srv/a:b", "main.*")),
        ("/srv/a:c:main.*", ("/srv/a", "c:main.*")),
        ("prometheus:main.*", ("/usr/bin/prometheus", "main.*")),
        ("local:main.*", ("local", "main.*")),
        ("go:*", ("/usr/bin/go", "*")),
        ("go:go:struct { io.Reader }.Read", ("/usr/bin/go", "go:struct { io.Reader }.Read")),
        ("go:struct { io.Reader }.Read", (None, "go:struct { io.Reader }.Read")),
        ("go:(*struct { io.Reader }).*", (None, "go:(*struct { io.Reader }).*")),
        ("type:.eq.main.T", (None, "type:.eq.main.T")),
        (r"type:\.eq\..*", (None, r"type:\.eq\..*")),
        ("type:*", (None, "type:*")),
        ("./type:.eq.main.T", ("./type", ".eq.main.T")),
        (r"(?:main|init)\..*", (None, r"(?:main|init)\..*")),
        ('m.F[struct { A int "json:\\"a\\"" }]', (None, 'm.F[struct { A int "json:\\"a\\"" }]')),
    ],
)
def test_split_target(text: str, expected: tuple[str | None, str]) -> None:
    assert split(text) == expected


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("/srv/gone:main.*", "no file '/srv/gone'"),
        ("./gone:type:.eq.T", "no file './gone'"),
        ("../gone/app v2:main.*", "no file '../gone/app v2'"),
        ("bin/gone:main.*", "no file 'bin/gone'"),
        ("nginx:main.*", "no file 'nginx' here or on PATH"),
        ("nginx:main.*", "type its path, or attach to its process"),
        ("/srv/app:", "no function pattern after '/srv/app:'"),
        ("/srv/app", "'/srv/app' is a file: say what to match in it, as in '/srv/app:main.*'"),
        ("", "no function pattern in ''"),
        (":main.*", "no function pattern in ':main.*'"),
        ("/srv/\x1b[31m:main.*", r"no file '/srv/\x1b[31m'"),
    ],
)
def test_split_target_names_what_is_missing(text: str, missing: str) -> None:
    with pytest.raises(UsageError, match=re.escape(missing)):
        split(text)


def test_split_target_looks_at_the_file_system(tmp_path: Path) -> None:
    (tmp_path / "a:b").write_text("")
    (tmp_path / "directory").mkdir()
    assert split_target(f"{tmp_path}/a:b:main.*") == (f"{tmp_path}/a:b", "main.*")
    assert split_target("sh:main") == (split_target("sh:x")[0], "main")
    assert str(split_target("sh:main")[0]).endswith("/sh")
    with pytest.raises(UsageError, match="no file"):
        split_target(f"{tmp_path}/directory:main.*")


@given(st.text(alphabet=":/.*go \0type"))
def test_split_target_splits_or_refuses(text: str) -> None:
    try:
        binary, pattern = split(text)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert text.endswith(pattern)
        assert pattern
        assert binary is not None or pattern == text


NAMES = [
    "main.main",
    "main.computeE",
    "main.(*T).M",
    "main.(*T).N",
    "main.(*anyT).M",
    "main.T.M",
    "main.Map[go.shape.int]",
    "main.Map[go.shape.*uint8]",
    "main.Map[go.shape.int].func1",
    "net/http.(*Server).Serve",
    "net/http.(*http2Server).Serve",
    "net/http.Get",
    "gopkg.in/yaml%2ev3.Unmarshal",
    "gopkg.in/yaml%2ev3.(*Node).Decode",
    "type:.eq.main.T",
]


def matched(text: str, names: list[str] = NAMES, *, regex: bool = False) -> list[str]:
    rows = Pattern(text, regex=regex).match(NameList(names)).rows
    return [names[row] for row in rows]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("main.main", ["main.main"]),
        ("computeE", []),
        ("main.compute", []),
        ("main.(*T).M", ["main.(*T).M"]),
        ("main.(*T).*", ["main.(*T).M", "main.(*T).N"]),
        ("main.(*).*", ["main.(*T).M", "main.(*T).N", "main.(*anyT).M"]),
        ("main.(**T).M", ["main.(*T).M", "main.(*anyT).M"]),
        ("main.(*a*).M", ["main.(*anyT).M"]),
        ("main.(*)*", ["main.(*T).M", "main.(*T).N", "main.(*anyT).M"]),
        ("main.*T*.M", ["main.(*T).M", "main.(*anyT).M", "main.T.M"]),
        ("*.(*Server).*", ["net/http.(*Server).Serve"]),
        ("net/http.*", NAMES[9:12]),
        ("*.Serve", NAMES[9:11]),
        ("*", NAMES),
        ("**", NAMES),
        ("main.main*main", []),  # ends may not overlap
        ("*main*T", ["type:.eq.main.T"]),
        ("main.Map[go.shape.int]", ["main.Map[go.shape.int]"]),
        ("main.Map[go.shape.*uint8]", ["main.Map[go.shape.*uint8]"]),
        ("main.Map[*int*]", ["main.Map[go.shape.int]", "main.Map[go.shape.*uint8]"]),
        ("main.Map[...]", ["main.Map[go.shape.int]", "main.Map[go.shape.*uint8]"]),
        ("main.*[...].func1", ["main.Map[go.shape.int].func1"]),
        ("gopkg.in/yaml.v3.Unmarshal", ["gopkg.in/yaml%2ev3.Unmarshal"]),
        ("gopkg.in/yaml%2ev3.Unmarshal", ["gopkg.in/yaml%2ev3.Unmarshal"]),
        ("gopkg.in/yaml.v3.*", NAMES[12:14]),
        ("main.?ain", []),
        ("main.[m]ain", []),
        ("", []),
    ],
)
def test_names_and_globs(text: str, expected: list[str]) -> None:
    assert matched(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"main\.(main|computeE)", NAMES[:2]),
        (r"main\.", []),
        (r".*/http\.Get", ["net/http.Get"]),
        (r"(?i)MAIN\.MAIN", ["main.main"]),
        (r"main.\(\*T\).M", ["main.(*T).M"]),
        (r"gopkg\.in/yaml\.v3\.U.*", ["gopkg.in/yaml%2ev3.Unmarshal"]),
        ("main.main|x", ["main.main"]),
    ],
)
def test_regular_expressions_match_whole_names(text: str, expected: list[str]) -> None:
    assert matched(text, regex=True) == expected


def test_a_name_comes_before_its_other_readings() -> None:
    names = ["a.F[*T]", "a.F[*xT]", "a.F[...]", "a.b%2ec.F", "a.b.c.F"]
    assert matched("a.F[*T]", names) == ["a.F[*T]"]
    assert matched("a.F[*]", names) == names[:3]
    assert matched("a.F[...]", names) == ["a.F[...]"]
    assert matched("a.b.c.F", names) == ["a.b.c.F"]


def test_exactness_is_told() -> None:
    assert Pattern("main.main").match(NameList(NAMES)).exact
    assert Pattern("main.Map[...]").match(NameList(NAMES)).exact
    assert not Pattern("main.m*").match(NameList(NAMES)).exact
    assert not Pattern("main.main", regex=True).match(NameList(NAMES)).exact
    assert not Pattern("main.(*T).M").has_wildcard
    assert Pattern("main.(*).M").has_wildcard


def test_gccgo_names_match_as_spelled_in_go() -> None:
    names = NameList(["net_1http.Get", "net_1http.my__func", "__libc_start_main"], gccgo=True)
    assert Pattern("net/http.*").match(names).rows == [0, 1]
    assert Pattern("net_1http.*").match(names).rows == [0, 1]
    assert Pattern("net/http.my_func").match(names).rows == [1]
    assert Pattern("_libc_start_main").match(names).rows == []
    assert Pattern(r"net/http\.G.*", regex=True).match(names).rows == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("main.(*T)", "bad regular expression 'main.(*T)': nothing to repeat at position 6"),
        ("main.(", "position 5"),
        ("[z-a]", "bad character range z-a at position 1"),
        ("x{99999999999999}", "too large or too deep"),
        ("(" * 5000 + ")" * 5000, "too large or too deep"),
        ("\x1b[", r"bad regular expression '\x1b['"),
    ],
)
def test_bad_regular_expression(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Pattern(text, regex=True)


_TEXT = st.text(alphabet="ab.(*)T\n[", max_size=12)


@given(_TEXT, st.lists(_TEXT))
def test_globs_agree_with_regular_expressions(text: str, names: list[str]) -> None:
    source = "".join(
        ".*"
        if char == "*" and not (text[at - 1 : at] == "(" and re.match(r"\w", text[at + 1 :]))
        else re.escape(char)
        for at, char in enumerate(text)
    )
    expected = [row for row, name in enumerate(names) if re.fullmatch(source, name, re.DOTALL)]
    named = [row for row, name in enumerate(names) if name == text]
    assert Pattern(text).match(NameList(names)).rows == (named or expected)


def test_globs_do_not_backtrack() -> None:
    """A regular expression of this form would not come to an end."""
    assert matched("*a" * 40 + "*b", ["a" * 5000]) == []


def test_quoted_text_is_one_printable_line() -> None:
    assert quote("a\nb\x1b[0mä\u202e") == r"'a\nb\x1b[0mä\u202e'"
