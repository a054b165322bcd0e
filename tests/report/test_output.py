# SPDX-License-Identifier: Apache-2.0
"""Notices on a terminal and as JSON, and what is kept from a terminal."""

from __future__ import annotations

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.report.output import JsonOutput, Notice, NoticeKind, TextOutput
from gotrace.text import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("main.(*Store).Get", "main.(*Store).Get"),
        ("größe 日本 🎉", "größe 日本 🎉"),
        ("a\x1b[31mred\x1b[0m", r"a\x1b[31mred\x1b[0m"),
        ("two\nlines\r\tand\x00nul", r"two\nlines\r\tand\x00nul"),
        ("\x7f\x80\x9b", r"\x7f\x80\x9b"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("\u2028\u2029\u2066\u2069", r"\u2028\u2029\u2066\u2069"),
        (b"\xff\xfe".decode(errors="surrogateescape"), r"\xff\xfe"),
    ],
)
def test_what_steers_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_no_control_reaches_the_terminal(text: str) -> None:
    shown = printable(text)
    assert not any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in shown)
    assert printable(shown) == shown


@pytest.mark.parametrize("char", ["\u061c", "\u180e", "\U000e0001", "\U000e0041"])
def test_every_format_character_that_hides_or_reorders_is_escaped(char: str) -> None:
    assert printable(char).isascii()


def test_framing_goes_to_the_output_and_the_rest_to_the_error_stream() -> None:
    out, err = io.StringIO(), io.StringIO()
    output = TextOutput(out, err)
    for kind in NoticeKind:
        output.notice(Notice(kind, f"this is {kind.value}"))
    assert out.getvalue() == "this is attached\nthis is detached\n"
    assert err.getvalue() == (
        "this is warning\nthis is lost\nthis is moved\nthis is summary\nthis is exited\n"
    )


def test_quiet_leaves_out_all_but_results_and_what_is_missing() -> None:
    out, err = io.StringIO(), io.StringIO()
    output = TextOutput(out, err, quiet=True)
    output.heading("HEADS\n")
    for kind in NoticeKind:
        output.notice(Notice(kind, f"this is {kind.value}"))
    assert (out.getvalue(), err.getvalue()) == ("", "this is warning\nthis is lost\n")


def test_notices_of_a_file_of_results_are_said_in_words_too() -> None:
    file, frame, err = io.StringIO(), io.StringIO(), io.StringIO()
    output = JsonOutput(file, TextOutput(file, err, frame=frame))
    output.notice(Notice(NoticeKind.ATTACHED, "begun"))
    output.notice(Notice(NoticeKind.WARNING, "beware"))
    assert [json.loads(line)["kind"] for line in file.getvalue().splitlines()] == [
        "attached",
        "warning",
    ]
    assert (frame.getvalue(), err.getvalue()) == ("begun\n", "beware\n")


def test_a_notice_in_text_is_one_printable_line() -> None:
    err = io.StringIO()
    notice = Notice(NoticeKind.WARNING, "no such file: \x1b]0;owned\x07\n", {"path": "x"})
    TextOutput(io.StringIO(), err).notice(notice)
    assert err.getvalue() == "no such file: \\x1b]0;owned\\x07\\n\n"


def test_a_notice_as_json_has_its_kind_message_and_fields() -> None:
    out = io.StringIO()
    JsonOutput(out).notice(Notice(NoticeKind.LOST, "3 lost\x1b", {"what": "slow", "calls": 3}))
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().isascii()
    assert json.loads(out.getvalue()) == {
        "kind": "lost",
        "message": "3 lost\x1b",
        "what": "slow",
        "calls": 3,
    }


def test_json_objects_are_one_to_a_line_in_the_order_of_their_fields() -> None:
    out = io.StringIO()
    output = JsonOutput(out)
    output.write("count", {"func": "a\nb", "count": 1})
    output.write("count", {})
    assert out.getvalue() == '{"kind":"count","func":"a\\nb","count":1}\n{"kind":"count"}\n'


def test_json_has_no_lone_surrogates() -> None:
    out = io.StringIO()
    mouse = "\U0001f400"  # an escape of two surrogates that belong together
    fields = {"patterns": [f"a\udcff{mouse}"], "path": {"x": "\udc80"}, "n": 1, "none": None}
    JsonOutput(out).notice(Notice(NoticeKind.WARNING, f"{mouse}\udcfe", fields))
    assert json.loads(out.getvalue()) == {
        "kind": "warning",
        "message": mouse + r"\xfe",
        "patterns": [rf"a\xff{mouse}"],
        "path": {"x": r"\x80"},
        "n": 1,
        "none": None,
    }
