/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The floor of the bench: what a probe costs whose program does nothing. */

/* halted: as bpf/site.h has it, for what attaches; not looked at here. */
BPF_ARRAY(halted, u32, 1);

int on_hit(void *ctx)
{
    return 0;
}
