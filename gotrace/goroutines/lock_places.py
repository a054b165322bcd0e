# SPDX-License-Identifier: Apache-2.0
"""Name the variable or field that a lock is, where that is proven.

A lock in a global variable is in the symbol of it; DWARF has its type. The compiler lays out the
object of ``var book = &Book{}`` beside the variables, without a symbol: the variable points to it,
and what it points to is read from the program's memory. A lock on the heap is in an object, and a
function on the stack of a goroutine that waits for it may have been passed a pointer to that: if
``main.(*Book).Add`` has one to a ``main.Book`` and the lock is exactly where a ``main.Book`` has a
field of the lock's type, the lock is that field.

Such a pointer is known in two ways. A method's receiver comes in the first register (since Go
1.17): what its first instructions save, and no other one writes to, is that (``spills``); before,
it comes in memory. Of all parameters that are pointers DWARF says where they are at the call that
a frame is in. That may be an earlier value of the variable, but it is one of its type.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from gotrace.elf.dwarf.loclist import PieceKind
from gotrace.elf.pclntab.functab import FunctionMarks
from gotrace.elf.symtab import object_symbol
from gotrace.errors import GotraceError
from gotrace.goroutines.memory import Memory, words_at
from gotrace.goroutines.model import Awaited, Stack
from gotrace.goroutines.program import TRAPPED, CodeNames, Module, Step
from gotrace.goroutines.spills import Slots
from gotrace.gotypes.symbols import NameKind, display_name, parse_name
from gotrace.gotypes.types import ArrayType, GoType, Kind, PointerType, StructType

#: DWARF's number of the register that the first argument comes in (abi-internal.md): RAX.
_FIRST_REGISTER = 0
_SYNC = "sync."
#: The type that a pointer is to, and its place in words from its frame's SP on.
_Pointer = tuple[GoType, int]
_Make = Callable[[Module, int, Step], Iterable[_Pointer]]
#: Types in types that are looked into.
_MAX_DEPTH = 64
#: Of variables that point to an object: the bytes that are looked at, and the object's size.
_MAX_DATA, _MAX_OBJECT = 1 << 20, 4096


class LockObject(NamedTuple):
    """An object by its type and its address."""

    type: str
    address: int


class Method(NamedTuple):
    """A method of a pointer by the type that it is to, and its own name."""

    type: str
    name: str


class LockPlaces:
    """The names of a program's locks."""

    def __init__(self, program: CodeNames, memory: Memory) -> None:
        self._program = program
        self._memory = memory
        #: By return address and how they were found.
        self._pointers: dict[tuple[int, str], list[_Pointer]] = {}
        self._types: dict[tuple[int, str], GoType | None] = {}
        self._methods: dict[int, Method] = {}
        #: The objects that locks are fields of, as far as they have been looked for.
        self.objects: dict[Awaited, LockObject] = {}

    def variables(self, locks: Iterable[Awaited]) -> dict[Awaited, str]:
        """Return the global variable or its field that each lock is, "" if it is not in one."""
        names = dict.fromkeys(locks, "")
        for module in self._program.modules:
            image, behind = module.binary.image, list[Awaited]()
            for lock in (one for one, name in names.items() if not name):
                address = lock.address - module.bias
                with suppress(GotraceError):
                    symbol = object_symbol(image, address)
                    # Those with two dots are the compiler's own: main..stmp_0.
                    if symbol is not None and ".." not in symbol.name:
                        offset = address - symbol.address
                        names[lock] = _name_in_variable(module, symbol.name, offset, lock)
                    elif any(
                        0 <= address - one.address < one.memory_size for one in image.segments
                    ):
                        behind.append(lock)
            if behind:
                with suppress(GotraceError):
                    names |= self._behind_variables(module, behind)
        return names

    def _behind_variables(self, module: Module, locks: Sequence[Awaited]) -> dict[Awaited, str]:
        """Return the fields that locks are of objects without a symbol to which variables point.

        The linker has put the pointers into the file's data, which is read once for all locks.
        """
        image, found = module.binary.image, dict[Awaited, str]()
        data = image.section(".data")
        count = min(data.size, _MAX_DATA) >> 3 if data is not None else 0
        if data is None or not count:
            return found
        locks = sorted(locks, key=lambda lock: lock.address)
        first, last = locks[0].address - _MAX_OBJECT, locks[-1].address
        words = words_at(self._memory, data.address + module.bias, count)
        for place, word in enumerate(words):
            if not first < word <= last:
                continue
            at = data.address + 8 * place
            symbol = object_symbol(image, at)
            if symbol is None or symbol.address != at:
                continue
            goal = _type_of_variable(module, symbol.name)
            if not isinstance(goal, PointerType):
                continue
            size = min(goal.elem.size, _MAX_OBJECT)
            for lock in (one for one in locks if 0 <= one.address - word < size):
                path = path_to(goal.elem, lock.address - word, lock.type)
                if path is not None:
                    found.setdefault(lock, display_name(symbol.name) + path)
        return found

    def field(self, lock: Awaited, stack: Stack, words: Sequence[int]) -> str:
        """Return the field that a lock is of an object, "" if no function on a stack has that.

        ``words`` are those of the stack from SP on.
        """
        for make in (self._receiver, self._parameters):
            for goal, start in self._pointers_on(stack, words, make):
                if start <= lock.address < start + goal.size:
                    path = path_to(goal, lock.address - start, lock.type)
                    if path:
                        self.objects[lock] = LockObject(display_name(goal.name), start)
                        return self.objects[lock].type + path
        return ""

    def channels(self, stack: Stack, words: Sequence[int]) -> dict[int, str]:
        """Return the fields of objects that functions on a stack have, by the channels in them."""
        found: dict[int, str] = {}
        for make in (self._receiver, self._parameters):
            for goal, start in self._pointers_on(stack, words, make):
                fields = goal.fields if isinstance(goal, StructType) else ()
                fields = tuple(one for one in fields if one.type.kind is Kind.CHAN)
                if not fields or not start or goal.size > _MAX_OBJECT:
                    continue
                with suppress(GotraceError):
                    held = words_at(self._memory, start, goal.size >> 3)
                    for one in fields:
                        name = f"{display_name(goal.name)}.{one.name}"
                        found.setdefault(held[one.offset >> 3], name)
        return found

    def method_of(self, pc: int) -> Method:
        """Return the method that a return address is in, with empty names if it is in none."""
        if pc not in self._methods:
            step, module = self._program.step(pc), self._program.module(pc & ~TRAPPED)
            function = module.binary.functions.find(pc - module.bias) if step and module else None
            name = parse_name(function.name) if function is not None else None
            is_method = name is not None and name.kind is NameKind.METHOD and name.pointer
            self._methods[pc] = Method("", "")
            if function is not None and name is not None and is_method:
                goal = f"{name.package}.{name.receiver}"
                self._methods[pc] = Method(goal, display_name(function.name))
        return self._methods[pc]

    def methods_with(self, lock: Awaited, stack: Stack, words: Sequence[int]) -> Iterator[str]:
        """Yield methods on a stack, of the object that a lock is in, whose frames have the lock.

        A frame keeps a lock's address for a deferred Unlock. That of the object alone says less: a
        method may have nothing to do with this one of its locks.
        """
        goal = self.objects[lock]
        bases, _ = self._program.frame_places(stack)
        for pc, start, end in zip(stack, [0, *bases], bases, strict=False):
            method = self.method_of(pc)
            if method.type == goal.type and lock.address in words[start:end]:
                yield method.name

    def has_method(self, stack: Stack, types: Container[str]) -> bool:
        """Return whether a method of one of these types is on a stack."""
        return any(self.method_of(pc).type in types for pc in stack)

    def _pointers_on(
        self, stack: Stack, words: Sequence[int], make: _Make
    ) -> Iterator[tuple[GoType, int]]:
        """Yield the types that pointers on a stack are to, and their values."""
        bases, _ = self._program.frame_places(stack)
        for pc, start in zip(stack, [0, *bases], strict=False):
            key = pc, make.__name__
            if key not in self._pointers:
                self._pointers[key] = []
                step, module = self._program.step(pc), self._program.module(pc & ~TRAPPED)
                if step is not None and module is not None and not pc & TRAPPED:
                    with suppress(GotraceError):
                        self._pointers[key] = list(make(module, pc - module.bias, step))
            for goal, place in self._pointers[key]:
                if 0 <= start + place < len(words):
                    yield goal, words[start + place]

    def _receiver(self, module: Module, pc: int, step: Step) -> Iterator[_Pointer]:
        """Yield the receiver of a method, and where it is for as long as a call lasts."""
        functions, image = module.binary.functions, module.binary.image
        function, version = functions.find(pc), module.binary.go_version
        if function is None or version is None or not self._program.pushes:
            return
        name = parse_name(function.name)
        if name.kind is not NameKind.METHOD or not name.pointer or name.is_generic:
            return
        if FunctionMarks.ASSEMBLY in functions.marks(function.row):
            return
        slots = Slots(bytes(image.read(function.entry, function.end - function.entry)))
        passed = 8 * step.size
        places = [passed] if slots.is_kept(passed, 8, None) else []
        if version.release >= image.arch.register_abi:
            places = slots.kept(_FIRST_REGISTER)
        goal = self._type(module, f"{name.package}.{name.receiver}") if places else None
        if goal is not None:
            yield goal, places[0] >> 3

    def _parameters(self, module: Module, pc: int, step: Step) -> Iterator[_Pointer]:
        """Yield the parameters that are pointers, and their places at a call by DWARF."""
        reader, types = module.binary.dwarf, module.binary.types
        function = module.binary.functions.find(pc)
        if reader is None or types is None or function is None or pc == function.entry:
            return
        signature = reader.function(function.entry)
        if signature is None:
            return
        for variable in signature.parameters:
            with suppress(GotraceError):
                found = types.parameter(variable).type
                # At the call a register may have it, which is in the frame once that has returned.
                for at in (pc - 1, pc):
                    pieces = reader.pieces_at(signature, variable, at) or ()
                    places = [piece.number for piece in pieces if piece.kind is PieceKind.FRAME]
                    if isinstance(found, PointerType) and len(pieces) == len(places) == 1:
                        yield found.elem, step.size + (places[0] >> 3)

    def _type(self, module: Module, name: str) -> GoType | None:
        """Return the only type of a name, None if there is none or more than one."""
        key = module.start, name
        if key not in self._types:
            rtypes, dwarf = module.binary.rtypes, module.binary.types
            found = rtypes.named(name) if rtypes is not None else []
            if not found and dwarf is not None and (one := dwarf.named(name)) is not None:
                found = [one]
            is_it = len(found) == 1 and display_name(found[0].name) == name
            self._types[key] = found[0] if is_it else None
        return self._types[key]


def _type_of_variable(module: Module, name: str) -> GoType | None:
    """Return the type of a global variable by DWARF."""
    reader, types = module.binary.dwarf, module.binary.types
    place = reader.variable_type(name) if reader is not None else None
    return types.at(place) if types is not None and place is not None else None


def _name_in_variable(module: Module, name: str, offset: int, lock: Awaited) -> str:
    goal = _type_of_variable(module, name)
    path = path_to(goal, offset, lock.type) if goal is not None else None
    if path is None:
        path = f"+{offset:#x}" if offset else ""
    return display_name(name) + path


def path_to(goal: GoType, offset: int, lock: str) -> str | None:
    """Return how Go writes the part of a value that a lock is; None if there is none.

    It is the outermost part of package sync: a lock of type ``lock``, or one that has one in it,
    such as a sync.Once.
    """
    path = ""
    for _ in range(_MAX_DEPTH):
        if goal.is_named and goal.name.startswith(_SYNC):
            return path if goal.name != lock or offset == 0 else None
        if isinstance(goal, ArrayType) and goal.elem.size:
            path += f"[{offset // goal.elem.size}]"
            offset, goal = offset % goal.elem.size, goal.elem
        elif isinstance(goal, StructType):
            inside = (f for f in goal.fields if f.offset <= offset < f.offset + f.type.size)
            field = next(inside, None)
            if field is None:
                return None
            path += f".{field.name}"
            offset, goal = offset - field.offset, field.type
        else:
            return None
    return None
