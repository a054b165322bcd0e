# SPDX-License-Identifier: Apache-2.0
"""Names of hosts, as ``web[01-40]`` has many of them, and words for pods."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gotrace.errors import UsageError
from gotrace.records import dataclass

_MOST = 10_000
_RANGE = re.compile(r"\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]")
#: The characters of a name, so that no shell and no ssh takes it for anything else.
_NAME = re.compile(
    r"(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?(?:[A-Za-z0-9._][A-Za-z0-9._-]*|\[[0-9a-fA-F:.]+\])"
)

_PODS = "k8s:"
_SELECTION = re.compile(
    r"(?:(?P<namespace>[a-z0-9][a-z0-9.-]*)/)??"
    r"(?:(?P<object>[a-z][a-z.]*/[a-z0-9][a-z0-9.-]*)|-l ?(?P<labels>[^ -].*))"
)


@dataclass(frozen=True, slots=True)
class PodSelection:
    """The pods of an object, ``deploy/web``, or of labels, as ``place`` of ``--on`` has them."""

    place: str
    namespace: str | None
    object: str | None
    labels: str | None


def are_pods(place: str) -> bool:
    return place.startswith(_PODS)


def selections(places: Iterable[str]) -> list[PodSelection]:
    """Parse ``k8s:NAMESPACE/deploy/NAME`` and ``k8s:-l LABELS``. Raises UsageError.

    >>> selections(["k8s:shop/sts/db"])[0].object
    'sts/db'
    """
    found = []
    for place in places:
        match = _SELECTION.fullmatch(place.removeprefix(_PODS))
        if match is None:
            raise UsageError(
                f"--on {place!r}: pods are given as in k8s:deploy/shop, k8s:shop/pod/web-0 or"
                " k8s:-l app=shop"
            )
        found.append(PodSelection(place, **match.groupdict()))
    return found


def host_names(places: Iterable[str]) -> list[str]:
    """Return the hosts of ``ssh:NAME,NAME``, each once. Raises UsageError.

    >>> host_names(["ssh:web[08-10],ann@db1"])
    ['web08', 'web09', 'web10', 'ann@db1']
    """
    found: dict[str, None] = {}
    for place in places:
        kind, colon, listed = place.partition(":")
        if not colon or kind != "ssh":
            raise UsageError(
                f"--on {place!r}: hosts are given as in ssh:web[01-40],db1, pods as in"
                " k8s:deploy/shop"
            )
        for text in re.split(r",(?![^\[]*\])", listed):
            for name in _expanded(text):
                if not _NAME.fullmatch(name):
                    raise UsageError(f"--on {place!r}: {name!r} is not the name of a host")
                found[name] = None
                if len(found) > _MOST:
                    raise UsageError(f"--on {place!r}: these are more than {_MOST:,} hosts")
    return list(found)


def _expanded(text: str) -> Iterator[str]:
    """Yield a name for each number of its ranges, which keep their leading zeros."""
    found = _RANGE.search(text)
    if found is None:
        yield text
        return
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        last = last or first
        if int(last) - int(first) >= _MOST or len(last) > len(str(_MOST)):
            raise UsageError(f"[{part}]: these are more than {_MOST:,} hosts")
        if int(last) < int(first):
            raise UsageError(f"[{part}]: the last is before the first")
        for number in range(int(first), int(last) + 1):
            for rest in _expanded(text[found.end() :]):
                yield f"{text[: found.start()]}{number:0{len(first)}}{rest}"
