# SPDX-License-Identifier: Apache-2.0
"""Measure the cost of tracing beside that of other tracers: ``python -m tests.bench``."""
