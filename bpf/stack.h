/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Locals that belong to one run of a program.
 *
 * Since Linux 6.13 the kernel gives programs of the kprobe type, so uprobes' too, that use 49 bytes
 * of stack or more (64, rounded up to 16) one stack per CPU instead of the thread's own: commits
 * a76ab5731e32 ("bpf: Find eligible subprogs for private stack support") and 7d1cd70d4b16 ("bpf,
 * x86: Support private stack in jit"). It relies on their not being run twice at once on a CPU.
 * That holds for kprobes. A uprobe's program can be preempted, and the next thread's at the same
 * probe then overwrites the first one's locals.
 *
 * A program with a tail call keeps the thread's stack, on every kernel. Here is one that never runs
 * and would lead nowhere. tests/session/test_stacks.py looks for it in what the kernel has loaded.
 */
#pragma once
#include "registers.h"

/*
 * nowhere: no program. All functions of one source refer to it, so they have to be loaded for the
 * same kind of attachment (Linux 6.18, commit 4540aed51b12).
 */
BPF_PROG_ARRAY(nowhere, 1);

/* To be called by each program, directly or through site_hit(). */
static __always_inline void stack_keep_own(struct pt_regs *ctx)
{
    /* Never, at a uprobe; the verifier cannot know. */
    if (registers_in_kernel(ctx))
        nowhere.call(ctx, 0);
}
