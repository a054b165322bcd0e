# SPDX-License-Identifier: Apache-2.0
"""The goroutines of a process, or of a core file, read from its memory while it runs.

May import: all before it in docs/design.md's table. Start reading at ``dump.take_dump``; what it
returns is in ``model``, how many alike become one in ``groups``.
"""
