# SPDX-License-Identifier: Apache-2.0
"""Find recipes: probes for common work of many programs, each in a text file of its own.

docs/recipes.md says how one is written. Those of gotrace are in gotrace/recipes, those of users in
the folders of ``GOTRACE_RECIPES`` and in ``~/.config/gotrace/recipes``, which come first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gotrace.errors import UsageError, said
from gotrace.probes.pattern import NameList, Pattern, is_recipe
from gotrace.probes.scope import did_you_mean
from gotrace.records import dataclass, replace

_SUFFIX = ".txt"
_MAX_BYTES = 1 << 16
_HEAD = {"description", "needs", "note", "unseen", "example"}
_PROBE = {"probe", "unless", "at", "signature", "name", "when", "shown", "format", "by"}
_NEEDED = {"probe", "by"}
_REPEATED = {"signature", "name"}
_NAME = re.compile(r"([A-Za-z_]\w*) = (.+)")
#: Texts are passed over, and so is what is a field, or a function.
_WORD = re.compile(r'"(?:\\.|[^"\\])*"|`[^`]*`|(?<![\w.$])[A-Za-z_]\w*(?![\w(])')
#: Text that is put into parentheses; * and / are in types as well.
_OPERATOR = re.compile(r"[-+%&|^<>=!\s]")


@dataclass(frozen=True, slots=True)
class RecipeProbe:
    """One function of a recipe.

    ``signatures`` are for programs that do not describe it: the first that fits is taken. ``when``
    is a predicate without its parentheses; ``format`` is what gotrace shows, ``by`` what the other
    tools group calls by. ``names`` are the recipe's own names and what they stand for: ``by``, and
    a user's predicates and keys, may have them. A program that has the function ``unless`` is not
    probed at this one. ``at_entry``: its calls are shown when they begin, as few of them return.
    ``shown`` is a predicate of those that gotrace shows so; the other tools add all of them up.
    """

    function: str
    signatures: tuple[str, ...]
    when: str | None
    format: str | None
    by: str
    names: tuple[tuple[str, str], ...] = ()
    unless: str | None = None
    at_entry: bool = False
    shown: str | None = None

    def text(self, binary: str | None, predicate: str, with_format: bool) -> str:
        """Return the probe as a user would write it; ``predicate`` is the user's own, or empty."""
        own = expanded(predicate, dict(self.names))
        shown = self.shown if with_format else None
        conditions = [condition for condition in (self.when, shown, own) if condition]
        joined = " && ".join(f"({condition})" for condition in conditions)
        parts = [f"{binary}:{self.function}" if binary else self.function]
        parts += [f"({joined})"] if joined else []
        parts += [self.format] if with_format and self.format else []
        return " ".join(parts)


def expanded(text: str, names: Mapping[str, str]) -> str:
    """Return expressions with a recipe's names replaced by their expressions."""

    def meant(match: re.Match[str]) -> str:
        expression = names.get(match[0])
        if expression is None:
            return match[0]
        return f"({expression})" if _OPERATOR.search(expression) else expression

    return _WORD.sub(meant, text)


def _unformatted(probes: Sequence[RecipeProbe]) -> list[RecipeProbe]:
    """Return one probe for each function: several differ in what they show, which is left out.

    They follow it alone, too: a condition may be of another release, and then theirs together does
    not fit either.
    """
    by_function: dict[tuple[str, str | None], list[RecipeProbe]] = {}
    for probe in probes:
        by_function.setdefault((probe.function, probe.unless), []).append(probe)
    joined = []
    for same in by_function.values():
        conditions = dict.fromkeys(probe.when for probe in same)
        when = " || ".join(f"({text})" for text in conditions) if None not in conditions else None
        signatures = tuple(text for probe in same for text in probe.signatures)
        names = same[0].names
        if len(conditions) > 1:
            names = tuple(name for name in names if all(name in one.names for one in same))
        first = replace(same[0], signatures=signatures, names=names)
        alone = [replace(one, signatures=one.signatures or signatures) for one in same]
        joined += [replace(first, when=when), *alone] if len(conditions) > 1 else [first]
    return joined


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe, and the file that it comes from; each run says what is ``unseen``."""

    name: str
    path: Path
    description: str
    needs: str
    note: str | None
    unseen: str | None
    example: str | None
    probes: tuple[RecipeProbe, ...]

    def wanted(self, with_formats: bool) -> Sequence[RecipeProbe]:
        """Return the probes; without formats the first that fits a function has all its calls."""
        return self.probes if with_formats else _unformatted(self.probes)


def split_recipe(text: str) -> tuple[str | None, str, str]:
    """Split ``[BINARY:]@NAME [(PREDICATE)]`` into its parts, the predicate without parentheses.

    Raises UsageError.
    """
    word, _, rest = text.partition(" ")
    binary, _, name = word.rpartition("@")
    rest = rest.strip()
    if rest and not (rest.startswith("(") and rest.endswith(")")):
        raise UsageError(f"@{name} may be followed by a (PREDICATE) only, not by {rest!r}")
    return binary.rstrip(":") or None, name, rest[1:-1] if rest else ""


def _folders() -> Iterator[Path]:
    for folder in os.environ.get("GOTRACE_RECIPES", "").split(os.pathsep):
        if folder:
            yield Path(folder)
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    own = Path(config) / "gotrace" / "recipes"
    if os.access(own, os.R_OK | os.X_OK):  # HOME may be another user's
        yield own
    yield Path(__file__).parent.parent / "recipes"


def recipes() -> list[Recipe]:
    """Return all recipes by name; of several of a name the first folder's. Raises UsageError."""
    found: dict[str, Recipe] = {}
    for folder in _folders():
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            name = path.name.removesuffix(_SUFFIX)
            if name not in found:
                found[name] = _read(name, path)
    return [found[name] for name in sorted(found)]


def recipes_of(function: str) -> list[str]:
    """Return the recipes, as users write them, that describe a function. Raises UsageError."""
    names = NameList([function])
    return [
        f"@{recipe.name}"
        for recipe in recipes()
        if any(one.signatures and Pattern(one.function).match(names).rows for one in recipe.probes)
    ]


def recipes_keys(patterns: Sequence[str]) -> list[str] | None:
    """Return the keys by which recipes among the patterns group calls, None without a recipe.

    Raises UsageError.
    """
    if not any(map(is_recipe, patterns)):
        return None
    if not all(map(is_recipe, patterns)):
        why = "recipes and patterns cannot be combined without a common key"
        raise UsageError(f"{why}: give {said('--by', 'by')}")
    keys = {probe.by for text in patterns for probe in find_recipe(split_recipe(text)[1]).probes}
    if len(keys) > 1:
        choice = f"give {said('--by', 'by')}, {' or '.join(keys)}"
        raise UsageError(f"these recipes have different keys: {choice}")
    return list(keys)


def functions_of(pattern: str) -> list[str]:
    """Return the patterns that a word stands for where functions alone count: a recipe's, or it.

    Raises UsageError.
    """
    if not pattern.startswith("@"):
        return [pattern]
    return list(dict.fromkeys(probe.function for probe in find_recipe(pattern[1:]).probes))


def find_recipe(name: str) -> Recipe:
    """Return the recipe of a name. Raises UsageError."""
    for folder in _folders():
        path = folder / f"{name}{_SUFFIX}"
        if os.sep not in name and path.is_file():
            return _read(name, path)
    names = [path.name.removesuffix(_SUFFIX) for f in _folders() for path in f.glob(f"*{_SUFFIX}")]
    within = sorted({f"@{known}" for known in names if name and known.startswith(f"{name}.")})
    if within:
        hint = f"there {'are' if within[1:] else 'is'} {', '.join(within)}"
    else:
        near = did_you_mean(f"@{name}", [f"@{known}" for known in names])
        hint = near or "gotrace recipes lists those that there are"
    raise UsageError(f"there is no recipe @{name}: {hint}")


def _probe(paragraph: Mapping[str, str], path: Path) -> RecipeProbe:
    """Return the probe of a paragraph. Raises UsageError."""
    names: dict[str, str] = {}
    for line in paragraph.get("name", "").splitlines():
        match = _NAME.fullmatch(line)
        if match is None:
            raise UsageError(f"recipe {path}: name: {line}: expected NAME = EXPRESSION")
        names[match[1]] = match[2]
    when, shown, words = (
        None if text is None else expanded(text, names)
        for text in map(paragraph.get, ("when", "shown", "format"))
    )
    if paragraph.get("at", "entry") != "entry":
        raise UsageError(f"recipe {path}: at: {paragraph['at']}: expected entry")
    return RecipeProbe(
        paragraph["probe"],
        tuple(paragraph.get("signature", "").splitlines()),
        when,
        words,
        paragraph["by"],
        tuple(names.items()),
        paragraph.get("unless"),
        "at" in paragraph,
        shown,
    )


def _read(name: str, path: Path) -> Recipe:
    """Read a recipe: paragraphs of ``key: value`` lines, the head and then one for each probe."""
    try:
        text = path.read_text(encoding="utf-8")[:_MAX_BYTES]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"recipe {path} cannot be read: {error}") from error
    paragraphs: list[dict[str, str]] = [{}]
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            if paragraphs[-1]:
                paragraphs.append({})
            continue
        if line.startswith("#"):
            continue
        key, colon, value = line.partition(":")
        known = _HEAD if len(paragraphs) == 1 else _PROBE
        if key in _REPEATED and key in paragraphs[-1]:
            value = f"{paragraphs[-1].pop(key)}\n{value.strip()}"
        if not colon or key not in known or key in paragraphs[-1] or not value.strip():
            expected = ", ".join(sorted(known))
            raise UsageError(f"recipe {path}, line {number}: expected one of {expected}, and a :")
        paragraphs[-1][key] = value.strip()
    head, *rest = [paragraph for paragraph in paragraphs if paragraph]
    missing = {"description", "needs"} - head.keys()
    for paragraph in rest:
        missing |= _NEEDED - paragraph.keys()
    if missing or not rest:
        what = ", ".join(sorted(missing)) or "a paragraph with a probe"
        raise UsageError(f"recipe {path}: it has no {what}")
    probes = tuple(_probe(paragraph, path) for paragraph in rest)
    note, unseen, example = map(head.get, ("note", "unseen", "example"))
    return Recipe(name, path, head["description"], head["needs"], note, unseen, example, probes)
