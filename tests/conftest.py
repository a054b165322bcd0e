# SPDX-License-Identifier: Apache-2.0
"""Skip live tests where tracing is impossible, or fail them when GOTRACE_LIVE=1."""

from __future__ import annotations

import pytest

from tests.live import skip_or_fail, why_not_live


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ask once for the machine's live capability before a test marked ``live`` sets up."""
    if item.get_closest_marker("live") and (reason := why_not_live()):
        skip_or_fail(reason)
