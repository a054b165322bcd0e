# SPDX-License-Identifier: Apache-2.0
"""The options of gotrace examine, for its parser and its runs."""

from __future__ import annotations

from gotrace.cli.options import Heading, Options, seconds, share
from gotrace.records import dataclass


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExamineOptions(Options):
    """The options of gotrace examine."""

    processes: list[str] = Heading.TARGET.option(
        "-p --pid PROCESS", "examine this process, by its number or name, or container:ID"
    )
    duration: float = Heading.RUN.option(
        "-d --duration TIME",
        "look for this time: 10 (seconds, the default), 1m",
        seconds,
        default=10.0,
    )
    budget: float = Heading.EXPERT.option(
        "--budget SHARE",
        "attach only what takes together at most this part of one CPU: 2%% (default), 0.05",
        share,
        default=0.02,
    )
