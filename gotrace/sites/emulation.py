# SPDX-License-Identifier: Apache-2.0
"""How the kernel's uprobes treat an amd64 instruction: emulate, single-step or refuse it.

Source: arch/x86/kernel/uprobes.c. ``branch_setup_xol_ops`` emulates relative branches and nop
since Linux 3.16 (commits 7ba6db2d688b, 8e89c0be171b, 8f95505bc18a), ``push_setup_xol_ops``
pushes since 4.16 (commit e7ed9d9bd037). ``uprobe_init_insn`` refuses what its table of good
instructions leaves out (0f, with whatever follows, has been good since Linux 4.1, the table for
what follows is never asked), ``branch_setup_xol_ops`` branches with an operand-size prefix. Where
releases differ (only the newest emulate longer nops, older ones refuse 66 90) the answer given
here is the one that is safe with all.

One instruction is refused here although the kernel takes it: ``xchg`` with r8 is 90 with REX.B, and
``branch_setup_xol_ops``, which looks at the opcode alone, skips it as a nop (seen on Linux 6.18).
``runtime.gcWriteBarrierR8`` of Go 1.15 to 1.20 begins with it: a probe there corrupts the heap.
"""

from __future__ import annotations

import re

#: One instruction that every kernel emulates within the breakpoint's trap: push of a register,
#: the one-byte nop, jcc, jmp and call with an offset; no prefix but push's REX.B.
EMULATED = re.compile(
    rb"\x41?[\x50-\x57] | \x90 | [\x70-\x7f\xeb]. | [\xe8\xe9].... | \x0f[\x80-\x8f]....",
    re.DOTALL | re.VERBOSE,
)

# Zero bits of the table good_insns_64.
_BAD_OPCODE = (
    r"[\x06\x07\x0e\x16\x17\x1e\x1f\x27\x2f\x37\x3f\x60-\x62\x6c-\x6f\x82\x9a"
    r"\xcc-\xcf\xd4-\xd6\xe4-\xe7\xea\xec-\xef\xf1\xf4\xfa\xfb]"
)
_MISTAKEN = re.compile(rb"[\x66\xf2\xf3]*[\x41\x43\x45\x47\x49\x4b\x4d\x4f]\x90")
_REFUSED = re.compile(
    rf"""
    [\x64-\x67\xf2\xf3]*                                # prefixes that do not matter
    (?: (?P<prefix>[\x26\x2e\x36\x3e\xf0])              # es, cs, ss, ds; lock
      | (?<=\x66)[\x40-\x4f]?                           # branch or nop of operand size 16
        (?P<branch>[\x70-\x7f\x90\xe8\xe9\xeb]|\x0f[\x80-\x8f])
      | [\x40-\x4f]?                                    # REX
        (?P<opcode>
            (?!\x62){_BAD_OPCODE}
            # VEX and EVEX: the table for one-byte opcodes is asked about the opcode after them
          | (?:\xc5.|\xc4..|\x62...){_BAD_OPCODE}
            # mov to ss would hold back the trap of the single step (insn_masking_exception)
          | \x8e[\x10-\x17\x50-\x57\x90-\x97\xd0-\xd7]
        )
    )
    """.encode(),
    re.DOTALL | re.VERBOSE,
)


def refusal(code: bytes) -> str | None:
    """Return why no uprobe may be on the first instruction of ``code``.

    None means that a probe is allowed. No site may be on a refused instruction: the attachment
    of the whole list of probes that it is in would fail, or the program would go wrong.
    """
    mistaken = _MISTAKEN.match(code)
    if mistaken is not None:
        return f"it would skip {mistaken[0].hex(' ')} (xchg with r8) as a nop"
    match = _REFUSED.match(code)
    if match is None:
        return None
    what = "prefix" if match["prefix"] else "opcode"
    return f"no support for {what} {code[match.start(match.lastgroup or 0) : match.end()].hex(' ')}"
