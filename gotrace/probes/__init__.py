# SPDX-License-Identifier: Apache-2.0
"""The words that users type: patterns, signatures, predicates, formats.

May import: errors, text, elf, gotypes, abi, values, capture, sites. Start reading at
``spec.parse_probe``, ``select.Selector``.
"""
