/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What every file here needs of a compiler. */
#pragma once

/* The kernel's name, where no header has defined it: a call within a BPF program has a cost. */
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
