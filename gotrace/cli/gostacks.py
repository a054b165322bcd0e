# SPDX-License-Identifier: Apache-2.0
"""gostacks: the states of all goroutines of a process now."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.dump_options import GostacksOptions
from gotrace.cli.options import OptionParser, new_parser, parse_plain
from gotrace.records import replace

_EPILOG = """\
examples:
  gostacks -p 1234                     all goroutines, those alike together
  gostacks -a -p 1234                  one by one, as Go's own dumps
  gostacks --longer 1m -p 1234         those that have waited for a minute
  gostacks --reason 'sync.*' -p 1234   those that wait for locks
  gostacks -p 1234 'main.*'            those with a function of the program on their stack
  gostacks --by '$label("method")' -p 1234   by the values of a pprof label
  gostacks -i 5 -p 1234                which groups grow: leaks
  gostacks -o x.pb.gz -p 1234          for go tool pprof
  gostacks -o x.html -p 1234           a flame graph, for any browser
  gostacks --core core ./server        of a process that has ended
"""


def _parser() -> OptionParser[GostacksOptions]:
    text = "Show what all goroutines of a running program do, without stopping it."
    return new_parser("gostacks", text, _EPILOG, GostacksOptions)


def _run(arguments: Sequence[str]) -> int:
    parser = _parser()
    options = parse_plain(parser, arguments)
    if options.diff:
        from gotrace.cli.diff import compare

        return compare(options, parser)
    if options.processes:
        from gotrace.target.process import one_process

        options = replace(options, pid=one_process(options.processes, "gostacks reads"))
    # JSON has each goroutine anyway.
    options = options.with_files(parser, besides="-a --all" if options.json else "")
    from gotrace.cli.dumping import dump

    return dump(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gostacks", _run, sys.argv[1:] if arguments is None else arguments)
