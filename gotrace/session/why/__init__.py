# SPDX-License-Identifier: Apache-2.0
"""Where the time of calls goes: begin with ``parts``.

It imports what gotrace.session may import, and of that ``scheduler`` and ``tasks``.
"""
