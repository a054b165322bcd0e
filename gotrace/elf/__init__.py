"""Bytes in, records out: ELF images, symbols, DWARF, function tables.

May import: errors. Start reading at ``image.ElfImage`` (one file), ``functions.load_functions``
(its functions by name and address).
"""
