# SPDX-License-Identifier: Apache-2.0
"""gofleet: ask many hosts or pods at once, and add up their answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.conflicts import check_options
from gotrace.cli.fleet_options import GofleetOptions
from gotrace.cli.options import OptionParser, new_parser, parse_plain

_EPILOG = """\
examples:
  gofleet --on ssh:web[01-40] -- gofunclatency --why -d 10 -p shop main.handle
  gofleet --on ssh:web[01-40],db1 --by-host -- gofunccount -d 5 -p shop 'main.*'
  gofleet --on ssh:web1 --sudo --push dist/gotrace-amd64.tar.gz -- gooffcpu -d 5 -p shop
  gofleet --on ssh:web1 --ssh 'ssh -F fleet.conf' -- gostacks -p shop
  gofleet --on k8s:shop/deploy/web --image example.com/gotraced -- gofunclatency -d 10 main.handle
  gofleet --merge *.ndjson.gz                  add up what was recorded on each host
  gofleet --merge *.ndjson -o all.ndjson       as a recording, for --diff
"""


def _parser() -> OptionParser[GofleetOptions]:
    text = "Run a command on many hosts or pods at once, and add up exactly what it prints there."
    return new_parser("gofleet", text, _EPILOG, GofleetOptions)


def _run(arguments: Sequence[str]) -> int:
    words = list(arguments)
    command: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    parser = _parser()
    options = parse_plain(parser, words)
    check_options(parser, options, options.CONFLICTS)
    from gotrace.cli.asking import add_up

    return add_up(options, command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gofleet", _run, sys.argv[1:] if arguments is None else arguments)
