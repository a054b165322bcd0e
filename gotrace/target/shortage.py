# SPDX-License-Identifier: Apache-2.0
"""Distinguish missing files from those that cannot be seen for a lack of descriptors or memory."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

#: Errors that say nothing of what was asked for.
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


@contextmanager
def suppress_missing() -> Iterator[None]:
    """Suppress any OSError but those of a lack of descriptors or memory.

    A look at many processes takes an error for the end of what it looked at.
    """
    try:
        yield
    except OSError as error:
        raise_shortage(error)


def raise_shortage(error: OSError) -> None:
    """Raise an error again that comes of a lack of descriptors or memory."""
    if error.errno in _SHORTAGES:
        raise error
