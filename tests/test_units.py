# SPDX-License-Identifier: Apache-2.0
"""One grammar of times, sizes, shares and rates, wherever they are written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gotrace.cli import options
from gotrace.errors import UsageError
from gotrace.fleet.config import parse_config
from gotrace.fleet.control import _seconds, _share
from gotrace.probes.tokens import duration
from gotrace.units import nanoseconds, per_second, share, size, whole_nanoseconds

_CONFIG = """\
listen: 127.0.0.1:1
targets:
- {{name: a, exe: /a}}
metrics:
- {{name: x, type: histogram, probe: main.f, buckets: {{from: '{text}', to: 2h}}}}
"""


@pytest.mark.parametrize(
    ("text", "ns"),
    [("1m30s", 90 * 10**9), ("500ms", 5 * 10**8), ("1.5h", 5400 * 10**9), ("1 s", 10**9)],
)
def test_a_time_is_the_same_everywhere(text: str, ns: int) -> None:
    assert nanoseconds(text) == options.duration(text) == ns
    assert _seconds(text) == options.seconds(text) == ns / 1e9
    assert duration(text.replace(" ", "")) == ns
    buckets = parse_config("x.yaml", _CONFIG.format(text=text)).metrics[0].buckets
    assert buckets is not None and buckets.low == ns


def test_a_time_is_exact() -> None:
    assert whole_nanoseconds("0.000000001s") == 1
    assert whole_nanoseconds("0.0000000001s") is None
    assert nanoseconds("0.9ns") == 1
    assert whole_nanoseconds("2540400h10m10.000000000s") == 9145440610 * 10**9


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("512K", 512 << 10), ("64MiB", 64 << 20), ("64 MiB", 64 << 20), ("2g", 2 << 30)],
)
def test_sizes(text: str, count: int) -> None:
    assert size(text) == options.size(text) == count


def test_shares_and_rates() -> None:
    assert share("2%") == share("2") == share("2 %") == options.share("2%") == _share("2%") == 0.02
    assert (per_second("10/s"), per_second("120 / m"), per_second("1.5/h")) == (10, 2, 1.5 / 3600)


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (nanoseconds, ("", "s", "1  s", "-1", "1e3", "1d", "1s2", "inf", "0x1", "9" * 200 + "s")),
        (size, ("", "0", "-1", "1T", "1.5M", "M", "1KB", "٣M")),
        (share, ("", "0", "0%", "-1", "nan", "inf%", "10001")),
        (per_second, ("", "10", "0/s", "10/d", "/s", "nan/s")),
    ],
)
def test_other_words_are_refused(read: Callable[[str], object], texts: tuple[str, ...]) -> None:
    for text in texts:
        with pytest.raises(ValueError):
            read(text)


def test_what_is_asked_of_the_daemon_has_its_bounds() -> None:
    for text in ("25h", "0s", 3, None):
        with pytest.raises(UsageError, match="24h at most"):
            _seconds(text)
    for text in ("101%", "0%", 3):
        with pytest.raises(UsageError, match="as in 1%"):
            _share(text)
