/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Atomic operations that are more than one addition. */
#pragma once
#include "diagnostics.h"

/*
 * Store value at place where that holds seen; return what it held. Linux 5.12.
 *
 * Not all compilers that come with BCC know it: LLVM before 12 has no such instruction for BPF and ends the process, so that there it is written
 * as bytes: BPF_STX | BPF_ATOMIC | BPF_DW, BPF_CMPXCHG, which compares with r0 and leaves there
 * what it found. BCC parses C for the host, so that only the names of r8 and r9 can be given to it,
 * which are registers on x86-64 as well: r0 is saved here. A helper must have been called before,
 * or the verifier sees r0 read that nothing was written to.
 */
static __always_inline u64 atomic_compare_and_swap(u64 *place, u64 seen, u64 value)
{
#if __clang_major__ < 12
    u64 found;
    asm volatile("r8 = %[place]\n"
                 "r9 = %[value]\n"
                 "%[found] = r0\n"
                 "r0 = %[seen]\n"
                 ".byte 0xdb, 0x98, 0, 0, 0xf1, 0, 0, 0\n"
                 "r8 = r0\n"
                 "r0 = %[found]\n"
                 "%[found] = r8\n"
                 : [found] "=&r"(found)
                 : [place] "r"(place), [value] "r"(value), [seen] "r"(seen)
                 : "r8", "r9", "memory");
    return found;
#else
    return __sync_val_compare_and_swap(place, seen, value);
#endif
}

/*
 * Raise *place to value. A few rounds are mostly enough: each one that is lost is one in which
 * another program has raised it.
 */
static __always_inline void atomic_max(u64 *place, u64 value)
{
    u64 seen = *place;
#pragma clang loop unroll(disable)
    for (int round = 0; round < 4; round++) {
        if (seen >= value)
            return;
        u64 found = atomic_compare_and_swap(place, seen, value);
        if (found == seen)
            return;
        seen = found;
    }
    diagnostics_count(EXTREMES_LOST, 1);
}
