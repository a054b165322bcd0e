/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The floor of the bench: what a probe costs whose program does nothing. */
int on_hit(void *ctx)
{
    return 0;
}
