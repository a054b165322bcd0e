# SPDX-License-Identifier: Apache-2.0
"""The daemon of a node: functions of many programs as metrics and spans.

The packages that it needs beside gotrace are in the extra ``fleet``.
"""
