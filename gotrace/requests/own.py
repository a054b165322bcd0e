# SPDX-License-Identifier: Apache-2.0
"""Which functions of a program are shown of requests if a user names none: its own."""

from __future__ import annotations

import time
from collections.abc import Collection

from gotrace.elf.buildinfo import main_module
from gotrace.records import dataclass
from gotrace.session.count import CountRequest
from gotrace.session.request import Asked
from gotrace.session.run import open_run
from gotrace.target.target import Target

_MAIN = "main.*"
_COUNTING = 0.3  # seconds
#: The cost of the entry and the RET of a reported call, in ns (docs/performance.md).
CALL_NS = 11_000
#: Calls a second that are measured without a user's word: a fifth of a CPU.
_MAX_CALLS = 18_000


@dataclass(frozen=True, slots=True)
class OwnFunctions:
    """Patterns of a program's own functions, and the names of those that are called too often.

    ``calls`` is how often the others are called a second, as far as that was counted.
    """

    patterns: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    calls: float = 0.0


def own_functions(target: Target, kept: Collection[str]) -> OwnFunctions:
    """Return the functions of the main module; of a process, counted for 0.3 s.

    Those that are called most are left out until the others can be afforded, but not those that are
    ``kept``. Raises GotraceError.
    """
    patterns = own_patterns(target)
    if target.process is None or not target.has_started:
        return OwnFunctions(patterns)
    request = CountRequest(target=target, asked=Asked(patterns), is_strict=False)
    with open_run(request) as run:
        run.meter.take()
        began = time.monotonic()
        time.sleep(_COUNTING)
        counts = run.meter.take()
        passed = time.monotonic() - began
        names = [function.name for function in run.plan.names]
    rates = sorted(
        ((calls / passed, name) for name, calls in zip(names, counts, strict=True) if calls),
        reverse=True,
    )
    total = sum(rate for rate, _ in rates)
    left_out = []
    for rate, name in rates:
        if total <= _MAX_CALLS:
            break
        if name not in kept:
            left_out.append(name)
            total -= rate
    return OwnFunctions(patterns, tuple(left_out), total)


def own_patterns(target: Target, file: str | None = None) -> tuple[str, ...]:
    """Return patterns of the main package, and of those in its module if the program has any.

    ``file`` is the program's, None for the target's executable. Raises GotraceError.
    """
    module = main_module(target.binary(file).image)
    if module is None:
        return (_MAIN,)
    inner = f"{module}/*"
    asked = Asked((_MAIN, inner), file=file)
    found = CountRequest(target=target, asked=asked, is_strict=False).select()
    has_inner = any(
        selected.binary.functions.function(row).name.startswith(f"{module}/")
        for selected in found.selected
        for row in selected.rows
    )
    return (_MAIN, inner) if has_inner else (_MAIN,)
