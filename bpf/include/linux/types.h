/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The kernel's integer names; sizes are those of every 64-bit Linux ABI. */
#pragma once
typedef signed char s8;
typedef unsigned char u8;
typedef short s16;
typedef unsigned short u16;
typedef int s32;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;
typedef s8 __s8;
typedef u8 __u8;
typedef s16 __s16;
typedef u16 __u16;
typedef s32 __s32;
typedef u32 __u32;
typedef s64 __s64;
typedef u64 __u64;
typedef u16 __le16;
typedef u16 __be16;
typedef u32 __le32;
typedef u32 __be32;
typedef u64 __be64;
#define __aligned_u64 __u64 __attribute__((aligned(8)))
typedef u16 __sum16;
typedef u32 __wsum;
typedef unsigned long size_t;
typedef unsigned long uintptr_t;
typedef long ssize_t;
typedef int pid_t;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)
