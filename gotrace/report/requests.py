# SPDX-License-Identifier: Apache-2.0
"""Render requests: trees of calls in the manner of uftrace's graph."""

from __future__ import annotations

from collections.abc import Iterator

from gotrace.report.calls import Clock, LineStyle, bracket_of, call_text
from gotrace.report.colour import of_duration
from gotrace.report.durations import duration
from gotrace.requests.model import Node, Request
from gotrace.session.decode import DecodedCall
from gotrace.text import counted, printable

REQUEST_HEADING = f"{'DURATION':<10} {'SELF':<10} {'GOID':<8} CALL\n"
_STEP = "  "
#: Deeper calls are not moved further to the right.
_MAX_STEPS = 40


def request_lines(request: Request[DecodedCall], clock: Clock, style: LineStyle) -> Iterator[str]:
    """Yield the lines of a request, each with its newline.

    The first says when it ended, and how many calls of how many goroutines it had. The goroutine of
    a call is shown if it is not that of the call above it, and how the call belongs there unless it
    was made in there.
    """
    root = request.root.call
    nodes = list(request.nodes())
    goroutines = len({node.goid for node in nodes})
    text = f"{clock.text(root.end_ns)} process {root.pid}: " + counted("{} call{s}", len(nodes))
    text += counted(" in {} goroutine{s}", goroutines)
    if request.unfinished:
        text += counted(", {} of which still worked for it", request.unfinished)
    yield text + "\n"
    waiting: list[tuple[Node[DecodedCall], int, int]] = [(request.root, 0, 0)]
    while waiting:
        node, depth, goid = waiting.pop()
        yield _line(node, depth, goid, style)
        below = [(child, depth + 1, node.goid) for child in node.children]
        waiting += reversed(below)
    if request.critical:
        yield "critical path:\n"
        for part in request.critical_path():
            share = f"{100 * part.ns / request.duration_ns:.1f}%"
            name = printable(style.name(part.function))
            others = f" +{part.goroutines - 1}" if part.goroutines > 1 else ""
            who = f"{part.goid}{others}"
            yield f"{duration(part.ns):<10} {share:<10} {who:<8} {name} {part.what}\n"


def _line(node: Node[DecodedCall], depth: int, goid: int, style: LineStyle) -> str:
    shown = [duration(node.duration_ns), duration(node.self_ns)]
    colour = of_duration(node.duration_ns)
    goroutine = str(node.goid) if node.goid != goid else ""
    first, before = f"{shown[0]:<10}", f" {shown[1]:<10} {goroutine:<8} "
    edge = "" if node.edge == "call" and (not goid or node.goid == goid) else f"{node.edge}: "
    indent = _STEP * min(depth, _MAX_STEPS)
    why = printable(bracket_of(node.call))
    before += f"{indent}{edge}{why}"
    text = call_text(node.call, style, len(first) + len(before))
    return f"{style.paint(first, colour)}{before}{text}\n"
