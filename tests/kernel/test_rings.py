# SPDX-License-Identifier: Apache-2.0
"""Buffers have as many bytes whatever the size of a page is."""

from __future__ import annotations

import importlib
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
