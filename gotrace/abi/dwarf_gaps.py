# SPDX-License-Identifier: Apache-2.0
"""Find the parameters that DWARF leaves out, by the places of the others.

Go up to 1.21 lists no blank and unnamed parameters, and no receivers of wrappers: all that follows
would be computed too low. Entry locations show such gaps. They do not decide by themselves, since
the compiler is known to emit wrong ones: words twice, words left out so that the rest moves up,
the spill slot of an unused parameter instead of its register, and for ``x, y = y, x`` at the
beginning the places after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from gotrace.abi.assign import Assignment, FloatReg, IntReg, Piece, Place, Stack, register_parts
from gotrace.architecture import Architecture
from gotrace.elf.dwarf.loclist import LocationPiece, PieceKind
from gotrace.gotypes.types import GoType, Kind, OpaqueType, basic_type
from gotrace.records import dataclass


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
        """Leave out pieces that say nothing about how a value was passed.

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

#: Bytes between the stack pointer and the arguments of a call (FixedFrameSize).
_ARM64_FRAME = 8

#: A parameter that is not listed: the row of the listed one after it, and its type.
Filler = tuple[int, GoType]
#: Assigns with fillers, in order.
Assigner = Callable[[Sequence[Filler]], Assignment]
#: Kinds of a parameter in an integer and in a float register, by how much stack is reserved.
_WIDTHS = (
    (Kind.UINTPTR, Kind.FLOAT64),
    (Kind.UINTPTR, Kind.FLOAT32),
    (Kind.UINT32, Kind.FLOAT32),
    (Kind.UINT16, Kind.FLOAT32),
    (Kind.UINT8, Kind.FLOAT32),
)


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
        return Stack(piece.number + architecture.pushed)
    if piece.kind is PieceKind.REGISTER:
        name = architecture.dwarf_registers.get(piece.number)
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
    """Assign all rows, with fillers for the parameters that DWARF does not list.

    Rows are all listed parameters, then all results; so is ``evidence``. ``size``: of the stack
    that all of them take, with those that are not listed, where the function table has it.
    ``in_registers``: the convention passes values in registers.

    An example: Go 1.19 lists ``name``, ``o`` and ``n`` of ``func(name string, _ []byte, o V, n
    int)`` with ``V`` a ``struct{X float64; N int}``. Without a filler o would be in F0 and I2, and
    n in I3. DWARF shows o in F0 and I5: three more integer registers were taken before o, and three
    fillers put it there, and n in I6. If DWARF shows n there, n is known. If it shows nothing of n,
    because the function does not use it, n is unsure: three narrow parameters before o and another
    one before n would take as much stack.
    """
    fillers = _fillers(assigner, evidence)
    if size is not None:
        fillers = _resized(assigner, fillers, size)
        if not in_registers:
            before = assigner(fillers)
            if before.size < size:
                fillers.append((len(before.parameters), _blob(size - before.size)))
    assignment = assigner(fillers)
    fitting = _fitting(assignment, evidence)
    unsure = _movable(assigner, fillers, assignment, evidence, size, fitting)
    rows = list(enumerate(zip(_rows(assignment), evidence, strict=True)))
    elsewhere = {
        row
        for row, (computed, shown) in rows
        if row not in fitting and shown.passed(computed).pieces
    }
    if size != assignment.size or (fillers and elsewhere):
        # Something is missing somewhere: where DWARF shows another place, that may be why, and then
        # only the places that it shows are certain.
        unsure |= elsewhere
        if elsewhere or size is not None:
            unsure |= {
                row
                for row, (computed, _) in rows
                if row not in fitting
                and (row < len(assignment.parameters) or _is_on_stack(computed))
            }
    return Reconstruction(assignment, frozenset(unsure))


def perhaps_out_of_order(
    assignment: Assignment, evidence: Sequence[Observed], types: Sequence[GoType]
) -> set[int]:
    """Return the parameters that may be elsewhere, as DWARF of Go 1.15 for arm64 lists them.

    They are sorted by their offsets, but those that are not used have one that is a word lower
    (createSimpleVar in cmd/compile/internal/gc/pgen.go). So they may come before a narrow one.
    """
    count = len(assignment.parameters)
    pairs = zip(evidence, types[1:count], strict=False)
    if all(first.pieces or second.size >= _ARM64_FRAME for first, second in pairs):
        return set()
    certain = {row for row in _fitting(assignment, evidence) if evidence[row].whole}
    return set(range(count)) - certain


def _fillers(assigner: Assigner, evidence: Sequence[Observed]) -> list[Filler]:
    """Return fillers, each put where more rows agree with their evidence than without it."""
    fillers: list[Filler] = []
    assignment = assigner(fillers)
    for row, shown in enumerate(evidence):
        computed = _rows(assignment)[row]
        usable = shown.passed(computed)
        more: list[Filler] | None
        if not usable.pieces:
            more = _pushed(assigner, fillers, row, shown)
        elif usable.whole and not usable.within(computed):
            more = [*fillers, *((row, filler) for filler in _gap(computed, usable.pieces))]
        else:
            continue
        if not more:
            continue
        trial = assigner(more)
        if _agreeing(trial, evidence) > _agreeing(assignment, evidence):
            fillers, assignment = more, trial
    return fillers


def _resized(assigner: Assigner, fillers: list[Filler], size: int) -> list[Filler]:
    """Return the fillers, in registers of one width, so that all values take ``size``, or less."""
    for width in _WIDTHS:
        resized = _of_width(fillers, width)
        if assigner(resized).size == size:
            break
    return resized


def _of_width(fillers: Sequence[Filler], width: tuple[Kind, Kind]) -> list[Filler]:
    integer, floating = width
    kinds = dict.fromkeys((each[0] for each in _WIDTHS), integer)
    kinds |= dict.fromkeys((each[1] for each in _WIDTHS), floating)
    return [
        (row, basic_type(kinds[filler.kind]) if filler.kind in kinds else filler)
        for row, filler in fillers
    ]


def _movable(
    assigner: Assigner,
    fillers: Sequence[Filler],
    assignment: Assignment,
    evidence: Sequence[Observed],
    size: int | None,
    fitting: set[int],
) -> set[int]:
    """Return the rows that would be elsewhere if the parameters not listed were others.

    Others are as good if they contradict no evidence that fits: a filler before another row, and
    one more filler where ``size`` leaves room for one, be it in padding. Evidence of one part, if
    DWARF does not say of which, may fit them as well.
    """
    count = len(assignment.parameters)
    certain = {row for row in fitting if evidence[row].whole}
    open_rows = [
        row
        for row, pieces in enumerate(_rows(assignment))
        if pieces and row not in certain and (row < count or _is_on_stack(pieces))
    ]
    if not open_rows:
        return set()
    others = [
        [*fillers[:at], *fillers[at + 1 :], (row, filler)]
        for at, (before, filler) in enumerate(fillers)
        for row in range(min(before, count))
    ]
    if size is not None:
        narrowest = _of_width(fillers, _WIDTHS[-1])
        bases = [narrowest]
        if assignment.size <= size and narrowest != fillers:
            bases.append(list(fillers))
        places = itertools.product(bases, range(min(open_rows[-1], count) + 1), _EXTRAS)
        others += [[*base, (row, extra)] for base, row, extra in places]
    movable = _before_blobs(fillers, assignment, certain)
    for other in others:
        trial = assigner(sorted(other, key=lambda filler: filler[0]))
        if size is not None and trial.size > max(size, assignment.size):
            continue
        if fitting <= _fitting(trial, evidence):
            moved = zip(_rows(assignment), _rows(trial), strict=True)
            movable.update(row for row, (old, new) in enumerate(moved) if old != new)
    return movable - certain


def _before_blobs(fillers: Sequence[Filler], assignment: Assignment, certain: set[int]) -> set[int]:
    """Return the rows on the stack before which a part of the stack's filler after them may be."""
    movable = set()
    rows = _rows(assignment)
    for before, filler in fillers:
        if filler.kind is not Kind.INVALID:
            continue
        for row in range(before - 1, -1, -1):
            if row in certain and _is_on_stack(rows[row]):
                break
            if _is_on_stack(rows[row]):
                movable.add(row)
    return movable


def _is_on_stack(pieces: Sequence[Piece]) -> bool:
    return any(isinstance(piece.place, Stack) for piece in pieces)


def _fitting(assignment: Assignment, evidence: Sequence[Observed]) -> set[int]:
    """Return the rows of which DWARF shows parts, all of them where they are assigned."""
    fitting = set()
    for row, (computed, shown) in enumerate(zip(_rows(assignment), evidence, strict=True)):
        usable = shown.passed(computed)
        if usable.pieces and usable.within(computed):
            fitting.add(row)
    return fitting


def _blob(size: int) -> GoType:
    """Return a type that no register holds."""
    return OpaqueType("", Kind.INVALID, size, 1)


def _pushed(
    assigner: Assigner, fillers: Sequence[Filler], row: int, shown: Observed
) -> list[Filler] | None:
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


def _gap(computed: Sequence[Piece], shown: Sequence[Piece]) -> list[GoType]:
    """Return values that, passed before this one, move its parts to the places where they are."""
    missing: dict[Kind, int] = {}
    for piece in shown:
        part = next(p for p in reversed(computed) if p.offset <= piece.offset)
        if isinstance(piece.place, Stack) and isinstance(part.place, Stack):
            size = piece.place.offset - (part.place.offset + piece.offset - part.offset)
            return [_blob(size)] if size > 0 else []
        if isinstance(piece.place, Stack) or isinstance(part.place, Stack):
            return []
        kind = Kind.UINTPTR if isinstance(piece.place, IntReg) else Kind.FLOAT64
        missing[kind] = max(missing.get(kind, 0), piece.place.index - part.place.index)
    return [basic_type(kind) for kind, count in missing.items() for _ in range(count)]


#: The smallest parameters of each kind, and one that padding does not hide.
_EXTRAS = (basic_type(Kind.UINT8), basic_type(Kind.FLOAT32), _blob(1), _blob(8))
