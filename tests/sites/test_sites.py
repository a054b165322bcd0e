# SPDX-License-Identifier: Apache-2.0
"""The choice of a function's sites, on literal code."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gotrace.architecture import AMD64
from gotrace.elf.functions import FuncInfo, FunctionTable, Origin, load_functions
from gotrace.elf.image import ElfImage
from gotrace.sites.amd64 import _branch_to_start
from gotrace.sites.records import SiteError, SiteForm
from gotrace.sites.sites import Site, SiteKind, entry_site, function_sites, return_sites
from tests.toolchains import FIXTURES, FOR_ARM64, build, newest, require

ENTRY = 0x401000


def function(code: bytes, name: str = "main.f") -> FuncInfo:
    return FuncInfo(name, ENTRY, ENTRY + len(code), 0, Origin.PCLNTAB)


def entry(code: str, name: str = "main.f") -> Site:
    raw = bytes.fromhex(code)
    return entry_site(raw, function(raw, name), AMD64)


def refused(code: str, name: str = "main.f") -> str:
    with pytest.raises(SiteError) as caught:
        entry(code, name)
    return str(caught.value)


def returns(code: str) -> tuple[list[int], int]:
    raw = bytes.fromhex(code)
    found = return_sites(raw, function(raw), AMD64)
    assert all(site.kind is SiteKind.RET and site.sp_offset == 0 for site in found.sites)
    return [site.address - ENTRY for site in found.sites], found.tail_jumps


#: The way to morestack and back, 7 bytes: call runtime.morestack_noctxt; jmp to the entry.
GROW = "e8 00 10 00 00 eb "

# code, form, offset of the site, sp_offset
SITES = {
    # 49 3b 66 10 76 06     cmp 0x10(%r14),%rsp; jbe
    # 55 48 89 e5 5d c3     push %rbp; mov %rsp,%rbp; pop %rbp; ret
    "Go 1.21 frame": (
        "49 3b 66 10 76 06 55 48 89 e5 5d c3 " + GROW + "ed",
        *(SiteForm.EMULATED, 6, 0),
    ),
    # 49 3b 66 10 76 16     cmp 0x10(%r14),%rsp; jbe
    # 48 83 ec 08           sub $0x8,%rsp
    # 48 89 2c 24           mov %rbp,(%rsp)
    # 48 8d 2c 24           lea (%rsp),%rbp
    # 48 8b 2c 24           mov (%rsp),%rbp
    # 48 83 c4 08 c3 90     add $0x8,%rsp; ret; nop
    "Go 1.19 frame": (
        "49 3b 66 10 76 16 48 83 ec 08 48 89 2c 24 48 8d 2c 24 48 8b 2c 24 48 83 c4 08 c3 90 "
        + GROW
        + "dd",
        *(SiteForm.BRANCH, 4, 0),
    ),
    # 49 3b 66 10 76 06     cmp 0x10(%r14),%rsp; jbe
    # 55 90 90 90 90 c3     push %rbp that sets up no frame may be the head of a loop
    "assembly after the check": (
        "49 3b 66 10 76 06 55 90 90 90 90 c3 " + GROW + "ed",
        *(SiteForm.BRANCH, 4, 0),
    ),
    # 55 48 89 e5 ...       push %rbp; mov %rsp,%rbp
    "nosplit": ("55 48 89 e5 5d c3", SiteForm.EMULATED, 0, 0),
    # 48 83 f8 07 74 02     cmp $0x7,%rax; je
    "leaf with a condition": ("48 83 f8 07 74 02 31 c0 c3", SiteForm.EMULATED, 4, 0),
    # 48 83 ec 08 e8 ...    sub $0x8,%rsp; call
    "site below the frame": (
        "48 83 ec 08 e8 00 10 00 00 48 83 c4 08 c3",
        *(SiteForm.EMULATED, 4, 8),
    ),
    # 48 01 d8 c3           add %rbx,%rax; ret
    "leaf": ("48 01 d8 c3", SiteForm.FIRST, 0, 0),
    # 48 85 c0              test %rax,%rax
    # 74 02                 2: je +2, the target of the loop below
    # 31 c9                 xor %ecx,%ecx
    # 48 ff c8 75 f7 c3     dec %rax; jne 2b; ret
    "loop at the site": ("48 85 c0 74 02 31 c9 48 ff c8 75 f7 c3", SiteForm.FIRST, 0, 0),
    # b8 75 fe 00 00 c3     mov $0xfe75,%eax; ret: bytes that only look like a jump
    "immediate like a jump": ("b8 00 00 75 fb c3", SiteForm.FIRST, 0, 0),
    "nothing but a RET": ("c3", SiteForm.FIRST, 0, 0),
    # 64 48 3b 24 25 70 00 00 00 72 03   cmp %fs:0x70,%rsp; jb
    # 53 5b c3                           push %rbx; pop %rbx; ret
    # 45 31 db e8 .. .. .. .. c3 eb f1   xor %r11d,%r11d; call __morestack; ret; jmp
    "gccgo, push": (
        "64 48 3b 24 25 70 00 00 00 72 03 53 5b c3 45 31 db e8 00 10 00 00 c3 eb f1",
        *(SiteForm.EMULATED, 11, 0),
    ),
    # ... 48 83 ec 08 ...                sub $0x8,%rsp
    "gccgo, no push": (
        "64 48 3b 24 25 70 00 00 00 72 09 48 83 ec 08 48 83 c4 08 c3 45 31 db e8 00 10 00 00 c3",
        *(SiteForm.EMULATED, 9, 0),
    ),
}


@pytest.mark.parametrize(("code", "form", "offset", "sp_offset"), SITES.values(), ids=SITES)
def test_entry_site(code: str, form: SiteForm, offset: int, sp_offset: int) -> None:
    assert entry(code) == Site(ENTRY + offset, SiteKind.ENTRY, form, sp_offset)


def test_loop_to_the_first_instruction_leaves_no_site() -> None:
    # 48 8b 08 48 85 c9 74 f8 c3   mov (%rax),%rcx; test %rcx,%rcx; je 0; ret
    assert refused("48 8b 08 48 85 c9 74 f8 c3") == (
        "main.f: no exact entry site: the jump at 0x401006 leads back to its first instruction"
    )


def test_unknown_stack_check_leaves_no_site() -> None:
    # cmp 0x40(%r14),%rsp; jbe; ...: were Go to move the stack guard, nothing would be miscounted
    assert "no exact entry site" in refused("49 3b 66 40 76 06 55 48 89 e5 5d c3 " + GROW + "ed")


def test_refused_first_instruction_leaves_no_site() -> None:
    # f0 08 18 c3   lock or %bl,(%rax); ret
    assert refused("f0 08 18 c3") == (
        "main.f: the kernel allows no probe on its first instruction: no support for prefix f0"
    )


def test_functions_entered_in_the_middle_have_no_site() -> None:
    assert "into its middle" in refused("44 0f 11 3f c3", "runtime.duffzero")


def test_empty_function() -> None:
    assert "it has no code at 0x401000" in refused("")


def test_returns_and_tail_jumps() -> None:
    # 75 06 31 c0 c3 cc e9 ..   jne; xor %eax,%eax; ret; jmp elsewhere
    assert returns("75 04 31 c0 c3 cc e9 00 10 00 00") == ([4], 1)


def test_ret_after_the_call_of_morestack_is_none() -> None:
    code = "64 48 3b 24 25 70 00 00 00 72 03 53 5b c3 45 31 db e8 00 10 00 00 c3 eb f1"
    assert returns(code) == ([13], 0)


def test_undecodable_code_has_no_returns() -> None:
    raw = bytes.fromhex("31 c0 c3 06 c3")
    with pytest.raises(SiteError, match=r"main\.f: cannot be decoded at 0x401003: entry only"):
        return_sites(raw, function(raw), AMD64)


def test_a_function_that_cannot_be_decoded_may_be_entered_again() -> None:
    # A branch to its own beginning may be in bytes that are not code.
    with pytest.raises(SiteError, match="no exact entry site: cannot be decoded at 0x401004"):
        raw = bytes.fromhex("31 c0 eb fc 06 c3")
        _branch_to_start(raw, 0, function(raw))


def test_huge_functions_are_not_decoded() -> None:
    raw = bytes(3 << 20)
    with pytest.raises(SiteError, match=r"too large to be decoded \(\d+ bytes\): entry only"):
        return_sites(raw, function(raw), AMD64)
    with pytest.raises(SiteError, match="too large to be decoded"):
        entry_site(raw, function(raw), AMD64)


PIECES = st.sampled_from([bytes.fromhex(code) for code, *_ in SITES.values()])


@given(st.lists(st.binary(max_size=12) | PIECES | PIECES.map(lambda code: code[:9])))
def test_any_bytes_give_sites_inside_or_a_reason(pieces: list[bytes]) -> None:
    code = b"".join(pieces)
    sites: list[Site] = []
    for choose in (
        lambda: [entry_site(code, function(code), AMD64)],
        lambda: return_sites(code, function(code), AMD64).sites,
    ):
        try:
            sites += choose()
        except SiteError as error:
            assert str(error).startswith("main.f: ")
    assert all(ENTRY <= site.address < ENTRY + len(code) for site in sites)


def test_function_sites_of_a_real_binary() -> None:
    path = build(FIXTURES / "sites_forms", newest())
    with ElfImage.open(path) as image:
        table = load_functions(image)

        def sites(name: str, with_returns: bool = True) -> tuple[object, ...]:
            (row,) = (row for row in table.rows_named(name) if not table.is_wrapper(row))
            found = function_sites(image, table.function(row), with_returns)
            form = found.entry and found.entry.form
            return form, len(found.returns), found.tail_jumps, found.problem is not None

        assert sites("main.small") == (SiteForm.EMULATED, 2, 0, False)
        assert sites("main.small", with_returns=False) == (SiteForm.EMULATED, 0, 0, False)
        assert sites("main.load") == (SiteForm.FIRST, 1, 0, False)
        assert sites("main.nothing") == (SiteForm.FIRST, 1, 0, False)
        assert sites("main.tail") == (SiteForm.EMULATED, 0, 1, False)
        assert sites("main.spin") == (None, 1, 0, True)


def by_name(table: FunctionTable, *names: str) -> list[int]:
    """Return the rows of functions by what their names end in."""
    rows = range(len(table))
    return [next(row for row in rows if table.function(row).name.endswith(name)) for name in names]


#: Ways to link, in which code finds a jump table in others.
LINKED: dict[str, tuple[list[str], Mapping[str, str]]] = {
    "exe": (["-buildmode=exe"], {}),
    "pie": (["-buildmode=pie"], {}),
    "exe, arm64": (["-buildmode=exe"], FOR_ARM64),
    "pie, arm64": (["-buildmode=pie"], FOR_ARM64),
    "plugin": (["-buildmode=plugin"], {}),
    # The linker leaves the loads from the global offset table as they are.
    "plugin, loads": (["-buildmode=plugin", "-ldflags=-extldflags=-Wl,--no-relax"], {}),
}


@pytest.mark.parametrize("minor", ["1.19", "1.23", "1.27"])
@pytest.mark.parametrize("linked", LINKED)
def test_no_site_is_in_a_loop_by_a_jump_table(minor: str, linked: str) -> None:
    flags, env = LINKED[linked]
    path = build(FIXTURES / "sites_tables", require(minor), flags=flags, env=env)
    with ElfImage.open(path) as image:
        table = load_functions(image)
        rows = by_name(table, ".waits", ".chooses", ".passes")
        for values, at_rets in ((True, False), (False, False), (False, True)):
            waits, chooses, passes = (
                function_sites(image, table.function(row), True, values, at_rets) for row in rows
            )
            assert waits.entry is None and "no exact entry site" in str(waits.problem)
            assert chooses.entry is not None and chooses.problem is None
            assert passes.entry is not None and passes.problem is None


COMPUTED = r"""
int spin(const unsigned char *p, int n) {
    for (;;) {
        switch (*p++) {
        case 0: return n;
        case 1: continue;
        case 2: return n * 3;
        case 3: continue;
        case 4: return n ^ 9;
        case 5: return n - 7;
        case 6: return n + 22;
        case 7: return n * n;
        case 8: return n << 3;
        default: return 0;
        }
    }
}
int vm(const unsigned char *p, int n) {
    static void *const t[] = {&&stop, &&next, &&stop, &&add, &&stop, &&stop};
next:
    goto *t[*p++];
add:
    n++;
    goto *t[*p++];
stop:
    return n;
}
int chooses(int n, int m) {
    switch (n) {
    case 0: return m;
    case 1: return m + 5;
    case 2: return m * 3;
    case 3: return m >> 1;
    case 4: return m ^ 9;
    case 5: return m - 7;
    case 6: return m * m;
    default: return 0;
    }
}
int calls(int (*f)(int), int n) { return n ? f(n) : 3; }
__asm__(".globl own\n.type own, @function\n"
        "own: test %edi, %edi\nje 1f\ndec %edi\nlea own(%rip), %rax\njmp *%rax\n1: ret\n"
        ".size own, . - own");
int main(void) { return 0; }
"""


@pytest.mark.parametrize("flags", ["-O2 -fno-pie -no-pie", "-O2 -fpie -pie", "-Og -fpie -pie"])
def test_no_site_is_in_a_loop_by_a_computed_jump_of_c(tmp_path: Path, flags: str) -> None:
    source, path = tmp_path / "computed.c", tmp_path / "computed"
    source.write_text(COMPUTED)
    words = ["gcc", "-fcf-protection=none", "-g0", *flags.split(), "-o", str(path), str(source)]
    subprocess.run(words, check=True)
    with ElfImage.open(path) as image:
        table = load_functions(image)
        spin, vm, chooses, calls, own = (
            function_sites(image, table.function(row), False, False)
            for row in by_name(table, "spin", "vm", "chooses", "calls", "own")
        )
        # Of Go's assembly too, whose tables are all known.
        as_go = function_sites(image, replace(own.function, origin=Origin.PCLNTAB), False, False)
    for each in (own, as_go):
        assert each.entry is None and "a computed jump may lead back" in str(each.problem)
    assert chooses.entry is not None and calls.entry is not None
    if flags == "-O2 -fpie -pie":
        # The address of the table is computed in front of the loop, by the first instruction.
        assert vm.entry is not None and spin.entry is not None
        assert vm.entry.address == vm.function.entry and spin.entry.address == spin.function.entry
    else:
        assert "back to its" in str(vm.problem) and "back to its" in str(spin.problem)


def test_function_sites_outside_of_the_file(tmp_path: Path) -> None:
    path = build(FIXTURES / "sites_forms", newest())
    with ElfImage.open(path) as image:
        for low, high in ((0x10, 0x20), (1 << 62, 1 << 63), (0x401000, 0x400000)):
            found = function_sites(image, FuncInfo("f", low, high, 0, Origin.SYMTAB), True)
            assert found.entry is None and found.returns == () and found.problem
