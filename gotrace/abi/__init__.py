# SPDX-License-Identifier: Apache-2.0
"""Where arguments and results are, by Go's calling conventions.

May import: errors, text, elf, gotypes. Start reading at ``assign`` (the rules), ``locations``
(one function's values).
"""
