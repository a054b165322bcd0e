# SPDX-License-Identifier: Apache-2.0
"""What to copy at a hit and how to read it back: plans for a small interpreter in BPF.

May import: errors, text, elf, gotypes, abi, values. Start reading at ``plan`` (a phase's plan and
its reading), ``ops`` (the operations), ``nodes`` (one class a kind of type).
"""
