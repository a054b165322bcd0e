# SPDX-License-Identifier: Apache-2.0
"""Where no breakpoint may be, because a program may look for changes of its own code there.

Programs in FIPS mode do when they start: those of Go 1.24 and newer in the functions of
``crypto/internal/fips140``, and always those with BoringCrypto (GOEXPERIMENT=boringcrypto), in
BoringSSL's module. That lies between two places which the function that checks it takes the
addresses of (crypto/fipsmodule/bcm.c of BoringSSL).
"""

from __future__ import annotations

from gotrace.elf import ElfError
from gotrace.elf.fips import hashed_code
from gotrace.elf.image import ElfImage
from gotrace.elf.symtab import symbol_value
from gotrace.records import dataclass
from gotrace.sites.machine import machine_code

#: Why code is kept out, and what can be done.
HASHED = (
    "a program in FIPS mode ends if it finds a breakpoint in this code when it starts: one can be"
    " placed only in a process that runs, without that mode, and whose file has no fips140=on"
    " (from Linux 6.10 on)"
)

#: Values of Go's setting that turn the mode on (src/crypto/internal/fips140/fips140.go): it is in
#: the environment, or is a text that the go command has had linked in.
_ON = (b"fips140=on", b"fips140=debug")

_BORING = ("BORINGSSL_integrity_test", "_goboringcrypto_BORINGSSL_bcm_power_on_self_test")
_BORING_SIZE = 1024  # of its code, in which the first places are those of the module


@dataclass(frozen=True, slots=True)
class _Hashed:
    """The code of a file that is hashed: (start, end) addresses; ``always``: in each process."""

    ranges: tuple[tuple[int, int], ...]
    always: bool


def _hashed(image: ElfImage) -> _Hashed:
    go, boring = hashed_code(image), _boring_code(image)
    ranges = tuple(each for each in (go, boring) if each[0] < each[1])
    return _Hashed(ranges, boring in ranges)


def _boring_code(image: ElfImage) -> tuple[int, int]:
    places = []
    for name in _BORING:
        entry = symbol_value(image, name)
        if entry is None:
            continue
        try:
            code = bytes(image.read(entry, _BORING_SIZE))
        except ElfError:
            continue
        found = machine_code(image.arch).addressed(code, entry)
        places += [place for place in found if image.executable(place)]
    return (min(places), max(places)) if places else (0, 0)


def is_hashed(image: ElfImage, start: int, end: int) -> bool:
    """Return whether some code from ``start`` to ``end`` may be hashed."""
    return any(start < last and first < end for first, last in image.once(_hashed).ranges)


def is_kept_out(image: ElfImage, start: int, end: int) -> bool:
    """Return whether no breakpoint may be from ``start`` to ``end``."""
    return not image.hash_is_over and is_hashed(image, start, end)


def may_hash(image: ElfImage, environment: bytes) -> bool:
    """Return whether a process with an environment may hash code of a file when it starts.

    A file turns the mode on also if it has such a text for another reason: it may start itself
    again with that.
    """
    hashed = image.once(_hashed)
    is_on = any(word in environment or image.data.find(word) >= 0 for word in _ON)
    return hashed.always or (bool(hashed.ranges) and is_on)
