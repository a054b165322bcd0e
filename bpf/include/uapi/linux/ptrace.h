/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* struct pt_regs as a BPF program of type kprobe sees it. */
#pragma once
#if defined(ARCHITECTURE_AMD64)
/* arch/x86/include/asm/ptrace.h */
struct pt_regs {
    unsigned long r15;
    unsigned long r14;
    unsigned long r13;
    unsigned long r12;
    unsigned long bp;
    unsigned long bx;
    unsigned long r11;
    unsigned long r10;
    unsigned long r9;
    unsigned long r8;
    unsigned long ax;
    unsigned long cx;
    unsigned long dx;
    unsigned long si;
    unsigned long di;
    unsigned long orig_ax;
    unsigned long ip;
    unsigned long cs;
    unsigned long flags;
    unsigned long sp;
    unsigned long ss;
};
#elif defined(ARCHITECTURE_ARM64)
/* struct user_pt_regs, arch/arm64/include/uapi/asm/ptrace.h */
struct pt_regs {
    unsigned long regs[31];
    unsigned long sp;
    unsigned long pc;
    unsigned long pstate;
};
#endif
