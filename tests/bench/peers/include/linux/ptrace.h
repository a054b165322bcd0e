/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#include <uapi/linux/ptrace.h>
