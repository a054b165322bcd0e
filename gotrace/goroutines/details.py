# SPDX-License-Identifier: Apache-2.0
"""The details of goroutines' waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gotrace.gotypes.types import ChanDirection


class ChannelWait(NamedTuple):
    """A channel that a goroutine waits for, alone or with the others of a select.

    ``direction`` is that of the wait, BOTH where that is not known. ``elem`` is the type of the
    channel's elements, "" where that is not known. ``is_timer``: a timer feeds it; up to Go 1.22
    channels do not say so. ``field`` is the field that it is in, of an object that a function of
    the goroutine was passed, "" where that is not proven.
    """

    direction: ChanDirection
    elem: str
    address: int
    length: int
    capacity: int
    is_timer: bool
    field: str = ""

    @property
    def type(self) -> str:
        """Return the channel's type as Go writes it, with the wait's direction."""
        return f"{self.direction.value} {self.elem}".rstrip()

    def to_json(self) -> dict[str, object]:
        return {
            "direction": self.direction.verb,
            "elem": self.elem or None,
            "address": f"{self.address:#x}",
            "len": self.length,
            "cap": self.capacity,
            "timer": self.is_timer,
            "field": self.field or None,
        }


class Holder(NamedTuple):
    """The one goroutine in a method of the object that a lock is in: it may hold the lock.

    ``goid`` is its number, ``method`` the innermost such method. That it holds the lock is likely,
    and not proven.
    """

    goid: int
    method: str


class WaitDetails(NamedTuple):
    """Details of a goroutine's wait beside its object.

    ``channels`` are those that it waits for, all of a select. ``lock`` is the variable or the field
    that its lock is, "" where that is not proven. ``holder`` may hold the lock.
    """

    channels: tuple[ChannelWait, ...] = ()
    lock: str = ""
    holder: Holder | None = None


#: By the addresses of g's.
WaitsByG = Mapping[int, WaitDetails]
NO_DETAILS = WaitDetails()
#: Goroutines whose stacks are looked at for the name of one lock.
MAX_WITNESSES = 16
