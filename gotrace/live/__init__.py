# SPDX-License-Identifier: Apache-2.0
"""The state of a program now, as snapshots one after the other.

May import: all before it in docs/design.md's table. Start reading at ``monitor.Monitor``; what it
returns is in ``model``.
"""
