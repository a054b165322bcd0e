# SPDX-License-Identifier: Apache-2.0
"""gotrace: show calls of Go functions as they happen, with arguments, results and durations."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from gotrace.cli.command import run_command
from gotrace.cli.habits import SUBCOMMANDS, completed_word, module_of
from gotrace.cli.options import (
    OptionParser,
    RunOptions,
    Subcommand,
    is_completing,
    new_parser,
    parse,
    parse_plain,
)
from gotrace.cli.trace_options import GotraceOptions

_EPILOG = """\
A probe is a function, or a pattern in which only * is special, then perhaps a predicate, a format
and what to fill it with:
  [BINARY:]PATTERN [(PREDICATE)] ["FORMAT", EXPR...]

A first word of these is a command of its own, with options of its own (see gotrace WORD --help):
  gotrace tree ROOT     show each call of ROOT as a request, with the calls made for it
  gotrace flight TIME   keep the latest calls and states, and write them when a condition holds
  gotrace record        write all calls and states of goroutines to a file
  gotrace assert        check how often functions are called, in a run or for each call of a root
  gotrace examine       say where the time of a running program goes, with no other hint
  gotrace doctor        check what tracing needs here, with -p also of that process
  gotrace compile       compile the BPF programs that these tools usually load, and keep them
  gotrace recipes       list the recipes, @NAME; with -p mark those whose functions the process has

examples:
  gotrace -p 1234 'main.(*Store).Get'                    arguments, results, duration
  gotrace -p 1234 'main.(*Store).Get (len(key) > 10)'    only some calls, filtered in the kernel
  gotrace -p 1234 'main.handle ($duration > 10ms)'       slow calls with their arguments
  gotrace -p 1234 'main.handle "%s %s", r.Method, r.URL.Path'
  gotrace -p 1234 @http.server                           a recipe: see gotrace recipes
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
    word = completed_word() if is_completing() else next(iter(arguments), "")
    if word in SUBCOMMANDS:
        subcommand: Subcommand = import_module(module_of(word))
        parser = subcommand.parser()
        read = parse if issubclass(parser.kind, RunOptions) else parse_plain
        return subcommand.run(read(parser, arguments[1:]))
    options = parse(_parser(), arguments)
    from gotrace.cli.tracing import trace

    return trace(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gotrace", _run, sys.argv[1:] if arguments is None else arguments)
