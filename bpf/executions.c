/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * gotraced: count the processes that are called as a target's are and end before the file that they
 * run is traced.
 *
 * The kernel's tracepoints are passed by all processes of the machine. Those that execute a program
 * of another name are sent back at once.
 *
 * Settings (common.h):
 *   GOTRACE_EXECUTED_NAMES  names, each once for each user that it is asked for of
 *   GOTRACE_TRACED_FILES    files that are traced at once
 *   GOTRACE_EXECUTIONS      processes that can run at once without being traced
 *   GOTRACE_BPRM_FILE, GOTRACE_FILE_INODE, GOTRACE_INODE_NUMBER   offsets in the kernel's
 *                           linux_binprm, file and inode
 */
#include "diagnostics.h"

#define ANY_USER 0xffffffff /* shared with gotrace/fleet/executions.py */

/* Who is asked for; shared with gotrace/fleet/executions.py. */
struct executed_name {
    char name[16]; /* as the kernel keeps it: cut, and filled with zeros */
    u32 user;      /* real user, or ANY_USER */
};

/* Likewise. */
struct traced_file {
    u64 inode;
    u64 slot;
};

/* A process that was executed when its file was not traced. */
struct execution {
    u64 slot;  /* of its name with its user, or NO_SLOT */
    u64 any;   /* of its name with any user, likewise */
    u64 inode; /* of the file */
};
#define NO_SLOT (~0ULL)

/* executed_names: value = slot. Filled before anything is attached. */
BPF_HASH(executed_names, struct executed_name, u64, GOTRACE_EXECUTED_NAMES);

/* traced_files: value = 1. There as long as the file's probes are. */
BPF_HASH(traced_files, struct traced_file, u8, GOTRACE_TRACED_FILES);

/* executions: key = process. Gone when that ends. */
BPF_HASH(executions, u32, struct execution, GOTRACE_EXECUTIONS);

/* missed: key = slot; value = processes. Only ever added to. */
BPF_ARRAY(missed, u64, GOTRACE_EXECUTED_NAMES);

static __always_inline u64 slot_of(struct executed_name *key)
{
    u64 *slot = executed_names.lookup(key);
    return slot ? *slot : NO_SLOT;
}

/* Whether a file is not traced for a name that is asked for. */
static __always_inline int is_untraced(u64 slot, u64 inode)
{
    struct traced_file file = {.inode = inode, .slot = slot};
    return slot != NO_SLOT && !traced_files.lookup(&file);
}

/* At the raw tracepoint sched_process_exec(task, old_pid, bprm). */
int on_execution(struct bpf_raw_tracepoint_args *ctx)
{
    struct executed_name key = {.user = bpf_get_current_uid_gid()};
    struct execution one = {};
    u64 address = ctx->args[2];
    u32 tgid = bpf_get_current_pid_tgid() >> 32;
    bpf_get_current_comm(&key.name, sizeof(key.name));
    one.slot = slot_of(&key);
    key.user = ANY_USER;
    one.any = slot_of(&key);
    executions.delete(&tgid); /* it may have executed another program before */
    if (one.slot == NO_SLOT && one.any == NO_SLOT)
        return 0;
    bpf_probe_read_kernel(&address, sizeof(address), (void *)(address + GOTRACE_BPRM_FILE));
    bpf_probe_read_kernel(&address, sizeof(address), (void *)(address + GOTRACE_FILE_INODE));
    bpf_probe_read_kernel(&one.inode, sizeof(one.inode), (void *)(address + GOTRACE_INODE_NUMBER));
    if (!is_untraced(one.slot, one.inode) && !is_untraced(one.any, one.inode))
        return 0;
    if (executions.update(&tgid, &one))
        diagnostics_count(EXECUTIONS_FULL, 1);
    return 0;
}

static __always_inline void count_missed(u64 slot, u64 inode)
{
    u32 key = slot;
    u64 *count = is_untraced(slot, inode) ? missed.lookup(&key) : 0;
    if (count)
        __sync_fetch_and_add(count, 1);
}

/* At the raw tracepoint sched_process_exit(task), which each thread passes. */
int on_exit(struct bpf_raw_tracepoint_args *ctx)
{
    u64 ids = bpf_get_current_pid_tgid();
    u32 tgid = ids >> 32;
    struct execution *one = tgid == (u32)ids ? executions.lookup(&tgid) : 0;
    if (!one)
        return 0;
    count_missed(one->slot, one->inode);
    count_missed(one->any, one->inode);
    executions.delete(&tgid);
    return 0;
}
