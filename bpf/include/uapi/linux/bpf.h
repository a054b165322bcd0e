/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* BCC carries the UAPI header of its own version. */
#pragma once
#include <bcc/bpf.h>
