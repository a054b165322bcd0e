/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Stand-in for the kernel's header: BCC's prelude includes it before all else. */
#pragma once
#define CONFIG_BPF_SYSCALL 1
#if defined(ARCHITECTURE_ARM64)
#define CONFIG_ARM64 1
#else
#define CONFIG_X86_64 1
#endif
