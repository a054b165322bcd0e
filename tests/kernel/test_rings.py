# SPDX-License-Identifier: Apache-2.0
"""Buffers have as many bytes whatever the size of a page is."""

from __future__ import annotations

import importlib
import mmap
import os
import struct
import time
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import pytest

from gotrace.fleet import spans
from gotrace.kernel import rings, syscalls
from gotrace.live import traced
from gotrace.requests import flight
from gotrace.session import trace

PAGES = (4 << 10, 16 << 10, 64 << 10)


@pytest.mark.parametrize(
    ("size", "page", "pages"),
    [
        (256 << 10, 4096, 64),
        (256 << 10, 65536, 4),
        ((512 << 10) - 1, 4096, 64),
        (65536, 65536, 1),
        (4096, 65536, 1),
    ],
)
def test_pages(monkeypatch: pytest.MonkeyPatch, size: int, page: int, pages: int) -> None:
    monkeypatch.setattr(rings, "_PAGE", page)
    assert rings.pages_of(size) == pages


@pytest.mark.parametrize("cpus", [1, 2, 3, 64, 512])
@pytest.mark.parametrize(
    ("place", "pages", "least", "most"),
    [
        (trace, trace.buffer_pages, 256 << 10, 16 << 20),
        (traced, traced._pages, 256 << 10, 4 << 20),
        (spans, spans._pages, 256 << 10, 2 << 20),
        (flight, lambda: flight._pages(256 << 20), 256 << 10, 256 << 20),
    ],
)
def test_buffers_of_any_page(
    monkeypatch: pytest.MonkeyPatch,
    cpus: int,
    place: ModuleType,
    pages: Callable[[], int],
    least: int,
    most: int,
) -> None:
    monkeypatch.setattr(syscalls, "online_cpus", lambda: range(cpus))
    if hasattr(place, "online_cpus"):
        monkeypatch.setattr(place, "online_cpus", lambda: range(cpus))
    sizes = set()
    for page in PAGES:
        monkeypatch.setattr(rings, "_PAGE", page)
        sizes.add(pages() * page)
    (size,) = sizes
    assert least <= size <= most


def test_buffers_of_samples_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = importlib.import_module("gotrace.goroutines.samples")
    for page in PAGES:
        monkeypatch.setattr("mmap.PAGESIZE", page)
        assert importlib.reload(samples)._RING_BYTES == 128 << 10
    monkeypatch.undo()
    importlib.reload(samples)


def ring_of(cpu: int, records: int, size: int = 64) -> rings._Ring:
    """Return a buffer with records, each of which takes ``size`` bytes."""
    memory = mmap.mmap(-1, rings._PAGE + (64 << 10))
    ring = rings._Ring(cpu, os.open(os.devnull, os.O_RDONLY), memory)
    for number in range(records):
        head = struct.pack("<IHHI", rings._SAMPLE, 0, size, size - 12)
        at = rings._PAGE + number * size
        memory[at : at + size] = head + struct.pack("<Q", number).ljust(size - 12, b"\0")
    ring.words[rings._DATA_HEAD] = records * size
    return ring


def test_no_more_is_taken_than_there_is_room_for() -> None:
    """What is left stays in the buffers: whoever takes too much has to drop it."""
    found: Counter[int] = Counter()
    all_rings = rings.Rings.__new__(rings.Rings)
    all_rings._rings = [ring_of(0, 100), ring_of(1, 100)]
    for room, taken in ((63, 0), (64, 1), (64 * 150 + 63, 151), (1 << 20, 200)):
        until = time.monotonic() + 60
        read_to = all_rings.take(
            until, room, lambda cpu, records: found.update({cpu: len(records)})
        )
        assert found.total() == taken
        assert (read_to is None) is (taken == 200)
    all_rings.close()
    assert found == {0: 100, 1: 100}
