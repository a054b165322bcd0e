# SPDX-License-Identifier: Apache-2.0
"""The ways to attach. Commands import this to parse their options: it has to be light."""

from __future__ import annotations

from enum import Enum


class AttachMethod(Enum):
    """The ways to attach, best first; the values are those of ``--attach``."""

    MULTI = "multi"  # one uprobe-multi link with cookies: Linux 6.6
    COOKIE = "perf-cookie"  # a perf event and a link with a cookie for each site: Linux 5.15
    ADDRESS = "perf-ip"  # a perf event for each site, found by instruction pointer: Linux 4.17
