# SPDX-License-Identifier: Apache-2.0
"""Examination of a machine and of one program for the needs of tracing.

May import: all before it in docs/design.md's table. Start reading at ``examine``.
"""
