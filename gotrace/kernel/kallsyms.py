# SPDX-License-Identifier: Apache-2.0
"""The names of the kernel's own functions: /proc/kallsyms."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from functools import cached_property
from pathlib import Path

_KALLSYMS = Path("/proc/kallsyms")
#: Types of nm(1): code, global, local or weak.
_CODE = frozenset(b"TtWw")


class KernelSymbols:
    """The kernel's functions by address, read when the first one is asked for.

    Without CAP_SYSLOG, or with kernel.kptr_restrict=2, all addresses are 0 there.
    """

    @cached_property
    def _functions(self) -> tuple[array[int], list[bytes]]:
        try:
            lines = _KALLSYMS.read_bytes().splitlines()
        except OSError:
            lines = []
        found = []
        for line in lines:
            address, kind, name, *_ = line.split()
            if kind[0] in _CODE and (at := int(address, 16)):
                found.append((at, name))
        found.sort()
        return array("Q", [at for at, _ in found]), [name for _, name in found]

    def name(self, address: int) -> str:
        """Return the name of the function that holds an address, or else ``[kernel]``."""
        addresses, names = self._functions
        index = bisect_right(addresses, address) - 1
        return names[index].decode("ascii", "replace") if index >= 0 else "[kernel]"
