# SPDX-License-Identifier: Apache-2.0
"""The daemon of a node: functions of many programs as metrics and spans.

What it needs beside gotrace is in the extra ``fleet``.
"""
