# SPDX-License-Identifier: Apache-2.0
"""``--heat`` and ``-i -o x.html``: latency over time, drawn in place of histograms."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from gotrace.cli.latency_options import GofunclatencyOptions
from gotrace.profiles.write import write_content
from gotrace.report.colour import CLEAR, wants_colour
from gotrace.report.heat import HeatMaps
from gotrace.report.heat_page import heat_page
from gotrace.report.heat_text import HeatStyle, heat_lines
from gotrace.report.output import Notice, NoticeKind, Output, TextOutput
from gotrace.session.latency_rows import Interval
from gotrace.text import counted

_TOP = 20
_COLUMNS, _LINES, _ROWS = 80, 24, 18
_AROUND = 6  # lines of a map beside its rows
_LEAST_ROWS = 6


class HeatDrawing:
    """The maps of a run, where its results are drawn.

    On a terminal they are drawn again at each interval, if nothing else is printed.
    """

    def __init__(self, options: GofunclatencyOptions, output: Output) -> None:
        self._options = options
        self._output = output
        self._maps = HeatMaps()
        out = output.out
        is_terminal = out.isatty() and os.environ.get("TERM") not in (None, "dumb")
        self._redraws = options.heat and is_terminal and options.slower is None
        self._has_colour = wants_colour(out)

    def add(self, interval: Interval) -> None:
        """Add an interval, and draw it on a terminal."""
        self._maps.add(interval)
        if self._redraws:
            self._draw(is_last=False)

    def _draw(self, is_last: bool) -> None:
        options, out = self._options, self._output.out
        size = shutil.get_terminal_size((_COLUMNS, _LINES))
        top, rows = options.top or _TOP, _ROWS
        if self._redraws and not is_last:
            # As many as a screen has room for.
            top = min(top, max(1, size.lines // (_LEAST_ROWS + _AROUND)))
            drawn = len(self._maps.maps(top)[0])
            rows = max(_LEAST_ROWS, min(_ROWS, size.lines // max(drawn, 1) - _AROUND))
        maps, others = self._maps.maps(top)
        style = HeatStyle.for_stream(out, size.columns, rows, self._has_colour)
        lines = [*heat_lines(maps, self._maps.columns, style)]
        if not lines and isinstance(self._output, TextOutput):
            lines = ["", self._output.none_of()]
        if others:
            lines += ["", counted("and {} more map{s}: --top says how many", others)]
        if self._redraws:
            out.write(CLEAR)
        out.writelines(line + "\n" for line in lines)
        out.flush()

    def finish(self, notices: Sequence[Notice]) -> None:
        """Draw the map of the whole run, and write the notices, which the page has in it as well.

        Raises GotraceError if the page cannot be written.
        """
        if self._options.heat:
            self._draw(is_last=True)
        for notice in notices:
            self._output.notice(notice)
        notes = [notice.message for notice in notices]
        if self._maps.others:
            others = self._maps.others
            text = counted("{:,} call{s} of other goroutines and values not drawn", others)
            fields = {"what": "not_drawn", "calls": others}
            self._output.notice(Notice(NoticeKind.SUMMARY, text, fields))
            notes.append(text)
        path = self._options.files.page
        if path is None:
            return
        maps, more = self._maps.maps(self._options.top or _TOP)
        if more:
            notes.append(counted("{} more map{s} not drawn: --top says how many", more))
        title = f"latency of {', '.join(self._options.patterns)}"
        write_content(path, heat_page(title, maps, self._maps.columns, notes))
        text = counted("wrote {} map{s} to ", len(maps)) + path
        self._output.notice(Notice(NoticeKind.SUMMARY, text, {"what": "file", "path": path}))
