/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gooncpu: add up where threads are when a clock ticks, by their stacks.
 *
 * The program runs in the interrupt of each CPU's own clock and looks at what that has interrupted:
 * a sample, if it is a thread of the target. Registers are those of user space, whether the thread
 * was there or in the kernel.
 *
 * A function of Go that has no frame, or has not made its own yet, does not appear between the
 * interrupted address and the first frame pointer: its caller's address is on top of the stack
 * instead. Whether that is so only the function's table says, which user space has. So a word on top
 * that points into the program's code is kept in the stack with a mark.
 *
 * Settings (common.h), beside those of goroutine.h and frames.h:
 *   GOTRACE_KERNEL         1 where the kernel's own frames are wanted
 *   GOTRACE_ROWS           most combinations of stack, goroutine's creation and state
 *   GOTRACE_TEXT_START, GOTRACE_TEXT_END
 *                          where the program's code is, at run time
 *   GOTRACE_G_GOPC, GOTRACE_G_STATUS  offsets in the target's runtime.g
 */
#include <uapi/linux/bpf_perf_event.h>
#include "frames.h"
#include "goroutine.h"

/* Marks of the second address of a stack; shared with gotrace/goroutines/interrupted.py. */
#define CALLER_AT_0 (1ULL << 62) /* the word that SP points to */
#define CALLER_AT_8 (1ULL << 61) /* the one above that */

/* What distinguishes rows; shared with gotrace/session/oncpu/meter.py. */
struct cpu_row {
    u64 stack;      /* hash, 0 where it is not known */
    u64 kernel;     /* hash of the stack in the kernel, 0 where there is none */
    u64 created_by; /* return address of the go statement, 0 without a goroutine */
    u64 status;     /* the goroutine's */
};

/* cpu_rows: value = samples. Only ever added to, so that an interval's sums are differences. */
BPF_HASH(cpu_rows, struct cpu_row, u64, GOTRACE_ROWS);

/* other_samples: value 0 = samples that found no row. */
BPF_ARRAY(other_samples, u64, 1);

/* lost_stacks: value 0 = stacks that were not kept, as there were too many. */
BPF_ARRAY(lost_stacks, u64, 1);

#if GOTRACE_KERNEL
/* kernel_stack: value 0 is that of the tick that is handled: nothing else runs there meanwhile. */
BPF_PERCPU_ARRAY(kernel_stack, struct kept_stack, 1);
#endif

/* Helpers by their numbers for ever, which not every BCC declares: Linux 5.11 and 5.15. */
static void *(*current_task)(void) = (void *)158;
static void *(*task_registers)(void *task) = (void *)175;

static __always_inline void lose_stack(void)
{
    u32 zero = 0;
    u64 *lost = lost_stacks.lookup(&zero);
    if (lost)
        __sync_fetch_and_add(lost, 1);
}

/* Keep the stack in the kernel and return its hash, 0 if there is none or no room for it. */
static __always_inline u64 keep_kernel_stack(struct bpf_perf_event_data *ctx)
{
#if GOTRACE_KERNEL
    u32 zero = 0;
    struct kept_stack *stack = kernel_stack.lookup(&zero);
    if (!stack)
        return 0;
    int size = bpf_get_stack(ctx, stack, sizeof(*stack) - sizeof(u64), 0);
    if (size <= 0)
        return 0;
    stack->pcs[size / 8] = 0;
    u64 hash = 0;
#pragma clang loop unroll(disable)
    for (int i = 0; i < MAX_FRAMES && stack->pcs[i]; i++)
        hash = mix(hash, stack->pcs[i]);
    hash |= 1;
    kept_stacks.insert(&hash, stack);
    if (kept_stacks.lookup(&hash))
        return hash;
    lose_stack();
#endif
    return 0;
}

static __always_inline bool is_code(u64 address)
{
    return address - GOTRACE_TEXT_START < GOTRACE_TEXT_END - GOTRACE_TEXT_START;
}

/* Return what may be the address of the caller of the function at pc, with its mark; 0 if nothing. */
static __always_inline u64 hidden_caller(u64 sp, u64 frame)
{
    u64 words[2] = {};
    bpf_probe_read_user(words, sizeof(words), (void *)sp);
    if (is_code(words[0]))
        return words[0] | CALLER_AT_0;
    /* With a frame pointer there, the frame is made. */
    if (frame != sp && is_code(words[1]))
        return words[1] | CALLER_AT_8;
    return 0;
}

/* At each tick of a CPU's clock. */
int on_tick(struct bpf_perf_event_data *ctx)
{
    if (!site_is_target())
        return 0;

    struct frames_start from = {.pc = ctx->regs.ip, .frame = ctx->regs.bp, .end = ~0ULL};
    u64 sp = ctx->regs.sp;
    bool in_kernel = !(ctx->regs.cs & 3);
    if (in_kernel) {
        struct pt_regs user = {};
        bpf_probe_read_kernel(&user, sizeof(user), task_registers(current_task()));
        from.pc = user.ip;
        from.frame = user.bp;
        sp = user.sp;
    }
    from.caller = hidden_caller(sp, from.frame);

    struct cpu_row key = {};
    struct task task = {};
    if (goroutine_find_task(0, COOKIE_G_TLS, &task)) {
        if (task.g) {
            key.created_by = read_word(task.g + GOTRACE_G_GOPC);
            key.status = read_word(task.g + GOTRACE_G_STATUS) & G_STATUS_MASK;
        } else {
            /* Without a goroutine a system stack's frame pointers lead on to the last one's. */
            from.end = task.stack_hi;
        }
    }
    key.stack = frames_keep(from);
    if (!key.stack)
        lose_stack();
    if (in_kernel)
        key.kernel = keep_kernel_stack(ctx);
    u32 zero = 0;
    u64 *samples = cpu_rows.lookup(&key);
    if (!samples) {
        u64 none = 0;
        cpu_rows.insert(&key, &none);
        samples = cpu_rows.lookup(&key);
        if (!samples)
            samples = other_samples.lookup(&zero);
    }
    if (samples)
        __sync_fetch_and_add(samples, 1);
    return 0;
}
