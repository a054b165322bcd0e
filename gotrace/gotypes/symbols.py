# SPDX-License-Identifier: Apache-2.0
"""Read Go's linker symbol names: package, receiver, function, instance, closure, kind.

The grammar is written down nowhere in one place. This knowledge comes from cmd/internal/objabi
(``PathToPrefix``, the ``%2e`` escapes), cmd/compile/internal/ir (``closureName``: ``func1``,
``gowrap1``, ``deferwrap1``, ``-range1``; ``MethodSymSuffix``: ``-fm``), cmd/compile/internal/
pkginit (``init.0``, ``map.init.0``), cmd/compile/internal/reflectdata (``type:.eq.``; ``type..``
before Go 1.20), and for gccgo from the comment that opens gofrontend's ``go/names.cc``; and from
the symbol tables of programs built with Go 1.15 to 1.27 and gccgo 12.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from enum import Enum

from gotrace.records import dataclass


class NameKind(Enum):
    """The kinds of functions that symbols name."""

    FUNCTION = "function"
    METHOD = "method"
    CLOSURE = "closure"  # function literals and the bodies of range-over-func loops
    METHOD_VALUE = "method value"  # the closure of `f := t.M`
    INIT = "initializer"  # package and map initializers
    TYPE_HELPER = "type helper"  # equality and hash functions that the compiler makes
    WRAPPER = "wrapper"  # compiler-made: go and defer statements, promoted methods, gccgo stubs
    LINKER = "linker symbol"  # `go:...`, no function of any package
    FOREIGN = "foreign"  # no package: C, or assembly local to a file


@dataclass(frozen=True, slots=True)
class GoName:
    """The parts of one function's symbol name, unescaped for display.

    ``text`` is the symbol as found; ``package`` the import path ("" for foreign symbols);
    ``receiver`` the receiver's type without star and type arguments ("" when there is none; the
    whole type for type helpers); ``pointer`` whether the receiver is a pointer (gccgo's symbols do
    not say: False); ``name`` the function or method; ``type_arguments`` of the function or of its
    receiver, as the symbol spells them (``("...",)`` in Go 1.18-1.20's pclntab); ``closure`` the
    path from the function down to the literal (``("func1", "2")``), names of functions inlined on
    the way included; ``suffix`` an ABI or compiler's clone mark (".abi0", ".constprop.0").

    A symbol alone cannot distinguish ``F.G.func1``, a literal of G that was inlined into F, from a
    literal in the method G of a type F: it is read as the method.
    """

    text: str
    kind: NameKind
    package: str = ""
    receiver: str = ""
    pointer: bool = False
    name: str = ""
    type_arguments: tuple[str, ...] = ()
    closure: tuple[str, ...] = ()
    suffix: str = ""

    @property
    def is_generic(self) -> bool:
        """Return whether this is an instance of a generic function or a method of one's type."""
        return bool(self.type_arguments)


_ESCAPES = re.compile(r"(?:%[0-9a-f]{2})+")
# GCC's clones (C code of cgo programs, and gccgo's at -O2) and Go's ABI marks.
_SUFFIX = re.compile(
    r"\.(?:abi0|abiinternal|cold|(?:constprop|isra|part|lto_priv|cold|llvm)\.[0-9]+)$"
)
_CLOSURE_PART = re.compile(r"(?:(?:func|gowrap|deferwrap|range)?[0-9]+|fm|dwrap)")
_WRAPPER_PART = re.compile(r"(?:gowrap|deferwrap)[0-9]+")
_TYPE_HELPER = re.compile(r"type(?:\.|:)\.([a-z]+)\.(.*)", re.DOTALL)
_STRUCT_METHOD = re.compile(r"go[.:](\(\*)?(struct \{.*\})(\))?\.(\w+)", re.DOTALL)
_BRACKETS = {"[": "]", "(": ")", "{": "}"}


def parse_name(text: str, *, gccgo: bool = False) -> GoName:
    """Take a function's symbol name apart; any string gives a result.

    ``gccgo`` says that the symbol is gccgo's (its binaries have no pclntab): the two compilers'
    names are ambiguous to each other.
    """
    if gccgo:
        return _parse_gccgo(text)
    if match := _TYPE_HELPER.fullmatch(text):
        helper, of = match.groups()
        return GoName(text, NameKind.TYPE_HELPER, receiver=_unescape(of), name=helper)
    if match := _STRUCT_METHOD.fullmatch(text):
        star, struct, _, method = match.groups()
        receiver = _unescape(struct)
        return GoName(text, NameKind.WRAPPER, "", receiver, star is not None, method)
    if text.startswith("go:") or text == "go.buildid":  # go.uber.org/... is a module like any
        return GoName(text, NameKind.LINKER, name=text[3:])
    body, suffix = _split_suffix(text)
    dot = _package_end(body)
    if dot < 0:
        return GoName(text, NameKind.FOREIGN, name=body, suffix=suffix)
    return _parse_body(text, _unescape(body[:dot]), _split_outside(body[dot + 1 :], ".-·"), suffix)


def display_name(text: str, *, gccgo: bool = False) -> str:
    """Spell a symbol the way a Go programmer writes it, import path escapes resolved.

    ``gopkg.in/yaml%2ev3.Unmarshal`` gives ``gopkg.in/yaml.v3.Unmarshal``; with ``gccgo``,
    ``net_1http.Get`` gives ``net/http.Get``. Symbols without a dot are not Go names and stay.
    """
    if gccgo:
        return _gccgo_decode(text) if "." in text else text
    return _unescape(text) if "%" in text else text


def elide_type_arguments(text: str) -> str:
    """Write ``[...]`` for a name's type arguments, as Go's own tracebacks do.

    The rule, from the first ``[`` to the last ``]``, is that of funcNameForPrint
    (runtime/symtab.go, Go 1.21).
    """
    start, end = text.find("["), text.rfind("]")
    return f"{text[:start]}[...]{text[end + 1 :]}" if 0 <= start < end else text


def short_name(text: str) -> str:
    """Return a name with the last element of its package's import path for all of it.

    ``go.etcd.io/etcd/server/v3/etcdserver.(*EtcdServer).Put`` is ``etcdserver.(*EtcdServer).Put``,
    as Go code writes it.
    """
    if text.startswith(("go:", "type:", "type..")):
        return text
    return display_name(text[text.rfind("/", 0, max(_package_end(text), 0)) + 1 :])


def shown_names(names: Iterable[str], short: bool = False) -> dict[str, str]:
    """Return the text that is shown for each name.

    Type arguments are elided, and with ``short`` the beginnings of import paths, where that leaves
    no two names the same.
    """
    shown = {name: name for name in names}
    for shorten in (elide_type_arguments, short_name) if short else (elide_type_arguments,):
        new = {name: shorten(text) for name, text in shown.items()}
        uses = Counter(new.values())
        shown = {name: new[name] if uses[new[name]] == 1 else old for name, old in shown.items()}
    return shown


def package_of(text: str) -> str:
    """Return the import path of a symbol by Go's own compiler, unescaped: "" when it has none."""
    if text.startswith(("go:", "go.struct ", "go.(", "go.buildid", "type:", "type..")):
        return ""
    return display_name(text[: max(_package_end(text), 0)])


def _unescape(text: str) -> str:
    """Resolve ``%xx``, unless it hides something that must not be shown (controls, bad UTF-8)."""

    def resolve(match: re.Match[str]) -> str:
        try:
            plain = bytes.fromhex(match[0].replace("%", "")).decode()
        except UnicodeDecodeError:
            return match[0]
        return plain if plain.isprintable() else match[0]

    return _ESCAPES.sub(resolve, text)


def _split_suffix(text: str) -> tuple[str, str]:
    match = _SUFFIX.search(text)
    if match is None or match.start() == 0:
        return text, ""
    return text[: match.start()], match[0]


def _package_end(text: str) -> int:
    """Find the dot that ends the import path, -1 when there is none.

    Dots after the path's last slash are escaped, and a path holds no brackets, so that it is the
    first dot after the last slash before any bracket (type arguments have slashes of their own).
    """
    head = text.partition("[")[0].partition("(")[0]
    dot = head.find(".", head.rfind("/") + 1)
    return dot if dot > 0 else -1


def _split_outside(text: str, separators: str) -> list[str]:
    """Split at each of the separators that is outside of all brackets.

    Strings (struct tags in type arguments) may hold brackets of their own.
    """
    parts, start, closers, quoted, skip = [], 0, [""], False, False
    for at, char in enumerate(text):
        if skip:
            skip = False
        elif quoted:
            skip = char == "\\"
            quoted = char != '"'
        elif char in _BRACKETS:
            closers.append(_BRACKETS[char])
        elif char == closers[-1]:
            closers.pop()
        elif len(closers) > 1:
            quoted = char == '"'
        elif char in separators:
            parts.append(text[start:at])
            start = at + 1
    parts.append(text[start:])
    return parts


def _split_arguments(text: str) -> tuple[str, tuple[str, ...]]:
    """Take the type arguments off the end of an identifier."""
    bracket = text.find("[")
    if bracket < 0 or not text.endswith("]"):
        return _unescape(text), ()
    arguments = _split_outside(text[bracket + 1 : -1], ",")
    return _unescape(text[:bracket]), tuple(map(_unescape, arguments))


def _take_receiver(parts: list[str]) -> tuple[str, str]:
    """Move receiver and function name off the front of the parts; the rest is the closure path."""
    first = parts.pop(0)
    following = parts[0] if parts else ""
    if first == "glob" and parts and not following:  # literals outside of functions, to Go 1.21
        return "", "glob." + parts.pop(0)
    if first == "init":  # cannot be a type: what follows is a number or a literal
        return "", f"init.{parts.pop(0)}" if following.isdecimal() else "init"
    if first == "map" and following == "init":  # a keyword, so no type; outlined, Go 1.21
        parts.pop(0)
        return "", f"map.init.{parts.pop(0)}" if parts else "map.init"
    if following.isdecimal() and parts[1:] and not _CLOSURE_PART.fullmatch(parts[1]):
        parts.pop(0)  # a type declared in a function: loc.1
        return f"{first}.{following}", parts.pop(0)
    if first.startswith("(") or (following and not _CLOSURE_PART.fullmatch(following)):
        return first, parts.pop(0) if parts else ""
    return "", first


def _parse_body(text: str, package: str, parts: list[str], suffix: str) -> GoName:
    if package == "main" and parts[:1] == ["main"]:  # `type main` cannot be in package main
        receiver, name = "", parts.pop(0)
    else:
        receiver, name = _take_receiver(parts)
    pointer = False
    if receiver.startswith("("):
        receiver = receiver[1:].removesuffix(")")
        pointer = receiver.startswith("*")
        receiver = receiver.removeprefix("*")
    receiver, receiver_arguments = _split_arguments(receiver)
    name, own_arguments = _split_arguments(name)
    if parts[-1:] == ["fm"]:
        parts.pop()
        kind = NameKind.METHOD_VALUE
    elif parts and (_WRAPPER_PART.fullmatch(parts[-1]) or "dwrap" in parts):
        kind = NameKind.WRAPPER  # main·dwrap·1 in Go 1.17, gowrap and deferwrap since 1.22
    elif parts:
        kind = NameKind.CLOSURE
    elif receiver:
        kind = NameKind.METHOD
    elif name == "init" or name.startswith(("init.", "map.init")):
        kind = NameKind.INIT
    else:
        kind = NameKind.FUNCTION
    arguments = receiver_arguments or own_arguments
    closure = tuple(map(_unescape, parts))
    return GoName(text, kind, package, receiver, pointer, name, arguments, closure, suffix)


# gofrontend go/names.cc: what replaces a character that assemblers dislike. The second line is
# the spelling of GCC 7 to 10, where a dot before the escape belongs to it.
_GCCGO_PLAIN = dict(zip("_0123456789abcd", '_./*,{}[]()" ;=', strict=True))
_GCCGO_ESCAPE = re.compile(
    r"_(?:([_0-9a-d])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))"
    r"|\.\.(?:z([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))"
)
_GCCGO_TAIL = re.compile(
    r"\.\.(?:(eq|hash)|(stub|thunk[0-9]+|r)|(import|init[0-9]+)|(func[0-9]+))|_0_0(stub[0-9]+)"
)

_GCCGO_DOT = re.compile(r"(?<!\.)\.(?!\.)")


def _gccgo_decode(text: str) -> str:
    def resolve(match: re.Match[str]) -> str:
        plain, *codes = match.groups()
        if plain is not None:
            return _GCCGO_PLAIN[plain]
        code = int(next(code for code in codes if code is not None), 16)
        char = chr(min(code, 0x10FFFF))  # that one is not printable: no such character
        return char if char.isprintable() else match[0]

    return _GCCGO_ESCAPE.sub(resolve, text)


def _parse_gccgo(text: str) -> GoName:
    body, suffix = _split_suffix(text)
    if "." not in body:
        return GoName(text, NameKind.FOREIGN, name=body, suffix=suffix)
    tails: list[re.Match[str]] = []
    while match := _last_tail(body):
        tails.append(match)
        body = body[: match.start()]
    kind = _gccgo_kind(tails[0]) if tails else None
    package, *rest = map(_gccgo_decode, _GCCGO_DOT.split(body, 2))
    closure = tuple(tail[0].lstrip("._0") for tail in reversed(tails))
    if kind is NameKind.TYPE_HELPER:
        # `main.K..eq`; a local type has its package in it, `main_0main_0local..eq`
        receiver = rest[-1] if rest else package
        return GoName(text, kind, package if rest else "", receiver, name=closure[-1])
    if kind is NameKind.INIT:
        return GoName(text, kind, package, name=closure[-1], suffix=suffix)
    if kind is NameKind.WRAPPER and len(rest) == 1 and "stub" in closure[-1]:
        return GoName(text, kind, "", package, False, rest[0], (), closure, suffix)
    receiver = rest[0] if len(rest) > 1 else ""
    kind = kind or (NameKind.METHOD if receiver else NameKind.FUNCTION)
    name = rest[-1] if rest else ""
    return GoName(text, kind, package, receiver, False, name, (), closure, suffix)


def _last_tail(body: str) -> re.Match[str] | None:
    start = max(body.rfind(".."), body.rfind("_0_0stub"))
    return _GCCGO_TAIL.fullmatch(body, start) if start > 0 else None


def _gccgo_kind(tail: re.Match[str]) -> NameKind:
    helper, _, init, literal, _ = tail.groups()
    if helper:
        return NameKind.TYPE_HELPER
    if init:
        return NameKind.INIT
    return NameKind.CLOSURE if literal else NameKind.WRAPPER
