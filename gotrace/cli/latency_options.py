# SPDX-License-Identifier: Apache-2.0
"""The options of gofunclatency, which are those of ``--by`` and ``--heat`` as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gotrace.cli.conflicts import Conflict
from gotrace.cli.options import (
    CALLS_CONFLICTS,
    CallsOptions,
    Files,
    Heading,
    OptionParser,
    PartsOptions,
    duration,
    one_file,
    sort_option,
)
from gotrace.records import dataclass, replace
from gotrace.session.order import Order

if TYPE_CHECKING:
    from gotrace.report.calls import Columns

_INTERVAL = 1.0  # seconds, of a map without -i
_ALONE = "-g --slower --outermost"
_NOT_ALONE = (
    "cannot be combined with -g, --slower and --outermost: use --by '$goid' and"
    " the predicate ($duration > 10ms)"
)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GofunclatencyOptions(CallsOptions, PartsOptions):
    """The options of gofunclatency."""

    CONFLICTS = (
        Conflict(
            "-o=page --heat",
            "--json -o=profiles -o=json -f --by=$stack --of",
            "{1} draws latency: leave out --json, profiles, -f, $stack and --of",
        ),
        *CALLS_CONFLICTS,
        Conflict(
            "-o=profiles.html",
            "-g --why",
            "{1} has stacks: give -i 1 as well for latency over time",
        ),
        Conflict("--of", _ALONE, f"--of {_NOT_ALONE}"),
        Conflict("--by -f -o=profiles", _ALONE, f"--by {_NOT_ALONE}"),
        Conflict("--by -f -o=profiles", "-F", "{1} has rows of its own: use --by '$func' for {2}"),
        Conflict("-f -o=stacks", "-u -m", "{1} has all stacks of the run: leave out {2}"),
        Conflict("--heat", "-T", "--heat has the time in its first column: leave out -T"),
        Conflict(
            "--of", "-u -m --why", "--of measures a value, not a time: leave out -u, -m and --why"
        ),
        Conflict(
            "--why",
            "-f -o=profiles",
            "{2} cannot show parts of the time: type --by '$stack' --why -o x.ndjson, without {2}",
        ),
    )

    slower: int | None = Heading.CHOICE.option(
        "--slower TIME",
        "also print each call that takes this long, as it returns: 10ms, 200us, 1.5 (seconds)",
        duration,
    )
    outermost: bool = Heading.CHOICE.option(
        "--outermost",
        "leave out calls within other traced calls, as of recursive functions",
    )
    function: bool = Heading.VALUES.option(
        "-F --function",
        "one histogram for each function, also if there are more than 10",
    )
    goroutine: bool = Heading.VALUES.option("-g --goroutine", "one histogram for each goroutine")
    of: str | None = Heading.VALUES.option(
        "--of EXPR",
        "histograms of this value instead of the time: a number such as len(p) or $ret",
    )
    microseconds: bool = Heading.OUTPUT.option(
        "-u --microseconds", "tables in microseconds", alone="unit"
    )
    milliseconds: bool = Heading.OUTPUT.option(
        "-m --milliseconds", "tables in milliseconds", alone="unit"
    )
    heat: bool = Heading.OUTPUT.option(
        "--heat",
        "draw latency over time in place of histograms, every second unless -i says otherwise",
    )
    sort: Order | None = sort_option(Order.TOTAL, Order.COUNT, Order.P99, Order.NAME)
    verbose: bool = Heading.OUTPUT.option(
        "-v --verbose",
        "say whose calls are seen returning elsewhere than before: see --returns",
    )

    @property
    def value(self) -> str | None:
        return self.of

    @property
    def unit(self) -> int:
        """Return the display unit in nanoseconds."""
        return 1_000 if self.microseconds else 1_000_000 if self.milliseconds else 1

    @property
    def says_moves(self) -> bool:
        """Return whether it is said that calls are seen returning elsewhere than before."""
        return self.has_json or self.verbose

    @property
    def columns(self) -> Columns:
        """Return the columns before a slow call."""
        from gotrace.report.calls import Columns

        return Columns(not self.named.is_one, self.verbose)

    @property
    def is_drawn(self) -> bool:
        """Return whether latency over time is drawn."""
        return self.heat or self.files.page is not None

    def _files(self) -> Files:
        """Return the kinds of output files: a page of a run without intervals has stacks."""
        files = super()._files()
        pages = [path for path in files.profiles if path.lower().endswith((".html", ".htm"))]
        has_stacks = self.folded or "$stack" in (self.by or ())
        repeats = self.heat or (self.interval is not None and not has_stacks)
        if not repeats:
            return files
        others = tuple(path for path in files.profiles if path not in pages)
        return files._replace(page=one_file(pages), profiles=others)

    def prepared(
        self,
        parser: OptionParser[GofunclatencyOptions],
    ) -> GofunclatencyOptions:
        """Return the options as they are meant. Raises UsageError."""
        options = super().prepared(parser)
        return (
            replace(options, interval=options.interval or _INTERVAL)
            if options.is_drawn
            else options
        )
