"""Know how each Go release lays its type information out.

Sources, all read for Go 1.15 and 1.19 to 1.27: ``runtime/symtab.go`` (type moduledata),
``runtime/type.go`` and since Go 1.21 ``internal/abi/type.go``. What is said of 1.16, 1.17, 1.18
and 1.20 was checked with programs built by these: no type of them then contradicts itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from gotrace.elf.buildinfo import GoVersion

__all__ = ["Layout", "layout_of"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Say where module data describes the type information, and how descriptors are encoded.

    ``types`` and ``etypes`` are the offsets of the bounds in module data; ``links`` is that of
    the slice typelinks, which the slice itablinks follows; where there are none, ``itabs`` is
    that of two words, the offset from ``types`` and the size of all itabs, and the word behind
    ``types`` is the size of all descriptors.
    """

    release: tuple[int, int]
    types: int
    etypes: int
    links: int = 0
    itabs: int = 0

    @property
    def has_varint_names(self) -> bool:
        """Tell whether a name's length is a varint, not two bytes."""
        return self.release >= (1, 17)

    @property
    def has_shifted_offsets(self) -> bool:
        """Tell whether bit 0 of a field's offset says that it is embedded, not its name."""
        return self.release < (1, 19)

    @property
    def has_direct_flag(self) -> bool:
        """Tell whether TFlagDirectIface exists; before, a bit of the kind said the same."""
        return self.release >= (1, 26)

    @property
    def may_have_swiss_maps(self) -> bool:
        """Tell whether maps can be swiss tables."""
        return self.release >= (1, 24)

    @property
    def may_have_classic_maps(self) -> bool:
        """Tell whether maps can have buckets: up to Go 1.25 with GOEXPERIMENT=noswissmap."""
        return self.release < (1, 26)

    @property
    def swiss_map_size(self) -> int:
        """Return the size of a map type's descriptor (internal/abi.MapType)."""
        return 136 if self.release >= (1, 27) else 112


_LAYOUTS = (
    Layout((1, 15), types=200, etypes=208, links=240),
    Layout((1, 16), types=280, etypes=288, links=320),
    Layout((1, 18), types=280, etypes=288, links=336),
    Layout((1, 20), types=296, etypes=304, links=352),
    Layout((1, 26), types=296, etypes=304, links=360),
    Layout((1, 27), types=296, etypes=312, itabs=320),
)


def layout_of(version: GoVersion) -> Layout | None:
    """Return the layout of a release, the newest known one's for later ones, None before 1.15."""
    release = (version.major, version.minor)
    known = [layout for layout in _LAYOUTS if layout.release <= release]
    if not known:
        return None
    last = known[-1]
    return Layout(release, last.types, last.etypes, last.links, last.itabs)
