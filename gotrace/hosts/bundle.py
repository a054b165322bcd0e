# SPDX-License-Identifier: Apache-2.0
"""The bundles that are unpacked on hosts which have no command of their own."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

from gotrace.errors import UsageError
from gotrace.records import dataclass

_TOP = "gotrace/bin/"
_MANIFEST = "gotrace/lib/gotrace/_compiled/manifest.json"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A packed bundle: its bytes, and the digest by which hosts know it.

    ``machine`` is what ``uname -m`` says on the hosts that it is for, None if it is for all.
    """

    data: bytes
    digest: str
    machine: str | None


def read_bundles(paths: Sequence[str], tool: str) -> list[Bundle]:
    """Read bundles of ``make bundle``, each for other machines and with the tool's command.

    Raises UsageError.
    """
    bundles: dict[str | None, Bundle] = {}
    for path in paths:
        bundle = _read(path, tool)
        if bundle.machine in bundles or (bundles and None in (bundle.machine, *bundles)):
            raise UsageError(f"--push {path}: an earlier --push is for the same machines")
        bundles[bundle.machine] = bundle
    return list(bundles.values())


def _read(path: str, tool: str) -> Bundle:
    try:
        data = Path(path).read_bytes()
        with tarfile.open(path, "r:gz") as tar:
            names = tar.getnames()
            manifest = tar.extractfile(_MANIFEST) if _MANIFEST in names else None
            machine = str(json.load(manifest)["machine"]) if manifest else None
        if machine is not None and not re.fullmatch(r"\w+", machine):
            raise ValueError(f"its programs are for {machine!r}")
    except (OSError, tarfile.TarError, EOFError, ValueError, LookupError, TypeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"--push {path}: {reason}: make bundle makes one") from error
    if f"{_TOP}{tool}" not in names:
        raise UsageError(f"--push {path}: has no {_TOP}{tool}: it is not what make bundle makes")
    return Bundle(data, hashlib.sha256(data).hexdigest(), machine)
