# SPDX-License-Identifier: Apache-2.0
"""Leave all of this to GOTRACE_REAL=1: it takes long, and fetches programs."""

from __future__ import annotations

from tests.real.report import FULL

collect_ignore_glob = [] if FULL else ["test_*.py"]
