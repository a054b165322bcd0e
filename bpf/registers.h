/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The registers of each architecture, by what Go and C use them for: the only file here that names
 * registers, beside the layout of struct pt_regs. What is said of RETs holds at entries as well.
 */
#pragma once
#include <uapi/linux/ptrace.h>
#include "common.h"

#if defined(ARCHITECTURE_AMD64)

#define GO_INT_REGISTERS 9
#define GO_FLOAT_REGISTERS 15
#define CALL_PUSHES 8 /* bytes, the return address: RETs take it off the stack */

/* Registers of Go's arguments and results, in the order of ABIInternal. */
#define GO_REGISTER(ctx, number) GO_REGISTER_##number(ctx)
#define GO_REGISTER_0(ctx) ((ctx)->ax)
#define GO_REGISTER_1(ctx) ((ctx)->bx)
#define GO_REGISTER_2(ctx) ((ctx)->cx)
#define GO_REGISTER_3(ctx) ((ctx)->di)
#define GO_REGISTER_4(ctx) ((ctx)->si)
#define GO_REGISTER_5(ctx) ((ctx)->r8)
#define GO_REGISTER_6(ctx) ((ctx)->r9)
#define GO_REGISTER_7(ctx) ((ctx)->r10)
#define GO_REGISTER_8(ctx) ((ctx)->r11)

#define registers_pc(ctx) ((ctx)->ip)
#define registers_sp(ctx) ((ctx)->sp)
#define registers_frame(ctx) ((ctx)->bp)
#define registers_link(ctx) 0 /* there is no such register: calls push return addresses */
#define registers_g(ctx) ((ctx)->r14)
#define registers_closure(ctx) ((ctx)->dx)
#define registers_c_third(ctx) ((ctx)->dx) /* argument of a C function */
#define registers_syscall(ctx) ((ctx)->orig_ax)

/* The code segment's privilege level is 3 in user mode. */
#define registers_in_kernel(ctx) (!((ctx)->cs & 3))

#define FLAGS_CF 0x01
#define FLAGS_ZF 0x40

/* Whether the flags have a stack check's jbe taken. */
#define registers_grows(ctx) ((ctx)->flags & (FLAGS_CF | FLAGS_ZF))

/* Whether a branch is taken that is for 0: the flags say it. */
#define registers_is_null(ctx, number) ((ctx)->flags & FLAGS_ZF)

/* Return where the function returns to that has this SP at its entry and its RET. */
#define registers_return_pc(ctx, entry_sp) read_word(entry_sp)

/* Return the caller's frame pointer, at a site where SP is so much lower than at the entry. */
#define registers_caller_frame(ctx, lowered) registers_frame(ctx)

#elif defined(ARCHITECTURE_ARM64)

#define GO_INT_REGISTERS 16
#define GO_FLOAT_REGISTERS 16
#define CALL_PUSHES 0

#define GO_REGISTER(ctx, number) ((ctx)->regs[number])

#define registers_pc(ctx) ((ctx)->pc)
#define registers_sp(ctx) ((ctx)->sp)
#define registers_frame(ctx) ((ctx)->regs[29])
#define registers_link(ctx) ((ctx)->regs[30])
#define registers_g(ctx) ((ctx)->regs[28])
#define registers_closure(ctx) ((ctx)->regs[26])
#define registers_c_third(ctx) ((ctx)->regs[2])
#define registers_syscall(ctx) ((ctx)->regs[8])

/* The exception level is 0 in user mode. */
#define registers_in_kernel(ctx) ((ctx)->pstate & 0xf)

#define PSTATE_C (1ULL << 29)
#define PSTATE_Z (1ULL << 30)

/* Whether the flags have a stack check's b.ls taken: C is clear, or Z is set. */
#define registers_grows(ctx) (((ctx)->pstate ^ PSTATE_C) & (PSTATE_C | PSTATE_Z))

/*
 * Whether a branch is taken that is for 0 in X2 or, with number 1, in X3. Both are read: or the
 * choice would be of what to read of the registers, which the verifier does not allow.
 */
#define registers_is_null(ctx, number)                       \
    ({                                                       \
        u64 third = (ctx)->regs[2], fourth = (ctx)->regs[3]; \
        asm volatile("" : "+r"(third), "+r"(fourth));        \
        !((number) ? fourth : third);                        \
    })

/* The link register has it, as no site is where it holds anything else. */
#define registers_return_pc(ctx, entry_sp) ((ctx)->regs[30])

/* Functions have their frame record just below where they lower SP to, callers as well. */
#define registers_caller_frame(ctx, lowered)                         \
    ((lowered) && registers_frame(ctx) == registers_sp(ctx) - 8      \
         ? read_word(registers_frame(ctx)) /* it has made its own */ \
         : registers_frame(ctx))

#else
#error "compiled for no architecture: gotrace/kernel/compiler.py"
#endif
