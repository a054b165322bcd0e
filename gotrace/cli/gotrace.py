# SPDX-License-Identifier: Apache-2.0
"""gotrace: show calls of Go functions as they happen, with arguments, results and durations."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.options import OptionParser, new_parser, parse
from gotrace.cli.trace_options import GotraceOptions

_EPILOG = """\
A probe is a function, or a pattern in which only * is special, then perhaps a predicate, a format
and what to fill it with:
  [BINARY:]PATTERN [(PREDICATE)] ["FORMAT", EXPR...]

examples:
  gotrace -p 1234 'main.(*Store).Get'                    arguments, results, duration
  gotrace -p 1234 'main.(*Store).Get (len(key) > 10)'    only some calls, filtered in the kernel
  gotrace -p 1234 'main.handle ($duration > 10ms)'       slow calls with their arguments
  gotrace -p 1234 'main.handle "%s %s", r.Method, r.URL.Path'
  gotrace -p 1234 @http.server                           a recipe: see gotrace --recipes
  gotrace -p 1234 --why main.handle                      and what the time went into
  gotrace -p 1234 -U main.flush                          with the goroutine's stack
  gotrace -p 1234 -d 5 -o x.pb.gz main.flush             who calls it, for go tool pprof
  gotrace -p 1234 -d 5 -o x.html main.flush              the same as a picture, for any browser
  gotrace 'main.add(x int, y int) int' -- ./stripped     a signature where there is no DWARF
"""


def _parser() -> OptionParser[GotraceOptions]:
    text = "Show calls of Go functions as they happen, with their values."
    return new_parser("gotrace", text, _EPILOG, GotraceOptions)


def _run(arguments: Sequence[str]) -> int:
    options = parse(_parser(), arguments)
    if options.doctor:
        from gotrace.cli.doctor import run_doctor

        return run_doctor(options)
    if options.compile:
        from gotrace.cli.compile import run_compile

        return run_compile(options)
    if options.recipes:
        from gotrace.cli.recipes import list_recipes

        return list_recipes(options)
    from gotrace.cli.tracing import trace

    return trace(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gotrace", _run, sys.argv[1:] if arguments is None else arguments)
