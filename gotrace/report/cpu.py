# SPDX-License-Identifier: Apache-2.0
"""Write where CPU time goes as text: by function, by group of goroutines, by stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from gotrace.goroutines.interrupted import WorkKind
from gotrace.report.durations import duration
from gotrace.report.goroutines import write_frames
from gotrace.results.rows import Json
from gotrace.text import counted, printable


def write_cpu(
    out: TextIO,
    head: Json,
    functions: Sequence[Json],
    samples: Sequence[Json],
    what: str,
    top: int | None,
    by: str | None = None,
    stacks: bool = False,
) -> None:
    """Write the sums, the purposes of the time, and then a table of ``functions``.

    ``what`` is whose time it is. ``by``: groups of ``samples`` in place of functions, by GROUP or
    the expression of a label; ``stacks``: stacks instead. At most ``top`` of them.
    """
    text = _Text(out, head, samples)
    text.head(what)
    if by is not None and not stacks:
        text.table(by, text.sums(_whose), top)
    elif stacks:
        text.stacks(top)
    else:
        works = text.sums(lambda row: row["work"])
        if any(name != WorkKind.PROGRAM.value for name, _ in works):
            text.table("FOR", works, None)
        text.functions(functions, top)
    if others := head["others"]:
        ns = _time(others * head["period_ns"])
        what = counted("{:,} sample{s}", others)
        out.write(f"\n{ns} in {what}: there was no room for their stacks\n")
    out.flush()


def _time(ns: int) -> str:
    return duration(ns) if ns else "0s"


def _whose(row: Json) -> str:
    """Return the label's value, quoted, or the group of those that can have none."""
    if "by" not in row:
        return str(row["group"])
    label = next(iter(row["by"].values.values()), None)
    from gotrace.values.go_syntax import by_text
    from gotrace.values.model import Nil

    return str(row["group"]) if label is None or isinstance(label, Nil) else by_text(label)


class _Text:
    def __init__(self, out: TextIO, head: Json, samples: Sequence[Json]) -> None:
        self._out = out
        self._head = head
        self._samples = samples
        self._all = head["cpu_ns"] or 1

    def sums(self, key: Callable[[Json], Any]) -> list[tuple[Any, int]]:
        """Return the time of samples by a key, the most first."""
        sums: Counter[Any] = Counter()
        for row in self._samples:
            sums[key(row)] += row["cpu_ns"]
        return sorted(sums.items(), key=lambda item: (-item[1], item[0]))

    def head(self, what: str) -> None:
        """Write the sums."""
        head = self._head
        count, seconds, ns = head["samples"], head["seconds"], head["cpu_ns"]
        cpus = ns / 1e9 / seconds if seconds else 0.0
        samples = counted("{:,} sample{s}", count)
        clock = f"; {duration(head['clock_ns'])} by its own clock" if head["clock_ns"] else ""
        self._out.write(f"{_time(ns)} of CPU time of {what}: {cpus:.2f} CPUs, {samples}{clock}\n")

    def _share(self, ns: int) -> str:
        return f"{ns / self._all:.1%}"

    def table(self, head: str, rows: Sequence[tuple[str, int]], top: int | None) -> None:
        """Write a line for each name, with its time."""
        self._out.write(f"\n{'TIME':>10} {'SHARE':>7}  {head}\n")
        for name, ns in rows[:top]:
            line = f"{_time(ns):>10} {self._share(ns):>7}  {printable(name)}"
            self._out.write(f"{line}\n")
        self._rest([ns for _, ns in rows[top:]] if top else [], "groups")

    def functions(self, rows: Sequence[Json], top: int | None) -> None:
        """Write a line for each function, with its own time and that of its callees."""
        self._out.write(f"\n{'SELF':>10} {'TOTAL':>10} {'SHARE':>7}  FUNCTION\n")
        for row in rows[:top]:
            own, total = row["self_ns"], row["total_ns"]
            times = f"{_time(own):>10} {_time(total):>10} {self._share(own):>7}"
            self._out.write(f"{times}  {printable(row['func'])}\n")
        self._rest([row["self_ns"] for row in rows[top:]] if top else [], "functions")

    def _rest(self, times: Sequence[int], what: str) -> None:
        if times:
            self._out.write(f"and {_time(sum(times))} in {len(times):,} other {what}\n")

    def stacks(self, top: int | None) -> None:
        """Write the stacks, each with its time."""

        def key(row: Json) -> object:
            stack = row["stack"]
            frames = tuple(frame._replace(offset=None) for frame in stack.frames)
            return _whose(row), frames, stack.is_cut

        rows = self.sums(key)
        for (group, frames, is_cut), ns in rows[:top]:
            self._out.write(f"\n{_time(ns)}, {self._share(ns)}, {printable(group)}:\n")
            write_frames(self._out, frames)
            if not frames:
                self._out.write("\tstack unavailable: there was no room to keep it\n")
            if is_cut:
                self._out.write("...additional frames elided...\n")
        if top and rows[top:]:
            self._out.write("\n")
            self._rest([ns for _, ns in rows[top:]], "stacks")
