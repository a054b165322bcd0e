# SPDX-License-Identifier: Apache-2.0
"""Runs: what is attached, what it counts or captures, and the records it yields.

May import: all before it in docs/design.md's table. Start reading at ``plan.make_plan``
(functions and sites), then ``request`` and ``run``, then ``count``, ``latency`` or ``trace`` and
``decode``.
"""
