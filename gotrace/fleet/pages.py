# SPDX-License-Identifier: Apache-2.0
"""Which client has its page made next: who does not read what it asks for keeps nobody waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from enum import IntEnum
from typing import Generic, TypeVar

from gotrace.records import dataclass

#: Between two pages of a client as much time as this times what the first took, and at most so
#: many seconds; the same between two pages for clients that have not read one.
_REST, _MAX_REST = 3, 5.0
_MAX_CLIENTS = 1024  # that are known

_Page = TypeVar("_Page")


class _Rank(IntEnum):
    """Whose page is made first."""

    READER = 0  # it has read its last page to the end
    NEW = 1
    OTHER = 2


@dataclass
class _Client:
    """The known facts about a client. Times are of ``time.monotonic``."""

    rank: _Rank = _Rank.NEW
    made: float = 0.0
    due: float = 0.0


class Pages(Generic[_Page]):
    """Pages that are made one at a time, each for all requests alike of a client that wait for one.

    Clients do not share them: what a target had at its end is on one page of each (``Presence``).
    All is done in one loop.
    """

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._waiting: dict[tuple[str, Hashable], list[asyncio.Future[_Page]]] = {}
        self._makes: dict[tuple[str, Hashable], Callable[[], Awaitable[_Page]]] = {}
        self._strangers_due = 0.0
        self._has_come = asyncio.Event()
        self._is_ending = False
        self._maker: asyncio.Task[None] | None = None

    async def page(
        self, client: str, form: Hashable, make: Callable[[], Awaitable[_Page]]
    ) -> _Page:
        """Return a page that is begun after this call. Raises what ``make`` does."""
        future: asyncio.Future[_Page] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault((client, form), []).append(future)
        self._makes[client, form] = make
        self._has_come.set()
        if self._maker is None or self._maker.done():
            self._maker = asyncio.create_task(self._make_all())
        return await future

    def has_read(self, client: str) -> None:
        """Take note that a client has read its page to the end."""
        self._known(client).rank = _Rank.READER

    def hurry(self) -> None:
        """Make pages without rests from now on: this is about to end."""
        self._is_ending = True
        self._has_come.set()

    def _known(self, client: str) -> _Client:
        if client not in self._clients and len(self._clients) >= _MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        return self._clients.setdefault(client, _Client())

    def _due(self, client: str) -> float:
        known = self._known(client)
        is_reader = known.rank is _Rank.READER
        return known.due if is_reader else max(known.due, self._strangers_due)

    def _order(self, key: tuple[str, Hashable]) -> tuple[int, float]:
        known = self._known(key[0])
        return known.rank, known.made

    async def _make_all(self) -> None:
        while True:
            for key, futures in list(self._waiting.items()):
                if all(one.done() for one in futures):  # whoever has asked is gone
                    del self._waiting[key], self._makes[key]
            if not self._waiting:
                return
            now = time.monotonic()
            dues = {key: self._due(key[0]) for key in self._waiting}
            if now < (first := min(dues.values())) and not self._is_ending:
                self._has_come.clear()
                await _within(self._has_come.wait(), first - now)
                continue
            ready = [key for key, due in dues.items() if due <= now or self._is_ending]
            await self._make(min(ready, key=self._order))

    async def _make(self, key: tuple[str, Hashable]) -> None:
        futures, make = self._waiting.pop(key), self._makes.pop(key)
        known, begun = self._known(key[0]), time.monotonic()
        is_reader = known.rank is _Rank.READER
        known.rank = _Rank.OTHER  # until it has read this one
        try:
            made: _Page | Exception = await make()
        except Exception as error:
            made = error
        known.made = time.monotonic()
        known.due = known.made + min(_REST * (known.made - begun), _MAX_REST)
        if not is_reader:
            self._strangers_due = known.due
        for future in futures:
            if future.done():
                continue
            if isinstance(made, Exception):
                future.set_exception(made)
            else:
                future.set_result(made)


async def _within(waited: Awaitable[object], seconds: float) -> None:
    """Wait for something, so many seconds at most."""
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(waited, seconds)
