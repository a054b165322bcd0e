# SPDX-License-Identifier: Apache-2.0
"""Compile the declarations of bpf/*.h and *.c with the machine's C compiler, to hold Python to."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gotrace.kernel.compiler import joined_source
from tests.live import skip_or_fail

_PRELUDE = """\
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef int8_t s8; typedef int16_t s16; typedef int32_t s32; typedef int64_t s64;
#undef __always_inline
#define __always_inline inline
"""
#: Settings that sizes of structs depend on, as most runs and releases of Go have them.
_SHAPES = {"GOTRACE_WHY_PARTS": 64, "GOTRACE_KEY": 0, "GOTRACE_WIDE": 0}
#: What differs between architectures; the first is this machine's C compiler's.
_ARCHITECTURE = re.compile(
    r"^#if defined\(ARCHITECTURE_AMD64\)$\n(.*?)^#el\w+[^\n]*\n.*?^#endif$", re.M | re.S
)
_DECLARATION = re.compile(r"^(?:struct|enum) \w+ \{$.*?^\};$|^#define [A-Z][^\n]*$", re.M | re.S)
_FUNCTION = "^static __always_inline [^;{{}}]*?{}\\(.*?^}}$"


def run_c(
    source: str,
    functions: list[str],
    body: str,
    directory: Path,
    shapes: Mapping[str, int] | None = None,
) -> str:
    """Return what a main function prints that may use a BPF source's structs, enums and macros.

    ``functions`` of that source, which must not use BPF maps or helpers, can be called too.
    ``shapes`` are settings, by the names that they have in C.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        skip_or_fail("no C compiler: install gcc")
    text = _ARCHITECTURE.sub(r"\1", joined_source(source))
    # A whole line's end keeps macros of several lines out: none of them is a number.
    parts = [match for match in _DECLARATION.findall(text) if not match.endswith("\\")]
    for name in functions:
        found = re.search(_FUNCTION.format(name), text, re.M | re.S)
        assert found is not None, f"{source} has no function {name}"
        parts.append(found[0])
    program = directory / "program"
    defines = "".join(
        f"#define {name} {value}\n" for name, value in (_SHAPES | dict(shapes or {})).items()
    )
    code = _PRELUDE + defines + "\n".join(parts) + "\nint main(void) {\n" + body + "\nreturn 0; }\n"
    subprocess.run(
        [compiler, "-w", "-x", "c", "-", "-o", program], input=code, text=True, check=True
    )
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


class CLayout:
    """Ask for the values that a C struct's fields have when its bytes are 0, 1, 2, ..."""

    def __init__(
        self, source: str, directory: Path, shapes: Mapping[str, int] | None = None
    ) -> None:
        self._source = source
        self._directory = directory
        self._shapes = shapes

    def fields(self, struct: str, *fields: str) -> tuple[bytes, list[int]]:
        """Return the bytes of a struct, all different, and the values of its fields."""
        show = "\n".join(f'printf("%llu ", (unsigned long long)it.{field});' for field in fields)
        output = run_c(
            self._source,
            [],
            f"struct {struct} it; u8 bytes[sizeof(it)];\n"
            "for (size_t i = 0; i < sizeof(it); i++) bytes[i] = i * 7 + (i >> 8);\n"
            f'memcpy(&it, bytes, sizeof(it)); printf("%zu ", sizeof(it));\n{show}',
            self._directory,
            self._shapes,
        )
        size, *values = map(int, output.split())
        return bytes((i * 7 + (i >> 8)) & 0xFF for i in range(size)), values

    def constants(self, *names: str) -> list[int]:
        """Return the values of enumerators, macros and other constant expressions."""
        show = "\n".join(f'printf("%llu ", (unsigned long long)({name}));' for name in names)
        return list(map(int, run_c(self._source, [], show, self._directory, self._shapes).split()))
