/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gooncpu: add up where threads are at an event, such as a clock's tick, by their stacks.
 *
 * The program runs when an event has interrupted a CPU and looks at what that has interrupted: a
 * sample, if it is a thread of the target. Registers are those of user space, whether the thread
 * was there or in the kernel.
 *
 * Settings (common.h), beside those of samples.h:
 *   GOTRACE_KERNEL         1 where the kernel's own frames are wanted
 */
#include <uapi/linux/bpf_perf_event.h>
#include "samples.h"

/* kernel_stack: value 0 is that of the event that is handled: nothing else runs there meanwhile. */
BPF_PERCPU_ARRAY(kernel_stack, struct kept_stack, 1);

/* Helpers by their numbers for ever, which not every BCC declares: Linux 5.11 and 5.15. */
static void *(*current_task)(void) = (void *)158;
static void *(*task_registers)(void *task) = (void *)175;

/* Keep the stack in the kernel and return its hash, 0 if there is none or no room for it. */
static __always_inline u64 keep_kernel_stack(struct bpf_perf_event_data *ctx)
{
    if (!GOTRACE_KERNEL)
        return 0;
    u32 zero = 0;
    struct kept_stack *stack = kernel_stack.lookup(&zero);
    if (!stack)
        return 0;
    int size = bpf_get_stack(ctx, stack->pcs, sizeof(stack->pcs) - sizeof(u64), 0);
    if (size <= 0)
        return 0;
    stack->pcs[size / 8] = 0;
    u64 hash = 0;
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_FRAMES && stack->pcs[i]; i++)
        hash = walk_mix(hash, stack->pcs[i]);
    hash |= 1;
    kept_stacks.insert(&hash, stack);
    if (kept_stacks.lookup(&hash))
        return hash;
    diagnostics_count(KEPT_FULL, 1);
    return 0;
}

/* At each event of a CPU. */
int on_event(struct bpf_perf_event_data *ctx)
{
    if (!site_is_target())
        return 0;

    struct interrupted at = interrupted_at(&ctx->regs);
    bool in_kernel = registers_in_kernel(&ctx->regs);
    if (in_kernel) {
        struct pt_regs user = {};
        bpf_probe_read_kernel(&user, sizeof(user), task_registers(current_task()));
        at = interrupted_at(&user);
    }
    struct sample_row key = {};
    sample_find(at, &key);
    if (in_kernel)
        key.kernel = keep_kernel_stack(ctx);
    sample_add(&key, 0);
    return 0;
}
