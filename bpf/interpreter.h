/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * Run a capture plan: a list of small operations that say which bytes of registers, stack and
 * memory to copy at a site, and whether the call is wanted. gotrace/goabi/capture.py makes the
 * plans and documents the operations; both sides share this layout.
 *
 * A plan runs over a struct work. All of its state is kept there, in map memory, so that the
 * verifier need not tell apart the ways that led to an operation.
 *
 * Compile-time settings:
 *   GOTRACE_STEPS        operations, and positions looked at in a search, that a plan may take
 *   GOTRACE_INTERFACES   1 where a plan has IFACE operations
 *   GOTRACE_PREDICATES   1 where a plan has predicates
 *                        (these three keep the verifier's work down to what the run needs)
 *   GOTRACE_OPS          operations of all plans together
 *   GOTRACE_TYPES        dynamic types that have a plan
 *   GOTRACE_CONSTANTS    string constants in predicates
 *   GOTRACE_PAYLOAD      most bytes that a call's arguments and results take, a power of two
 */
#pragma once
#include <uapi/linux/ptrace.h>

#define MOST_BLOCKS 64
#define MOST_NESTED 5
#define NESTED_SLOTS 8 /* a power of two above */
#define SEARCHED_BYTES 128 /* of a string, for something that it contains */
#define CONSTANT_WORDS 8
#define OTHER_PHASE 0x8000 /* in op.block: a block of the entry, seen from the return */
#define CONTEXT_REGISTER 0x20
#define REGISTERS 10
#define FLOAT_REGISTERS 15

enum op_code {
    OP_END = 0,
    OP_REG = 1,
    OP_ZERO = 2,
    OP_STACK = 3,
    OP_DEREF = 4,
    OP_DEREF_N = 5,
    OP_IFACE = 6,
    OP_PUSH_CONST = 16,
    OP_PUSH_FIELD = 17,
    OP_PUSH_SPECIAL = 18,
    OP_COMPARE = 19,
    OP_AND = 20,
    OP_OR = 21,
    OP_NOT = 22,
    OP_STRING_TEST = 23,
    OP_KEEP_IF = 24,
};

enum block_status {
    BLOCK_NIL = 0x80000000,
    BLOCK_FAULT = 0x80000001,
    BLOCK_LIMIT = 0x80000002,
    BLOCK_UNKNOWN_TYPE = 0x80000003,
    BLOCK_KNOWN_TYPE = 0x80000004,
};

enum string_test {
    TEST_EQUAL = 0,
    TEST_PREFIX = 1,
    TEST_CONTAINS = 2,
};

/* event.flags: what follows the payload, and what user space has to look at again. */
#define EVENT_STACK 1        /* return addresses */
#define EVENT_FLOATS_ENTRY 2 /* float registers at the entry */
#define EVENT_FLOATS 4       /* float registers at the return */
#define EVENT_UNDECIDED 8    /* the predicate has not been decided */

struct op {
    u8 code;
    u8 reg;
    u16 block;
    u16 at;
    u16 at2;
    u32 size;
    u32 limit;
    u16 skip;
    u16 pad;
    u32 pad2;
};

struct constant {
    u64 length;
    u64 words[CONSTANT_WORDS];
};

/* Where a block's bytes lie in the payload, and how many there are; 0 bytes: there is none. */
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
    u64 flags;
};

/* What is kept of a call from its entry to its return, and in the end sent from event on. */
struct call {
    u32 length;     /* of the payload so far */
    u32 has_floats; /* floats have been read */
    u64 floats[FLOAT_REGISTERS];      /* low halves of XMM0 to XMM14 at the entry */
    struct block blocks[MOST_BLOCKS]; /* of the entry's plan */
    struct event event;
    u8 payload[GOTRACE_PAYLOAD];
};

/*
 * A call that waits for the signal that brings its float registers; shared with
 * gotrace/session/trace.py.
 */
struct wait {
    u64 pc; /* where the thread is to be interrupted */
    u64 sp;
    struct frame_key key; /* of saved_calls, for an entry */
    u64 at_entry;         /* the floats are those of an entry whose return is to come */
    u64 flag;             /* EVENT_FLOATS or EVENT_FLOATS_ENTRY, for the block to be added */
};

struct waiting {
    struct wait wait;
    struct call call;
};

struct work {
    u64 busy;
    u64 regs[REGISTERS];
    u64 sp;         /* at the function's entry */
    u64 values[16]; /* the predicates' stack */
    u64 duration;
    u32 values_top;
    u32 search;  /* how far a search for a string has come */
    u32 unknown; /* a predicate could not be decided here: user space will */
    u32 dropped;
    u32 full; /* block 0 did not fit: what would come behind it would be taken for it */
    u32 pad;
    u32 pc;
    u32 phase; /* 0 entry, 1 return */
    u32 base;  /* number of the running plan's block 0 */
    u32 nested;
    u32 return_pc[NESTED_SLOTS];
    u32 return_base[NESTED_SLOTS];
    struct block result_blocks[MOST_BLOCKS];
    struct wait wait; /* with call: a struct waiting */
    struct call call;
    u8 slack[GOTRACE_PAYLOAD]; /* never filled: lets the verifier add offset and size bounds */
};

/* ops: key = address of an operation; plans lie one behind the other. Filled before attaching. */
BPF_ARRAY(ops, struct op, GOTRACE_OPS);

/* types: key = address of a runtime type or itab in the target; value = its plan's first op. */
BPF_HASH(types, u64, u32, GOTRACE_TYPES);

/* constants: the strings that predicates compare with. Filled before attaching. */
BPF_ARRAY(constants, struct constant, GOTRACE_CONSTANTS);

/* Keep the compiler from dropping a bound that it knows and the verifier does not. */
#define BOUND(value, mask) asm volatile("%0 &= %1" : "+r"(value) : "i"(mask))

static inline __attribute__((always_inline)) u8 *payload(struct work *w)
{
    return w->call.payload;
}

static inline __attribute__((always_inline)) int room(struct work *w, u32 size)
{
    return !w->full && w->call.length + size <= GOTRACE_PAYLOAD;
}

/* Append the low bytes of a word, at most 8. */
static inline __attribute__((always_inline)) void append_word(struct work *w, u64 word, u32 size)
{
    u64 at = w->call.length;
    if (!room(w, size)) {
        w->full = 1;
        return;
    }
    BOUND(at, GOTRACE_PAYLOAD - 1);
    __builtin_memcpy(payload(w) + at, &word, 8);
    w->call.length += size;
}

/* Copy memory of the target behind what is there; return 0 when done. */
static inline __attribute__((always_inline)) int append_memory(struct work *w, u64 address,
                                                               u32 size)
{
    u64 at = w->call.length, bytes = size;
    BOUND(at, GOTRACE_PAYLOAD - 1);
    BOUND(bytes, GOTRACE_PAYLOAD - 1);
    if (bpf_probe_read_user(payload(w) + at, bytes, (void *)address))
        return -1;
    w->call.length += size;
    return 0;
}

static inline __attribute__((always_inline)) struct block *block_of(struct work *w, u32 number)
{
    u64 index = number & OTHER_PHASE ? number : w->base + number;
    BOUND(index, MOST_BLOCKS - 1);
    return w->phase && !(number & OTHER_PHASE) ? &w->result_blocks[index] : &w->call.blocks[index];
}

/* Read a word of a block; return 0 when the block does not reach there. */
static inline __attribute__((always_inline)) int block_word(struct work *w, u32 number, u32 at,
                                                            u32 size, u64 *word)
{
    struct block *block = block_of(w, number);
    if (at + size > block->size)
        return 0;
    u64 place = block->start + at;
    BOUND(place, GOTRACE_PAYLOAD - 1);
    __builtin_memcpy(word, payload(w) + place, 8);
    return 1;
}

/* Begin a block: eight bytes, the second four of which are its header, which is returned. */
static inline __attribute__((always_inline)) u32 *begin_block(struct work *w)
{
    u64 at = (w->call.length + 7) & ~7;
    if (w->full || at + 8 > GOTRACE_PAYLOAD)
        return 0;
    w->call.length = at + 8;
    BOUND(at, GOTRACE_PAYLOAD - 1);
    u64 zero = 0;
    __builtin_memcpy(payload(w) + at, &zero, 8);
    return (u32 *)(payload(w) + at + 4);
}

/* Tell whether the block that an operation makes has no number left. */
static inline __attribute__((always_inline)) int beyond_blocks(struct work *w, struct op *op)
{
    return w->base + op->reg >= MOST_BLOCKS;
}

/* Copy what a pointer leads to into a new block; return 0 when the operations on it can go on. */
static inline __attribute__((always_inline)) int run_deref(struct work *w, struct op *op)
{
    struct block *block = block_of(w, op->reg);
    if (!beyond_blocks(w, op))
        block->size = 0;
    u64 pointer = 0, count = 1, size = op->size;
    if (!block_word(w, op->block, op->at, 8, &pointer))
        return -1;
    if (op->code == OP_DEREF_N) {
        if (!block_word(w, op->block, op->at2, 8, &count))
            return -1;
        size = count > op->limit ? op->limit : count * size;
        if (size > op->limit)
            size = op->limit;
    } else {
        pointer += pointer ? op->limit : 0;
    }
    u32 *header = begin_block(w);
    if (!header || !count)
        return -1;
    if (!pointer) {
        *header = BLOCK_NIL;
        return -1;
    }
    if (!room(w, size) || beyond_blocks(w, op)) {
        *header = BLOCK_LIMIT;
        return -1;
    }
    u32 start = w->call.length;
    if (append_memory(w, pointer, size)) {
        *header = BLOCK_FAULT;
        return -1;
    }
    *header = size;
    block->start = start;
    block->size = size;
    return 0;
}

/* Go on with the plan of an interface's dynamic type, where it has one. */
static inline __attribute__((always_inline)) int run_iface(struct work *w, struct op *op)
{
    u64 type = 0, data = 0;
    if (!block_word(w, op->block, op->at, 8, &type) ||
        !block_word(w, op->block, op->at2, 8, &data))
        return -1;
    u32 *header = begin_block(w);
    if (!header)
        return -1;
    if (!type) {
        *header = BLOCK_NIL;
        return -1;
    }
    u32 *plan = types.lookup(&type);
    if (!plan) {
        *header = BLOCK_UNKNOWN_TYPE;
        return -1;
    }
    u64 level = w->nested;
    if (level >= MOST_NESTED - 1 || beyond_blocks(w, op)) {
        *header = BLOCK_LIMIT;
        return -1;
    }
    *header = BLOCK_KNOWN_TYPE;
    u32 start = block_of(w, op->block)->start + op->at2;
    BOUND(level, NESTED_SLOTS - 1);
    w->return_pc[level] = w->pc;
    w->return_base[level] = w->base;
    w->nested++;
    w->base += op->reg;
    w->pc = *plan;
    struct block *word = block_of(w, 0);
    word->start = start;
    word->size = 8;
    return 0;
}

static inline __attribute__((always_inline)) void push(struct work *w, u64 value)
{
    u64 top = w->values_top++;
    BOUND(top, 15);
    w->values[top] = value;
}

static inline __attribute__((always_inline)) u64 pull(struct work *w)
{
    u64 top = --w->values_top;
    BOUND(top, 15);
    return w->values[top];
}

static inline __attribute__((always_inline)) void push_field(struct work *w, struct op *op)
{
    u64 word = 0;
    u32 width = op->reg & 0xf, shift = 64 - 8 * width;
    if (!block_word(w, op->block, op->at, width, &word))
        w->unknown = 1;
    word <<= shift & 63;
    push(w, op->reg & 0x80 ? (u64)((s64)word >> (shift & 63)) : word >> (shift & 63));
}

static inline __attribute__((always_inline)) void compare(struct work *w, u32 how)
{
    u64 b = pull(w), a = pull(w);
    int less = how & 0x80 ? (s64)a < (s64)b : a < b;
    int equal = a == b;
    switch (how & 7) {
    case 0:
        push(w, equal);
        break;
    case 1:
        push(w, !equal);
        break;
    case 2:
        push(w, less);
        break;
    case 3:
        push(w, less || equal);
        break;
    case 4:
        push(w, !less && !equal);
        break;
    default:
        push(w, !less);
    }
}

/* Tell whether a string's bytes stand at an offset of the payload. */
static inline __attribute__((always_inline)) int same_bytes(struct work *w, u32 start,
                                                            struct constant *constant)
{
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < CONSTANT_WORDS; i++) {
        if (8 * i >= constant->length)
            break;
        u64 place = start + 8 * i, word;
        BOUND(place, GOTRACE_PAYLOAD - 1);
        __builtin_memcpy(&word, payload(w) + place, 8);
        word ^= constant->words[i];
        u32 left = constant->length - 8 * i;
        if (left < 8)
            word <<= (64 - 8 * left) & 63;
        if (word)
            return 0;
    }
    return 1;
}

/* Test a string against a constant; return 1 where the operation has to be run once more. */
static inline __attribute__((always_inline)) int string_test(struct work *w, struct op *op)
{
    u32 number = op->limit;
    struct constant *constant = constants.lookup(&number);
    struct block *block = block_of(w, op->block);
    if (!constant)
        return 0;
    u32 at = w->search, size = block->size;
    if (op->reg == TEST_CONTAINS && size > SEARCHED_BYTES)
        size = SEARCHED_BYTES;
    int over = at + constant->length > size;
    if (op->reg == TEST_EQUAL)
        over = size != constant->length;
    int same = !over && same_bytes(w, block->start + at, constant);
    if (op->reg == TEST_CONTAINS && !over && !same) {
        w->search++;
        return 1;
    }
    w->search = 0;
    push(w, same);
    return 0;
}

/* Execute one operation; return 1 when the plan has ended. */
static inline __attribute__((always_inline)) int step(struct work *w, struct op *op)
{
    int failed = 0;
    switch (op->code) {
    case OP_REG: {
        u64 number = op->reg == CONTEXT_REGISTER ? REGISTERS - 1 : op->reg & 0xf;
        if (number < REGISTERS)
            append_word(w, w->regs[number], op->size & 0xf);
        break;
    }
    case OP_ZERO:
        if (room(w, op->size)) {
            /* The buffer holds what earlier events left: clear in words, the last one rounded. */
#pragma clang loop unroll(disable)
            for (u32 i = 0; i < 8; i++) {
                u64 at = w->call.length + 8 * i, zero = 0;
                if (8 * i >= op->size)
                    break;
                BOUND(at, GOTRACE_PAYLOAD - 1);
                __builtin_memcpy(payload(w) + at, &zero, 8);
            }
            w->call.length += op->size;
        } else {
            w->full = 1;
        }
        break;
    case OP_STACK:
        /* What could not be read must not shift what follows. */
        if (!room(w, op->size))
            w->full = 1;
        else if (append_memory(w, w->sp + op->limit, op->size))
            w->call.length += op->size;
        break;
    case OP_DEREF:
    case OP_DEREF_N:
        failed = run_deref(w, op);
        break;
#if GOTRACE_INTERFACES
    case OP_IFACE:
        failed = run_iface(w, op);
        break;
#endif
#if GOTRACE_PREDICATES
    case OP_PUSH_CONST:
        push(w, op->limit | (u64)op->size << 32);
        break;
    case OP_PUSH_FIELD:
        push_field(w, op);
        break;
    case OP_PUSH_SPECIAL:
        push(w, op->reg == 0   ? w->call.event.goid
                : op->reg == 1 ? w->call.event.tgid
                : op->reg == 2 ? w->call.event.tid
                               : w->duration);
        break;
    case OP_COMPARE:
        compare(w, op->reg);
        break;
    case OP_AND: {
        u64 b = pull(w);
        u64 a = pull(w);
        push(w, a && b);
        break;
    }
    case OP_OR: {
        u64 b = pull(w);
        u64 a = pull(w);
        push(w, a || b);
        break;
    }
    case OP_NOT:
        push(w, !pull(w));
        break;
    case OP_STRING_TEST:
        if (string_test(w, op))
            w->pc--;
        break;
    case OP_KEEP_IF:
        if (w->unknown)
            w->call.event.flags |= EVENT_UNDECIDED;
        else if (!pull(w))
            w->dropped = 1;
        break;
#endif
    default: /* OP_END */
        if (!w->nested)
            return 1;
        w->nested--;
        u64 level = w->nested;
        BOUND(level, NESTED_SLOTS - 1);
        w->pc = w->return_pc[level];
        w->base = w->return_base[level];
    }
    if (failed)
        w->pc += op->skip;
    return 0;
}

/* Run a phase's plan from its first operation; the payload's next byte begins block 0. */
static inline __attribute__((always_inline)) void run(struct work *w, u32 first)
{
    w->pc = first;
    w->base = 0;
    w->nested = 0;
    w->values_top = 0;
    w->search = 0;
    w->unknown = 0;
    w->dropped = 0;
    w->full = 0;
    struct block *root = block_of(w, 0);
    root->start = w->call.length;
    root->size = 0xffff; /* filled as the plan says, which does not look beyond */
#pragma clang loop unroll(disable)
    for (int i = 0; i < GOTRACE_STEPS; i++) {
        u32 pc = w->pc++;
        struct op *op = ops.lookup(&pc);
        if (!op || w->dropped)
            return;
        if (step(w, op))
            return;
    }
    w->call.event.flags |= EVENT_UNDECIDED;
}
