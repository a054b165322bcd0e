# SPDX-License-Identifier: Apache-2.0
"""What gccgo does otherwise: its types, the System V calling convention, argument places.

May import: errors, text, elf, gotypes and the rest of ``abi``. Start reading at ``locations``.
"""
