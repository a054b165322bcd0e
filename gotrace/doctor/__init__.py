# SPDX-License-Identifier: Apache-2.0
"""Examination of a machine and of one program: whether they have what tracing needs.

May import: all before it in docs/design.md's table. Start reading at ``examine``.
"""
