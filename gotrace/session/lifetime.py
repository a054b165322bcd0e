"""Notice that the target has become another program or that its file was replaced."""

from __future__ import annotations

import os

from gotrace.session.plan import Plan
from gotrace.session.target import Target

__all__ = ["Lifetime"]


class Lifetime:
    """Compare what the target runs now with what it ran when the probes were attached."""

    #: Seconds between two looks: neither change is announced by the kernel without more probes.
    PERIOD = 1.0

    def __init__(self, target: Target, plan: Plan) -> None:
        self._process = target.process
        self._executable = target.process.executable_identity() if target.process else None
        self._files = (
            {}
            if target.process
            else {p.binary.image.display: p.binary.image.identity for p in plan.binaries}
        )

    def replaced_program(self) -> str | None:
        """Return the path of the program that the process has turned into by exec, else None."""
        if self._process is None:
            return None
        now = self._process.executable_identity()
        if now is None or now == self._executable:
            return None
        self._executable = now
        return self._process.executable_name

    def replaced_files(self) -> list[str]:
        """Return files whose path now leads to another file than the traced one, each once."""
        changed = []
        for path, identity in list(self._files.items()):
            try:
                status = os.stat(path)
                same = (status.st_dev, status.st_ino) == (identity.device, identity.inode)
            except OSError:
                same = False
            if not same:
                changed.append(path)
                del self._files[path]
        return changed
