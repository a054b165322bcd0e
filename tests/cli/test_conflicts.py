# SPDX-License-Identifier: Apache-2.0
"""Options that would do nothing beside others, or without them, are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest

from gotrace.cli import (
    gofleet,
    gofunccount,
    gofunclatency,
    gooffcpu,
    gooncpu,
    gostacks,
    gotop,
    gotrace,
)

_NOTHING = "cannot be combined: leave out the first, which would do nothing"
_NOT_ALONE = (
    "with -g, --slower and --outermost: use --by '$goid' and the predicate ($duration > 10ms)"
)


@pytest.mark.parametrize(
    ("main", "words", "text"),
    [
        (gostacks.main, "--top 2 --json", f"--top and --json {_NOTHING}"),
        (gostacks.main, "-o x.pb.gz --top 2", f"--top and -o x.pb.gz {_NOTHING}"),
        (gostacks.main, '--by $label("user") -a', f"--by and --all {_NOTHING}"),
        (gostacks.main, "-f --json -a", "give only one of --json and --folded"),
        (gostacks.main, "-d 1", "-d needs -i or --watch"),
        (
            gostacks.main,
            "-o x.pb.gz -i 1",
            "-o x.pb.gz is of a single dump: leave out -i",
        ),
        (gostacks.main, "--args -f", "--args needs a single dump, as text or with --json"),
        (gostacks.main, "-i 1 -a", "-i prints changes: leave out -a and -f"),
        (
            gooffcpu.main,
            "--open -i 1",
            "--open adds waits that are open when the run ends: leave out -i",
        ),
        (
            gofunccount.main,
            "--places --by n main.f",
            "--places counts calls: leave out --by, which needs calls of their own",
        ),
        (gofunclatency.main, "--of n -g main.f", f"--of cannot be combined {_NOT_ALONE}"),
        (gofunclatency.main, "--by n --slower 1 main.f", f"--by cannot be combined {_NOT_ALONE}"),
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
        (gofunccount.main, "--rows 3 main.f", "--rows is for --by: give both, or leave it out"),
        (gofunclatency.main, "-Z 9 main.f", "-Z is for --by: give both, or leave it out"),
        (
            gofunccount.main,
            "--returns ret main.f",
            "--returns is for --by: other calls are counted when they are entered",
        ),
        (
            gofunccount.main,
            "-f --sort name main.f",
            "-f has all stacks of the run: leave out --sort",
        ),
        (gofunclatency.main, "-f -u main.f", "-f has all stacks of the run: leave out -u"),
        (
            gofunclatency.main,
            "-F --by n main.f",
            "--by has rows of its own: use --by '$func' for -F",
        ),
        (
            gofunclatency.main,
            "--heat -T main.f",
            "--heat has the time in its first column: leave out -T",
        ),
        (gotrace.main, "-f --why main.f", "-f shows no calls: leave out --why"),
        (gotrace.main, "-o x.html -v main.f", "-o x.html shows no calls: leave out -v"),
        (gostacks.main, "-a -o x.ndjson", f"--all and -o x.ndjson {_NOTHING}"),
        (
            gooffcpu.main,
            "--state syscall --names --wakers",
            "--names is for calls of all threads, which nobody wakes: leave out --wakers",
        ),
        (
            gooffcpu.main,
            "--state syscall --names --attach multi",
            "--attach is for probes, and --names has none",
        ),
        (gooncpu.main, "--attach multi", "--attach is for --off: give both, or leave it out"),
        (gooncpu.main, "--off -g", "--off is for all of the run, by group: leave out -g"),
        (gooncpu.main, "-g --json", "--json has functions, and all stacks: leave out -g"),
        (gooncpu.main, "--stacks -f", "-f has all stacks of the run: leave out --stacks"),
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


@pytest.mark.parametrize(
    ("main", "words", "text"),
    [
        (
            gofleet.main,
            ["--merge", "x.ndjson", "--ttl", "5"],
            "--ttl is for --on, and --merge asks nobody: leave it out",
        ),
        (gofunccount.main, ["help"], "help is an option here: type gofunccount --help"),
        (
            gotrace.main,
            ["assert", "main.f <= 3"],
            "gotrace assert is about one program: give -p PID, or -- COMMAND",
        ),
        (
            gofunclatency.main,
            ["-p", str(os.getpid()), "--of", "n, key", "main.f"],
            "--of 'n, key': give one value to make histograms of",
        ),
        (
            gotrace.main,
            ["assert", "-p", str(os.getpid()), "/bin/true:main.f <= 3"],
            "'/bin/true:main.f': an assertion is about one program: leave out its name",
        ),
    ],
)
def test_a_whole_line_is_refused(
    main: Callable[[Sequence[str]], int],
    words: Sequence[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(f": {text}\n")
