# SPDX-License-Identifier: Apache-2.0
"""Compare function symbols with readelf, for programs without a Go function table."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from gotrace.elf import ElfError
from gotrace.elf.functions import Origin, load_functions
from gotrace.elf.image import ElfImage
from gotrace.elf.symtab import function_symbols, symbol_value
from tests.elf.binaries import small
from tests.elf.truth import elf_symbols, run
from tests.live import skip_or_fail
from tests.toolchains import FIXTURES, gccgo_build, newest

PROGRAM = """
int real_name(int n) { return n + 1; }
int __real_name(int n) __attribute__((alias("real_name")));
static int local_alias(int n) __attribute__((alias("real_name"), used));
static __attribute__((noinline)) int hidden(int n) { return n * 3; }
int data_only = 7;
int main(int argc, char **argv) { return hidden(real_name(argc)) + data_only; }
"""

LIBRARY = """
int old_version(int n) { return n; }
int new_version(int n) { return n + 1; }
__asm__(".symver old_version,answer@V_1");
__asm__(".symver new_version,answer@@V_2");
"""


def compile_c(directory: Path, source: str, *flags: str) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        skip_or_fail("there is no gcc")
    (directory / "source.c").write_text(source)
    run([compiler, "-O1", "-o", directory / "binary", directory / "source.c", *flags])
    return directory / "binary"


def assert_like_readelf(path: Path, *, dynamic: bool) -> None:
    """Check each address, size and that the name is one of those that readelf has for it."""
    names: dict[tuple[int, int], set[str]] = {}
    for symbol, _ in elf_symbols(path, dynamic=dynamic):
        if symbol.size:
            names.setdefault((symbol.address, symbol.size), set()).add(
                symbol.name.replace("@@", "@").partition("@")[0]
            )
    with ElfImage.open(path) as image:
        table = load_functions(image)
        functions = [table.function(row) for row in range(len(table.names))]
    assert {function.entry for function in functions} == {address for address, _ in names}
    for function in functions:
        assert function.origin is Origin.SYMTAB
        size = function.end - function.entry
        assert function.name.partition("@")[0] in names[function.entry, size]


def test_functions_of_a_c_program(tmp_path: Path) -> None:
    binary = compile_c(tmp_path, PROGRAM)
    assert_like_readelf(binary, dynamic=False)
    with ElfImage.open(binary) as image:
        table = load_functions(image)
        assert not table.has_pclntab and table.go_version is None
        # One row an address: global before local, plain before underscores.
        assert len(table.rows_named("real_name")) == 1
        assert not table.rows_named("__real_name") and not table.rows_named("local_alias")
        assert len(table.rows_named("hidden")) == 1
        assert not table.rows_named("data_only")
        assert list(table.inlined_calls()) == []
        assert table.inlined_at(0, table.text_start) == ()
        assert table.declared_at(0) is None
        entry = table.function(0).entry
        assert table.find(entry) == table.function(0)
        assert table.find(entry - 1) is None


def test_functions_of_a_stripped_library_come_from_the_dynamic_symbols(tmp_path: Path) -> None:
    (tmp_path / "map").write_text("V_1 { global: answer; local: *; }; V_2 { } V_1;")
    script = f"-Wl,--version-script={tmp_path / 'map'}"
    binary = compile_c(tmp_path, LIBRARY, "-shared", "-fPIC", "-nostdlib", script)
    with ElfImage.open(binary) as image:
        versioned = {symbol.name for symbol in function_symbols(image)}
    # Both are called answer; the default version is what the plain name means.
    assert "answer" in versioned or "new_version" in versioned
    run(["strip", binary])
    assert_like_readelf(binary, dynamic=True)


@pytest.mark.slow
def test_gccgo_functions() -> None:
    binary = gccgo_build(FIXTURES / "elf_gccgo")
    with ElfImage.open(binary) as image:
        table = load_functions(image)
        assert not table.has_pclntab
        assert {"main.main", "main.add", "main.point.Sum"} <= set(table.names)
    libraries = re.findall(r"=> (/\S+)", run(["ldd", binary]))
    assert any("libgo.so" in name for name in libraries)
    for name in libraries:
        assert_like_readelf(Path(name), dynamic=".symtab" not in run(["readelf", "-SW", name]))


def test_symbol_value_is_that_of_readelf() -> None:
    binary = small(newest())
    with ElfImage.open(binary) as image:
        for symbol, _ in elf_symbols(binary)[:300]:
            assert symbol_value(image, symbol.name) is not None
        known = {symbol.name: symbol.address for symbol, _ in elf_symbols(binary)}
        assert symbol_value(image, "main.main") == known["main.main"]
        assert symbol_value(image, "main.nothing") is None


def test_nothing_at_all_is_said_so(tmp_path: Path) -> None:
    binary = compile_c(tmp_path, "void _start(void) {}", "-nostdlib", "-static")
    run(["strip", binary])
    with (
        ElfImage.open(binary, display="PROGRAM") as image,
        pytest.raises(ElfError, match=r"^PROGRAM: no Go function table and no symbols: "),
    ):
        load_functions(image)
