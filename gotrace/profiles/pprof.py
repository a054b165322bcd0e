# SPDX-License-Identifier: Apache-2.0
"""Write profiles as `go tool pprof` and its kin read them: a gzipped protocol buffer.

The format is that of github.com/google/pprof/proto/profile.proto. No library for Python writes it.
"""

from __future__ import annotations

import gzip

from gotrace.profiles.protobuf import message, numbers, packed, text
from gotrace.profiles.rows import PprofLocation, ProfileRow, StackProfile
from gotrace.text import printable


def pprof(profile: StackProfile) -> bytes:
    """Return a profile as it is on disk. Viewers show at first the values of ``form.shown``."""
    encoder = _Encoder(profile)
    for row in profile.rows:
        encoder.add(row)
    return encoder.encoded()


class _Encoder:
    """A profile being encoded: rows are added, then all is put together."""

    def __init__(self, profile: StackProfile) -> None:
        types = profile.form.types
        self._strings: dict[str, int] = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[PprofLocation, int] = {}
        self._tables = bytearray()
        self._samples = bytearray()
        self._head = bytearray()
        for kind, unit in types:
            self._head += message(1, numbers({1: self._string(kind), 2: self._string(unit)}))
        self._mappings = profile.mappings
        self._tail = bytearray()
        for number, one in enumerate(self._mappings, 1):
            fields = {1: number, 2: one.start, 3: one.end, 5: self._string(one.file)}
            # has_functions, has_filenames, has_line_numbers, has_inline_frames: all is there
            self._tail += message(3, numbers({**fields, 7: 1, 8: 1, 9: 1, 10: 1}))
        chosen = self._string(types[profile.form.shown].type)
        times = {9: profile.began_ns, 10: profile.length_ns}
        self._tail += numbers({**times, 14: chosen})

    def add(self, row: ProfileRow) -> None:
        content = packed(1, [self._location(location) for location in row.stack])
        content += packed(2, row.values)
        for key, value in row.labels.items():
            number = {2: self._string(value)} if isinstance(value, str) else {3: value}
            content += message(3, numbers({1: self._string(key), **number}))
        self._samples += message(2, content)

    def encoded(self) -> bytes:
        strings = b"".join(message(6, text(printable(string))) for string in self._strings)
        return gzip.compress(
            bytes(self._head + self._samples + self._tables) + strings + bytes(self._tail), mtime=0
        )

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _function(self, name: str, file: str) -> int:
        known = self._functions.get((name, file))
        if known is None:
            known = self._functions[name, file] = len(self._functions) + 1
            fields = {1: known, 2: self._string(name), 3: self._string(name)}
            self._tables += message(5, numbers({**fields, 4: self._string(file)}))
        return known

    def _mapping(self, address: int) -> int:
        """Return the number of the mapping that has an address, 0 where there are no mappings."""
        found = (n for n, one in enumerate(self._mappings, 1) if one.start <= address < one.end)
        return next(found, min(1, len(self._mappings)))

    def _location(self, location: PprofLocation) -> int:
        known = self._locations.get(location)
        if known is None:
            known = self._locations[location] = len(self._locations) + 1
            mapping = self._mapping(location.address)
            content = numbers({1: known, 2: mapping, 3: location.address})
            for line in location.lines:
                function = self._function(line.function, line.file)
                content += message(4, numbers({1: function, 2: line.line}))
            self._tables += message(4, content)
        return known
