# SPDX-License-Identifier: Apache-2.0
"""The options of gofleet, for its parser and its runs."""

from __future__ import annotations

from dataclasses import dataclass

from gotrace.cli.options import Options


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GofleetOptions(Options):
    """The options of gofleet."""

    on: list[str] | None
    merge: list[str] | None
    by_host: bool
    top: int | None
    output: str | None
    quiet: bool
    at_once: int
    ttl: float
    ssh: str
    sudo: bool
    push: list[str] | None
    remote_command: str | None
    image: str | None
    kubectl: str
    container: str | None
    pods_in: str | None
    sys_admin: bool
