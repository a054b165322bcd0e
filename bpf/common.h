/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What every file here needs of a compiler. */
#pragma once

/*
 * Settings, GOTRACE_..., are of three kinds; gotrace/settings.py has them all. Those that say what
 * is compiled are macros like any other, and so is the size of a map, which is 1 here. A value is
 * put into the program when that is loaded: it is this constant that is replaced
 * (gotrace/kernel/compiler.py). Volatile: or it would be kept in a register, for want of which
 * others are saved to the stack.
 */
#define SETTING(number)                                                    \
    ({                                                                     \
        u64 setting;                                                       \
        asm volatile("%0 = 0x676f74726163" #number " ll" : "=r"(setting)); \
        setting;                                                           \
    })

/* The kernel's name, where no header has defined it: a call within a BPF program has a cost. */
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
