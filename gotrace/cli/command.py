# SPDX-License-Identifier: Apache-2.0
"""How a command ends: errors become a line and an exit status."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Callable, Sequence

from gotrace.errors import GotraceError, speak_as_command
from gotrace.report.colour import Colour, paint, wants_colour
from gotrace.text import printable

#: Objects after which the interpreter looks for garbage: at its own 700 it looks hundreds of times
#: during a start, and what is imported stays.
_MANY_OBJECTS = 50_000

_INTERRUPTED = 130  # what shells make of an end by SIGINT

#: Actions at the end, the last first: results' files are closed.
to_end: list[Callable[[], None]] = []
#: Actions before these, if an error ends the command: files without results stay what they were.
if_failed: list[Callable[[], None]] = []


def run_command(name: str, run: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a command and turn how it ends into an exit status.

    Prints an error as one line on stderr, with a traceback only under ``--debug``. A reader that
    has closed standard output ends the command quietly.
    """
    speak_as_command()
    gc.set_threshold(_MANY_OBJECTS)
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug = "--debug" in own
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale that lacks a letter of a name is not a reason to end.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _open_standard_streams()
        try:
            return run(arguments)
        except BaseException:
            for act in if_failed:
                act()
            raise
        finally:
            if_failed.clear()
            while to_end:
                to_end.pop()()
    except GotraceError as error:
        if debug:
            _explain(getattr(error, "log", ""))
        from gotrace.report.message import laid_out  # a parser alone needs neither
        from gotrace.report.table import columns_of

        text = laid_out(printable(str(error)), columns_of(sys.stderr), f"{name}: ")
        colour = Colour.ERROR if wants_colour(sys.stderr) else None
        print(paint(text, colour), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        _discard_output()
        return 0
    except OSError as error:
        # Whatever concerns the target has been turned into a GotraceError where it was met: what
        # names no file is a write to standard output.
        if debug:
            _explain()
        what = error.filename or "cannot write the results"
        reason = error.strerror or error
        print(f"{name}: {printable(str(what))}: {reason}", file=sys.stderr)
        _discard_output()
        return 1
    except MemoryError:
        if debug:
            _explain()
        print(f"{name}: out of memory: raise ulimit -v, or trace fewer functions", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before tracing began
        return _INTERRUPTED


def _open_standard_streams() -> None:
    """Make sure of file descriptors 0 to 2: where one is closed, the next file would get it.

    Then what is meant for standard error would be written to that file. Raise OSError where
    standard output is closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
    if sys.stdout is None:
        raise OSError(errno.EBADF, "standard output is closed")


def _explain(log: str = "") -> None:
    """Print where the error being handled was raised, and the compiler's messages."""
    import traceback

    for line in f"{traceback.format_exc()}{log}".splitlines():
        print(printable(line), file=sys.stderr)


def _discard_output() -> None:
    """Discard the interpreter's last flush of standard output, at exit."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
