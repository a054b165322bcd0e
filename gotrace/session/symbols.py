"""Name run-time addresses of a target: the goroutines' start functions and creation sites."""

from __future__ import annotations

from gotrace.elf.functions import Function, Origin
from gotrace.errors import GotraceError
from gotrace.goabi.arch import AMD64
from gotrace.probes.decode import control_flow
from gotrace.session.plan import BinaryPlan
from gotrace.session.process import Process
from gotrace.session.target import load_bias

__all__ = ["Symbolizer"]


class Symbolizer:
    """Translate addresses of the processes that run one file, each with its own load bias."""

    def __init__(self, binary: BinaryPlan) -> None:
        self._table = binary.table
        self._image = binary.binary.image
        self._common = binary.binary.bias
        self._biases: dict[int, int | None] = {}

    def _address(self, tgid: int, pc: int) -> int | None:
        if self._common is not None:
            return pc - self._common
        if tgid not in self._biases:
            try:
                self._biases[tgid] = load_bias(self._image, Process(tgid))
            except GotraceError:
                self._biases[tgid] = None
        bias = self._biases[tgid]
        return None if bias is None else pc - bias

    def learn(self, tgid: int) -> None:
        """Read a process's bias while it lives."""
        self._address(tgid, 0)

    def started(self, tgid: int, pc: int) -> str | None:
        """Return the name of the function that a go statement started, by its entry.

        For a call with arguments that is a wrapper of the compiler's, ``gowrap1`` or the like:
        then what that calls is meant.
        """
        address = self._address(tgid, pc)
        function = self._table.find(address) if address else None
        if function is None:
            return None
        if function.origin is Origin.PCLNTAB and self._table.is_wrapper(function.row):
            return self._wrapped(function) or function.name
        return function.name

    def _wrapped(self, wrapper: Function) -> str | None:
        """Return the first function outside of the runtime that a wrapper calls or has inlined."""
        code = self._image.read(wrapper.entry, wrapper.end - wrapper.entry)
        for call in control_flow(code, AMD64).calls:
            frames = self._table.inlined_at(wrapper.row, wrapper.entry + call.at)
            called = self._table.find(wrapper.entry + call.target)
            direct = called.name if called else ""
            name = frames[-2].name if len(frames) > 1 else direct
            if name and not name.startswith("runtime."):
                return name
        return None

    def line_before(self, tgid: int, pc: int) -> str | None:
        """Return ``file:line`` of the instruction before a return address, as Go's dumps do."""
        address = self._address(tgid, pc)
        line = self._table.source_line(address - 1) if address else None
        return f"{line.file.rsplit('/', 1)[-1]}:{line.line}" if line else None

    def frames_before(self, tgid: int, pc: int) -> list[tuple[str, str, int]]:
        """Return (function, file, line) of the call before a return address, innermost first.

        Several where functions are inlined there; none where the address is not known.
        """
        address = self._address(tgid, pc)
        function = self._table.find(address - 1) if address else None
        if function is None or address is None:
            return []
        frames = self._table.inlined_at(function.row, address - 1)
        return [(frame.name, frame.file, frame.line) for frame in frames]
