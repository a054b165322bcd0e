# SPDX-License-Identifier: Apache-2.0
"""Give up rights that tracing does not need, for as long as this process and its children live."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from enum import IntEnum

from gotrace.target.process import read_status

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 24, 38, 47
_PR_CAP_AMBIENT_LOWER = 3
#: _LINUX_CAPABILITY_VERSION_3 of include/uapi/linux/capability.h: two words of 32 bits each.
_VERSION = 0x20080522
_SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")

_libc = ctypes.CDLL(None, use_errno=True)


class Capability(IntEnum):
    """Capabilities that tracing needs somewhere (include/uapi/linux/capability.h)."""

    DAC_READ_SEARCH = 2
    NET_BIND_SERVICE = 10
    IPC_LOCK = 14
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYS_RESOURCE = 24
    PERFMON = 38
    BPF = 39


def keep_only(wanted: Iterable[Capability]) -> set[Capability]:
    """Give up all capabilities but these, for good, and return those that are left.

    Capabilities are a thread's: to be called while there is one. No program that is executed
    gets more than this process has, whoever owns it. Raises OSError.
    """
    mask = sum(1 << capability for capability in set(wanted))
    has = _capabilities()
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for number in range(64):
        if has["CapBnd"] >> number & 1 and not mask >> number & 1:
            with suppress(PermissionError):  # that takes CAP_SETPCAP: then it is not ours to do
                _prctl(_PR_CAPBSET_DROP, number)
        if has["CapAmb"] >> number & 1 and not mask >> number & 1:
            _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_LOWER, number)
    left = [has[name] & mask for name in ("CapEff", "CapPrm", "CapInh")]
    words = [each >> shift & 0xFFFFFFFF for shift in (0, 32) for each in left]
    header = struct.pack("=Ii", _VERSION, 0)
    if _libc.capset(header, struct.pack("=6I", *words)) != 0:
        raise _error("capset")
    return {capability for capability in Capability if left[0] >> capability & 1}


def _capabilities() -> dict[str, int]:
    status = read_status(os.getpid())
    return {name: int(status[name], 16) for name in _SETS}


def _prctl(option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(each) for each in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *words) != 0:
        raise _error("prctl")


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), call)
