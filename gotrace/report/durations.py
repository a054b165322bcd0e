# SPDX-License-Identifier: Apache-2.0
"""How durations and histograms are written, with their subjects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gotrace.text import in_program, printable

#: The percentiles that are shown, by name.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
#: The unit of tables whose rows have their own: bounds are ns, and the second that of the next row.
TIME = "time"
_STARS = 40
_COUNT_WIDTH = 8  # bcc's; larger counts widen the column


def duration(nanoseconds: float) -> str:
    """Write a duration with three or four digits and its unit, as ``1.234ms``."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if nanoseconds >= size:
            return f"{four_digits(nanoseconds / size)}{unit}"
    return f"{four_digits(nanoseconds)}ns"


def amount(value: float, unit: str) -> str:
    """Write a time in ns, a size in bytes, or a number of anything else."""
    if unit == "bytes":
        return size(value)
    return f"{value:,.0f}" if unit != "ns" else duration(value) if value else "0s"


def size(count: float) -> str:
    """Write a number of bytes, in powers of 1024."""
    number = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if number < 1024:
            return f"{number:.0f}{unit}" if unit == "B" else f"{number:.1f}{unit}"
        number /= 1024
    return f"{number:.1f}TB"


def four_digits(number: float) -> str:
    """Write a number with four digits, or with all of its integer part where that has more."""
    return f"{number:.4g}" if number < 9999.5 else f"{number:.0f}"


def table(rows: Sequence[tuple[int, int, int]], unit: str) -> Iterator[str]:
    """Yield rows of (first value, last value, count) below the heads of columns, as bcc does."""
    is_wide = unit != TIME and any(abs(bound) >> 32 for *bounds, _ in rows for bound in bounds)
    width = 20 if is_wide else 10
    most = max((count for *_, count in rows), default=0)
    digits = max(_COUNT_WIDTH, len(str(most)))
    yield f"{' ' * 5}{unit:<{2 * width - 1}} : {'count':<{digits}}  distribution"
    for low, high, count in rows:
        bounds = (duration(low), duration(high + 1)) if unit == TIME else (str(low), str(high))
        stars = "*" * (count * _STARS // most if most else 0)
        text = f"{bounds[0]:>{width}} -> {bounds[1]:<{width}}"
        yield f"{text} : {count:<{digits}} |{stars:<{_STARS}}|"


def function_line(program: str | None, function: str | None) -> Iterator[str]:
    """Yield the line with a histogram's subject, if it has one."""
    if function is not None:
        yield f"Function = {of_program(program, function)}"
    elif program is not None:
        yield f"Program = {printable(program)}"


def of_program(program: str | None, function: str) -> str:
    """Return a function's name with its program's, where there is one, as it is shown."""
    return printable(in_program(program, function))
