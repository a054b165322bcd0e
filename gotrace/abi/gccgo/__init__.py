# SPDX-License-Identifier: Apache-2.0
"""gccgo's differences: its types, the System V calling convention, argument places.

May import: errors, text, elf, gotypes and the rest of ``abi``. Start reading at ``locations``.
"""
