# SPDX-License-Identifier: Apache-2.0
"""One executable file and all that is known about it, each part read once, on first use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from gotrace.closing import Closing
from gotrace.elf import ElfError
from gotrace.elf.buildinfo import GoVersion
from gotrace.elf.debug_files import find_debug_file, open_debug_file
from gotrace.elf.dwarf import DwarfError
from gotrace.elf.functions import FunctionTable, load_functions
from gotrace.elf.image import ElfImage
from gotrace.errors import UsageError

if TYPE_CHECKING:
    from gotrace.elf.dwarf.reader import DwarfReader
    from gotrace.gotypes.contexts import ContextType
    from gotrace.gotypes.from_dwarf import DwarfTypes
    from gotrace.gotypes.from_rtype import Rtypes
    from gotrace.gotypes.runtime import RuntimeLayout
    from gotrace.gotypes.wait_reasons import WaitReasons

#: Parts that take megabytes for a large program.
_PARTS = ("functions", "dwarf", "types", "rtypes", "contexts")


class Binary(Closing):
    """An executable or shared library, with its functions, debugging information and types.

    Whatever passes a file on passes this on, so that nothing is opened, decompressed or searched
    twice in a run. The reader of a part is imported with the part: most commands need few parts,
    and start sooner. A context manager that closes the file.

    >>> with Binary(ElfImage.open("/usr/bin/caddy")) as binary:
    ...     binary.go_version, len(binary.functions)
    """

    def __init__(self, image: ElfImage) -> None:
        """Take over an open image."""
        self.image = image
        #: The fault of the debugging information, None if none is known.
        self.dwarf_problem: str | None = None
        #: The fault of the runtime's type descriptors, None if none is known.
        self.rtypes_problem: str | None = None
        self._given: ElfImage | None = None

    @cached_property
    def functions(self) -> FunctionTable:
        """Return the file's functions; raise ElfError where there are none or they are damaged."""
        return load_functions(self.image)

    @property
    def go_version(self) -> GoVersion | None:
        """Return the Go release that built the file, None where nothing in it says so."""
        return self.functions.go_version

    @property
    def debug_roots(self) -> tuple[str, ...]:
        """Return where the file systems begin that are searched for a separate debug file."""
        return ("",)

    def take_debug_file(self, path: str) -> None:
        """Take the debugging information of another file. Raise UsageError if it is not of this."""
        try:
            self._given = open_debug_file(self.image, path)
        except ElfError as error:
            raise UsageError(str(error)) from None

    @cached_property
    def debug_image(self) -> ElfImage:
        """Return the file with debugging information and symbols: this one, or a separate one.

        If one that was found is of another build, ``dwarf_problem`` says so.
        """
        if self._given is not None:
            return self._given
        if self.image.debug_section("info") is not None:
            return self.image
        found = find_debug_file(self.image, self.debug_roots)
        self.dwarf_problem = self.dwarf_problem or found.problem
        return found.image or self.image

    @property
    def debug_note(self) -> str | None:
        """Return a sentence about where the debugging information is, if that is another file."""
        if self.debug_image is self.image:
            return None
        other = self.debug_image.display
        return f"the debugging information of {self.image.display} is that of {other}"

    @cached_property
    def dwarf(self) -> DwarfReader | None:
        """Return the debugging information; None without any, or with ``dwarf_problem`` set."""
        from gotrace.elf.dwarf.reader import DwarfReader

        try:
            return DwarfReader.open(self.debug_image)
        except DwarfError as error:
            self.dwarf_problem = str(error)
            return None

    @cached_property
    def types(self) -> DwarfTypes | None:
        """Return the types that the debugging information describes, None without it."""
        from gotrace.gotypes.from_dwarf import DwarfTypes

        return DwarfTypes(self.dwarf) if self.dwarf else None

    @cached_property
    def rtypes(self) -> Rtypes | None:
        """Return the types that the program carries for its own use.

        None where there are none of a known layout, or with ``rtypes_problem`` set.
        """
        from gotrace.gotypes.from_rtype import Rtypes
        from gotrace.gotypes.rtype_table import RtypeError

        try:
            return Rtypes.open(self.image, self.go_version, self.functions.module)
        except RtypeError as error:
            self.rtypes_problem = str(error)
            return None

    @cached_property
    def contexts(self) -> Mapping[int, ContextType] | None:
        """Return the types of contexts and spans, by the addresses of descriptors and itabs.

        None where nothing describes the program's types.
        """
        from gotrace.gotypes.contexts import context_types
        from gotrace.gotypes.rtype_table import RtypeError

        try:
            return context_types(self.rtypes) if self.rtypes is not None else None
        except RtypeError as error:
            self.rtypes_problem = str(error)
            return None

    @cached_property
    def has_spans(self) -> bool:
        """Return whether the program knows OpenTelemetry's spans."""
        from gotrace.gotypes.contexts import has_spans

        return self.contexts is not None and self.rtypes is not None and has_spans(self.rtypes)

    @cached_property
    def runtime(self) -> RuntimeLayout:
        """Return where the runtime keeps its state; raise RuntimeLayoutError if that is unknown."""
        from gotrace.gotypes.runtime import runtime_layout

        return runtime_layout(self.image, self.go_version, lambda: self.dwarf)

    @cached_property
    def wait_reasons(self) -> WaitReasons | None:
        """Return why goroutines can wait, by the number in g; None where it is not found."""
        from gotrace.gotypes.wait_reasons import find_wait_reasons

        return find_wait_reasons(self.image)

    def rest(self) -> None:
        """Drop the parts that take memory, until more is asked for: they are read again then."""
        for part in _PARTS:
            self.__dict__.pop(part, None)
        for image in self._images():
            image.rest()

    def _images(self) -> set[ElfImage]:
        """Return the files that are open."""
        return {self.image, self.__dict__.get("debug_image", self._given or self.image)}

    def close(self) -> None:
        for image in self._images():
            image.close()
