"""Give a binary's DWARF sections, each decompressed only when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gotrace.elf.dwarf_die import DwarfError
from gotrace.elf.headers import ElfError

if TYPE_CHECKING:
    from gotrace.elf.image import ElfImage

__all__ = ["DwarfSections"]


class DwarfSections:
    """Hold the contents of ``.debug_*`` (or ``.zdebug_*``, Go up to 1.18) sections by name."""

    def __init__(self, image: ElfImage) -> None:
        """Take the image; nothing is read yet."""
        self._image = image
        self._contents: dict[str, bytes] = {}

    @property
    def display(self) -> str:
        """Return the binary's name for messages."""
        return self._image.display

    def present(self, name: str) -> bool:
        """Say whether the binary has a section, ``info`` standing for ``.debug_info``."""
        return any(self._image.section(f"{prefix}{name}") for prefix in (".debug_", ".zdebug_"))

    def get(self, name: str) -> bytes:
        """Return a section's decompressed bytes; empty when there is no such section.

        Raise DwarfError when it cannot be decompressed.
        """
        contents = self._contents.get(name)
        if contents is None:
            contents = self._contents[name] = self._read(name)
        return contents

    def _read(self, name: str) -> bytes:
        section = self._image.section(f".debug_{name}") or self._image.section(f".zdebug_{name}")
        if section is None:
            return b""
        try:
            return bytes(self._image.section_bytes(section))
        except ElfError as error:
            raise DwarfError(str(error)) from None
