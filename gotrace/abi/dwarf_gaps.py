# SPDX-License-Identifier: Apache-2.0
"""Find the parameters that DWARF leaves out, by what the places of the others show.

Go up to 1.21 lists no blank and unnamed parameters, and no receivers of wrappers: all that follows
would be computed too low. Entry locations show such gaps. They do not decide by themselves, since
the compiler is known to emit wrong ones: words twice, words left out so that the rest moves up,
the spill slot of an unused parameter instead of its register, and for ``x, y = y, x`` at the
beginning the places after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gotrace.abi.amd64 import Architecture
from gotrace.abi.assign import Assignment, FloatReg, IntReg, Piece, Place, Stack, register_parts
from gotrace.elf.dwarf.loclist import LocationPiece, PieceKind
from gotrace.elf.dwarf.regnum import AMD64_REGISTERS
from gotrace.gotypes.types import GoType, Kind, OpaqueType, basic_type

__all__ = [
    "Observed",
    "Reconstruction",
    "close_gaps",
    "observed",
]


@dataclass(frozen=True, slots=True)
class Observed:
    """Where DWARF says a value is at function entry: the pieces with a known place.

    ``whole``: pieces and holes make up all parts of the value, so that their offsets hold.
    """

    pieces: tuple[Piece, ...]
    whole: bool

    def within(self, computed: Sequence[Piece]) -> bool:
        """Return whether all places are among computed ones; a one-piece value begins there."""
        exactly = self.whole and len(self.pieces) == 1
        return all(_is_among(piece, computed, exactly) for piece in self.pieces)

    def passed(self, computed: Sequence[Piece]) -> Observed:
        """Leave out what says nothing about how a value was passed.

        Memory says nothing of a value in registers: it is the spill slot, not filled yet.
        """
        if not computed:
            return Observed((), False)
        if isinstance(computed[0].place, Stack):
            return self
        registers = tuple(p for p in self.pieces if not isinstance(p.place, Stack))
        return Observed(registers, self.whole)


@dataclass(frozen=True, slots=True)
class Reconstruction:
    """An assignment without gaps, and the rows whose place still is not known."""

    assignment: Assignment
    unsure: frozenset[int]


#: Integer registers of the longest sequence of an architecture, arm64's.
_MAX_REGISTERS = 16

#: Assigns with fillers: (row of the listed parameter after it, its type), in order.
Assigner = Callable[[Sequence[tuple[int, GoType]]], Assignment]


def observed(
    pieces: Sequence[LocationPiece],
    value: GoType,
    architecture: Architecture,
    *,
    from_list: bool,
) -> Observed:
    """Translate a DWARF location at function entry; a piece that only repeats the last is dropped.

    Only registers of the ABI's sequences count: others hold no argument. ``from_list``: the
    location is an entry of a list. The compiler makes lists of the parts that are ever used, and
    when only one is, does not say which.
    """
    shown: list[tuple[Place | None, int]] = []
    for piece in pieces:
        place = _place(piece, architecture)
        if place is None or not shown or place != shown[-1][0]:
            shown.append((place, value.size if piece.size is None else piece.size))
    parts = register_parts(value) or ()
    known = [(place, size) for place, size in shown if place is not None]
    if [size for _, size in known] == [part.size for part in parts]:
        # All parts are there; the space between them may have a hole of any size, or none.
        pieces_of_parts = zip(parts, known, strict=True)
        return Observed(
            tuple(Piece(part.offset, part.size, place) for part, (place, _) in pieces_of_parts),
            True,
        )
    found: list[Piece] = []
    offset = 0
    for shown_place, size in shown:
        if shown_place is not None:
            found.append(Piece(offset, size, shown_place))
        offset += size
    return Observed(tuple(found), offset == value.size and not (from_list and len(pieces) == 1))


def _place(piece: LocationPiece, architecture: Architecture) -> Place | None:
    if piece.kind is PieceKind.FRAME:
        # The canonical frame address is the stack pointer before the call pushed its word.
        return Stack(piece.number + architecture.pointer_size)
    if piece.kind is PieceKind.REGISTER and piece.number < len(AMD64_REGISTERS):
        name = AMD64_REGISTERS[piece.number]
        if name in architecture.int_registers:
            return IntReg(architecture.int_registers.index(name))
        if name in architecture.float_registers:
            return FloatReg(architecture.float_registers.index(name))
    return None


def close_gaps(
    assigner: Assigner,
    evidence: Sequence[Observed],
    size: int | None = None,
    *,
    in_registers: bool = True,
) -> Reconstruction:
    """Put a filler wherever more rows agree with their evidence than without.

    Rows are all listed parameters, then all results; so is ``evidence``. A row between the last
    place known and a gap may be before or after it, and a row of which DWARF shows another
    place, but not whole, cannot be placed at all. ``size``: of the stack that all of them take,
    with those that are not listed, where the function table has it; it shows gaps that no row does.
    ``in_registers``: the convention passes values in registers.
    """
    fillers: list[tuple[int, GoType]] = []
    assignment = assigner(fillers)
    unsure: set[int] = set()
    unknown: list[int] = []
    for row, shown in enumerate(evidence):
        computed = _rows(assignment)[row]
        usable = shown.passed(computed)
        if not usable.pieces:
            pushed = _pushed(assigner, fillers, row, shown)
            if pushed and _agreeing(assigner(pushed), evidence) > _agreeing(assignment, evidence):
                fillers, assignment = pushed, assigner(pushed)
                unsure.update(unknown)
                unknown = []
            else:
                unknown.append(row)
            continue
        if not usable.within(computed):
            if not usable.whole:
                unsure.add(row)
                continue
            more = [*fillers, *((row, filler) for filler in _gap(computed, usable.pieces[0]))]
            trial = assigner(more)
            if _agreeing(trial, evidence) > _agreeing(assignment, evidence):
                fillers, assignment = more, trial
                unsure.update(unknown)
        unknown = []
    if size is None:
        return Reconstruction(assignment, frozenset(unsure))
    count = len(assignment.parameters)
    if assignment.size != size:
        unsure.update(row for row in unknown if row < count)
    if in_registers:
        if assignment.size != size:
            # What is missing may have been in registers, and have a spill slot, or on the stack.
            rows = _rows(assignment)
            unsure.update(row for row in unknown if row >= count and _is_on_stack(rows[row]))
        return Reconstruction(assignment, frozenset(unsure))
    more = [*fillers, (count, OpaqueType("", Kind.INVALID, max(size - assignment.size, 0), 1))]
    fitted = assigner(more)
    if fitted.size != size:
        unsure.update(unknown)
    else:
        assignment = fitted
        unsure.update(_movable(assigner, fillers, assignment, evidence))
    return Reconstruction(assignment, frozenset(unsure))


def _is_on_stack(pieces: Sequence[Piece]) -> bool:
    return any(isinstance(piece.place, Stack) for piece in pieces)


def _movable(
    assigner: Assigner,
    fillers: Sequence[tuple[int, GoType]],
    assignment: Assignment,
    evidence: Sequence[Observed],
) -> set[int]:
    """Return the parameters on the stack before which padding may hide one that is not listed."""
    movable: set[int] = set()
    count = len(assignment.parameters)
    for row, shown in enumerate(evidence[:count]):
        if shown.passed(_rows(assignment)[row]).pieces:
            continue
        # The smallest there is: whatever else was hidden would move no fewer rows.
        trial = assigner(sorted([*fillers, (row, basic_type(Kind.UINT8))], key=lambda f: f[0]))
        if trial.size != assignment.size:
            continue
        if _agreeing(trial, evidence) == _agreeing(assignment, evidence):
            moved = zip(assignment.parameters, trial.parameters, strict=True)
            movable.update(at for at, (old, new) in enumerate(moved) if old != new)
    return movable


def _pushed(
    assigner: Assigner, fillers: Sequence[tuple[int, GoType]], row: int, shown: Observed
) -> list[tuple[int, GoType]] | None:
    """Return the fillers that leave too few registers for a value which is shown on the stack.

    None where there are none, or where it is shown in its spill slot: that says nothing.
    """
    assignment = assigner(fillers)
    if not shown.whole or row >= len(assignment.parameters):
        return None
    slot = assignment.spill_slots[row]
    if any(piece.place == Stack(slot) for piece in shown.pieces if slot is not None):
        return None
    for count in range(1, _MAX_REGISTERS + 1):
        more = [*fillers, *[(row, basic_type(Kind.UINTPTR))] * count]
        computed = _rows(assigner(more))[row]
        if computed and isinstance(computed[0].place, Stack):
            return more if shown.within(computed) else None
    return None


def _rows(assignment: Assignment) -> tuple[tuple[Piece, ...], ...]:
    return assignment.parameters + assignment.results


def _agreeing(assignment: Assignment, evidence: Sequence[Observed]) -> int:
    count = 0
    for computed, shown in zip(_rows(assignment), evidence, strict=True):
        usable = shown.passed(computed)
        count += bool(usable.pieces) and usable.whole and usable.within(computed)
    return count


def _is_among(shown: Piece, pieces: Sequence[Piece], exactly: bool) -> bool:
    return any(_is_at(shown, piece, exactly) for piece in pieces)


def _is_at(shown: Piece, piece: Piece, exactly: bool) -> bool:
    if not (isinstance(shown.place, Stack) and isinstance(piece.place, Stack)):
        return shown.place == piece.place
    within = shown.place.offset - piece.place.offset
    return 0 <= within < piece.size and (not exactly or within == shown.offset - piece.offset)


def _gap(computed: Sequence[Piece], shown: Piece) -> list[GoType]:
    """Return what must have been passed before a value for a part of it to be where it is."""
    part = next(p for p in reversed(computed) if p.offset <= shown.offset)
    if isinstance(shown.place, Stack) and isinstance(part.place, Stack):
        size = shown.place.offset - (part.place.offset + shown.offset - part.offset)
        return [OpaqueType("", Kind.INVALID, size, 1)] if size > 0 else []
    if isinstance(shown.place, Stack) or isinstance(part.place, Stack):
        return []
    kind = Kind.UINTPTR if isinstance(shown.place, IntReg) else Kind.FLOAT64
    return [basic_type(kind)] * max(shown.place.index - part.place.index, 0)
