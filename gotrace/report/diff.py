# SPDX-License-Identifier: Apache-2.0
"""Write the changes between two recordings: as text, as JSON, and as a flame graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from gotrace.records import dataclass, field, fields
from gotrace.report.durations import duration, four_digits, size
from gotrace.report.output import JsonOutput, Output, TextOutput
from gotrace.report.page import page
from gotrace.report.table import columns_of, fitted
from gotrace.results.changes import Amount, Change, Diff, Rates
from gotrace.results.kinds import SAMPLING
from gotrace.results.tails import Tail
from gotrace.text import counted, encodable, printable

_TOP = 20
_COLUMN = "{:>11} {:>10} {:>10} {:>10} {:>7} {:>6}  "
_INDENT = " " * 13
_FEW_PARTS = 4
_RATES = ("change", "noise", "before", "after")


def write_diff(output: Output, found: Diff, top: int | None, stacks: bool = False) -> None:
    """Write the ``top`` largest changes, the largest first: of functions, unless ``stacks``.

    Those within noise are last, and without ``top`` they are only counted.
    """
    if isinstance(output, JsonOutput):
        _write_json(output, found, top, stacks)
        return
    by_function = bool(found.functions) and not stacks
    output.heading(f"{_lengths(found)}\n\n")
    _write_changes(output, found, found.functions if by_function else found.changes, top)
    if by_function and found.a.tool in SAMPLING:
        output.out.write("--stacks compares stacks\n")
    elif by_function:
        output.out.write("\n")
        _write_changes(output, found, found.changes, top)
    output.out.flush()


def _write_changes(
    output: TextOutput, found: Diff, changes: Sequence[Change], top: int | None
) -> None:
    changed, whole = _changed(changes)
    out = output.out
    what = "FUNCTION" if any(one.whole for one in changes) else "WHAT"
    heads = _COLUMN.format("CHANGE", "NOISE", "BEFORE", "AFTER", "RATIO", "SHARE")
    columns = columns_of(out)
    within = 0 if top else sum(not one.is_certain for one in changed)
    beyond = changed[: len(changed) - within]
    shown = beyond[: top or _TOP]
    if shown:
        output.heading(f"{heads}{what}\n")
    for one in shown:
        change = _amount(found, abs(one.change))
        mark = "" if one.is_certain else "~"
        numbers = (_amount(found, n) for n in (one.noise, one.before, one.after))
        sign = "+" if one.change > 0 else "-"
        share = f"{abs(one.change) / whole:.1%}" if whole else ""
        name = printable(one.key.name)
        line = _COLUMN.format(f"{mark}{sign}{change}", *numbers, _ratio(one), share)
        if columns is not None and len(line) + len(name) > columns:
            line = f"{line.rstrip()}\n{_INDENT}"
            name = fitted(name, columns - len(_INDENT))
        out.write(f"{line}{name}\n")
        for line in _details(found, one):
            out.write(f"{_INDENT}{line}\n")
    if rest := len(beyond) - len(shown):
        out.write(counted("and {:,} more change{s}: --top says how many\n", rest))
    if within:
        text = counted("{:,} change{s} within the noise", within)
        out.write(f"{text}: --top {len(changed)} shows all, or record longer\n")
    if any(not one.is_certain for one in shown):
        out.write("~ within the noise: the least like noise first\n")
    if not changed:
        out.write("nothing has changed\n")


def _changed(changes: Sequence[Change]) -> tuple[list[Change], float]:
    """Return the changes that are any, and their sum without signs."""
    found = [one for one in changes if one.change or one.tail]
    return found, sum(abs(one.change) for one in found)


def _lengths(found: Diff) -> str:
    per = f"figures are per {found.per}"
    if found.per == "dump":
        counts = [counted("{} dump{s}", round(one.units)) for one in (found.a, found.b)]
    else:
        counts = [duration(one.units * 1e9) for one in (found.a, found.b)]
    names = [printable(one.name) for one in (found.a, found.b)]
    return f"from {names[0]} ({counts[0]}) to {names[1]} ({counts[1]}): {per}"


def _amount(found: Diff, rate: float) -> str:
    if found.a.unit == "bytes":
        return size(rate)
    return duration(rate) if found.a.unit == "ns" and rate else four_digits(rate)


def _ratio(one: Change) -> str:
    return (
        f"x{one.after / one.before:.3g}"
        if one.before > 0 and one.after > 0
        else ("new" if one.after else "gone")
    )


def _details(found: Diff, one: Change) -> Iterator[str]:
    """Yield calls and percentiles, the parts of the time, and the stack."""
    if one.whole is not None:
        rates = [_amount(found, rate) for rate in (one.whole.before, one.whole.after)]
        if one.whole.change != one.change:
            yield f"with what it calls {' to '.join(rates)}"
        return
    partial = [when for when, amount in _when(one) if amount.is_partial]
    if partial:
        yield f"not comparable: {' and '.join(partial)} some inlined calls are not counted"
    if one.first.total is not None or one.second.total is not None:
        counts = [four_digits(amount.count / run.units) for amount, run in _sides(found, one)]
        line = [f"{found.a.events} {' to '.join(counts)} a {found.per}"]
        for name, fraction in (("p50", 0.5), ("p99", 0.99)):
            marks = [amount.percentile(fraction) for amount, _ in _sides(found, one)]
            if any(mark is not None for mark in marks):
                texts = ["none" if mark is None else _amount(found, mark) for mark in marks]
                line.append(f"{name} {' to '.join(texts)}")
        yield ", ".join(line)
    yield from _tail(found, one.tail)
    parts = list(one.parts.items())[:_FEW_PARTS]
    if parts and one.change:
        shares = [f"{printable(name)} {ns / one.change:.0%}" for name, ns in parts if ns]
        if shares:
            yield f"of the change: {', '.join(shares)}"
    own = [function for function in one.key.stack if not function.startswith("runtime.")]
    for function in own or one.key.stack:
        yield printable(function)


def _tail(found: Diff, tail: Tail | None) -> Iterator[str]:
    """Yield how many calls are slow, if that has certainly changed."""
    if tail:
        before = f"{tail.before:,} of {tail.of_before:,}"
        after = f"{tail.after:,} of {tail.of_after:,}"
        yield f"certain: {found.a.events} above {_amount(found, tail.above)} {before} to {after}"


def _when(one: Change) -> tuple[tuple[str, Amount], ...]:
    return ("before", one.first), ("after", one.second)


def _sides(found: Diff, one: Change) -> tuple[tuple[Amount, Rates], ...]:
    return (one.first, found.a), (one.second, found.b)


def _write_json(output: JsonOutput, found: Diff, top: int | None, stacks: bool) -> None:
    sides = {
        name: {"path": one.name, "units": round(one.units, 6), "lost": one.lost}
        for name, one in (("a", found.a), ("b", found.b))
    }
    unit = found.a.unit or None
    output.write("diff", {"of": found.a.tool, "per": found.per, "unit": unit, **sides})
    name = "function_change" if found.a.tool in SAMPLING else "name_change"
    kinds = {} if stacks else {name: found.functions}
    kinds["change"] = found.changes
    for kind, changes in kinds.items():
        shown, whole = _changed(changes)
        for one in shown[:top]:
            output.write(
                kind,
                {
                    "name": encodable(one.key.name),
                    "stack": [encodable(function) for function in one.key.stack],
                    "change": one.change,
                    "noise": one.noise,
                    "before": one.before,
                    "after": one.after,
                    "share": round(abs(one.change) / whole, 6) if whole else 0.0,
                    "certain": one.is_certain,
                    "tail": _tail_row(one.tail),
                    "parts": one.parts,
                    **{f"total_{r}": getattr(one.whole, r) for r in _RATES if one.whole},
                    **{
                        side: {
                            "count": amount.count,
                            "sum": amount.total,
                            "partial": amount.is_partial,
                            "p50": amount.percentile(0.5),
                            "p99": amount.percentile(0.99),
                        }
                        for side, amount in (("a", one.first), ("b", one.second))
                    },
                },
            )
    output.out.flush()


def _tail_row(tail: Tail | None) -> dict[str, int] | None:
    return {one.name: getattr(tail, one.name) for one in fields(tail)} if tail else None


@dataclass
class _Node:
    """A frame of the flame graph: the values of it and its callees."""

    before: float = 0.0
    after: float = 0.0
    callees: dict[str, _Node] = field(default_factory=dict)

    @property
    def width(self) -> float:
        return self.before + self.after


_STYLE = """\
body { font: 13px sans-serif; margin: 12px; }
h1 { font-size: 15px; }
div.f { position: absolute; height: 17px; overflow: hidden; white-space: nowrap;
  box-sizing: border-box; border: 1px solid #fff; padding-left: 2px; font-size: 11px;
  color: #000; }
#graph { position: relative; }"""
_BODY = """\
<p>Red is more than before, blue is less. A frame is as wide as what it has in both together;
figures are per {per}.</p>
<div id="graph" style="height: {height}px">
{frames}
</div>"""
_ROW = 18  # pixels
_LEAST = 0.05  # percent of the width


def diff_page(found: Diff) -> str:
    """Return a page with a flame graph of both recordings, coloured by the changes."""
    root = _Node()
    for one in found.changes:
        node = root
        for name in ("all", *reversed(one.key.stack), one.key.name):
            node = node.callees.setdefault(name, _Node())
            node.before += one.before
            node.after += one.after
    lines: list[str] = []
    depth = _draw(found, root, 0.0, 100 / (root.callees["all"].width or 1), 0, lines)
    title = f"{found.a.name} to {found.b.name}"
    body = _BODY.format(per=found.per, height=_ROW * depth, frames="\n".join(lines))
    return page(title, _STYLE, body)


def _draw(found: Diff, node: _Node, left: float, scale: float, depth: int, lines: list[str]) -> int:
    """Add the frames of a node's callees, the widest first; return how deep they go."""
    deepest = depth
    for name, callee in sorted(node.callees.items(), key=lambda item: -item[1].width):
        width = callee.width * scale
        if width < _LEAST:
            break
        change = callee.after - callee.before
        part = change / callee.width if callee.width else 0.0
        light = round(235 - 150 * min(1.0, abs(part) * 1.5))
        red, blue = (245, light) if part >= 0 else (light, 245)
        sign = "+" if change >= 0 else "-"
        text = (
            f"{printable(name)}: {_amount(found, callee.before)} to {_amount(found, callee.after)}"
            f" ({sign}{_amount(found, abs(change))})"
        )
        lines.append(
            f'<div class="f" style="left:{left:.3f}%;width:{width:.3f}%;top:{_ROW * depth}px;'
            f'background:rgb({red},{light},{blue})" title="{escape(text)}">'
            f"{escape(printable(name))}</div>"
        )
        deepest = max(deepest, _draw(found, callee, left, scale, depth + 1, lines))
        left += width
    return max(deepest, depth + bool(node.callees))
