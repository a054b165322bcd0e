# SPDX-License-Identifier: Apache-2.0
"""The traced programs: processes, commands, files, and waiting for their end.

May import: errors, text, elf. Start reading at ``target.Target``.
"""
