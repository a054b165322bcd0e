# SPDX-License-Identifier: Apache-2.0
"""How long a run goes on reading and writing once it has ended."""

from __future__ import annotations

import os
import threading
import time

import pytest

from gotrace.cli.pace import turns
from gotrace.cli.stream import result_stream
from gotrace.errors import UsageError
from gotrace.report.output import Patience


@pytest.mark.parametrize(("words", "least", "most"), [("", 0, 1), ("0", 0, 1), ("60.5", 60, 62)])
def test_a_run_has_more_time_where_that_is_asked_for(
    words: str, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOTRACE_DRAIN", words)
    patience = Patience()
    now = time.monotonic()
    patience.end(now)
    assert least <= next(turns(patience, 1000)) - now <= most
    patience.end(now - 2)
    assert patience.is_over() == (least == 0)


@pytest.mark.parametrize("words", ["x", "-1", "inf", "nan"])
def test_what_is_not_a_number_of_seconds_is_refused(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOTRACE_DRAIN", words)
    with pytest.raises(UsageError, match=f"GOTRACE_DRAIN is a number of seconds, not '{words}'"):
        Patience()


_LONG_AGO = 100.0  # seconds
_SLOWLY = 0.01  # seconds between two looks of a reader


def test_a_reader_that_is_slow_but_reads_gets_all_of_it() -> None:
    """However late it is: a large table on a busy machine takes a while."""
    reading, writing = os.pipe()
    text, read = "row\n" * 100_000, bytearray()

    def read_slowly() -> None:
        pause = threading.Event()
        while len(read) < len(text) and (piece := os.read(reading, 16384)):
            read.extend(piece)
            pause.wait(_SLOWLY)

    reader = threading.Thread(target=read_slowly, daemon=True)
    patience = Patience()
    patience.end(time.monotonic() - _LONG_AGO)
    with os.fdopen(writing, "w") as pipe:
        out = result_stream(pipe, patience)
        reader.start()
        out.write(text)
        out.flush()
    reader.join()
    os.close(reading)
    assert read.decode() == text


def test_a_reader_that_has_stopped_is_given_up() -> None:
    reading, writing = os.pipe()
    patience = Patience()
    patience.end(time.monotonic() - _LONG_AGO)
    with os.fdopen(writing, "w") as pipe:
        out = result_stream(pipe, patience)
        with pytest.raises(OSError, match="standard output is not being read"):
            out.write("row\n" * 100_000)
            out.flush()
    os.close(reading)
