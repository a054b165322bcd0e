# SPDX-License-Identifier: Apache-2.0
"""Read execution traces with Go's own tool: what it refuses is no trace."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from tests.toolchains import Toolchain, cache_dir

_EVENT = re.compile(r"M=(-?\d+) P=(-?\d+) G=(-?\d+) (\w+) Time=(\d+) ?(.*)")
_TEXT = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')
_STATE = re.compile(r"GoID=(\d+) (\w+)->(\w+)")  # the reason is after that, up to Go 1.25 before


@dataclass
class ReadRegion:
    """A region, with the functions of its stack, innermost first."""

    goid: int
    name: str
    task: int
    start: int
    end: int = -1
    depth: int = 0
    stack: list[str] = field(default_factory=list)


@dataclass
class ReadTask:
    """A task, and in which goroutine it has begun."""

    name: str
    goid: int
    start: int
    end: int = -1


@dataclass
class ReadLog:
    """A log."""

    goid: int
    task: int
    at: int
    what: str
    message: str


@dataclass
class ReadTrace:
    """What a tool has read of a file.

    ``states`` are by goroutine: when, from which to which, why, by which goroutine, -1 if by none.
    """

    tasks: dict[int, ReadTask] = field(default_factory=dict)
    regions: list[ReadRegion] = field(default_factory=list)
    logs: list[ReadLog] = field(default_factory=list)
    states: dict[int, list[tuple[int, str, str, str, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    threads: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    events: int = 0


@functools.cache
def _tool(toolchain: Toolchain) -> Path:
    """Return the tool of a release: ``go tool`` would look for it each time."""
    path = cache_dir() / "tools" / f"trace-{toolchain.version}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        command = [str(toolchain.go), "build", "-o", str(part), "cmd/trace"]
        subprocess.run(command, env=toolchain.env(), cwd=path.parent, check=True)
        part.rename(path)
    return path


def parsed(toolchain: Toolchain, path: Path) -> str:
    """Return a file as a release's tool prints it, and fail if it refuses the file."""
    command = [str(_tool(toolchain)), "-d=parsed", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, f"{toolchain.version}: {done.stderr}"
    return done.stdout


def read_trace(toolchain: Toolchain, path: Path) -> ReadTrace:
    """Return what a release's tool reads of a file."""
    found = ReadTrace()
    opened: dict[int, list[ReadRegion]] = defaultdict(list)
    stack: list[str] | None = None
    last = goid = -1
    kind = ""
    for line in parsed(toolchain, path).splitlines():
        event = _EVENT.fullmatch(line)
        if event is None:
            if line == "Stack=":
                stack = opened[goid][-1].stack if kind == "RegionBegin" else None
            elif stack is not None and " @ 0x" in line:
                stack.append(line.split(" @ ")[0].strip())
            continue
        thread, goid, at = (int(event[n]) for n in (1, 3, 5))
        kind, rest = event[4], event[6]
        assert at > last
        last = at
        found.events += 1
        stack = None
        if kind == "StateTransition":
            if change := _STATE.search(rest):
                of = int(change[1])
                states = found.states[of]
                assert not states or states[-1][2] == change[2]
                reason = dict(_TEXT.findall(rest))["Reason"]
                states.append((at, change[2], change[3], _unquoted(reason), goid))
                if change[3] == "Running":
                    found.threads[of].add(thread)
            continue
        fields = {name: _unquoted(value) for name, value in _TEXT.findall(rest)}
        if kind == "TaskBegin":
            found.tasks[int(fields["ID"])] = ReadTask(fields["Type"], goid, at)
        elif kind == "TaskEnd":
            found.tasks[int(fields["ID"])].end = at
        elif kind == "RegionBegin":
            task = int(fields["Task"])
            assert not task or task in found.tasks
            region = ReadRegion(goid, fields["Type"], task, at, depth=len(opened[goid]))
            opened[goid].append(region)
            found.regions.append(region)
        elif kind == "RegionEnd":
            region = opened[goid].pop()
            assert (region.name, region.task) == (fields["Type"], int(fields["Task"]))
            region.end = at
        elif kind == "Log":
            task = int(fields["Task"])
            assert not task or task in found.tasks
            found.logs.append(ReadLog(goid, task, at, fields["Category"], fields["Message"]))
    assert not any(opened.values())
    assert all(task.end > 0 for task in found.tasks.values())
    return found


def _unquoted(value: str) -> str:
    """Return a text as Go's %q has printed it."""
    if not value.startswith('"'):
        return value
    return value[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")
