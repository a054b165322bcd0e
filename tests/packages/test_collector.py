# SPDX-License-Identifier: Apache-2.0
"""The OpenTelemetry Collector passes on what gotraced sends: the program's own numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.test_gotraced import keys as keys
from tests.fleet.test_gotraced import server as server
from tests.fleet.test_otlp import Received, check_numbers, over_http
from tests.packages.collector import collecting
from tests.packages.roots import needs_all


@needs_all
@pytest.mark.live
@pytest.mark.apart
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_passes_on_each_call_and_the_same_numbers(
    protocol: str, server: Path, tmp_path: Path
) -> None:
    received = Received()
    with over_http(received) as further, collecting(further, tmp_path) as endpoints:
        check_numbers(received, endpoints[protocol], protocol, server, tmp_path)
