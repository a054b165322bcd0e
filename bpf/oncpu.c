/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gooncpu: add up where threads are at an event, such as a clock's tick, by their stacks.
 *
 * The program runs when an event has interrupted a CPU and looks at what that has interrupted: a
 * sample, if it is a thread of the target. Registers are those of user space, whether the thread
 * was there or in the kernel.
 *
 * Settings (common.h), beside those of interrupted.h:
 *   GOTRACE_KERNEL         1 where the kernel's own frames are wanted
 *   GOTRACE_ROWS           most combinations of stack, goroutine's creation and state
 *   GOTRACE_G_GOPC, GOTRACE_G_STATUS  offsets in the target's runtime.g
 * and, where a label of the goroutines distinguishes rows, beside those of labels.h:
 *   GOTRACE_LABEL_ROWS     most values of it
 *   GOTRACE_G_LABELS       offset in runtime.g
 *   GOTRACE_LABELS_ARE_MAP  1 up to Go 1.23
 */
#include <uapi/linux/bpf_perf_event.h>
#include "interrupted.h"
#include "labels.h"

/* What distinguishes rows; shared with gotrace/session/oncpu/meter.py. */
struct sample_row {
    u64 stack;      /* hash, 0 where it is not known */
    u64 kernel;     /* hash of the stack in the kernel, 0 where there is none */
    u64 created_by; /* return address of the go statement, 0 without a goroutine */
    u64 status;     /* the goroutine's */
    u64 label; /* hash of the label's value, 0 where none is asked for, or without a goroutine */
};

/* sample_rows: value = samples. Only ever added to, so that an interval's sums are differences. */
BPF_HASH(sample_rows, struct sample_row, u64, GOTRACE_ROWS);

/* other_samples: value 0 = samples that found no row. */
BPF_ARRAY(other_samples, u64, 1);

/* kernel_stack: value 0 is that of the event that is handled: nothing else runs there meanwhile. */
BPF_PERCPU_ARRAY(kernel_stack, struct kept_stack, 1);

#define LABEL_WORDS 32          /* of a value, as many as --by compares */
#define LABEL_UNKNOWN (~(u64)0) /* as a length: what cannot be read */

/* A key or a value of labels: its first bytes, zeros after it, and its whole length. */
struct label_content {
    u64 length;
    u64 words[LABEL_WORDS];
};

/* label_key: value 0 = the key that is asked for. */
BPF_ARRAY(label_key, struct label_content, 1);

/* label_scratch: value 0 is of the event that is handled, as kernel_stack. */
struct label_scratch {
    struct label_walk walk;
    struct label_content value;
};
BPF_PERCPU_ARRAY(label_scratch, struct label_scratch, 1);

/* label_values: key = hash. Only ever added to. */
BPF_HASH(label_values, u64, struct label_content, GOTRACE_LABEL_ROWS);

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

/* Keep the value of the goroutine's label and return its hash, or 0 if the table is full. */
static __always_inline u64 keep_label(u64 g)
{
    if (!GOTRACE_LABELS)
        return 0;
    u32 zero = 0;
    struct label_scratch *scratch = label_scratch.lookup(&zero);
    struct label_content *key = label_key.lookup(&zero);
    if (!scratch || !key)
        return 0;
    struct label_content *value = &scratch->value;
#pragma clang loop unroll(full)
    for (int i = 0; i < LABEL_KEY_WORDS; i++)
        scratch->walk.wanted[i] = key->words[i];
    scratch->walk.wanted_length = key->length;
    scratch->walk.is_map = GOTRACE_LABELS_ARE_MAP;
    label_find(&scratch->walk, g, GOTRACE_G_LABELS);
    u64 at = scratch->walk.value.at, size = scratch->walk.value.length;
    value->length = size;
#pragma clang loop unroll(full)
    for (int i = 0; i < LABEL_WORDS; i++)
        value->words[i] = 0;
    if (size > sizeof(value->words))
        size = sizeof(value->words);
    if (size && bpf_probe_read_user(value->words, size, (void *)at))
        value->length = LABEL_UNKNOWN;
    u64 hash = walk_mix(0, value->length);
#pragma clang loop unroll(disable)
    for (int i = 0; i < LABEL_WORDS; i++)
        hash = walk_mix(hash, value->words[i]);
    hash |= 1;
    label_values.insert(&hash, value);
    if (label_values.lookup(&hash))
        return hash;
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
    struct task task = {};
    key.stack = interrupted_stack(at, &task);
    if (task.g) {
        key.created_by = read_word(task.g + GOTRACE_G_GOPC);
        key.status = read_word(task.g + GOTRACE_G_STATUS) & G_STATUS_MASK;
        key.label = keep_label(task.g);
    }
    if (in_kernel)
        key.kernel = keep_kernel_stack(ctx);
    u32 zero = 0;
    u64 none = 0, *samples = sample_rows.lookup_or_try_init(&key, &none);
    if (!samples)
        samples = other_samples.lookup(&zero);
    if (samples)
        __sync_fetch_and_add(samples, 1);
    return 0;
}
