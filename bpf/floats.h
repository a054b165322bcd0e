/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Float registers, which no BPF program can see: a thread that is sent a signal has its whole
 * register file written to its signal frame, and Go's preemption signal, SIGURG, is harmless when
 * spurious. So a site sends it to its own thread and the runtime's signal handler is probed; the
 * frame counts only if it was written at the very instruction that comes next.
 *
 * Layout of the frame: struct ucontext of the kernel's arch/x86 or arch/arm64; there struct
 * _fpstate_64, to which it has a pointer, or struct fpsimd_context, which it holds first of all
 * (include/uapi/asm/{ucontext,sigcontext}.h).
 *
 * Settings (common.h):
 *   GOTRACE_FLOATS        1 where they are wanted
 *   GOTRACE_WAITING       threads that can wait at once
 *   GOTRACE_TASK_BLOCKED  offset of blocked, a set of signals, in the kernel's task_struct; with 0
 *                         no signal is sent
 */
#pragma once
#include "payload.h"

#define SIGURG 23
#if defined(ARCHITECTURE_AMD64)
#define UCONTEXT_SP (40 + 15 * 8)
#define UCONTEXT_PC (40 + 16 * 8)
#define UCONTEXT_FPSTATE (40 + 23 * 8)
#define FIRST_FLOAT 160
#else
#define UCONTEXT_SP (176 + 8 + 31 * 8)
#define UCONTEXT_PC (176 + 8 + 32 * 8)
#define UCONTEXT_FPSIMD (176 + 288)
#define FPSIMD_MAGIC 0x46508001
#define FIRST_FLOAT 16
#endif

/* waiting: key = thread; gone with the next signal, or the thread's next event. */
BPF_HASH(waiting, u32, struct waiting, GOTRACE_WAITING);

/*
 * Return whether a signal sent now would wait. It would bring the registers of another moment, and
 * where this is a signal handler, which runs with all signals blocked, start that again as soon as
 * it has ended: a traced function of the handler's would then keep its thread there for good.
 */
static __always_inline bool floats_signal_is_blocked(void)
{
    u64 blocked = ~0ULL, offset = GOTRACE_TASK_BLOCKED;
    if (offset)
        bpf_probe_read_kernel(&blocked, sizeof(blocked), (void *)(bpf_get_current_task() + offset));
    return blocked >> (SIGURG - 1) & 1;
}

/* Append a block of float registers to a call, where there is room. */
static __always_inline void floats_append(struct call *call, u64 *floats, u64 flag)
{
    u64 at = (call->length + 7) & ~7;
    if (!GOTRACE_FLOATS)
        return;
    if (at + 8 + 8 * GO_FLOAT_REGISTERS > GOTRACE_PAYLOAD)
        return;
    BOUND(at, GOTRACE_PAYLOAD - 1);
    /* The verifier wants the end of the block below the end of the payload. */
    if (at > GOTRACE_PAYLOAD - 8 - 8 * GO_FLOAT_REGISTERS)
        return;
    u64 mask = (1 << GO_FLOAT_REGISTERS) - 1;
    payload_put_word(call->payload + at, mask);
    for (int i = 0; i < GO_FLOAT_REGISTERS; i++)
        payload_put_word(call->payload + at + 8 + 8 * i, floats[i]);
    call->length = at + 8 + 8 * GO_FLOAT_REGISTERS;
    call->event.flags |= flag;
}

/* Return the address of the float registers' state in a signal frame, 0 where there is none. */
static __always_inline u64 state_of(u64 ucontext)
{
#if defined(ARCHITECTURE_AMD64)
    return read_word(ucontext + UCONTEXT_FPSTATE);
#else
    u64 state = ucontext + UCONTEXT_FPSIMD;
    return (u32)read_word(state) == FPSIMD_MAGIC ? state : 0;
#endif
}

/* Read the registers out of a signal frame; return whether it is of the expected moment. */
static __always_inline bool floats_read(struct wait *wait, u64 ucontext, u64 *floats)
{
    if (read_word(ucontext + UCONTEXT_PC) != wait->pc ||
        read_word(ucontext + UCONTEXT_SP) != wait->sp)
        return false;
    u64 state = state_of(ucontext);
    if (!state)
        return false;
    for (int i = 0; i < GO_FLOAT_REGISTERS; i++)
        floats[i] = read_word(state + FIRST_FLOAT + 16 * i);
    return true;
}
