# SPDX-License-Identifier: Apache-2.0
"""Write goroutines as Go's own dumps do, in groups, and as JSON."""

from __future__ import annotations

__all__ = ["spoken"]


def spoken(name: str) -> str:
    """Return a function's name as Go's dumps print it (runtime.printFuncName).

    Type arguments are ``[...]``, of a generic method of a generic type twice.
    """
    if name == "runtime.gopanic":
        return "panic"
    first, last = name.find("["), name.rfind("]")
    if first < 0 or last <= first:
        return name
    inside = name[first + 1 : last]
    depth = 1
    for at, character in enumerate(inside):
        depth += (character == "[") - (character == "]")
        if depth == 0:
            again = inside.find("[", at)
            if again < 0:
                return name
            return f"{name[:first]}[...]{inside[at + 1 : again]}[...]{name[last + 1 :]}"
    return f"{name[:first]}[...]{name[last + 1 :]}"
