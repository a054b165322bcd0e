# SPDX-License-Identifier: Apache-2.0
"""gofleet: ask many hosts or pods at once, and add up their answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gotrace.cli.command import run_command
from gotrace.cli.fleet_options import GofleetOptions
from gotrace.cli.options import (
    OptionParser,
    new_parser,
    parse_plain,
    positive,
    seconds,
)

_AT_ONCE, _SECONDS = 64, 600.0

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
    parser = new_parser(
        "gofleet",
        "Run a command on many hosts or pods at once, and add up exactly what it prints there.",
        _EPILOG,
        GofleetOptions,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--on",
        action="append",
        metavar="PLACE",
        help="run the command that follows -- on these hosts, ssh:web[01-40],db1, or for these"
        " pods, k8s:deploy/shop, k8s:NAMESPACE/sts/db, k8s:pod/web-0, 'k8s:-l app=shop' (may be"
        " repeated)",
    )
    source.add_argument(
        "--merge",
        nargs="+",
        metavar="FILE",
        help="add up recordings (x.ndjson, x.ndjson.gz), each of a host or merged before",
    )
    parser.add_argument("--by-host", action="store_true", help="keep the rows of each host apart")
    parser.add_argument("--top", type=positive, metavar="N", help="print only the N largest rows")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write results to this file: as a recording if it ends in .ndjson or .ndjson.gz, as a"
        " profile if in .pb.gz, .html or .folded, else as text",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("-q", "--quiet", action="store_true", help="leave out headings")
    parser.add_argument(
        "--at-once",
        type=positive,
        metavar="N",
        default=_AT_ONCE,
        help=f"hosts at a time (default {_AT_ONCE})",
    )
    parser.add_argument(
        "--ttl",
        type=seconds,
        metavar="TIME",
        default=_SECONDS,
        help="end the command on each host after this time, whatever becomes of gofleet"
        " (default 10m)",
    )
    parser.add_argument(
        "--ssh",
        metavar="CMD",
        default="ssh",
        help="how hosts are reached: 'ssh -F fleet.conf' (default ssh)",
    )
    parser.add_argument("--sudo", action="store_true", help="run the command by sudo -n there")
    parser.add_argument(
        "--push",
        action="append",
        metavar="BUNDLE",
        help="bring this bundle (make bundle) to hosts that do not have it, and run its command;"
        " may be repeated: each host gets the one for its architecture",
    )
    parser.add_argument(
        "--remote-command",
        metavar="CMD",
        help="what the command is called there: /opt/gotrace/bin/gofunclatency",
    )
    parser.add_argument(
        "--image",
        metavar="IMAGE",
        help="for k8s: the image with the tools, of deploy/Containerfile, which a pod runs on each"
        " node of the pods until the end",
    )
    parser.add_argument(
        "--kubectl",
        metavar="CMD",
        default="kubectl",
        help="how the cluster is reached: 'kubectl --context prod -n shop' (default kubectl)",
    )
    parser.add_argument(
        "--container",
        metavar="NAME",
        help="this container of each pod (default: the one that kubectl logs takes)",
    )
    parser.add_argument(
        "--pods-in",
        metavar="NAMESPACE",
        help="the namespace for the pods on the nodes (default: kubectl's)",
    )
    parser.add_argument(
        "--sys-admin",
        action="store_true",
        help="give the pods on the nodes CAP_SYS_ADMIN, which Linux 5.15 to 6.5 asks for",
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _run(arguments: Sequence[str]) -> int:
    words = list(arguments)
    command: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    options = parse_plain(_parser(), words)
    from gotrace.cli.asking import add_up

    return add_up(options, command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return run_command("gofleet", _run, sys.argv[1:] if arguments is None else arguments)
