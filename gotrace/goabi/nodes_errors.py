"""Tell an error's message from its fields, since nobody can call its Error method."""

from __future__ import annotations

from gotrace.goabi.error_rules import FIXED, POINTER_RULES, VALUE_RULES
from gotrace.goabi.error_text import Message, go_errno_text, text_of
from gotrace.goabi.values import (
    ErrorValue,
    NamedValue,
    PointerValue,
    StringValue,
    StructValue,
    Value,
)

__all__ = ["error_value"]

#: Fields that hold a message where they are the only string of a struct.
_MESSAGE_FIELDS = frozenset(
    {
        *("s", "msg", "Msg", "message", "Message", "text", "Text", "err", "Err", "error", "Error"),
        *("errorString", "ErrorString", "reason", "Reason", "desc", "Desc", "str", "what"),
    }
)


def error_value(type_name: str, value: Value, *, guess: bool) -> ErrorValue | None:
    """Return an error of a dynamic type with its message; None when its rule is not known.

    ``guess``: the value is known to be an error, so that the text of a string kind, or a struct's
    only string where its name says so, is taken for the message. No type of the standard library
    is guessed about: its sources are known, and those that have no rule say more than that.
    """
    message = _message(type_name, value, guess)
    if message is None:
        return None
    length = None if message.known is None else message.length
    return ErrorValue(type_name, message.text, value, message.known, length)


def _message(type_name: str, value: Value, guess: bool) -> Message | None:
    fixed = FIXED.get(type_name)
    if fixed is not None:
        return Message(fixed)
    target = value.target if isinstance(value, PointerValue) else value
    if type_name == "syscall.Errno" and isinstance(target, NamedValue):
        return Message(go_errno_text(target.value)) if isinstance(target.value, int) else None
    rule = POINTER_RULES.get(type_name)
    if rule is None and type_name.startswith("*"):
        # A pointer has the methods of what it points to.
        rule = VALUE_RULES.get(type_name[1:])
    elif rule is None:
        rule = VALUE_RULES.get(type_name)
    if rule is not None and isinstance(target, StructValue):
        return rule(dict(target.fields))
    if not isinstance(target, NamedValue | StructValue):
        return None
    if rule is not None:
        return rule({"": target})
    if not guess or _is_standard(type_name):
        return None
    if isinstance(target, StructValue):
        return _only_message(target)
    return text_of(target) if isinstance(target.value, StringValue) else None


def _is_standard(type_name: str) -> bool:
    """Say whether a type is the standard library's: its path begins with a word without a dot."""
    path = type_name.partition("[")[0].lstrip("*")
    first, slash, _ = path.partition("/")
    package = first if slash else first.rpartition(".")[0]
    return package != "main" and "." not in package.replace("%2e", ".")


def _only_message(value: StructValue) -> Message | None:
    """Return a struct's only string where its name says that it is the message."""
    strings = [
        (name, field)
        for name, field in value.fields
        if isinstance(field, StringValue)
        or (isinstance(field, NamedValue) and isinstance(field.value, StringValue))
    ]
    if len(strings) != 1:
        return None
    name, text = strings[0]
    return text_of(text) if name in _MESSAGE_FIELDS else None
