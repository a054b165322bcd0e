# SPDX-License-Identifier: Apache-2.0
"""Go's function tables: pclntab, module data, inline trees.

May import: errors and the rest of ``elf``. Start reading at ``functab.FunctionRows``.
"""
