# SPDX-License-Identifier: Apache-2.0
"""Plans for a small interpreter in BPF that copies values at a hit, and their reading.

May import: errors, text, elf, gotypes, abi, values. Start reading at ``plan`` (a phase's plan and
its reading), ``ops`` (the operations), ``nodes`` (one class a kind of type).
"""
