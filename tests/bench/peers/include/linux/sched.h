/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* All that bcc's trace takes from this header: include/linux/sched.h. */
#define TASK_COMM_LEN 16
