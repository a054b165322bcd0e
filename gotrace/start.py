# SPDX-License-Identifier: Apache-2.0
"""The entry points of installed commands: Ctrl-C ends them quietly while the rest is imported."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from importlib import import_module

_DAEMON = "gotrace.fleet.gotraced"


def _start(module: str) -> int:
    """Run a command's module and return its exit status.

    Until it has a run to end, and probes to remove, SIGINT ends the process by itself: anywhere in
    an import KeyboardInterrupt is a traceback. An ignored SIGINT (a shell's ``&``) remains so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if module == _DAEMON:  # SIGHUP would end it until it is known what to read again
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    status: int = import_module(module).main()
    return status


def __getattr__(name: str) -> Callable[[], int]:
    """Return a function that runs the command of a name: setup.cfg has ``gotrace.start:NAME``."""
    if not name.startswith("go"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(_start, f"gotrace.{'fleet' if name == 'gotraced' else 'cli'}.{name}")
