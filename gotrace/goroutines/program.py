# SPDX-License-Identifier: Apache-2.0
"""The Go code that a process has mapped: the meaning of return addresses, and the place of allgs.

How stacks are followed is how the runtime does it (``runtime/traceback.go``: gentraceback up to Go
1.20, unwinder since 1.21): at each instruction the function's table says how far SP is below the
return address, so that no frame pointers are needed and each frame is found exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from gotrace.elf import ElfError
from gotrace.elf.image import PF_W, PF_X, PT_LOAD
from gotrace.elf.pclntab.functab import FunctionMarks
from gotrace.elf.symtab import symbol_value
from gotrace.errors import GotraceError
from gotrace.goroutines.model import Frame, Location, Stack
from gotrace.gotypes.binary import Binary
from gotrace.profiles.rows import CodeMapping, Line, PprofLocation
from gotrace.records import dataclass
from gotrace.sites.machine import machine_code

#: Marks an address in a stack as that of an interrupted instruction, not of a return.
TRAPPED = 1 << 63

#: Functions beyond which there is no frame (runtime.topofstack up to Go 1.16; since then they have
#: a mark, FuncFlag_TOPFRAME, and others may have it).
_TOPS = frozenset(
    {"runtime.goexit", "runtime.mstart", "runtime.mcall", "runtime.morestack", "runtime.rt0_go"}
)
#: Writes SP, but in such a way that frames can be followed at any time (unwinder.resolveInternal).
_CALLBACK = "runtime.cgocallback"
#: Functions that the runtime makes an interrupted one call (runtime.isInjectedCall).
_INJECTED = frozenset(
    {
        "runtime.sigpanic",
        "runtime.asyncPreempt",
        "runtime.debugCallV1",
        "runtime.debugCallV2",
    }
)
#: A wrapper is shown where one of these was called in place of what it wraps
#: (runtime.elideWrapperCalling).
_PANICS = frozenset({"runtime.gopanic", "runtime.sigpanic", "runtime.panicwrap"})
#: Functions of the runtime that its dumps show all the same (runtime.showfuncinfo).
_CONTEXT = frozenset({"runtime.runFinalizers", "runtime.runCleanups"})
_CONTEXT_SINCE = (1, 25)
_EXPORTED_METHODS_SINCE = (1, 23)
#: Before, what is inlined was shown where the function was that it was inlined into: so in Go 1.15,
#: not in 1.19.
_JUDGES_INLINED_SINCE = (1, 17)

#: Goroutines of the runtime that count as the user's while they run the user's functions
#: (runtime.isSystemGoroutine), and those that always do.
SOMETIMES_SYSTEM = frozenset({"runtime.runfinq", "runtime.runFinalizers", "runtime.runCleanups"})
NEVER_SYSTEM = frozenset({"runtime.main", "runtime.handleAsyncEvent", "runtime.corostart"})
#: The first functions of a call from C, in a goroutine that was not started by a go statement.
_CALLED_BY_C = frozenset({"runtime.cgocallback", "runtime.cgocallback_gofunc"})

#: Stacks whose frames are kept.
_MAX_STACKS = 1 << 16
#: The largest frame of Go code, in bytes.
_MAX_FRAME = 1 << 30


@dataclass(frozen=True, slots=True)
class Step:
    """How to get from a frame to its caller's.

    ``words`` from SP to the return address, ``size`` to the caller's SP, in words as well. On arm64
    the return address is at SP. If ``size`` is 0, it is still in its register, which is not looked
    for: the frame is the outermost one. ``is_top``: there is no caller. ``is_opaque``: the caller
    cannot be found, unless this is the innermost frame. ``has_trapped``: the return address is that
    of an instruction at which a signal came. ``is_semaphore``: the frame has a pointer to the sudog
    that waits.
    """

    words: int
    size: int
    is_top: bool
    is_opaque: bool
    has_trapped: bool
    is_semaphore: bool


@dataclass(frozen=True)
class Module:
    """One file with Go code; addresses from ``start`` to ``end`` are its code at run time."""

    binary: Binary
    bias: int
    start: int
    end: int


def module_of(binary: Binary, bias: int) -> Module:
    """Return a file's code at run time."""
    code = [
        segment
        for segment in binary.image.segments
        if segment.type == PT_LOAD and segment.flags & PF_X
    ]
    if not code:
        raise GotraceError(f"{binary.image.display}: has no code")
    start = min(segment.address for segment in code)
    end = max(segment.address + segment.memory_size for segment in code)
    return Module(binary, bias, bias + start, bias + end)


class CodeNames:
    """All the Go code of a process, and the names of other code.

    ``more`` finds the module that holds an address that none of the modules does, plugins for
    example, and returns None where there is no such module. Modules without Go code name their
    functions, and no stack is followed through these.
    """

    def __init__(self, main: Module, more: Callable[[int], Module | None]) -> None:
        self.main = main
        self._modules = [main]
        self._more = more
        self._steps: dict[int, Step | None] = {}
        self._frames: dict[int, tuple[_Logical, ...]] = {}
        self._located: dict[Stack, tuple[Location, ...]] = {}
        self._flat: dict[Stack, tuple[Frame, ...]] = {}
        self._names: dict[int, str] = {}
        self._places: dict[Stack, tuple[list[int], list[int]]] = {}

    @property
    def modules(self) -> Sequence[Module]:
        """Return the files whose code has been met, the program itself first."""
        return self._modules

    @property
    def pushes(self) -> bool:
        """Return whether calls push return addresses on the stack."""
        return self.main.binary.image.arch.link_register is None

    @cached_property
    def _release(self) -> tuple[int, int]:
        version = self.main.binary.go_version
        return version.release if version else (99, 0)

    def module(self, pc: int) -> Module | None:
        """Return the file whose code is at an address, None where no Go code is."""
        for module in self._modules:
            if module.start <= pc < module.end:
                return module
        found = self._more(pc)
        if found is not None:
            self._modules.append(found)
        return found

    def step(self, pc: int) -> Step | None:
        """Return the way to the caller of the frame whose address in a stack is ``pc``.

        None where no function is known there.
        """
        if pc not in self._steps:
            try:
                self._steps[pc] = self._make_step(pc)
            except ElfError:
                self._steps[pc] = None
        return self._steps[pc]

    def _make_step(self, pc: int) -> Step | None:
        address = pc & ~TRAPPED
        module = self.module(address)
        if module is None:
            return None
        functions = module.binary.functions
        function = functions.find(address - module.bias)
        if function is None:
            return None
        delta = functions.stack_delta(function.row, address - module.bias)
        if delta is None or delta % 8 or delta > _MAX_FRAME:
            return None
        marks = functions.marks(function.row)
        pushed = module.binary.image.arch.pushed
        return Step(
            delta // 8 if pushed else 0,
            (delta + pushed) // 8,
            FunctionMarks.TOP_FRAME in marks or function.name in _TOPS,
            FunctionMarks.WRITES_SP in marks and function.name != _CALLBACK,
            function.name in _INJECTED,
            function.name == "runtime.semacquire1",
        )

    def frame_places(self, stack: Stack) -> tuple[list[int], list[int]]:
        """Return where each frame's canonical frame address is, and its return address.

        Both in words from SP on.
        """
        known = self._places.get(stack)
        if known is None:
            if len(self._places) >= _MAX_STACKS:
                self._places.clear()
            known = self._places[stack] = self._make_places(stack)
        return known

    def _make_places(self, stack: Stack) -> tuple[list[int], list[int]]:
        bases: list[int] = []
        returns: list[int] = []
        at = 0
        for pc in stack:
            step = self.step(pc)
            if step is None or step.is_top or step.is_opaque:
                break
            returns.append(at + step.words)
            at += step.size
            bases.append(at)
        return bases, returns

    def function_name(self, pc: int) -> str:
        """Return the name of the function that holds an address, "" where there is none."""
        if pc not in self._names:
            module = self.module(pc)
            function = None
            if module is not None:
                function = module.binary.functions.find(pc - module.bias)
            self._names[pc] = function.name if function else ""
        return self._names[pc]

    def frames(self, stack: Stack) -> tuple[Frame, ...]:
        """Return the logical frames of a stack, the innermost first, those inlined included."""
        known = self._flat.get(stack)
        if known is None:
            locations = self.locations(stack)
            known = tuple(frame for location in locations for frame in location.frames)
            self._flat[stack] = known
        return known

    def locations(self, stack: Stack) -> tuple[Location, ...]:
        """Return the physical frames of a stack, the innermost first."""
        known = self._located.get(stack)
        if known is None:
            if len(self._located) >= _MAX_STACKS:
                self._located.clear()
                self._flat.clear()
            known = self._located[stack] = tuple(self._locate(stack))
        return known

    def is_system(self, started: str, stack: Stack) -> bool:
        """Return whether a goroutine is one of the runtime's own (runtime.isSystemGoroutine).

        ``started`` is the name of the function that it began with.
        """
        if started in SOMETIMES_SYSTEM:
            return all(frame.function.startswith("runtime.") for frame in self.frames(stack))
        return started.startswith("runtime.") and started not in NEVER_SYSTEM

    def is_system_stack(self, stack: Stack) -> bool:
        """Return whether a stack is that of a goroutine of the runtime's own, by all its frames."""
        if len(stack) < 2 or self.function_name(stack[-1]) != "runtime.goexit":
            return False  # cut off
        started = self.function_name(stack[-2])
        return started not in _CALLED_BY_C and self.is_system(started, stack)

    def profiled(self, stack: Stack) -> list[PprofLocation]:
        """Return the physical frames of a stack for a profile, the innermost first."""
        found = []
        locations = self.locations(stack)
        has_own = any(not frame.is_elided for location in locations for frame in location.frames)
        for address, frames in locations:
            lines = tuple(
                Line(f.function, f.file, f.line) for f in frames if not (has_own and f.is_elided)
            )
            if lines:
                found.append(PprofLocation(address, lines))
        return found

    def mappings(self) -> list[CodeMapping]:
        """Return where the files are whose code has been met, the program itself first."""
        return [CodeMapping(m.start, m.end, m.binary.image.display) for m in self._modules]

    def creation(self, pc: int) -> Frame | None:
        """Return the frame of a ``go`` statement by its return address, None where unknown.

        It is that of the whole function, as the runtime prints it, whatever is inlined there.
        """
        logical = self._logical(pc)
        if not logical:
            return None
        inner, outer = logical[0], logical[-1]
        shown = self._is_shown(outer.function, True)
        return Frame(outer.function, inner.file, inner.line, outer.offset, False, False, shown)

    def _locate(self, stack: Stack) -> Iterable[Location]:
        callee, shown_before = "", False
        for pc in stack:
            logical = self._logical(pc)
            frames = []
            for one in logical:
                elided = one.is_wrapper and callee not in _PANICS
                callee = one.function
                judged = callee if self._release >= _JUDGES_INLINED_SINCE else logical[-1].function
                shown = not elided and self._is_shown(judged, not shown_before)
                shown_before |= shown
                frames.append(
                    Frame(callee, one.file, one.line, one.offset, one.is_inlined, elided, shown)
                )
            yield Location(pc & ~TRAPPED if pc & TRAPPED else max(pc - 1, 0), tuple(frames))

    def _is_shown(self, name: str, is_first: bool) -> bool:
        """Return whether Go's own dumps show a function (runtime.showfuncinfo)."""
        if name in _CONTEXT and self._release >= _CONTEXT_SINCE:
            return True
        if name == "runtime.gopanic" and not is_first:
            return True
        if not name.startswith("runtime."):
            return "." in name
        rest = name.removeprefix("runtime.")
        if self._release >= _EXPORTED_METHODS_SINCE:
            receiver, _, method = rest.rpartition(".")
            if receiver.startswith("(*") and receiver.endswith(")"):
                receiver = receiver[2:-1]
            return _is_exported(method) and (not receiver or _is_exported(receiver))
        return _is_exported(rest)

    def _logical(self, pc: int) -> tuple[_Logical, ...]:
        if pc not in self._frames:
            try:
                self._frames[pc] = self._make_logical(pc)
            except ElfError:
                self._frames[pc] = ()
        return self._frames[pc]

    def _make_logical(self, pc: int) -> tuple[_Logical, ...]:
        address = pc & ~TRAPPED
        module = self.module(address)
        if module is None:
            return ()
        functions = module.binary.functions
        function = functions.find(address - module.bias)
        if function is None:
            return ()
        linked = address - module.bias
        offset = linked - function.entry
        # a return address is that of the instruction after the call
        called_at = linked if pc & TRAPPED or offset == 0 else linked - 1
        inlined = functions.inlined_at(function.row, called_at)
        if not inlined:  # of C
            file = module.binary.image.display
            return (_Logical(function.name, file, 0, offset or None, False, False),)
        return tuple(
            _Logical(
                # those of Go 1.18 to 1.20 are whole in the symbol table alone
                frame.name if index < len(inlined) - 1 else function.name,
                frame.file,
                frame.line,
                offset if offset and index == len(inlined) - 1 else None,
                index < len(inlined) - 1,
                frame.is_wrapper,
            )
            for index, frame in enumerate(inlined)
        )


@dataclass(frozen=True, slots=True)
class _Logical:
    """The part of a frame that does not depend on the frames around it."""

    function: str
    file: str
    line: int
    offset: int | None
    is_inlined: bool
    is_wrapper: bool


def _is_exported(name: str) -> bool:
    return "A" <= name[:1] <= "Z"


#: ``runtime.allgadd`` has some 400 bytes; a function of this name that is longer is another one.
_MAX_CODE = 1 << 14


def allgs_of(binary: Binary) -> int:
    """Return the link-time address of ``runtime.allgs``, a slice of all goroutines.

    By its symbol, or in stripped programs from the code of ``runtime.allgadd`` (src/runtime/proc.go
    of Go 1.15 to 1.27), which appends to it: it is the one variable whose three words are all
    addressed there. Raises GotraceError where it is not found.
    """
    symbol = symbol_value(binary.image, "runtime.allgs")
    if symbol is not None:
        return symbol
    candidates: set[int] = set()
    for row in binary.functions.rows_named("runtime.allgadd"):
        function = binary.functions.function(row)
        if function.end - function.entry <= _MAX_CODE:
            code = binary.image.read(function.entry, function.end - function.entry)
            machine = machine_code(binary.image.arch)
            addressed = set(machine.addressed(code, function.entry))
            candidates |= {
                address
                for address in addressed
                if address % 8 == 0
                and {address + 8, address + 16} <= addressed
                and is_writable(binary, address)
            }
    if len(candidates) != 1:
        raise GotraceError(
            f"{binary.image.display}: cannot find the list of goroutines (runtime.allgs): the"
            " program has no symbol for it, and runtime.allgadd is not as in Go 1.15 to 1.27"
        )
    return candidates.pop()


def is_writable(binary: Binary, address: int) -> bool:
    """Return whether the program may write the three words at an address."""
    return any(
        segment.type == PT_LOAD
        and segment.flags & PF_W
        and segment.address <= address
        and address + 24 <= segment.address + segment.memory_size
        for segment in binary.image.segments
    )
