# SPDX-License-Identifier: Apache-2.0
"""Carry out RETs by bpf/ret.h, compiled for this machine, on a stack and code of the test's own.

Whatever programs are at a RET, what comes out must be what the processor makes of it, once.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gotrace.kernel.compiler import bpf_directory
from gotrace.kernel.cookie import Jumps, TaskKind, ret_cookie
from gotrace.sites.sites import Site, SiteForm, SiteKind
from tests.bpf.c import CLayout
from tests.live import skip_or_fail

_CASES = 300_000

_HEAD = """\
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef uint8_t u8; typedef uint32_t u32; typedef uint64_t u64;
#define __always_inline inline
#define GOTRACE_EMULATE_RET 1
static u64 task_features;
#define GOTRACE_TASK_FEATURES task_features
struct pt_regs { u64 ip, sp, flags; };

/* What the program's thread has in memory, and what the kernel says of it. */
enum { PAGE = 4096, CODE = 0x401000, CODE_SIZE = 64 * PAGE, STACK = 0xc000100000, WORDS = 1024 };
static u64 stack[WORDS]; /* two pages */
static int below_is_there;
static u64 site, return_to, traps[4];
static u64 cookie_here, thread_features;
#define UNREADABLE 99

static u64 attach_cookie(struct pt_regs *ctx) { return cookie_here; }
static u64 bpf_get_current_task(void) { return 0x1000; }
static int bpf_probe_read_kernel(void *to, u32 size, void *from)
{
    memset(to, 0, size); /* as the kernel does it where it cannot read */
    if ((u64)from != 0x1000 + task_features || size != 8 || thread_features == UNREADABLE)
        return -1;
    memcpy(to, &thread_features, size);
    return 0;
}
static int bpf_probe_read_user(void *to, u32 size, void *from)
{
    u64 at = (u64)from;
    memset(to, 0, size);
    u64 from_there = below_is_there ? STACK : STACK + PAGE;
    if (at >= from_there && at + size <= STACK + sizeof(stack)) {
        memcpy(to, (u8 *)stack + (at - STACK), size);
        return 0;
    }
    if (size != 1 || at < CODE || at >= CODE + CODE_SIZE)
        return -1;
    *(u8 *)to = 0x90;
    for (int i = 0; i < 4; i++)
        if (at == traps[i])
            *(u8 *)to = 0xcc;
    return 0;
}
"""

#: What bpf/count.c needs besides: a program of which all hits count.
_COUNT = """\
#define GOTRACE_COUNTERS 8
#define BPF_PERCPU_ARRAY(name, type, size) \\
    static type name##_value[size]; \\
    static type *name##_lookup(u32 *key) { return &name##_value[*key]; } \\
    static struct { type *(*lookup)(u32 *); } name = {name##_lookup}
static bool site_hit_entry(struct pt_regs *ctx, u64 *cookie)
{
    *cookie = attach_cookie(ctx);
    return 1;
}
"""

_BODY = """\
static u64 seed = 1;
static u64 any(u64 below)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 33) % below;
}

int main(void)
{
    int done = 0, stepped = 0, second = 0, unsure = 0, hits = 0;
    for (int n = 0; n < CASES; n++) {
        site = CODE + any(CODE_SIZE);
        u64 same_place = CODE + (any(64) * PAGE | site % PAGE);
        u64 choices[] = {CODE + any(CODE_SIZE), CODE + any(CODE_SIZE), same_place, site, 0,
                         0xffffffff81000000, 1ULL << 47, site + 1};
        return_to = choices[any(8)];
        traps[0] = site;
        for (int i = 1; i < 4; i++)
            traps[i] = any(2) ? return_to : same_place;
        /* Where a frame ends at a page's beginning, the word below is in another one. */
        u64 at = any(4) ? any(WORDS - 2) + 1 : PAGE / 8, below[] = {any(1 << 20), site, return_to};
        stack[at] = return_to;
        stack[at - 1] = below[any(3)];
        below_is_there = at < PAGE / 8 || any(2);
        struct pt_regs start = {site, STACK + 8 * at, any(8) ? 0x246 : 0x346}, ctx = start;
        task_features = any(2) * 0x9c0;
        thread_features = any(8) ? any(4) ? 0 : 1 : UNREADABLE;
        int programs = 1 + any(3), carried = 0;
        for (int i = 0; i < programs; i++) {
            u64 page = any(2) ? COOKIE_RET_PAGE : 0, bits = page ? PAGE - 1 : 0xffffff;
            u64 place = (site & (page ? any(2) ? PAGE - 1 : 0xffffff : 0xffffff)) << 40;
            int is_ours = any(8) != 0; /* else one that leaves RETs alone */
            cookie_here = is_ours ? COOKIE_RET | page | place | 7 : 7;
            u64 cookie = cookie_here;
            int was_done = ctx.ip != site;
            if (any(4) == 0) {
                on_entry(&ctx);
                hits++;
                second += was_done;
                carried |= !was_done && ctx.ip != site;
                continue;
            }
            ret_begin(&ctx, &cookie);
            if (cookie != (is_ours ? COOKIE_RET | page | 7 : 7))
                return printf("case %d: cookie %llx\\n", n, (unsigned long long)cookie);
            /* A program finds SP as the RET has it, but for a jump by whole pages. */
            int looks_new = was_done && ((ctx.ip ^ site) & bits) == 0;
            if (ctx.sp != start.sp + (was_done && (!is_ours || looks_new) ? 8 : 0))
                return printf("case %d: SP at program %d\\n", n, i);
            unsure += looks_new;
            ret_end(&ctx);
            second += was_done;
            carried |= !was_done && ctx.ip != site;
            if (!carried && (ctx.sp != start.sp || ctx.ip != start.ip))
                return printf("case %d: half of a RET\\n", n);
        }
        if (carried && (start.flags & 0x100 || (task_features && thread_features)))
            return printf("case %d: not to be carried out\\n", n);
        if (carried && (return_to >> 47 || return_to == site))
            return printf("case %d: to %llx\\n", n, (unsigned long long)return_to);
        if (ctx.ip == site) { /* the kernel executes the instruction */
            ctx.ip = stack[(ctx.sp - STACK) / 8];
            ctx.sp += 8;
            stepped++;
        }
        done += carried;
        if (ctx.ip != return_to || ctx.sp != start.sp + 8 || ctx.flags != start.flags)
            return printf("case %d: not one RET\\n", n);
    }
    /* Where a program has sent the thread elsewhere, there is no breakpoint: nothing returns. */
    struct pt_regs elsewhere = {site ^ PAGE, STACK + PAGE, 0x246}, before = elsewhere;
    cookie_here = COOKIE_RET | COOKIE_RET_PAGE | site << 40;
    task_features = stack[PAGE / 8 - 1] = 0;
    stack[PAGE / 8] = CODE;
    below_is_there = 1;
    traps[1] = traps[2] = traps[3] = traps[0] = site;
    ret_end(&elsewhere);
    if (memcmp(&elsewhere, &before, sizeof(before)))
        return printf("returned from elsewhere\\n");
    if (hits == 0 || counts_value[7] != hits)
        return printf("%d hits of %d\\n", (int)counts_value[7], hits);
    return printf("%d %d %d %d\\n", done, stepped, second, unsure) < 0;
}
"""


def test_every_ret_is_carried_out_once(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        skip_or_fail("no C compiler: install gcc")
    site = (bpf_directory() / "site.h").read_text()
    header = (bpf_directory() / "ret.h").read_text()
    count = (bpf_directory() / "count.c").read_text()
    header, count = (
        re.sub(r"^#(?:pragma|include).*$", "", text, flags=re.M) for text in (header, count)
    )
    cookies = "\n".join(re.findall(r"^#define COOKIE_.*$", site, re.M))
    code = "\n".join((_HEAD, cookies, header, _COUNT, count, _BODY.replace("CASES", str(_CASES))))
    program = tmp_path / "rets"
    command = [compiler, "-O1", "-w", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=code, text=True, check=True)
    output = subprocess.run([program], capture_output=True, text=True).stdout
    numbers = output.split()
    assert len(numbers) == 4 and all(map(str.isdecimal, numbers)), output
    # Each way to come out, and programs that come second, are well represented.
    done, stepped, second, unsure = map(int, numbers)
    assert done + stepped == _CASES
    assert min(done, stepped, second) > _CASES // 10 and unsure > 0


@pytest.mark.parametrize("is_movable", [False, True])
def test_the_cookie_of_a_ret(tmp_path: Path, is_movable: bool) -> None:
    site = Site(0x12345678, SiteKind.RET, SiteForm.RET, 0)
    value = ret_cookie(9, site, TaskKind.G_TLS, Jumps.NONE, is_movable, emulated=True)
    index, tls, ret, page, place = CLayout("latency.c", tmp_path).constants(
        *(f"{value}ULL & COOKIE_{name}" for name in ("INDEX_MASK", "G_TLS", "RET", "RET_PAGE")),
        f"{value}ULL >> COOKIE_SP_SHIFT",
    )
    assert (index, bool(tls), bool(ret), bool(page), place) == (9, True, True, is_movable, 0x345678)
    plain = ret_cookie(9, site, TaskKind.G_TLS, Jumps.NONE, is_movable, emulated=False)
    assert plain == index | tls


def test_only_a_ret_has_such_a_cookie() -> None:
    entry = Site(0x401000, SiteKind.ENTRY, SiteForm.FIRST, 0)
    with pytest.raises(ValueError, match="not a RET"):
        ret_cookie(1, entry, TaskKind.THREAD, Jumps.NONE, False, emulated=True)
