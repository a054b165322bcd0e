# SPDX-License-Identifier: Apache-2.0
"""Times of waits that began before the probes, of which the kernel has the sum of their ends."""

from __future__ import annotations

from gotrace.session.oncpu.wall import since_begin

_DAYS = 200 * 86_400 * 10**9  # since the machine was started, in ns


def test_the_sum_of_ends_wraps_and_times_do_not() -> None:
    ends = [_DAYS + 5 + n for n in range(2_000)]
    assert sum(ends) > 1 << 64
    assert since_begin(_DAYS, len(ends), sum(ends) % (1 << 64)) == sum(5 + n for n in range(2_000))


def test_an_end_just_before_the_begin_is_no_time() -> None:
    """It was 584 years, in every output."""
    assert since_begin(_DAYS, 4, (4 * _DAYS - 3) % (1 << 64)) == 0
