"""Skip live tests where tracing is impossible, or fail them when GOTRACE_LIVE=1; order them."""

from __future__ import annotations

import pytest

from tests.live import skip_or_fail, why_not_live


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ask once for the machine's live capability before a test marked ``live`` sets up."""
    if item.get_closest_marker("live") and (reason := why_not_live()):
        skip_or_fail(reason)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist looks for the groups in its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make live tests one group, which one process runs one by one, and begin with it.

    They would else disturb each other: probes of perf events are in every process of a file. With
    ``-n 2 --dist loadgroup`` the other process runs all other tests meanwhile.
    """
    live = [item for item in items if item.get_closest_marker("live")]
    for item in live:
        item.add_marker(pytest.mark.xdist_group("live"))
    items.sort(key=lambda item: item.get_closest_marker("live") is None)
