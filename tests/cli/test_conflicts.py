# SPDX-License-Identifier: Apache-2.0
"""Options that would do nothing beside others, or without them, are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from gotrace.cli import gofunclatency, gooffcpu, gooncpu, gostacks, gotop, gotrace

_NOTHING = "cannot be combined: leave out the first, which would do nothing"


@pytest.mark.parametrize(
    ("main", "words", "text"),
    [
        (gostacks.main, "--top 2 --json", f"--top and --json {_NOTHING}"),
        (gostacks.main, "-o x.pb.gz --top 2", f"--top and -o x.pb.gz {_NOTHING}"),
        (gostacks.main, '--by $label("user") -a', f"--by and --all {_NOTHING}"),
        (gostacks.main, "-f --json -a", "give only one of --json and --folded"),
        (gostacks.main, "-d 1", "-d needs -i or --watch"),
        (gooncpu.main, "--top 2 -f", "-f has all stacks of the run: leave out --top"),
        (gooncpu.main, "--force", "--force is for --off: give both, or leave it out"),
        (gooncpu.main, "-g --stacks", "give only one of -g and --stacks"),
        (gooffcpu.main, "-i 1 -f", "-f has all stacks of the run: leave out -i"),
        (gooffcpu.main, "--names", "--names is for --state syscall, and for calls that have ended"),
        (
            gotrace.main,
            "-f -o x.json main.f",
            "--json cannot be combined with -f: leave it out",
        ),
        (
            gofunclatency.main,
            "-o x.html -g main.f",
            "-o x.html has stacks: give -i 1 as well for latency over time",
        ),
        (
            gofunclatency.main,
            "--of n --why main.f",
            "--of measures a value, not a time: leave out -u, -m and --why",
        ),
        (gotop.main, "-n 3", "-n, --top and --json are for batches: give -b"),
    ],
)
def test_refused(
    main: Callable[[Sequence[str]], int],
    words: str,
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["-p", "1", *words.split()]) == 2
    assert capsys.readouterr().err == f"{main.__module__.rpartition('.')[2]}: {text}\n"
