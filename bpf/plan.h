/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * What a capture plan is made of: small operations that say which bytes of registers, stack and
 * memory to copy at a site, and whether the call is wanted. gotrace/capture/plan.py makes the
 * plans and documents the operations; both sides share this layout.
 *
 * Settings (common.h):
 *   GOTRACE_OPS          operations of all plans together
 *   GOTRACE_TYPES        dynamic types that have a plan
 *   GOTRACE_CONSTANTS    string constants in predicates
 */
#pragma once

#define MAX_BLOCKS 128
#define MAX_RESTS 16              /* texts and slices of which more is copied, a power of two */
#define MORE_ELEMENTS 0x80000000u /* in op.more: of a slice's elements, not of a text */
#define MAX_NESTING 4
/*
 * A search looks at the first positions of a string, some in a step, and takes a limited number of steps:
 * what it has not found by then is left to user space.
 */
#define SEARCHED_BYTES 512
#define SEARCH_STRIDE 16
#define SEARCH_STEPS 48
#define CONSTANT_WORDS 8
#define OTHER_PHASE 0x8000 /* in op.block: a block of the entry, seen from the return */
#define PREDICATE_STACK 16 /* values, a power of two */
#define CLOSURE_CONTEXT 0x20
#define MEMORY_PAGE 4096
#define TYPE_FILE_SHIFT 48 /* above addresses of user space, and DEEP */
#define DEEP (1ULL << 47)  /* the plan of a type with more pointers than usual */

enum op_code {
    OP_END = 0,
    OP_REG = 1,
    OP_ZERO = 2,
    OP_STACK = 3,
    OP_DEREF = 4,
    OP_DEREF_N = 5,
    OP_IFACE = 6,
    OP_SPAN = 7,
    OP_ROOM = 8,
    OP_MORE = 9,
    OP_LABEL = 10,
    OP_PUSH_CONST = 16,
    OP_PUSH_FIELD = 17,
    OP_PUSH_SPECIAL = 18,
    OP_COMPARE = 19,
    OP_AND = 20,
    OP_OR = 21,
    OP_NOT = 22,
    OP_STRING_TEST = 23,
    OP_KEEP_IF = 24,
    OP_KEY_FIELD = 25,
    OP_KEY_TEXT = 26,
    OP_KEY_VALUE = 27,
    OP_KEY_CALLER = 28,
    OP_MEASURE = 29,
    OP_ARITHMETIC = 30,
    OP_SAVED = 31,
};

enum block_status {
    BLOCK_NIL = 0x80000000,
    BLOCK_FAULT = 0x80000001,
    BLOCK_LIMIT = 0x80000002,
    BLOCK_UNKNOWN_TYPE = 0x80000003,
    BLOCK_KNOWN_TYPE = 0x80000004,
};

/* With the size: the first of the bytes, up to the end of a page; the next one is not in place. */
#define BLOCK_CUT 0x40000000

/* op.reg of OP_COMPARE, with SIGNED_OPERAND where the order is that of signed numbers. */
enum comparison {
    COMPARE_EQUAL = 0,
    COMPARE_NOT_EQUAL = 1,
    COMPARE_LESS = 2,
    COMPARE_LESS_EQUAL = 3,
    COMPARE_GREATER = 4,
    COMPARE_GREATER_EQUAL = 5,
};

/* op.reg of OP_ARITHMETIC, with SIGNED_OPERAND where the numbers are signed. */
enum arithmetic {
    ARITHMETIC_ADD = 0,
    ARITHMETIC_SUBTRACT = 1,
    ARITHMETIC_MULTIPLY = 2,
    ARITHMETIC_DIVIDE = 3,
    ARITHMETIC_REMAINDER = 4,
    ARITHMETIC_BIT_AND = 5,
    ARITHMETIC_BIT_OR = 6,
    ARITHMETIC_BIT_XOR = 7,
    ARITHMETIC_BIT_CLEAR = 8,
    ARITHMETIC_SHIFT_LEFT = 9,
    ARITHMETIC_SHIFT_RIGHT = 10,
};

/* In op.reg of OP_COMPARE and OP_ARITHMETIC, and with the width in that of OP_PUSH_FIELD. */
#define SIGNED_OPERAND 0x80

/* op.reg of OP_PUSH_SPECIAL */
enum special {
    SPECIAL_GOID = 0,
    SPECIAL_PID = 1,
    SPECIAL_TID = 2,
    SPECIAL_DURATION = 3,
    SPECIAL_PARTS = 8, /* and above: an enum why_class */
};

/* op.at2 of OP_SPAN */
enum span_part {
    SPAN_TRACE_ID = 0,
    SPAN_SPAN_ID = 1,
    SPAN_SAMPLED = 2,
    SPAN_CONTEXTS = 3,
};

/* op.reg of OP_STRING_TEST */
enum string_test {
    TEST_EQUAL = 0,
    TEST_PREFIX = 1,
    TEST_CONTAINS = 2,
};

struct op {
    u8 code;
    u8 reg;
    u16 block;
    u16 at;
    u16 at2;
    u32 size;
    u32 limit;
    u16 skip;
    u16 start;
    u32 more;
};

struct constant {
    u64 length;
    u64 words[CONSTANT_WORDS]; /* zero from length on */
    u64 masks[CONSTANT_WORDS]; /* all ones up to length, then zero */
};

/* ops: key = address of an operation; plans follow one another. Filled before attaching. */
BPF_ARRAY(ops, struct op, GOTRACE_OPS);

/*
 * types: key = file << TYPE_FILE_SHIFT | link-time address of a runtime type or itab; value = its
 * plan's first op.
 */
BPF_HASH(types, u64, u32, GOTRACE_TYPES);

/* constants: the strings that predicates compare with. Filled before attaching. */
BPF_ARRAY(constants, struct constant, GOTRACE_CONSTANTS);
