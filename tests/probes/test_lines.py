# SPDX-License-Identifier: Apache-2.0
"""Words for lines of the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.errors import UsageError
from gotrace.probes.lines import LineWord, parse_lines, short_name
from gotrace.probes.pattern import split_target


def split(text: str) -> tuple[str | None, str]:
    return split_target(text, exists={"shop", "/bin/shop"}.__contains__, which=lambda _: None)


@pytest.mark.parametrize(
    ("text", "binary", "word"),
    [
        ("store.go:120", None, ("store.go", None, 120, 120)),
        ("pkg/store.go:120-140", None, ("pkg/store.go", None, 120, 140)),
        ("/usr/local/go/src/sort/sort.go:5", None, ("/usr/local/go/src/sort/sort.go", None, 5, 5)),
        (r"C:\src\main.go:5", None, (r"C:\src\main.go", None, 5, 5)),
        ("shop:store.go:120", "shop", ("store.go", None, 120, 120)),
        ("/bin/shop:a/store.go:1-2", "/bin/shop", ("a/store.go", None, 1, 2)),
        ("main.(*Store).Get:+5", None, (None, "main.(*Store).Get", 5, 5)),
        ("shop:main.f:+0-3", "shop", (None, "main.f", 0, 3)),
    ],
)
def test_lines(
    text: str, binary: str | None, word: tuple[str | None, str | None, int, int]
) -> None:
    found = parse_lines(text, split)
    assert found is not None
    typed = text if binary is None else text.removeprefix(f"{binary}:")
    assert found == (binary, LineWord(typed, *word))


@pytest.mark.parametrize("text", ["main.f", "shop:main.f", "main.go:x", "f:5", "a.go:"])
def test_other_words_are_no_lines(text: str) -> None:
    assert parse_lines(text, split) is None


def test_a_program_may_be_called_like_a_source_file(tmp_path: Path) -> None:
    (tmp_path / "x.go").write_bytes(b"\x7fELF")
    assert parse_lines(f"{tmp_path}/x.go:12", split) is None
    assert parse_lines(f"{tmp_path}/y.go:12", split) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("main.go:9-2", "the last line comes before the first"),
        ("main.go:1234567890", "no file has so many lines"),
        ("main.f:+2-1", "the last line comes before the first"),
    ],
)
def test_lines_that_cannot_be(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_lines(text, split)


def test_a_file_is_named_by_the_end_of_its_path() -> None:
    files = ["/a/b/x.go", "/a/c/x.go", "x.go", "/a/y.go"]
    assert [short_name(file, files) for file in files] == ["b/x.go", "c/x.go", "x.go", "y.go"]
