/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* No helper used here depends on the kernel's version; features are probed at run time. */
#pragma once
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(6, 0, 0)
