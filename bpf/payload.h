/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What plans fill: a call's payload, a sequence of blocks, and the buffer that they do it in.
 *
 * All state of a running plan is kept in a struct work, in map memory, so that the verifier need
 * not distinguish the paths that led to an operation.
 *
 * Settings (common.h):
 *   GOTRACE_PAYLOAD      most bytes that a call's arguments and results take, a power of two: so much
 *                        larger than here are the values of maps that hold calls
 *   GOTRACE_KEY          bytes of a call's key, a power of two; only where calls are aggregated
 */
#pragma once
#include "goroutine.h"
#include "labels.h"
#include "plan.h"
#include "unwound.h"
#include "why.h"

/* Whether rows of calls by stack have the calls' own time: rows.h. */
#define ROWS_HAVE_OWN (GOTRACE_STACK_KEY && GOTRACE_TIMES && !GOTRACE_OF)

#define NESTED_SLOTS 8                   /* a power of two above MAX_NESTING */
#define REGISTERS (GO_INT_REGISTERS + 1) /* the last one is the closure's */

/*
 * event.flags: what follows the payload, and what user space has to look at again; EVENT_PANIC and
 * EVENT_GOEXIT of unwound.h: the call did not return.
 */
#define EVENT_STACK 1         /* return addresses */
#define EVENT_ENTRY_FLOATS 2  /* float registers at the entry */
#define EVENT_RETURN_FLOATS 4 /* float registers at the return */
#define EVENT_UNDECIDED 8     /* the predicate has not been decided */
#define EVENT_WHY 64          /* struct why_report and what follows that */
#define EVENT_NESTED 128      /* another call of the task was open; with GOTRACE_NESTED */
#define EVENT_BEGUN 256       /* EDGE_BEGIN was sent of it, with GOTRACE_EDGES; likewise */
#define EVENT_UNWANTED 512    /* the predicate was not met: nothing but when it was; likewise */
#define EVENT_FLAGS 0xfff     /* all of them; above is what the file's addresses are moved by */

/*
 * Where a block's bytes are in the payload, and how many there are. Without bytes, start shows
 * whether that is known: it is 0 where they are not available.
 */
struct block {
    u32 start;
    u32 size;
};

/* What user space is sent, followed by the payload; shared with gotrace/session/events.py. */
struct event {
    u64 end;   /* ns since boot */
    u64 start; /* 0 when only the entry is reported */
    u64 goid;
    u32 tgid;
    u32 tid;
    u32 function;
    u16 args_length;
    u16 results_length;
    u64 flags;   /* and the file's load bias, a multiple of a page */
    u64 hits;    /* of probes within the call */
    u64 hits_ns; /* that their programs took */
};

/* Most bytes of a text that a key holds. */
#define KEY_TEXT_BYTES 256

/*
 * What distinguishes calls: parts of eight bytes and more, zero from length on. A part that
 * cannot be read is zero, and its bit in unknown is set. Shared with gotrace/session/keys.py.
 */
struct row_key {
    u32 function;
    u32 length;
    u64 unknown;
    u8 parts[GOTRACE_KEY];
};

/* What is kept of a call from its entry to its return, and in the end sent from event on. */
struct call {
    /* First, for these are only copied where they are looked at again: records_copy(). */
    u64 floats[GO_FLOAT_REGISTERS];  /* low halves of Go's at the entry */
    struct block blocks[MAX_BLOCKS]; /* of the entry's plan */
#if GOTRACE_KEY
    struct row_key key;
    u8 key_slack[KEY_TEXT_BYTES]; /* never filled: lets the verifier add offset and size bounds */
    u32 key_parts;                /* how many the key has */
    u32 key_full;                 /* there was no room for one more */
    u64 measured;                 /* the value that histograms are of, without its sign */
    u32 is_negative;              /* it is */
    u32 is_unmeasured;            /* it could not be read */
#if ROWS_HAVE_OWN
    u64 own_ns; /* its own time; until it returns, the stack's own_ns when it was entered */
#endif
#endif
    u32 length;     /* of the payload so far */
    u32 has_floats; /* floats have been read */
    struct event event;
    u8 payload[]; /* last, here and in what holds a call: GOTRACE_PAYLOAD bytes */
};

/*
 * A call that waits for the signal that brings its float registers; shared with
 * gotrace/session/trace.py.
 */
struct wait {
    u64 pc; /* where the thread is to be interrupted */
    u64 sp;
    struct call_key key; /* of saved_calls, for an entry */
    u64 at_entry;        /* the floats are those of an entry whose return is to come */
    u64 flag;            /* EVENT_RETURN_FLOATS or EVENT_ENTRY_FLOATS, for the block to be added */
};

struct waiting {
    struct wait wait;
    struct call call;
};

/* What is missing of a text or slice that is longer than what is copied first. */
struct rest {
    u64 address;
    u32 size;
    u32 is_elements;
};

/* What became of the search for a span; those after WALK_FOUND are sent, without their sign. */
enum walk_result {
    WALK_NO_SPAN = 0,
    WALK_FAULT = 1,
    WALK_FOUND = 2,
    WALK_TOO_LONG = 3,
    WALK_UNKNOWN_CONTEXT = 4,
    WALK_UNKNOWN_SPAN = 5,
};

/* Most contexts that are reported of one and those that it was made from. */
#define MAX_REPORTED_CONTEXTS 12
#define CONTEXTS_SLOTS 16 /* a power of two above that */

/* A search for the span that a context holds, by context.h; the next one may be of the same. */
struct span_walk {
    u64 tab; /* the context's words */
    u64 data;
    u64 words[8];                 /* what was read last */
    u64 digits[8];                /* the trace's id, then the span's */
    u64 type;                     /* that is not known */
    u64 contexts[CONTEXTS_SLOTS]; /* the data words of contexts, from the innermost on */
    u32 found;                    /* how many of them */
    u32 result;                   /* an enum walk_result */
    u32 is_sampled;
};

struct work {
    u64 busy;
    u64 regs[REGISTERS];
    u64 sp; /* at the function's entry */
#if !CALL_PUSHES
    u64 return_pc; /* where the call returns to */
#endif
    u64 values[PREDICATE_STACK]; /* the predicates' stack */
    u64 duration;
#if GOTRACE_WHY
    u64 classes[WHY_CLASSES]; /* of the time of the call that returns */
#endif
    u64 g;    /* of the goroutine that has called, 0 if that is not known */
    u64 file; /* number of the traced file, for keys of types */
    u32 values_top;
    u32 search;       /* how far a search for a string has come */
    u32 search_steps; /* that it has taken */
    u32 unknown;      /* a predicate could not be decided here: user space will */
    u32 dropped;
    u32 full;  /* block 0 is cut: there is no more of it, and no block after it */
    u32 limit; /* of the payload's length in this phase */
    u32 end;   /* the same, for all of the parts that the room is divided into */
    u32 spare; /* bytes that are divided */
    u32 noted; /* rests, and how many of each kind are left to copy */
    u32 left[2];
    u32 next_rest;
    u32 pc;
    u32 phase; /* 0 entry, 1 return */
    u32 base;  /* number of the running plan's block 0 */
    u32 nested;
    u32 keyed;             /* the interface that the plan is in belongs to the key */
    u32 pcs[NESTED_SLOTS]; /* of the plans that it is nested in */
    u32 bases[NESTED_SLOTS];
    struct span_walk walk;
    struct label_walk label;
    struct rest rests[MAX_RESTS];
    struct block result_blocks[MAX_BLOCKS];
    struct wait wait; /* with call: a struct waiting */
    /*
     * Last. After its payload there are as many bytes more, which are never filled: they let the
     * verifier add offset and size bounds.
     */
    struct call call;
};

/* Keep the compiler from dropping a bound that it knows and the verifier does not. */
#define BOUND(value, mask) asm volatile("%0 &= %1" : "+r"(value) : "ri"(mask))

/*
 * Words of the payload are not aligned. x86 does not mind, and so nor does the verifier there
 * (CONFIG_HAVE_EFFICIENT_UNALIGNED_ACCESS), but where the compiler knows, it moves bytes one by
 * one.
 */
static __always_inline u64 payload_get_word(u8 *place)
{
    return *(u64 *)place;
}

static __always_inline void payload_put_word(u8 *place, u64 word)
{
    *(u64 *)place = word;
}

static __always_inline u8 *payload_bytes(struct work *w)
{
    return w->call.payload;
}

/* Return where the call returns to. */
static __always_inline u64 payload_return_pc(struct work *w)
{
#if CALL_PUSHES
    return read_word(w->sp);
#else
    return w->return_pc;
#endif
}

static __always_inline bool payload_has_room(struct work *w, u32 size)
{
    return !w->full && w->call.length + size <= w->limit;
}

static __always_inline struct block *payload_block(struct work *w, u32 number)
{
    u64 index = number & OTHER_PHASE ? number : w->base + number;
    BOUND(index, MAX_BLOCKS - 1);
    return w->phase && !(number & OTHER_PHASE) ? &w->result_blocks[index] : &w->call.blocks[index];
}

/* Append the low bytes of a word, at most 8. */
static __always_inline void payload_append_word(struct work *w, u64 word, u32 size)
{
    u64 at = w->call.length;
    if (!payload_has_room(w, size)) {
        w->full = 1;
        return;
    }
    BOUND(at, GOTRACE_PAYLOAD - 1);
    payload_put_word(payload_bytes(w) + at, word);
    w->call.length += size;
}

/* Copy memory of the target after what is there; return whether it could be read. */
static __always_inline bool payload_append_memory(struct work *w, u64 address, u32 size)
{
    u64 at = w->call.length, bytes = size;
    BOUND(at, GOTRACE_PAYLOAD - 1);
    BOUND(bytes, GOTRACE_PAYLOAD - 1);
    if (bpf_probe_read_user(payload_bytes(w) + at, bytes, (void *)address))
        return false;
    w->call.length += size;
    return true;
}

/* Read a word of a block; return whether the block reaches there. */
static __always_inline bool payload_block_word(struct work *w, u32 number, u32 at, u32 size,
                                               u64 *word)
{
    struct block *block = payload_block(w, number);
    if (at + size > block->size)
        return false;
    u64 place = block->start + at;
    BOUND(place, GOTRACE_PAYLOAD - 1);
    *word = payload_get_word(payload_bytes(w) + place);
    return true;
}

/* Begin a block: eight bytes, the second four of which are its header, which is returned. */
static __always_inline u32 *payload_begin_block(struct work *w)
{
    u64 at = (w->call.length + 7) & ~7;
    if (w->full || at + 8 > w->limit)
        return 0;
    w->call.length = at + 8;
    BOUND(at, GOTRACE_PAYLOAD - 1);
    payload_put_word(payload_bytes(w) + at, 0);
    return (u32 *)(payload_bytes(w) + at + 4);
}
