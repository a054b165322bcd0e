# SPDX-License-Identifier: Apache-2.0
"""Go's types and names, from DWARF, from runtime type descriptors, or from a signature's text.

May import: errors, text, elf. Start reading at ``types`` (the model), then the source at hand:
``from_dwarf``, ``from_rtype``, ``from_text``.
"""
