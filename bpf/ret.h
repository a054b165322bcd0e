/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * RETs carried out by the program at their probe, so that the kernel need not single-step them.
 *
 * Since Linux 6.18 a uprobe's program can write registers (commit 7384893d970e), and the kernel
 * executes the instruction at the probe only where the program has left the instruction pointer
 * alone (commit 4363264111e1). A RET takes a word off the stack into that pointer and does nothing
 * else. One that is carried out twice ends the target, so that everything here is refused when in
 * doubt: then the kernel steps, as ever.
 *
 * Settings (common.h):
 *   GOTRACE_EMULATE_RET    1 where that is asked for; else nothing of this is compiled; optional
 *   GOTRACE_TASK_FEATURES  offset of thread.features in the kernel's task_struct, which says
 *                          whether a thread has a shadow stack; 0 where none can have
 */
#pragma once
#include "site.h"

#if GOTRACE_EMULATE_RET
#ifdef GOTRACE_SITE_BY_IP
#error "not found by instruction pointer: another tracer may have moved that"
#endif

#define BREAKPOINT 0xcc
#define FLAGS_TF 0x100    /* a debugger steps this thread */
#define USER_ADDRESS 47   /* bits; beyond them a RET faults where it is, not where it leads */
#define SHADOW_STACK 1ULL /* of thread.features: ARCH_SHSTK_SHSTK of uapi/asm/prctl.h */

/*
 * Return what another tracer's program has added to SP by carrying out this RET: 8, or 0. Programs
 * at one place run one after the other, each with the registers as those before left them. The
 * instruction pointer is compared with the site's place in the cookie: in 24 bits, or where files
 * are mapped anywhere in 12. No branches, for the verifier would follow each of them to the end;
 * and nothing read from memory, so that ret_begin() and ret_end() cannot find different answers.
 */
static __always_inline u64 popped(struct pt_regs *ctx, u64 cookie)
{
    u64 mask = COOKIE_PLACE_MASK >> (cookie / COOKIE_RET_PAGE & 1) * 12;
    u64 differ = (ctx->ip ^ cookie >> COOKIE_SP_SHIFT) & mask;
    return ((differ | -differ) >> 63 & cookie / COOKIE_RET & 1) * 8;
}

/* Return whether the thread's RETs are checked against a shadow stack, which nothing here writes. */
static __always_inline bool has_shadow_stack(void)
{
    u64 offset = GOTRACE_TASK_FEATURES, features = 0;
    if (!offset)
        return false;
    void *place = (void *)(bpf_get_current_task() + offset);
    return bpf_probe_read_kernel(&features, sizeof(features), place) || features & SHADOW_STACK;
}

/*
 * Have SP, up to ret_end(), as it is at the RET, and the cookie as it is at other sites. To be
 * called at each RET before either is used.
 */
static __always_inline void ret_begin(struct pt_regs *ctx, u64 *cookie)
{
    ctx->sp -= popped(ctx, *cookie);
    *cookie &= (1ULL << COOKIE_SP_SHIFT) - 1;
}

/*
 * Carry the RET out, unless another program has: then give back what ret_begin(), which must have
 * been called, took off SP. To be called last, whatever has become of the hit; everything is looked
 * up again, since values that live across all of a program make it large.
 */
static __always_inline void ret_end(struct pt_regs *ctx)
{
    u64 cookie = attach_cookie(ctx), words[2] = {}, to;
    u8 byte = 0;
    if (!(cookie & COOKIE_RET))
        return;
    u64 done = popped(ctx, cookie);
    if (done) {
        ctx->sp += done;
        return;
    }
    if (ctx->flags & FLAGS_TF || has_shadow_stack())
        return;
    /*
     * The return address and the word before it, which a RET that was carried out leaves there: so
     * that one is found that led to the same place in another page.
     */
    if (bpf_probe_read_user(words, sizeof(words), (void *)(ctx->sp - 8)) || words[0] == ctx->ip)
        return;
    to = words[1];
    /* To the RET itself it leads where that follows a call: the kernel would take it for not done. */
    if (to == ctx->ip || to >> USER_ADDRESS)
        return;
    if (bpf_probe_read_user(&byte, sizeof(byte), (void *)ctx->ip) || byte != BREAKPOINT)
        return;
    ctx->sp += 8;
    ctx->ip = to;
}
#else
static __always_inline void ret_begin(struct pt_regs *ctx, u64 *cookie)
{
}

static __always_inline void ret_end(struct pt_regs *ctx)
{
}
#endif
