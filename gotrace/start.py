# SPDX-License-Identifier: Apache-2.0
"""What installed commands start with: Ctrl-C ends them quietly while the rest is imported."""

from __future__ import annotations

import signal
from functools import partial
from importlib import import_module

__all__ = ["gofunccount", "gofunclatency", "gooffcpu", "gostacks", "gotrace", "gotraced"]


def _start(module: str) -> int:
    """Run a command's module and return its exit status.

    Until it has a run to end, and probes to remove, SIGINT ends the process by itself: anywhere in
    an import KeyboardInterrupt is a traceback. What is ignored (a shell's ``&``) remains so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    status: int = import_module(module).main()
    return status


gofunccount = partial(_start, "gotrace.cli.gofunccount")
gofunclatency = partial(_start, "gotrace.cli.gofunclatency")
gooffcpu = partial(_start, "gotrace.cli.gooffcpu")
gostacks = partial(_start, "gotrace.cli.gostacks")
gotrace = partial(_start, "gotrace.cli.gotrace")
gotraced = partial(_start, "gotrace.fleet.gotraced")
