# SPDX-License-Identifier: Apache-2.0
"""``gotraced ctl``: ask a running daemon for more metrics, for a while."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gotrace.errors import GotraceError, UsageError
from gotrace.fleet.control import MAX_BYTES
from gotrace.text import printable

#: Where docs/fleet.md has the socket.
SOCKET = "/run/gotraced/control"
_PATIENCE = 150.0  # seconds

_EPILOG = """\
examples:
  gotraced ctl start slow.yaml --ttl 10m --budget 1%   metrics of this file, for ten minutes
  gotraced ctl list                                    what is asked for, and for how long
  gotraced ctl end slow                                end it before its time
"""


def ctl_parser(make: type[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Return the parser of what follows ``ctl``."""
    parser = make(
        prog="gotraced ctl",
        description="Ask a running gotraced for more metrics, for a while, as root.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--socket", metavar="PATH", default=SOCKET, help=f"that of --control (default {SOCKET})"
    )
    # It may follow the word as well: then what it says there counts.
    after = argparse.ArgumentParser(add_help=False)
    after.add_argument("--socket", metavar="PATH", default=argparse.SUPPRESS, help="as before")
    common: dict[str, Any] = {"parents": [after], "allow_abbrev": False}
    what = parser.add_subparsers(dest="do", required=True, metavar="start | list | end")
    start = what.add_parser("start", help="begin with the metrics of a file", **common)
    start.add_argument("file", metavar="FILE", help="metrics, and perhaps targets; - is stdin")
    start.add_argument("--name", help="what it is called (default: the file's name)")
    start.add_argument("--ttl", metavar="TIME", default="10m", help="how long (default 10m)")
    start.add_argument(
        "--budget",
        metavar="PERCENT",
        default="1%",
        help="the most that its probes may take of one CPU (default 1%%)",
    )
    what.add_parser("list", help="say what is asked for", **common)
    end = what.add_parser("end", help="end what is asked for", **common)
    end.add_argument("name", metavar="NAME")
    return parser


def ctl(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    """Ask, print the answer and return the exit status. Raises GotraceError, OSError."""
    options = parser.parse_args(arguments)
    request: dict[str, str] = {"do": options.do}
    if options.do == "start":
        stem = os.path.basename(options.file).partition(".")[0]
        request["name"] = options.name or ("stdin" if options.file == "-" else stem)
        request |= {"snippet": _text(options.file), "ttl": options.ttl, "budget": options.budget}
    elif options.do == "end":
        request["name"] = options.name
    answer = _ask(options.socket, json.dumps(request).encode() + b"\n")
    if "error" in answer:
        kind = UsageError if answer.get("status") == UsageError.exit_code else GotraceError
        raise kind(str(answer["error"]))
    for line in answer["said"]:
        print(printable(line))
    return 0


def _text(path: str) -> str:
    try:
        if path == "-":
            return sys.stdin.read(MAX_BYTES)
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_BYTES)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: byte {error.start}") from error


def _ask(path: str, line: bytes) -> dict[str, Any]:
    if len(line) > MAX_BYTES:
        raise UsageError(f"this is too much: a request has {MAX_BYTES} bytes at most")
    data = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        try:
            connection.connect(path)
            with suppress(BrokenPipeError):  # it has refused before it has read
                connection.sendall(line)
            while piece := connection.recv(1 << 16):
                data += piece
        except OSError as error:
            what = "does gotraced run with --control?"
            raise GotraceError(f"{path}: {error.strerror or error}: {what}") from error
    try:
        found = json.loads(data)
    except ValueError as error:
        raise GotraceError(f"{path}: this is not gotraced: {data[:60]!r}") from error
    if not isinstance(found, dict) or not {"said", "error"} & found.keys():
        raise GotraceError(f"{path}: this is not gotraced")
    return found
