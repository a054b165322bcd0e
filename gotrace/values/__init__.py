# SPDX-License-Identifier: Apache-2.0
"""Decoded values, and how Go prints them.

May import: errors, text, elf, gotypes, abi. Start reading at ``model`` (the values),
``go_syntax`` (how a trace shows them).
"""
