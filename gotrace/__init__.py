# SPDX-License-Identifier: Apache-2.0
"""Trace live Go programs through BCC and uprobes."""

__all__ = ["__version__"]

__version__ = "0.1.0"
