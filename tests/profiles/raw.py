# SPDX-License-Identifier: Apache-2.0
"""Read pprof profiles by Go's own tool."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.toolchains import newest


@dataclass(frozen=True)
class RawSample:
    """A sample: its logical frames (function and line) from the innermost on."""

    values: tuple[int, ...]
    frames: tuple[tuple[str, int], ...]
    labels: Mapping[str, str]


@dataclass(frozen=True)
class RawProfile:
    """What is in a profile; the default type's name ends in ``[dflt]``."""

    types: tuple[str, ...]
    samples: list[RawSample]


def raw_text(path: Path) -> str:
    """Return what `go tool pprof -raw` prints of a profile."""
    toolchain = newest()
    command = [str(toolchain.go), "tool", "pprof", "-raw", str(path)]
    env = toolchain.env()
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    return done.stdout


def raw_profile(path: Path) -> RawProfile:
    """Return what `go tool pprof -raw` reads of a profile."""
    text = raw_text(path)
    samples, _, rest = text.partition("Samples:\n")[2].partition("Locations\n")
    locations, _, _ = rest.partition("Mappings\n")
    frames: dict[str, list[tuple[str, int]]] = {}
    number = ""
    for line in locations.splitlines():
        if start := re.match(r" *(\d+): 0x[0-9a-f]+ (?:M=\d+ )?(.*)", line):
            number, line = start[1], start[2]
            frames[number] = []
        # function file:line[:column] s=start, where the function's name may have blanks
        found = re.fullmatch(r" *(.*?) (?:\S*?):(\d+)(?::\d+)? s=\d+.*", line)
        if found:
            frames[number].append((found[1], int(found[2])))
    types, *lines = samples.splitlines()
    read: list[RawSample] = []
    values, stack = "", ""
    labels: dict[str, str] = {}

    def add() -> None:
        if values:
            logical = tuple(frame for each in stack.split() for frame in frames[each])
            read.append(RawSample(tuple(map(int, values.split())), logical, labels))

    for line in lines:
        if start := re.fullmatch(r" *([\d ]+): ([\d ]+?) *", line):
            add()
            values, stack, labels = start[1], start[2], {}
        else:
            labels |= dict(re.findall(r"(\w+):\[(.*?)\](?= |$)", line))
    add()
    return RawProfile(tuple(types.split()), read)
