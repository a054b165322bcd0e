/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gooffcpu --names: add up system calls of the target's threads by their number, error and stack.
 *
 * The kernel's tracepoints are passed by every thread of the machine; those of other processes are
 * sent back at once. A call is added up when it returns, with the stack that it was made from.
 *
 * Settings (common.h), beside those of interrupted.h and histogram.h:
 *   GOTRACE_CALLS        threads that can be in a call at once
 *   GOTRACE_ERRORS       combinations of number and error
 *   GOTRACE_STACK_ROWS   combinations of number and stack
 */
#include "histogram.h"
#include "interrupted.h"
#include "sums.h"

#define SYSCALLS 512 /* calls with a larger number count as the last; shared with Python's meter */
#define MAX_ERRNO 4095

/*
 * By Linux's numbers: calls that make a thread, which returns from them as well; and the one whose
 * result is what a register was before a signal.
 */
#define SYS_CLONE3 435
#if defined(ARCHITECTURE_AMD64)
#define SYS_CLONE 56
#define SYS_FORK 57
#define SYS_VFORK 58
#define SYS_RT_SIGRETURN 15
#else
#define SYS_CLONE 220
#define SYS_FORK SYS_CLONE /* there is only that */
#define SYS_VFORK SYS_CLONE
#define SYS_RT_SIGRETURN 139
#endif

/* A call that has begun. */
struct open_syscall {
    u64 since;
    u64 stack;
    u64 number;
};

/* Shared with gotrace/session/waits/names.py. */
struct syscall_row {
    u64 stack; /* hash, 0 where it is not known */
    u32 number;
    u32 half;
};

/* Likewise. */
struct syscall_error {
    u32 number;
    u32 error;
};

/* syscalls_open: key = thread. Gone when the call returns; of threads that end, kept. */
BPF_HASH(syscalls_open, u32, struct open_syscall, GOTRACE_CALLS);

/* syscall_rows: the calls that have returned. Of a half; gone when that is read. */
BPF_HASH(syscall_rows, struct syscall_row, struct sums, GOTRACE_STACK_ROWS);

/* other_syscalls: key = half; those that found no row. */
BPF_ARRAY(other_syscalls, struct sums, 2);

/* syscall_errors: value = calls. Only ever added to. */
BPF_HASH(syscall_errors, struct syscall_error, u64, GOTRACE_ERRORS);

static __always_inline void add_error(u32 number, u32 error)
{
    struct syscall_error key = {.number = number, .error = error};
    u64 none = 0, *count = syscall_errors.lookup_or_try_init(&key, &none);
    if (count)
        __sync_fetch_and_add(count, 1);
    else
        diagnostics_count(ERRORS_FULL, 1);
}

/* What a perf event of the tracepoints raw_syscalls gives a program. */
struct syscall_event {
    u64 common; /* not for programs */
    s64 number;
    s64 result; /* of sys_exit; the first argument of sys_enter */
};

/* bpf_get_current_task_btf (Linux 5.11) and bpf_task_pt_regs (5.15), by their numbers for ever. */
static u64 (*current_task)(void) = (void *)158;
static u64 (*task_registers)(u64 task) = (void *)175;

static __always_inline int enter(void *registers, u64 number)
{
    u32 thread = bpf_get_current_pid_tgid();
    struct pt_regs user = {};
    struct task task = {};
    bpf_probe_read_kernel(&user, sizeof(user), registers);
    struct open_syscall call = {.number = number};
    if (call.number >= SYSCALLS)
        call.number = SYSCALLS - 1;
    call.stack = interrupted_stack(interrupted_at(&user), &task);
    call.since = bpf_ktime_get_ns();
    if (syscalls_open.update(&thread, &call))
        diagnostics_count(STATES_FULL, 1);
    return 0;
}

static __always_inline int leave(u64 now, void *registers, s64 result)
{
    u32 thread = bpf_get_current_pid_tgid(), half = sums_half(), number = 0;
    struct open_syscall *call = syscalls_open.lookup(&thread);
    if (!call) {
        struct pt_regs user = {};
        bpf_probe_read_kernel(&user, sizeof(user), registers);
        u64 made = registers_syscall(&user);
        bool is_child = !result && (made == SYS_CLONE || made == SYS_FORK || made == SYS_VFORK ||
                                    made == SYS_CLONE3);
        if (!is_child)
            diagnostics_count(CALLS_EARLIER, 1);
        return 0;
    }
    struct syscall_row key = {.stack = call->stack, .number = call->number, .half = half};
    u64 ns = now - call->since;
    syscalls_open.delete(&thread);
    struct sums none = {}, *row = syscall_rows.lookup_or_try_init(&key, &none);
    sums_add(row ? row : other_syscalls.lookup(&half), ns);
    histogram_add_to_row(key.number, ns, 0, &number);
    if (result < 0 && result >= -MAX_ERRNO && key.number != SYS_RT_SIGRETURN)
        add_error(key.number, -result);
    return 0;
}

/* At the raw tracepoint sys_enter(regs, number). */
int on_syscall_enter(struct bpf_raw_tracepoint_args *ctx)
{
    return site_is_target() ? enter((void *)ctx->args[0], ctx->args[1]) : 0;
}

/* At the raw tracepoint sys_exit(regs, result). */
int on_syscall_exit(struct bpf_raw_tracepoint_args *ctx)
{
    u64 now = bpf_ktime_get_ns();
    return site_is_target() ? leave(now, (void *)ctx->args[0], ctx->args[1]) : 0;
}

/*
 * The same at perf events, which the kernel runs with preemption disabled. A program at a raw
 * tracepoint can be preempted there since Linux 7.2, and all other threads of that CPU then go
 * without it: __bpf_trace_run in kernel/trace/bpf_trace.c does not let it run twice.
 */
int on_syscall_enter_undisturbed(struct syscall_event *ctx)
{
    return site_is_target() ? enter((void *)task_registers(current_task()), ctx->number) : 0;
}

int on_syscall_exit_undisturbed(struct syscall_event *ctx)
{
    u64 now = bpf_ktime_get_ns();
    if (!site_is_target())
        return 0;
    return leave(now, (void *)task_registers(current_task()), ctx->result);
}
