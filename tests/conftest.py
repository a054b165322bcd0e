# SPDX-License-Identifier: Apache-2.0
"""Skip live tests where tracing is impossible, or fail them when GOTRACE_LIVE=1."""

from __future__ import annotations

import pytest
from hypothesis import settings

from gotrace import errors
from tests.live import skip_or_fail, why_not_live

# What an example takes is the machine's load, not the code's doing.
settings.register_profile("gotrace", deadline=None)
settings.load_profile("gotrace")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ask once for the machine's live capability before a test marked ``live`` sets up."""
    errors._speaks_as_command = False  # as before a test that ran a command in this process
    if item.get_closest_marker("live") and (reason := why_not_live()):
        skip_or_fail(reason)
