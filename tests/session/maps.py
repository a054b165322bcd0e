# SPDX-License-Identifier: Apache-2.0
"""Stand in for BPF maps: what bpf/latency.c would write, kept in dictionaries."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from typing import cast

from gotrace.histogram import BUCKETS, ROW_SIZE, UNIT_ROWS, Histogram
from gotrace.kernel.program import Map

_ALL_ONES = (1 << 64) - 1


class FakeMap:
    """Entries as bytes, as a map of the kernel does; a queue when ``pop`` is used."""

    def __init__(self, max_entries: int, value_size: int = ROW_SIZE) -> None:
        self.max_entries = max_entries
        self.stride = self.value_size = value_size
        self.rows: dict[bytes, bytes] = {}
        self.queue: list[bytes] = []

    @property
    def map(self) -> Map:
        """Return this as what it stands in for."""
        return cast(Map, self)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        yield from list(self.rows.items())

    def lookup(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def update(self, key: bytes, value: bytes) -> None:
        self.rows[key] = value

    def delete(self, key: bytes) -> None:
        self.rows.pop(key, None)

    def pop(self) -> bytes | None:
        return self.queue.pop(0) if self.queue else None

    def sums(self) -> array[int]:
        return array("Q", b"".join(value for _, value in self.array_range(0, self.max_entries)))

    def array_range(self, start: int, count: int) -> Iterator[tuple[int, bytes]]:
        for index in range(start, start + count):
            key = index.to_bytes(4, "little")
            yield index, self.rows.get(key, bytes(self.stride))


def row_bytes(values: list[int]) -> bytes:
    """Return the histogram row that small values (below 16) leave, bucket by bucket."""
    buckets = [values.count(bucket) for bucket in range(BUCKETS)]
    inverted = _ALL_ONES - min(values) if values else 0
    head = (len(values), sum(values), inverted, max(values, default=0), 0)
    row = struct.pack(f"=5Q{BUCKETS}Q{UNIT_ROWS}Q", *head, *buckets, *bytes(UNIT_ROWS))
    assert Histogram.from_row(row).count == len(values)
    return row
