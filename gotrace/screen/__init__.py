# SPDX-License-Identifier: Apache-2.0
"""The screen of gotop: curses, keys, and what is chosen on it.

May import: all before it in docs/design.md's table. Start reading at ``view.watch``; ``terminal``
has the terminal given back whatever ends it.
"""
