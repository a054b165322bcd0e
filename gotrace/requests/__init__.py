# SPDX-License-Identifier: Apache-2.0
"""Requests: the calls made for one call of a root, on whatever goroutines; begin with ``assemble``.

``belonging`` says whose work a goroutine does at a time, from the edges of ``edges``; ``model`` has
the trees that users get. It imports what gotrace.session may import, and gotrace.session.
"""
