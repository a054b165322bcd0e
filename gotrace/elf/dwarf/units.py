# SPDX-License-Identifier: Apache-2.0
"""Units of .debug_info, and their entries, as pyelftools decodes them.

The only module that imports pyelftools (0.29 or newer). Its exceptions on a damaged file become
DwarfError here. Its reads for one question are rationed here: it has no bounds of its own.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import io
import resource
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, ParamSpec, TypeVar

from gotrace.elf.dwarf import DwarfError
from gotrace.elf.dwarf.subprograms import Declaration, Shapes
from gotrace.errors import GotraceError
from gotrace.records import dataclass, field

try:
    from elftools.common.exceptions import DWARFError, ELFError
    from elftools.common.utils import struct_parse
    from elftools.construct import Construct, ConstructError
    from elftools.dwarf.abbrevtable import AbbrevTable
    from elftools.dwarf.compileunit import CompileUnit
    from elftools.dwarf.die import DIE
    from elftools.dwarf.dwarf_expr import DWARFExprParser
    from elftools.dwarf.dwarfinfo import DebugSectionDescriptor, DwarfConfig, DWARFInfo
    from elftools.dwarf.locationlists import LocationEntry, LocationLists
    from elftools.dwarf.ranges import RangeEntry, RangeLists
    from elftools.dwarf.structs import DWARFStructs
except ImportError as missing:
    raise GotraceError(
        f"cannot read debugging information: pyelftools cannot be imported ({missing}): install"
        " python3-pyelftools (Debian, Ubuntu, Fedora), or pip install 'pyelftools>=0.29'"
    ) from missing

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Reads for one entry, list or table of abbreviations: the library reads names by the piece and
#: numbers by the byte, without an end where the file has none.
_MAX_READS = 1 << 16

#: Longest name or other string that is written inline; names of struct literals have thousands.
_MAX_STRING = 1 << 16

#: Bytes of a unit before its first attribute, at most: its header and the code of its first entry.
_BEFORE_NAME = 32

_LAST_ADDRESS = (1 << 64) - 1

#: Units whose header ends with an id of 8 bytes, types' also with an offset (DWARF 5, 7.5.1).
_TYPE_UNITS, _SPLIT_UNITS = (2, 6), (4, 5)

_UNIT_REFERENCES = frozenset(f"DW_FORM_ref{size}" for size in ("1", "2", "4", "8", "_udata"))


def damage_is_reported(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn exceptions that damaged bytes cause, here and in pyelftools, into DwarfError."""

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except (
            # pyelftools' own; then what it lets pass, some by asserting what a file may break.
            *(ELFError, DWARFError, ConstructError),
            *(AssertionError, AttributeError, NotImplementedError, RecursionError, MemoryError),
            *(LookupError, ArithmeticError, TypeError, ValueError, struct.error),
        ) as error:
            if isinstance(error, MemoryError) and _memory_is_limited():
                raise  # there may be nothing wrong with the file
            what = " ".join(str(error).split()) or type(error).__name__
            raise DwarfError(f"damaged debugging information: {what}") from None

    return wrapper


def _memory_is_limited() -> bool:
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


@dataclass(slots=True)
class _Ration:
    """How many reads are left for the question that is being answered."""

    left: int = _MAX_READS

    def renew(self) -> None:
        """Begin with another question."""
        self.left = _MAX_READS


class _Section(io.BytesIO):
    """One section's bytes as a stream for pyelftools, loaded when they are first needed."""

    def __init__(self, load: Callable[[], bytes], ration: _Ration) -> None:
        super().__init__()
        self._load = load
        self._ration = ration
        self._position = 0

    @functools.cached_property
    def content(self) -> bytes:
        """Return all bytes, which never change."""
        return self._load()

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next bytes; raise DwarfError when the ration is used up."""
        self._ration.left -= 1
        if self._ration.left < 0:
            raise DwarfError("debugging information with an endless entry or list")
        start = self._position
        part = self.content[start : None if size is None or size < 0 else start + size]
        self._position = start + len(part)
        return part

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to an offset from the start, which may be beyond the end."""
        if whence != io.SEEK_SET or offset < 0:
            raise ValueError(offset)
        self._position = offset
        return offset

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._position


class _Integer(Construct):
    """A little-endian number of ``size`` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__("")
        self._size = size

    def _parse(self, stream: IO[bytes], context: object) -> int:
        content = stream.read(self._size)
        if len(content) != self._size:
            raise ValueError("a number that runs out of the section")
        return int.from_bytes(content, "little")


class _String(Construct):
    """A string that a NUL ends: the library's own takes a microsecond for each byte."""

    def _parse(self, stream: IO[bytes], context: object) -> bytes:
        assert isinstance(stream, _Section)
        start = stream.tell()
        end = stream.content.find(0, start, start + _MAX_STRING)
        if end < 0:
            raise ValueError(f"string without an end at {start:#x}")
        stream.seek(end + 1)
        return stream.content[start:end]


@functools.cache
def _structs(dwarf_format: int, address_size: int, version: int) -> DWARFStructs:
    """Return the library's decoders for one kind of units, ``dwarf_format`` 32 or 64.

    Made once: 0.29 makes new ones for each unit, in 2 ms. The forms replaced are those that 0.29
    does not know, one that is 8 bytes wide up to 0.33 where DWARF has 4, and the slow one.
    """
    shared = DWARFStructs(True, dwarf_format, address_size, version)
    structs = object.__new__(DWARFStructs)
    structs.__dict__.update(shared.__dict__)
    own: dict[str, Any] = {
        "DW_FORM_string": _String(""),
        "DW_FORM_strx": shared.Dwarf_uleb128(""),
        "DW_FORM_strx3": _Integer(3),
        "DW_FORM_strx4": _Integer(4),
        "DW_FORM_addrx3": _Integer(3),
        "DW_FORM_data16": _Integer(16),
    }
    structs.Dwarf_dw_form = {**shared.Dwarf_dw_form, **own}
    return structs


@dataclass(frozen=True)
class Unit:
    """One unit of .debug_info: section offsets of its header, its own entry and its end."""

    offset: int
    first_die: int
    end: int
    parsed: CompileUnit = field(repr=False, compare=False)
    ration: _Ration = field(repr=False, compare=False)

    @property
    def top(self) -> DIE:
        """Return the unit's own entry, which has the bases of the other entries' indices."""
        if not self.parsed.has_top_DIE():
            self.ration.renew()
        return self.parsed.get_top_DIE()

    @property
    def structs(self) -> DWARFStructs:
        """Return the library's decoders of this unit."""
        return self.parsed.structs

    @property
    def version(self) -> int:
        """Return the version of DWARF, 2 to 5."""
        return int(self.parsed["version"])

    @functools.cached_property
    def shapes(self) -> Shapes:
        """Return the shapes of the unit's entries."""
        return Shapes(
            self._declaration,
            self.version,
            self.structs.address_size,
            self.structs.dwarf_format // 8,
        )

    @functools.cached_property
    def low_pc(self) -> int:
        """Return the address that offsets in range and location lists start from."""
        attribute = self.top.attributes.get("DW_AT_low_pc")
        return 0 if attribute is None else int(attribute.value)

    @functools.cached_property
    def addr_base(self) -> int:
        """Return where the unit's part of .debug_addr begins."""
        attribute = self.top.attributes.get("DW_AT_addr_base")
        return 0 if attribute is None else int(attribute.value)

    @functools.cached_property
    def expressions(self) -> DWARFExprParser:
        """Return the library's decoder of location expressions."""
        return DWARFExprParser(self.structs)

    @functools.cached_property
    @damage_is_reported
    def _abbreviations(self) -> AbbrevTable:
        self.ration.renew()
        return self.parsed.get_abbrev_table()

    def _declaration(self, code: int) -> Declaration:
        found = self._abbreviations.get_abbrev(code)
        attributes = tuple((spec.name, spec.form) for spec in found["attr_spec"])
        return found["tag"], found.has_children(), attributes


@dataclass(frozen=True, slots=True)
class Die:
    """One decoded entry (DIE).

    ``tag`` and the keys of ``values`` are the names that DWARF gives them (``DW_TAG_member``,
    ``DW_AT_name``), numbers where pyelftools has none, such as those of GoAttribute. Values: int
    for constants, addresses and offsets; offsets in .debug_info for references; str for strings;
    bytes for blocks and expressions; bool for flags. ``forms``: the attributes' forms.
    """

    offset: int
    tag: str | int
    values: Mapping[str | int, Any]
    forms: Mapping[str | int, str]
    unit: Unit


class UnitTable:
    """The units of .debug_info; Go emits one for each package.

    Methods raise DwarfError on damaged data.
    """

    def __init__(self, load: Callable[[str], bytes]) -> None:
        """Find where all units are, which is cheap; nothing of them is decoded yet.

        ``load`` returns the contents of ``.debug_NAME``, empty when there is no such section; it
        is called at most once for each name, when the section is first read.
        """
        self._ration = _Ration()
        sections: dict[str, DebugSectionDescriptor | None] = {}
        self._streams: dict[str, _Section] = {}
        code = DWARFInfo.__init__.__code__
        for parameter in code.co_varnames[: code.co_argcount]:
            if parameter.startswith("debug_") and parameter.endswith("_sec"):
                name = parameter.removeprefix("debug_").removesuffix("_sec")
                stream = _Section(functools.partial(load, name), self._ration)
                self._streams[name] = stream
                # The library asks for these two sections' sizes only.
                size = len(stream.content) if name in ("info", "abbrev") else 0
                sections[parameter] = DebugSectionDescriptor(stream, name, 0, size, 0)
            elif parameter.endswith("_sec"):
                sections[parameter] = None
        self._info = DWARFInfo(DwarfConfig(True, "x64", 8), **sections)
        self.info = self._streams["info"].content
        self._extents = list(_extents(self.info))
        self._offsets = [start for start, _ in self._extents]
        self._units: dict[int, Unit] = {}
        self._named: dict[str, list[tuple[int, int, Unit]]] = {}

    def __iter__(self) -> Iterator[Unit]:
        for row in range(len(self._extents)):
            yield self._unit(row)

    def containing(self, offset: int) -> Unit:
        """Return the unit that holds the entry at ``offset``."""
        row = bisect.bisect_right(self._offsets, offset) - 1
        if row >= 0 and offset < self._extents[row][1]:
            unit = self._unit(row)
            if unit.first_die <= offset:
                return unit
        raise DwarfError(f"no unit holds the entry at {offset:#x}")

    def covering(self, address: int, likely: str = "") -> Unit | None:
        """Return the unit whose code holds a link-time address, None when there is none.

        A unit of the name ``likely`` is looked at first: where it is that, no other is decoded.
        """
        for start, end, unit in self._spans_named(likely):
            if start <= address < end:
                return unit
        starts, rows = self._by_address
        row = bisect.bisect_right(starts, address) - 1
        if row < 0:
            return None
        end, unit = rows[row]
        return unit if address < end else None

    @damage_is_reported
    def die(self, offset: int) -> Die:
        """Return the entry at an offset of .debug_info."""
        unit = self.containing(offset)
        top = unit.top
        self._ration.renew()
        stream = self._streams["info"]
        found = top if offset == unit.first_die else DIE(unit.parsed, stream, offset)
        if found.tag is None:
            raise DwarfError(f"a list ends at {offset:#x}, where an entry was expected")
        if offset + found.size > unit.end:
            raise DwarfError(f"entry at {offset:#x} reaches beyond its unit")
        values: dict[str | int, Any] = {}
        forms: dict[str | int, str] = {}
        for name, attribute in found.attributes.items():
            forms[name] = attribute.form
            values[name] = _value(attribute.form, attribute.value, unit)
        return Die(offset, found.tag, values, forms, unit)

    def indexed_address(self, unit: Unit, index: int) -> int:
        """Return entry ``index`` of the unit's part of .debug_addr."""
        size = unit.structs.address_size
        position = unit.addr_base + index * size
        word = self._streams["addr"].content[position : position + size]
        if len(word) != size:
            raise DwarfError(f"address index {index} is outside of .debug_addr")
        return int.from_bytes(word, "little")

    @damage_is_reported
    def location_list(self, unit: Unit, offset: int) -> list[tuple[int, int, bytes]]:
        """Return a list's expressions, each with the addresses (start, end) that it holds for.

        ``offset`` is that in .debug_loc, or in .debug_loclists from DWARF 5 on.
        """
        top = unit.top
        self._ration.renew()
        stream = self._streams["loc" if unit.version < 5 else "loclists"]
        lists = LocationLists(stream, unit.structs, unit.version, self._info)
        found: list[Any] = lists.get_location_list_at_offset(offset, top)
        return [
            (start, end, bytes(found[row].loc_expr)) for row, start, end in _absolute(found, unit)
        ]

    @damage_is_reported
    def operations(self, unit: Unit, expression: bytes) -> list[tuple[str, list[Any]]] | None:
        """Return a location expression's operations (DW_OP_*) with their operands.

        None when there is one among them that the library does not know.
        """
        try:
            found = unit.expressions.parse_expr(expression)
        except KeyError:
            return None
        return [(operation.op_name, operation.args) for operation in found]

    def _spans_named(self, name: str) -> list[tuple[int, int, Unit]]:
        """Return the code of units whose first bytes contain a name, as Go's begin with theirs."""
        if name in self._named:
            return self._named[name]
        found = self._named[name] = []
        text = name.encode("utf-8", "surrogateescape") + b"\0"
        for row, start in enumerate(self._offsets if name else ()):
            if self.info.find(text, start, start + _BEFORE_NAME + len(text)) >= 0:
                with contextlib.suppress(DwarfError):
                    found += self._spans(row)
        return found

    @functools.cached_property
    def _by_address(self) -> tuple[list[int], list[tuple[int, Unit]]]:
        spans: list[tuple[int, int, Unit]] = []
        for row in range(len(self._extents)):
            try:
                spans += self._spans(row)
            except DwarfError:
                # It hides its own functions only: C compilers have forms that are not known here.
                continue
        spans.sort(key=lambda span: span[:2])
        return [start for start, _, _ in spans], [(end, unit) for _, end, unit in spans]

    @damage_is_reported
    def _spans(self, row: int) -> list[tuple[int, int, Unit]]:
        unit = self._unit(row)
        attributes = unit.top.attributes
        values: dict[str | int, Any] = {name: each.value for name, each in attributes.items()}
        forms: dict[str | int, str] = {name: each.form for name, each in attributes.items()}
        return [(start, end, unit) for start, end in self._spans_of(unit, values, forms)]

    def spans(self, die: Die) -> list[tuple[int, int]]:
        """Return the addresses (start, end) of an entry's code."""
        return self._spans_of(die.unit, die.values, die.forms)

    @damage_is_reported
    def _spans_of(
        self, unit: Unit, values: Mapping[str | int, Any], forms: Mapping[str | int, str]
    ) -> list[tuple[int, int]]:
        self._ration.renew()
        spans: list[tuple[int, int]] = []
        low, high = values.get("DW_AT_low_pc"), values.get("DW_AT_high_pc")
        if "DW_AT_ranges" in values:
            stream = self._streams["ranges" if unit.version < 5 else "rnglists"]
            lists = RangeLists(stream, unit.structs, unit.version, self._info)
            found = lists.get_range_list_at_offset(values["DW_AT_ranges"], unit.parsed)
            spans = [(start, end) for _, start, end in _absolute(found, unit)]
        elif low is not None and high is not None:
            spans = [(low, high if forms["DW_AT_high_pc"] == "DW_FORM_addr" else low + high)]
        return [(start, end) for start, end in spans if start < end]

    @damage_is_reported
    def _unit(self, row: int) -> Unit:
        """Return a unit, whose header is decoded when it is first asked for."""
        start, end = self._extents[row]
        unit = self._units.get(start)
        if unit is not None:
            return unit
        self._ration.renew()
        stream = self._streams["info"]
        dwarf_format = 64 if self.info[start : start + 4] == b"\xff" * 4 else 32
        header = struct_parse(_structs(dwarf_format, 8, 5).Dwarf_CU_header, stream, start)
        first_die = stream.tell()
        # 0.29 has no names of the units' types and reads all as it does the commonest.
        if header["version"] == 5 and header["unit_type"] in (*_TYPE_UNITS, *_SPLIT_UNITS):
            first_die += 8 + (dwarf_format // 8 if header["unit_type"] in _TYPE_UNITS else 0)
        address_size = header["address_size"]
        if address_size not in (4, 8):
            raise DwarfError(f"unit at {start:#x} has addresses of {address_size} bytes")
        structs = _structs(dwarf_format, address_size, header["version"])
        library = CompileUnit(header, self._info, structs, start, first_die)
        unit = self._units[start] = Unit(start, first_die, end, library, self._ration)
        return unit


def _extents(info: bytes) -> Iterator[tuple[int, int]]:
    """Yield the offsets at which units begin and end; raise DwarfError for impossible ones."""
    offset = 0
    while offset < len(info):
        (length,) = struct.unpack_from("<I", info, offset)
        start = offset + 4
        if length == 0xFFFFFFFF:  # DWARF's 64-bit format
            (length,) = struct.unpack_from("<Q", info, start)
            start += 8
        end = start + length
        if length >= 0xFFFFFFF0 or end > len(info):
            raise DwarfError(f"unit at {offset:#x} reaches beyond the debugging information")
        (version,) = struct.unpack_from("<H", info, start)
        if not 2 <= version <= 5:
            raise DwarfError(f"unit at {offset:#x} has DWARF version {version}, not 2 to 5")
        yield offset, end
        offset = end


def _absolute(entries: Sequence[Any], unit: Unit) -> Iterator[tuple[int, int, int]]:
    """Yield the row, start and end address of a list's entries that have them.

    Entries are the library's, of range or location lists: those that select a base address for
    the ones after them, and those with addresses or with offsets from the base. Sums have 64 bits:
    crypto packages of Go 1.27 have code before their base, by an offset that wraps around.
    """
    base = unit.low_pc
    for row, entry in enumerate(entries):
        if not isinstance(entry, (RangeEntry, LocationEntry)):
            base = entry.base_address
        elif entry.is_absolute:
            yield row, entry.begin_offset, entry.end_offset
        else:
            start, end = base + entry.begin_offset, base + entry.end_offset
            yield row, start & _LAST_ADDRESS, end & _LAST_ADDRESS


def _value(form: str, value: Any, unit: Unit) -> Any:
    """Return an attribute's value as Die has it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, list):
        return bytes(value)
    if form in _UNIT_REFERENCES:
        return value + unit.offset
    return value
