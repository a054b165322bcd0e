# SPDX-License-Identifier: Apache-2.0
"""Records to text and JSON, on a stream handed in.

May import: all before it in docs/design.md's table. Start reading at ``output.Output``, then
``counts``, ``latencies`` or ``calls``.
"""
