# SPDX-License-Identifier: Apache-2.0
"""The labels of goroutines, as runtime/pprof keeps them.

``g.labels`` leads to a map[string]string up to Go 1.23 (a classic one: runtime.hmap), and to a
slice of keys and values since Go 1.24. Neither is changed once a goroutine has it. Sources:
labelMap in src/runtime/pprof/label.go, since Go 1.26 Set in
src/internal/runtime/pprof/label/labelset.go; hmap and bmap in src/runtime/map.go.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gotrace.goroutines.memory import Memory

#: Keys and values, in the order in which the program has them; those of a map by their keys.
Labels = tuple[tuple[str, str], ...]
NO_LABELS: Labels = ()

#: A goroutine with more is not looked at: no program at hand has more than twenty.
_MAX_LABELS = 1024
#: Bytes of a key or value that are read; "..." stands for the others.
_MAX_TEXT = 4096
#: Buckets of a map one after the other, and how long a chain of those that overflowed may be.
_MAX_BUCKETS, _MAX_CHAIN = 512, 16
_SLOTS = 8
#: Words of a label, and of a bucket: what is in its slots, keys, values, and the next bucket.
_LABEL_WORDS, _BUCKET_WORDS = 4, 1 + 4 * _SLOTS + 1
_HMAP_WORDS = 4
_SAME_SIZE_GROW = 8  # of hmap.flags
_MIN_TOPHASH = 5

#: Where a text is, and how long it is.
_Text = tuple[int, int]


def read_labels(memory: Memory, addresses: Iterable[int], is_map: bool) -> dict[int, Labels]:
    """Return the labels at addresses that ``g.labels`` has; if they cannot be read, none."""
    wanted = sorted(set(addresses) - {0})
    if not wanted:
        return {}
    pairs = _in_maps(memory, wanted) if is_map else _in_lists(memory, wanted)
    texts = _texts(memory, {text for found in pairs.values() for pair in found for text in pair})
    read: dict[int, Labels] = {}
    for address, found in pairs.items():
        labels = ((texts[key], texts[value]) for key, value in found)
        read[address] = tuple(sorted(labels) if is_map else labels)
    return read


def _in_lists(memory: Memory, addresses: Sequence[int]) -> dict[int, list[tuple[_Text, _Text]]]:
    heads = _words(memory, [(address, 2) for address in addresses])
    lists = {
        address: (first, count)
        for address, (first, count) in zip(addresses, heads, strict=True)
        if first and 0 < count <= _MAX_LABELS
    }
    read = _words(memory, [(first, _LABEL_WORDS * count) for first, count in lists.values()])
    return {
        address: [
            ((words[at], words[at + 1]), (words[at + 2], words[at + 3]))
            for at in range(0, len(words), _LABEL_WORDS)
        ]
        for address, words in zip(lists, read, strict=True)
    }


def _in_maps(memory: Memory, addresses: Sequence[int]) -> dict[int, list[tuple[_Text, _Text]]]:
    headers = [words[0] for words in _words(memory, [(address, 1) for address in addresses])]
    counts: dict[int, int] = {}
    arrays: list[tuple[int, int, int]] = []  # whose, the first bucket, how many buckets
    for address, words in zip(
        addresses, _words(memory, [(header, _HMAP_WORDS) for header in headers]), strict=True
    ):
        count, flags, power = words[0], words[1] & 0xFF, words[1] >> 8 & 0xFF
        if not 0 < count <= _MAX_LABELS or power >= _MAX_BUCKETS.bit_length():
            continue
        counts[address] = count
        old = power if flags & _SAME_SIZE_GROW else power - 1
        arrays += [(address, words[2], 1 << power)]
        # While a map grows, entries are in either.
        arrays += [(address, words[3], 1 << old)] if words[3] and old >= 0 else []
    found: dict[int, list[tuple[_Text, _Text]]] = {address: [] for address in counts}
    for _ in range(_MAX_CHAIN):
        after: list[tuple[int, int, int]] = []
        read = _words(memory, [(first, _BUCKET_WORDS * number) for _, first, number in arrays])
        for (address, _, _), words in zip(arrays, read, strict=True):
            for at in range(0, len(words), _BUCKET_WORDS):
                bucket = words[at : at + _BUCKET_WORDS]
                found[address] += _entries(bucket)
                if bucket[-1]:
                    after.append((address, bucket[-1], 1))
        arrays = after
        if not arrays:
            break
    return {address: pairs[: counts[address]] for address, pairs in found.items()}


def _entries(bucket: array[int]) -> Iterator[tuple[_Text, _Text]]:
    for slot in range(_SLOTS):
        if bucket[0] >> 8 * slot & 0xFF >= _MIN_TOPHASH:
            key = 1 + 2 * slot
            value = key + 2 * _SLOTS
            yield (bucket[key], bucket[key + 1]), (bucket[value], bucket[value + 1])


def _texts(memory: Memory, texts: Iterable[_Text]) -> Mapping[_Text, str]:
    places = sorted(texts)
    sizes = [min(length, _MAX_TEXT) for _, length in places]
    content = memory.gather(
        [word for (at, _), size in zip(places, sizes, strict=True) for word in (at, size)]
    )
    read: dict[_Text, str] = {}
    start = 0
    for place, size in zip(places, sizes, strict=True):
        text = content[start : start + size].decode("utf-8", "surrogateescape")
        read[place] = text if size == place[1] else f"{text}..."
        start += size
    return read


def _words(memory: Memory, places: Sequence[tuple[int, int]]) -> list[array[int]]:
    """Return words at places, so many of each; zeros where they cannot be read."""
    flat = [word for at, count in places for word in (at if at % 8 == 0 else 0, 8 * count)]
    read = array("Q", bytes(memory.gather(flat)))
    found, start = [], 0
    for _, count in places:
        found.append(read[start : start + count])
        start += count
    return found
