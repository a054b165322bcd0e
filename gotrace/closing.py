# SPDX-License-Identifier: Apache-2.0
"""A base of the classes that are closed."""

from __future__ import annotations

from typing import TypeVar

_T = TypeVar("_T", bound="Closing")


class Closing:
    """A context manager that closes itself at the end of its ``with`` statement."""

    __slots__ = ()

    def close(self) -> None:
        """Give back what is held."""
        raise NotImplementedError

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
