# SPDX-License-Identifier: Apache-2.0
"""The names that an expression's operand may go on with: parameters, results, fields of them."""

from __future__ import annotations

from collections.abc import Sequence

from gotrace.abi.function_values import FunctionValues
from gotrace.elf.functions import FuncInfo
from gotrace.errors import GotraceError
from gotrace.gotypes.types import GoType, Parameter, PointerType, Signature, StructType
from gotrace.probes.pattern import NameList
from gotrace.probes.resolve import StepError, field_of
from gotrace.probes.scope import Scope
from gotrace.target.target import TargetBinary


def names_after(file: TargetBinary, pattern: str, way: Sequence[str]) -> list[str]:
    """Return names that may follow a name and its fields, for a function of a file; [] if none may.

    Without any it is what may come first. Raises GotraceError.
    """
    function = _function(file, pattern)
    if function is None:
        return []
    places = FunctionValues(file).of(function, None)
    signature = Signature(
        places.name,
        tuple(Parameter(value.name, value.type) for value in places.parameters),
        tuple(Parameter(value.name, value.type) for value in places.results),
    )
    captured = tuple(Parameter(value.name, value.type) for value in places.captured)
    scope = Scope(places.name, signature, captured)
    if not way:
        return scope.all_names()
    first, *fields = way
    found = scope.result(first[1:]) if first.startswith("$") else scope.named(first)
    if found is None:
        return []
    of = found[1]
    try:
        for name in fields:
            of = field_of(of, name)[1]
    except StepError as error:
        raise GotraceError(str(error)) from None
    return _fields(of)


def _function(file: TargetBinary, pattern: str) -> FuncInfo | None:
    """Return the first function that a pattern names, by itself or by the end of its path."""
    names = NameList(file.functions.names, gccgo=not file.functions.has_pclntab)
    wanted = pattern.removesuffix("*")
    for row, name in enumerate(names.all_spoken):
        is_it = name.startswith(wanted) if wanted != pattern else f"/{name}".endswith(f"/{wanted}")
        if (name == wanted or is_it) and not file.functions.is_wrapper(row):
            return file.functions.function(row)
    return None


def _fields(of: GoType) -> list[str]:
    """Return the names of a struct's fields, and of those that are embedded in it."""
    for _ in range(8):
        if not isinstance(of, PointerType):
            break
        of = of.elem
    if not isinstance(of, StructType):
        return []
    names = [field.name for field in of.fields]
    names += [name for field in of.fields if field.embedded for name in _own(field.type)]
    return [name for name in dict.fromkeys(names) if name != "_"]


def _own(of: GoType) -> list[str]:
    of = of.elem if isinstance(of, PointerType) else of
    return [field.name for field in of.fields] if isinstance(of, StructType) else []
