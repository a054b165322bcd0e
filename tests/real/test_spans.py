# SPDX-License-Identifier: Apache-2.0
"""The spans that contexts hold, in programs with three releases of OpenTelemetry's own SDK."""

from __future__ import annotations

import pytest

from tests.cli.test_span_contexts import check_calls, check_requests
from tests.real.sources import OTEL, built


@pytest.mark.live
@pytest.mark.parametrize("name", [program.name for program in OTEL])
def test_ids_are_those_that_the_program_finds(name: str) -> None:
    check_calls(built(name))
    check_requests(built(name))
