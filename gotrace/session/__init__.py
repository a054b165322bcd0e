# SPDX-License-Identifier: Apache-2.0
"""Runs: their attached probes, their counts or captured values, and the records they yield.

May import: all before it in docs/design.md's table. Start reading at ``plan.make_plan``
(functions and sites), then ``request`` and ``run``, then ``count``, ``latency`` or ``trace`` and
``decode``.
"""
