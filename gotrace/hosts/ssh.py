# SPDX-License-Identifier: Apache-2.0
"""Hosts that the user's own ``ssh`` reaches."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from gotrace.hosts.bundle import Bundle
from gotrace.hosts.remote import remote_script
from gotrace.records import dataclass


@dataclass(frozen=True, slots=True)
class Ssh:
    """How hosts are reached: the words of ``ssh``, and of the command that gives rights there.

    ``seconds`` is how long a command may run.
    """

    command: Sequence[str]
    seconds: int
    sudo: bool = False
    bundles: Sequence[Bundle] = ()

    brings = "--push BUNDLE brings it"

    def words(self, host: str, words: Sequence[str]) -> list[str]:
        """Return the command line that runs ``words`` on a host."""
        script = remote_script(words, self.seconds, self.bundles)
        shell = shlex.join([*(("sudo", "-n") if self.sudo else ()), "sh", "-c", script])
        settings = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5")
        options = [word for setting in settings for word in ("-o", setting)]
        return [*self.command, *options, "-T", "--", host, shell]

    def ready(self, host: str, is_over: threading.Event) -> AbstractContextManager[None]:
        """Do nothing: a host is ready or is not."""
        return nullcontext()

    def close(self) -> None:
        """Do nothing: a host is left as it was."""
