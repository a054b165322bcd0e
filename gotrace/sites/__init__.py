# SPDX-License-Identifier: Apache-2.0
"""Machine code: entry sites that are hit exactly once a call, and every RET.

May import: errors, text, architecture, elf, gotypes, abi. Start reading at
``sites.function_sites``.
"""
