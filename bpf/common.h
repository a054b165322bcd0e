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

/* Return a word of the target's memory, 0 where it cannot be read. */
static __always_inline u64 read_word(u64 address)
{
    u64 word = 0;
    bpf_probe_read_user(&word, sizeof(word), (void *)address);
    return word;
}

/* Whether what is done step by step has ended: a plan, an operation, a search. */
enum progress {
    GOES_ON,
    ENDED,
};

/*
 * Functions that programs call: the verifier follows each of them once, by itself, and not once for
 * each way that leads there. The argument is bytes at an address; a pointer among these is only a
 * number there. BCC compiles no calls, so the address called is a number that no helper has;
 * gotrace/kernel/linked.py, which this is shared with, puts the function after the program.
 */
enum called {
    RUN_OPERATION,
    ADD_TO_GOROUTINE,
    ADD_TO_PARTS,
    FIND_SPAN,
    FIND_CONTEXTS,
    FIND_LABEL,
};
#define CALLED(number, argument) ((void *)(0x40000000 + ((number) << 20) + sizeof(argument)))

/*
 * Return a pointer, of which the compiler then knows nothing. A called function does so twice with
 * its argument: first, since BCC reads what a function's parameter leads to as user memory; and once
 * it is known not to be 0, since the verifier wants that test before there are places in it.
 */
static __always_inline void *opaque(void *pointer)
{
    asm volatile("" : "+r"(pointer));
    return pointer;
}
