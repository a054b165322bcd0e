# SPDX-License-Identifier: Apache-2.0
"""Arguments of the library's functions, held to what these declare."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import UnionType
from typing import (
    Any,
    Literal,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from gotrace.errors import WrongTypeError

_F = TypeVar("_F", bound=Callable[..., Any])
_NUMBERS: Mapping[object, Any] = {int: SupportsIndex, float: SupportsFloat}


def held_to_annotations(function: _F) -> _F:
    """Return the function, which refuses arguments of other types than it declares."""

    @functools.wraps(function)
    def run(*given: Any, **named: Any) -> Any:
        check_arguments(function, given, named)
        return function(*given, **named)

    return cast(_F, run)


def check_arguments(
    function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Raise WrongTypeError if an argument is not one that the function declares, or of its type."""
    signature, hints = _declared(function)
    try:
        bound = signature.bind(*given, **named)
    except TypeError as error:
        raise WrongTypeError(_misfit(function, signature.parameters, named, error)) from None
    for name, value in bound.arguments.items():
        several = signature.parameters[name].kind is signature.parameters[name].VAR_POSITIONAL
        hint = hints.get(name, object)
        for one in value if several else [value]:
            if not _is(one, hint):
                raise WrongTypeError(_refusal(name, one, hint))


@functools.cache
def _declared(function: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
    import inspect  # commands start without it

    return inspect.signature(function), get_type_hints(function)


def _is(value: Any, hint: Any) -> bool:
    kind, inner = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(_is(value, one) for one in inner)
    if kind is Literal:
        return isinstance(value, str) and value in inner
    if isinstance(kind, type) and issubclass(kind, Iterable):
        if not isinstance(value, kind) or (isinstance(value, str | bytes) and kind is Iterable):
            return False  # of one string the elements are its letters
        return not isinstance(value, Collection) or all(_is(one, inner[0]) for one in value)
    if hint in _NUMBERS:
        return isinstance(value, _NUMBERS[hint]) and not isinstance(value, bool)
    return isinstance(value, kind or hint)


def _misfit(
    function: Callable[..., Any],
    parameters: Mapping[str, Any],
    named: Mapping[str, Any],
    error: TypeError,
) -> str:
    """Return why arguments are not those of a function, and what is meant."""
    unknown = next((name for name in named if name not in parameters), None)
    if unknown is None:
        return f"{function.__name__}(): {error}"
    import difflib

    alike = difflib.get_close_matches(unknown, parameters, 1)
    meant = next((name for name in (_MEANT.get(unknown), *alike) if name in parameters), None)
    if meant is not None:
        return f"{function.__name__}() has no {unknown}: did you mean {meant}?"
    known = [one.name for one in parameters.values() if one.kind is one.KEYWORD_ONLY]
    return f"{function.__name__}() has no {unknown}: it has {', '.join(known) or 'no options'}"


#: Parameters by the names that options and other libraries have for them.
_MEANT = {
    **dict.fromkeys(("duration", "timeout", "time", "d"), "seconds"),
    **dict.fromkeys(("every", "period", "i"), "interval"),
    **dict.fromkeys(("group_by", "key", "keys"), "by"),
    **dict.fromkeys(("max_events", "count", "n"), "limit"),
}


def _refusal(name: str, value: Any, hint: Any) -> str:
    import inspect
    import reprlib

    if isinstance(value, str) and any(
        get_origin(one) is Iterable for one in (hint, *get_args(hint))
    ):
        return f"{name} takes several: {name}=[{value!r}]"
    words = re.sub(r"(collections\.abc|os|typing)\.", "", inspect.formatannotation(hint))
    return f"{name} is {reprlib.repr(value)}: give {words}"
