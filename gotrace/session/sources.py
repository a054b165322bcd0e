"""Find the BPF programs' C sources and join them into what BCC compiles."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from gotrace.errors import GotraceError

__all__ = ["bpf_directory", "joined_source"]

_OWN_INCLUDE = re.compile(r'^#include "([\w.]+)"$')


@cache
def bpf_directory() -> Path:
    """Return the directory that holds ``*.c``, ``*.h`` and the stand-in header tree ``include/``.

    An installed package carries it as ``gotrace/_bpf``, a clone as ``bpf`` beside the package.
    Raises GotraceError when neither is there.
    """
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_bpf", package.parent / "bpf"):
        if (candidate / "count.c").is_file():
            return candidate
    raise GotraceError(f"the BPF programs are missing beside {package}: reinstall gotrace")


def joined_source(name: str) -> str:
    """Return the C source of program ``name`` with this project's own headers put in place.

    BCC turns map operations into helper calls only in the main file, never in an included one, so
    quoted includes are expanded here, each once, with ``#line`` keeping the compiler's messages
    right. Includes in angle brackets stay.
    """
    seen: set[str] = set()

    def expand(file: str) -> list[str]:
        if file in seen:
            return []
        seen.add(file)
        lines = [f'#line 1 "{file}"']
        text = (bpf_directory() / file).read_text(encoding="ascii")
        for number, line in enumerate(text.splitlines(), 1):
            included = _OWN_INCLUDE.match(line)
            if included:
                lines += [*expand(included[1]), f'#line {number + 1} "{file}"']
            elif line != "#pragma once":
                lines.append(line)
        return lines

    return "\n".join(expand(name)) + "\n"
