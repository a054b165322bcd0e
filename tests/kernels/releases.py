# SPDX-License-Identifier: Apache-2.0
"""Which kernels there are guests of, and which of Debian's packages hold them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.debian import FetchError
from tests.kernels.order import POSSIBLE


@dataclass(frozen=True, slots=True)
class Release:
    """One kernel to try the tools on.

    ``suite`` is the Debian suite that has it, ``cpus`` the guest's number of processors and
    ``boot`` what its command line gets besides. ``series`` is the beginning of its version; any
    where it is empty. ``methods`` are the ways to attach that it has, best first, and ``pairs`` is
    whether it has what gofunclatency and gotrace need (Linux 5.12): both are what the guest is held
    to.
    Of ``possible`` processors, where it is not 0, the others are there and not online, as in
    virtual machines that can be given more; ``only`` are the checks that are then made.
    ``flavour`` is how the names of Debian's packages end. If ``source`` names a package of the
    kernel's source, the kernel is compiled from that, and the guest runs only if it is named.
    """

    name: str
    suite: str
    series: str
    methods: tuple[str, ...] = ("multi", "perf-cookie", "perf-ip")
    pairs: bool = True
    cpus: int = 1
    boot: str = ""
    possible: int = 0
    only: tuple[str, ...] = ()
    flavour: str = "cloud-amd64"
    source: str = ""

    @property
    def kernel(self) -> str:
        """Return the name of the release whose kernel this is."""
        return self.name.removesuffix(f"-{self.possible}")

    @property
    def arch(self) -> str:
        """Return Debian's name of the processor architecture."""
        return "arm64" if "arm64" in self.flavour else "amd64"


_ARM64 = "cloud-arm64"

#: Debian's cloud kernels, oldest first. The last two are preemptible and have two processors, as
#: only there a BPF program of one thread meets another's: 6.18 everywhere (preempt=full), the
#: newest as Debian builds it (PREEMPT_LAZY, the default since its 6.16).
RELEASES = (
    Release("5.10", "bullseye", "5.10.", methods=("perf-ip",), pairs=False),
    Release("6.1", "bookworm", "6.1.", methods=("perf-cookie", "perf-ip")),
    Release("6.12", "trixie", "6.12."),
    Release("6.18", "trixie-backports", "6.18.", cpus=2, boot="preempt=full"),
    Release("newest", "trixie-backports", "", cpus=2),
    Release("newest-128", "trixie-backports", "", cpus=2, possible=128, only=POSSIBLE),
    *(
        Release("5.10-arm64", "bullseye", "5.10.", ("perf-ip",), pairs=False, flavour=_ARM64),
        Release("6.1-arm64", "bookworm", "6.1.", ("perf-cookie", "perf-ip"), flavour=_ARM64),
        Release("6.12-arm64", "trixie", "6.12.", flavour=_ARM64),
        Release("6.18-arm64", "trixie-backports", "6.18.", cpus=2, flavour=_ARM64),
        Release("newest-arm64", "trixie-backports", "", cpus=2, flavour=_ARM64),
        Release(
            "newest-arm64-128",
            "trixie-backports",
            "",
            cpus=2,
            possible=128,
            only=POSSIBLE,
            flavour=_ARM64,
        ),
        Release("16k-arm64", "trixie-backports", "", flavour="arm64-16k"),
        # Debian's series for which its compiler and pahole of the release before are enough.
        Release("64k-arm64", "trixie", "6.12.", flavour="arm64-64k", source="linux-source-6.12"),
    ),
)

#: Those that are tried where time is short.
QUICK = ("6.1", "newest", "newest-arm64")


def names_for(arch: str, quick: bool) -> list[str]:
    """Return the names of the releases of an architecture that run if nobody names any."""
    names = [one.name for one in RELEASES if one.arch == arch and not one.source]
    return [name for name in names if name in QUICK] if quick else names


@dataclass(frozen=True, slots=True)
class KernelPackages:
    """The packages that together hold one kernel and its modules; ``version`` is Debian's."""

    version: str
    names: tuple[str, ...]


def release(name: str) -> Release:
    """Return the release of that name. Raises FetchError with the names that there are."""
    for one in RELEASES:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in RELEASES)
    raise FetchError(f"there is no guest of kernel {name!r}: choose from {names}")


def choose(
    records: Iterable[Mapping[str, str]], series: str, flavour: str = "cloud-amd64"
) -> KernelPackages:
    """Return the newest whole kernel of a series among a suite's packages.

    Up to 6.18 ``linux-image-VERSION-FLAVOUR`` holds all; later that depends on
    ``linux-binary-*`` and ``linux-modules-*``, of which an archive may keep only a part: such a
    kernel is passed over. Raises FetchError where there is none.
    """
    by_name = {record["Package"]: record for record in records}
    found = []
    for name, record in by_name.items():
        match = re.fullmatch(rf"linux-image-(\d[\w.+~-]*)-{flavour}", name)
        if match and match[1].startswith(series):
            parts = _parts(record)
            if all(part in by_name for part in parts):
                found.append((_key(record["Version"]), record["Version"], (name, *parts)))
    if not found:
        raise FetchError(f"no package of a whole {flavour} kernel {series or 'at all'}")
    _, version, names = max(found)
    return KernelPackages(version, names)


def choose_source(records: Iterable[Mapping[str, str]], name: str) -> KernelPackages:
    """Return the package of a kernel's source. Raises FetchError if there is none."""
    for record in records:
        if record["Package"] == name:
            return KernelPackages(record["Version"], (name,))
    raise FetchError(f"no package {name}")


def _parts(record: Mapping[str, str]) -> Sequence[str]:
    """Return the packages with files of the kernel that an image package depends on."""
    words = (word.split()[0] for word in record.get("Depends", "").split(",") if word.strip())
    return [word for word in words if word.startswith(("linux-binary-", "linux-modules-"))]


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))
