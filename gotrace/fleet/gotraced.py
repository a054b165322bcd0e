# SPDX-License-Identifier: Apache-2.0
"""gotraced: the daemon of a node."""

from __future__ import annotations

import argparse
import logging
import os
import resource
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from gotrace import __version__
from gotrace.errors import GotraceError, UsageError, speak_as_command
from gotrace.text import printable

if TYPE_CHECKING:
    from gotrace.fleet.daemon import Daemon

log = logging.getLogger("gotraced")

_EPILOG = """\
examples:
  gotraced --check /etc/gotraced.yaml     validate it, say what would be traced
  gotraced --config /etc/gotraced.yaml    trace until SIGTERM; SIGHUP reads it again
  gotraced ctl start slow.yaml --ttl 10m  have a running gotraced trace more
"""
_OTLP = "opentelemetry-exporter-otlp-proto-"
#: Modules of other packages, and what pip calls these.
_EXTRA = {
    "yaml": "PyYAML",
    "jsonschema": "jsonschema",
    "prometheus_client": "prometheus-client",
    "h11": "h11",
    "bcrypt": "bcrypt",
    "requests": "requests",
    "opentelemetry": f"opentelemetry-sdk {_OTLP}http {_OTLP}grpc",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        what = "type gotraced --config FILE to trace, --check FILE to validate a configuration"
        raise UsageError(f"{message}: {what} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gotraced",
        description="Trace Go functions of a whole node: metrics for Prometheus and OpenTelemetry.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gotraced {__version__}")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", metavar="FILE", help="trace what this file asks for")
    what.add_argument(
        "--check", metavar="FILE", help="check a file, and say what would be traced here"
    )
    parser.add_argument(
        "--control",
        metavar="SOCKET",
        help="with --config: listen here for gotraced ctl, from root (see gotraced ctl --help)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="log what is done, too")
    parser.add_argument("--debug", action="store_true", help="show where errors come from")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    speak_as_command()
    words = sys.argv[1:] if arguments is None else list(arguments)
    debug = "--debug" in words
    try:
        return _run(words)
    except GotraceError as error:
        failure, status = str(error), error.exit_code
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        failure, status = (
            f"{missing} is not installed, which this configuration needs: make setup in a clone,"
            f" or pip install {_EXTRA[missing]}",
            1,
        )
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        failure, status = f"{what}{error.strerror or error}", 1
    if debug:
        traceback.print_exc()
    print(f"gotraced: {printable(failure)}", file=sys.stderr)
    return status


def _run(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["ctl"]:
        from gotrace.fleet.ctl import ctl, ctl_parser

        return ctl(ctl_parser(_Parser), arguments[1:])
    parser = _parser()
    signals = _Signals()
    if "_ARGCOMPLETE" in os.environ:
        import_module("argcomplete").autocomplete(parser)
    options = parser.parse_args(arguments)
    if options.control and options.check:
        raise UsageError("--control is for --config: --check only reads the file")
    if options.config:
        signals.handle()  # before what takes a second: SIGHUP would end the process
    # Imported late: --help and completion need none of the extra.
    from gotrace.fleet.config import load_config

    config = load_config(options.config or options.check)
    from gotrace.fleet.daemon import Daemon

    if config.otlp is not None:
        from gotrace.fleet.otlp import load_exporter

        load_exporter(config.otlp.protocol)
    if options.check is not None:
        from gotrace.fleet.check import check

        return check(config, sys.stdout)
    is_verbose = options.verbose or options.debug
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("gotraced: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    log.setLevel(logging.INFO)
    logging.getLogger("gotraced.details").setLevel(logging.INFO if is_verbose else logging.WARNING)
    warnings.simplefilter("ignore")  # of the library's: what they say is in the log
    _raise_limit()
    with ExitStack() as closing:
        if signals.stopping.is_set():
            return 0
        daemon = Daemon(options.config, config, options.control)
        closing.callback(daemon.close)
        signals.serve(daemon)
    return 0


def _raise_limit() -> None:
    """Allow as many open files as this process may have: maps and connections are some."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Signals:
    """The requests of signals: an end, or to read the configuration again."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._wake, self._reloading = threading.Event(), threading.Event()
        self._daemon: Daemon | None = None

    def handle(self) -> None:
        """Take note of signals from now on."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, self._again)

    def _stop(self, number: int, frame: object) -> None:
        self.stopping.set()
        if self._daemon is not None:
            self._daemon.ask_to_stop()
        self._wake.set()

    def _again(self, number: int, frame: object) -> None:
        self._reloading.set()
        self._wake.set()

    def serve(self, daemon: Daemon) -> None:
        """Take turns until SIGTERM or SIGINT; read the configuration again at SIGHUP."""
        self._daemon = daemon
        if self.stopping.is_set():
            return
        daemon.begin()
        while not self.stopping.is_set():
            self._wake.clear()
            if self._reloading.is_set():
                self._reloading.clear()
                daemon.reload()
            pause = daemon.turn()
            if not self.stopping.is_set() and not self._reloading.is_set():
                self._wake.wait(pause)
