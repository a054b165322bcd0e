# SPDX-License-Identifier: Apache-2.0
"""Read the arguments of parked goroutines' frames, where it is certain that they are there.

Most arguments are passed in registers, and at a call they are on the stack only where they are
needed afterwards. The compiler says in DWARF, for each instruction, where a variable is: an
argument is read where all of it is in the frame at the call that the frame is in, or at the
instruction after it, when no register holds what it held before the call. It is left out where a
part is in a register, or nowhere. Arguments of inlined functions are left out.

A location list of DWARF is not certain by itself: it may lead to an earlier value of the variable.
It is believed if the code shows that the argument was saved once and not written again
(``spills``). A variable that DWARF has in one place throughout lives there.

The goroutine is read again for that, with its stack, and has to be where it was before and after;
memory that its arguments lead to may be another goroutine's to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gotrace.abi.assign import Piece, Stack
from gotrace.capture.factory import NodeFactory
from gotrace.capture.ops import CaptureLimits
from gotrace.capture.payload import ReadContext
from gotrace.capture.plan import PhasePlan, PlacedNode, plan_phase, read_image
from gotrace.elf.dwarf import DwarfError
from gotrace.elf.dwarf.loclist import LocationPiece, PieceKind
from gotrace.errors import GotraceError
from gotrace.goroutines.memory import Memory, words_at
from gotrace.goroutines.model import DumpedGoroutine, State
from gotrace.goroutines.program import TRAPPED, CodeNames, Module
from gotrace.goroutines.spills import Slots
from gotrace.gotypes.runtime import RuntimeLayout
from gotrace.records import dataclass
from gotrace.values.model import UnavailableValue, Value

if TYPE_CHECKING:
    from gotrace.elf.dwarf.reader import DwarfReader, FunctionSignature, Variable

#: Pointers are shown and not followed: what they lead to changes while it is read.
_LIMITS = CaptureLimits(depth=0)
#: Of a stack, and what may be beyond the outermost frame that is looked at.
_MAX_STACK, _BEYOND = 1 << 18, 1 << 11
#: Functions that do not return: what follows a call of theirs is reached in another way.
_NO_RETURN: tuple[str, ...] = (
    "runtime.panic",
    "runtime.goPanic",
    "runtime.gopanic",
    "runtime.block",
)
_NO_RETURN += ("runtime.throw", "runtime.fatal", "runtime.Goexit", "runtime.goexit")
_AT_REST = frozenset({State.WAITING, State.SYSCALL, State.RUNNABLE, State.LEAKED})


@dataclass(frozen=True, slots=True)
class FrameArguments:
    """The arguments of one frame that are known, by name; ``is_whole``: there are no others."""

    values: Mapping[str, Value]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class _Plan:
    """The reads at one return address: each argument's pieces, as (offset, size, from CFA)."""

    names: tuple[str, ...]
    phase: PhasePlan
    pieces: tuple[tuple[tuple[int, int, int], ...], ...]
    is_whole: bool


class _Memory(ReadContext):
    """Memory that arguments point to."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def constant_bytes(self, address: int, size: int) -> bytes | None:
        return self._memory.read(address, size)


class Arguments:
    """A reader of the arguments of a program's goroutines."""

    def __init__(self, program: CodeNames, memory: Memory, layout: RuntimeLayout) -> None:
        """Take the program and its memory, which stays open."""
        self._program = program
        self._memory = memory
        self._layout = layout
        self._context = _Memory(memory)
        self._plans: dict[tuple[int, bool], _Plan | None] = {}
        self._factories: dict[int, NodeFactory] = {}
        size = max(layout.g_goid, layout.g_sched_bp, layout.g_syscallpc, layout.g_stack_hi)
        self._words = (max(size, layout.g_atomicstatus) >> 3) + 1

    def of(self, goroutine: DumpedGoroutine) -> dict[int, FrameArguments]:
        """Return the arguments of a goroutine's frames, by the frames' places in its stack.

        None where it is not parked any more, or has moved.
        """
        if goroutine.state not in _AT_REST or not goroutine.stack or not goroutine.g:
            return {}
        before = words_at(self._memory, goroutine.g, self._words)
        saved = self._layout.g_syscallsp if before[self._layout.g_syscallsp >> 3] else None
        saved = self._layout.g_sched_sp if saved is None else saved
        sp, pc = before[saved >> 3], before[(saved >> 3) + 1]
        if before[self._layout.g_goid >> 3] != goroutine.goid or pc != goroutine.stack[0]:
            return {}
        bases, returns = self._program.frame_places(goroutine.stack)
        room = before[self._layout.g_stack_hi >> 3] - sp
        size = min(8 * (bases[-1] if bases else 0) + _BEYOND, room, _MAX_STACK)
        if size <= 0:
            return {}
        image = bytes(self._memory.gather((sp, size)))
        found = {
            place: self._read(plan, image, 8 * base)
            for place, base in enumerate(bases)
            if self._is_return(image, returns[place], goroutine.stack, place)
            and (plan := self._plan(goroutine.stack, place)) is not None
        }
        after = words_at(self._memory, goroutine.g, self._words)
        return found if after == before else {}

    @staticmethod
    def _is_return(image: bytes, at: int, stack: Sequence[int], place: int) -> bool:
        """Return whether a word is the address that a frame's caller goes on at."""
        word = image[8 * at : 8 * at + 8]
        follows = stack[place + 1] & ~TRAPPED if place + 1 < len(stack) else 0
        return len(word) == 8 and int.from_bytes(word, "little") == follows

    def _read(self, plan: _Plan, image: bytes, base: int) -> FrameArguments:
        """Return a frame's arguments by the stack's bytes; ``base`` is its frame address there."""
        root = bytearray(plan.phase.image_size)
        lost = set()
        for (name, start, _), pieces in zip(plan.phase.root, plan.pieces, strict=True):
            for offset, size, place in pieces:
                at = base + place
                if at < 0 or at + size > len(image):
                    lost.add(name)
                    continue
                root[start + offset : start + offset + size] = image[at : at + size]
        values = read_image(plan.phase, bytes(root), self._context)
        known = {
            name: value
            for name, value in zip(plan.names, values, strict=True)
            if name not in lost and not isinstance(value, UnavailableValue)
        }
        return FrameArguments(known, plan.is_whole and len(known) == len(plan.names))

    def _plan(self, stack: Sequence[int], place: int) -> _Plan | None:
        pc = stack[place]
        callee = self._program.function_name(stack[place - 1] & ~TRAPPED) if place else ""
        returns = bool(callee) and not callee.startswith(_NO_RETURN)
        key = pc, returns
        if key not in self._plans:
            try:
                self._plans[key] = None if pc & TRAPPED else self._make_plan(pc, returns)
            except GotraceError:
                self._plans[key] = None
        return self._plans[key]

    def _make_plan(self, pc: int, returns: bool) -> _Plan | None:
        """Return the plan for the certain arguments at a return address; raise DwarfError.

        ``returns``: the call before it is of a function that returns.
        """
        module = self._program.module(pc)
        reader = module.binary.dwarf if module else None
        types = module.binary.types if module else None
        if module is None or reader is None or types is None:
            return None
        linked = pc - module.bias
        function = module.binary.functions.find(linked)
        signature = reader.function(function.entry) if function else None
        if function is None or signature is None or linked == function.entry:
            return None
        step = self._program.step(pc)
        if step is None:
            return None
        code = bytes(module.binary.image.read(function.entry, function.end - function.entry))
        # Which instructions save arguments is known of amd64 alone.
        slots = Slots(code) if self._program.pushes else None
        frame = 8 * step.size
        at = [linked - 1, linked] if returns and linked < function.end else [linked - 1]
        nodes: list[PlacedNode] = []
        read: list[tuple[tuple[int, int, int], ...]] = []
        for variable in signature.parameters:
            if variable.name in ("", "_") or variable.name.startswith((".", "~")):
                continue
            found = self._place(module, signature, variable, at, slots, frame)
            if found is not None:
                nodes.append(found[0])
                read.append(found[1])
        names = tuple(node.name for node in nodes)
        is_whole = len(names) == len(signature.parameters)
        return _Plan(names, plan_phase(nodes, _LIMITS), tuple(read), is_whole)

    def _place(
        self,
        module: Module,
        signature: FunctionSignature,
        variable: Variable,
        at: Sequence[int],
        slots: Slots | None,
        frame: int,
    ) -> tuple[PlacedNode, tuple[tuple[int, int, int], ...]] | None:
        """Return where an argument is in its frame: of each part its offset, size and place.

        None if that is not certain. Raises DwarfError.
        """
        reader, types = module.binary.dwarf, module.binary.types
        assert reader is not None and types is not None
        places = (reader.pieces_at(signature, variable, address) for address in at)
        found = next((pieces for pieces in places if _is_in_frame(pieces)), None)
        # If not its own place, that may be another variable's by now.
        if not found or any(piece.number < 0 for piece in found):
            return None
        try:
            node = self._factory(module).node(types.parameter(variable).type)
        except DwarfError:
            return None
        laid: list[tuple[int, int, int]] = []
        filled = 0
        for piece in found:
            size = node.size if piece.size is None else piece.size
            laid.append((filled, size, piece.number))
            filled += size
        if filled != node.size or node.size > _LIMITS.struct_bytes:
            return None
        is_listed = variable.location is not None and variable.location.list_offset is not None
        if is_listed and not _are_kept(slots, frame, laid, reader, signature, variable):
            return None
        image = tuple(Piece(offset, size, Stack(place)) for offset, size, place in laid)
        return PlacedNode(variable.name, node, image), tuple(laid)

    def _factory(self, module: Module) -> NodeFactory:
        factory = self._factories.get(module.start)
        if factory is None:
            version = module.binary.go_version
            release = version.release if version else None
            factory = self._factories[module.start] = NodeFactory(_LIMITS, release)
        return factory


def _are_kept(
    slots: Slots | None,
    frame: int,
    laid: Sequence[tuple[int, int, int]],
    reader: DwarfReader,
    signature: FunctionSignature,
    variable: Variable,
) -> bool:
    """Return whether all parts of an argument have been in their places as they were passed.

    ``frame``: how far the frame address is above SP.
    """
    total = sum(size for _, size, _ in laid)
    offset = 0
    for entry in reader.entry_pieces(signature, variable) or ():
        size = total if entry.size is None else entry.size
        place = next(
            (at + offset - start for start, length, at in laid if start <= offset < start + length),
            None,
        )
        if entry.kind is PieceKind.MISSING or place is None:
            return False
        if entry.kind is PieceKind.FRAME and entry.number != place:
            return False
        register = entry.number if entry.kind is PieceKind.REGISTER else None
        if slots is None or not slots.is_kept(frame + place, size, register):
            return False
        offset += size
    return offset == total


def _is_in_frame(pieces: tuple[LocationPiece, ...] | None) -> bool:
    return bool(pieces) and all(piece.kind is PieceKind.FRAME for piece in pieces or ())
