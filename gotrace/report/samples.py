# SPDX-License-Identifier: Apache-2.0
"""Write what is sampled, such as CPU time, as text: by function, by group, by stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from gotrace.goroutines.interrupted import WorkKind
from gotrace.report.durations import amount
from gotrace.report.goroutines import write_frames
from gotrace.report.table import columns_of, ending
from gotrace.results.kinds import HEAP, SAMPLED
from gotrace.results.rows import Json
from gotrace.text import counted, printable

#: Functions that are printed unless a user says which, or how many.
FUNCTIONS = 30


def write_samples(
    out: TextIO,
    head: Json,
    functions: Sequence[Json],
    samples: Sequence[Json],
    what: str,
    top: int | None,
    by: str | None = None,
    stacks: bool = False,
) -> None:
    """Write the sums, the purposes of the work, and then a table of ``functions``.

    ``what`` is whose work it is. ``by``: groups of ``samples`` in place of functions, by GROUP or
    the expression of a label; ``stacks``: stacks instead. At most ``top`` of them.
    """
    text = _Text(out, head, samples)
    text.head(what)
    if not samples:
        out.write("\nno samples\n")
    elif by is not None and not stacks:
        text.table(by, text.sums(_whose), top)
    elif stacks:
        text.stacks(top)
    else:
        works = text.sums(lambda row: row["work"])
        if any(name != WorkKind.PROGRAM.value for name, _ in works):
            text.table("FOR", works, None)
        text.functions(functions, top)
    if others := head["others"]:
        found = text.amount(
            head["others_bytes"] if text.of.is_estimate else others * head[text.of.field("period")]
        )
        what = counted("{:,} sample{s}", others)
        rare = "no span of their size was used up, or " if head.get("method") == "spans" else ""
        out.write(f"\n{found} in {what}: {rare}there was no room for their stacks\n")
    out.flush()


def write_heap(
    out: TextIO,
    head: Json,
    functions: Sequence[Json],
    stacks: Sequence[Json],
    what: str,
    top: int | None,
    by_stack: bool,
) -> None:
    """Write what is in use, and then a table of ``functions``, or ``stacks``; at most ``top``."""
    text = _Text(
        out, head, [{**row, "group": f"objects of {row['size']:,} bytes"} for row in stacks]
    )
    used, ever = (text.amount(head[f"{name}_bytes"]) for name in ("heap", "alloc"))
    objects, alloc = (counted("{:,} object{s}", head[n]) for n in ("objects", "alloc_objects"))
    samples = f"one sampled in each {text.amount(head['profile_rate'])}, {head['samples']:,} in use"
    out.write(
        f"{used} in use by {what}: {objects}; {ever} in {alloc} since it began\n({samples})\n"
    )
    if not stacks:
        out.write("\nno samples\n")
    elif by_stack:
        text.stacks(top)
    else:
        text.functions(functions, top)
    out.flush()


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
        self._columns = columns_of(out)
        self._head = head
        self._samples = samples
        #: The names of fields, and words.
        self.of = HEAP if head["kind"] == HEAP.name else SAMPLED[head["kind"]]
        self._all = head[self.of.amount] or 1

    def amount(self, value: float) -> str:
        return amount(value, self.of.unit)

    def sums(self, key: Callable[[Json], Any]) -> list[tuple[Any, int]]:
        """Return the amounts of samples by a key, the most first."""
        sums: Counter[Any] = Counter()
        for row in self._samples:
            sums[key(row)] += row[self.of.amount]
        return sorted(sums.items(), key=lambda item: (-item[1], item[0]))

    def head(self, what: str) -> None:
        """Write the sums."""
        head, of = self._head, self.of
        found, seconds = head[of.amount], head["seconds"]
        rate = found / seconds if seconds else 0.0
        each = f"{rate / 1e9:.2f} CPUs" if of.unit == "ns" else f"{self.amount(rate)} a second"
        samples = counted("{:,} sample{s}", head["samples"])
        if head.get("method") == "spans":
            samples = counted("{:,} span{s}", head["samples"])
        own = ""
        if clock := head.get("clock_ns"):
            own = f"; {self.amount(clock)} by its own clock"
        elif (
            head.get("method") == "samples"
            and head["counter_bytes"] is not None
            and head["sampled_bytes"] is not None
        ):
            by_samples, counter = (self.amount(head[f"{n}_bytes"]) for n in ("sampled", "counter"))
            own = f"; {by_samples} by these alone, {counter} by the runtime's counter"
        text = f"{self.amount(found)} {'of ' if of.unit else ''}{of.text} of {what}"
        self._out.write(f"{text}: {each}, {samples}{own}\n")

    def _share(self, value: int) -> str:
        return f"{value / self._all:.1%}"

    def table(self, head: str, rows: Sequence[tuple[str, int]], top: int | None) -> None:
        """Write a line for each name, with its amount."""
        self._out.write(f"\n{self.of.column:>10} {'SHARE':>7}  {head}\n")
        for name, value in rows[:top]:
            sums = f"{self.amount(value):>10} {self._share(value):>7}  "
            self._out.write(f"{ending(sums, printable(name), self._columns)}\n")
        self._rest([value for _, value in rows[top:]] if top else [], "groups")

    def functions(self, rows: Sequence[Json], top: int | None) -> None:
        """Write a line for each function, with its own amount and that with its callees."""
        names = self.of.field("self"), self.of.field("total")
        error = f" {'ERROR':>7}" if any("self_error" in row for row in rows) else ""
        self._out.write(f"\n{'SELF':>10} {'TOTAL':>10} {'SHARE':>7}{error}  FUNCTION\n")
        for row in rows[:top]:
            own, total = (row[name] for name in names)
            sums = f"{self.amount(own):>10} {self.amount(total):>10} {self._share(own):>7}"
            sums += f" {self._share(row['self_error']):>7}  " if error else "  "
            self._out.write(f"{ending(sums, printable(row['func']), self._columns)}\n")
        self._rest([row[names[0]] for row in rows[top:]] if top else [], "functions")

    def _rest(self, rest: Sequence[int], what: str) -> None:
        if rest:
            self._out.write(f"and {self.amount(sum(rest))} in {len(rest):,} other {what}\n")

    def stacks(self, top: int | None) -> None:
        """Write the stacks, each with its amount."""

        def key(row: Json) -> object:
            stack = row["stack"]
            frames = tuple(frame._replace(offset=None) for frame in stack.frames)
            return _whose(row), frames, stack.is_cut

        rows = self.sums(key)
        for (group, frames, is_cut), value in rows[:top]:
            found = f"{self.amount(value)}, {self._share(value)}"
            self._out.write(f"\n{found}, {printable(group)}:\n")
            write_frames(self._out, frames)
            if not frames:
                self._out.write("\tstack unavailable: there was no room to keep it\n")
            if is_cut:
                self._out.write("...additional frames elided...\n")
        if top and rows[top:]:
            self._out.write("\n")
            self._rest([value for _, value in rows[top:]], "stacks")
