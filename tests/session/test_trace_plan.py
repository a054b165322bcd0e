# SPDX-License-Identifier: Apache-2.0
"""Say what a probe asks for that cannot be captured."""

from __future__ import annotations

import pytest

from gotrace.capture.ops import CaptureLimits
from gotrace.session.trace_plan import string_problem


@pytest.mark.parametrize(
    ("asked", "needed", "remedy"),
    [
        (256, 256, None),
        (256, 1792, None),
        (1792, 1792, None),
        (256, 1793, "use a shorter constant"),
        (5000, 1793, "use a shorter constant"),
    ],
)
def test_what_is_advised_where_a_string_is_looked_at(
    asked: int, needed: int, remedy: str | None
) -> None:
    problem = string_problem(needed, CaptureLimits(asked, payload=3584))
    if remedy is None:
        assert problem is None
    else:
        assert problem is not None and problem.endswith(f": {remedy}")
        assert ("1,792" in problem) == (remedy == "use a shorter constant")
