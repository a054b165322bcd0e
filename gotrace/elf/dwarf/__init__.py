# SPDX-License-Identifier: Apache-2.0
"""Debugging information (DWARF 2 to 5): functions, their variables, types, and code addresses.

Start reading at ``reader``. DWARF's encoding is the job of pyelftools, which ``units`` alone
imports: unit headers, abbreviations, attribute forms, range lists, location lists and expressions.
Work on thousands of entries reads the sections' bytes instead: ``subprograms`` steps over entries
undecoded, ``search`` finds a type's name.

Importing ``reader``, ``units`` or ``search`` loads pyelftools, which takes longer than reading a
small program's DWARF: modules that commands load at start import them in functions.
"""

from __future__ import annotations

from gotrace.errors import GotraceError


class DwarfError(GotraceError):
    """Debugging information that is damaged or of a form that is not understood."""
