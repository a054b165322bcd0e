# SPDX-License-Identifier: Apache-2.0
"""docs/messages.md has every message of the code, and tests provoke each.

To write its lists: python -m tests.test_messages. A section's mark says of which files or folders
below gotrace/ it has the messages; the longest that fits decides. ``!`` is for what is said while a
run goes on.

A test that provokes a message has some of its words: so many that no other message has, or all of
its own in their order.
"""

from __future__ import annotations

import re
from collections import Counter

from tests.messages import CLONE, Message, messages

PAGE = CLONE / "docs" / "messages.md"
_MARK = re.compile(r"(<!-- messages: (.*) -->\n)((?:\n?- .*\n)*)")


def section_of(message: Message, sections: dict[str, str]) -> str:
    """Return the mark of a message's section; ``sections`` are those of each place."""
    file = message.file.removeprefix("gotrace/")
    if message.is_notice and not file.startswith("fleet/"):
        return sections["!"]
    fitting = [place for place in sections if file.startswith(place)]
    assert fitting, f"no section has the messages of {message.file}: docs/messages.md"
    return sections[max(fitting, key=len)]


def filled(page: str) -> str:
    """Return the page with the messages that there are."""
    marks = [found[2] for found in _MARK.finditer(page)]
    sections = {place: mark for mark in marks for place in mark.split()}
    texts: dict[str, set[str]] = {mark: set() for mark in marks}
    for message in messages():
        texts[section_of(message, sections)].update(message.texts)
    return _MARK.sub(lambda found: f"{found[1]}\n{_listed(texts[found[2]])}", page)


def _listed(texts: set[str]) -> str:
    """Return a list in order of the first words that do not differ."""

    def order(text: str) -> tuple[str, str]:
        return re.sub(r"\b[A-Z_]{2,}\b|[^A-Za-z]", "", text).lower(), text

    marks = {text: "``" if "`" in text else "`" for text in texts}
    return "".join(f"- {marks[text]}{text}{marks[text]}\n" for text in sorted(texts, key=order))


def test_the_page_has_every_message() -> None:
    page = PAGE.read_text()
    assert page == filled(page), "python -m tests.test_messages"


_RUN = 10  # characters of a message that are enough to know it by
#: Names and numbers in messages, what tests have in their place, and what may be there once.
_DIFFERS = re.compile(
    r"\b[A-Z][A-Z_]+\b|\bN\b|\.\.\.|\d[\d,.]*|\{[^{}\n]*\}|\.[*+]\??|\\d\+?|(?<=\w)\?"
)
_ASIDE = re.compile(r'^ *"""(?:[^"]|"(?!""))*"""$|^ *#.*$|"\n\s*f?r?"', re.MULTILINE)
_TEXT = re.compile(r'"""(?:[^"]|"(?!""))*"""|"(?:[^"\\\n]|\\.)*"|' r"'(?:[^'\\\n]|\\.)*'")
_BETWEEN = "\0"


def _fixed(text: str) -> str:
    """Return a text with a mark for each part that differs."""
    return _DIFFERS.sub(lambda found: _BETWEEN * (found[0] != "?"), text)


def _runs(message: Message) -> set[str]:
    texts = [_fixed(text).strip(_BETWEEN + " ") for text in message.texts]
    return {text[at : at + _RUN] for text in texts for at in range(max(1, len(text) - _RUN + 1))}


def _texts_of_tests() -> str:
    """Return the texts in tests, without docstrings and comments, as regular expressions mean."""
    found = [(CLONE / "tests" / "tools" / "habits.txt").read_text()]
    for path in sorted((CLONE / "tests").rglob("*.py")):
        if path.name not in ("messages.py", "test_messages.py"):
            source = _ASIDE.sub("", path.read_text())
            found += [text[0].strip("\"'") for text in _TEXT.finditer(source)]
    return re.sub(r"\\([^\dw])", r"\1", _fixed("\n".join(found)))


def _has_all_words(message: Message, texts: str) -> bool:
    """Return whether a line has all of a message's own words, in their order."""
    for text in (_fixed(text).strip(_BETWEEN + " ") for text in message.texts):
        parts, at = text.split(_BETWEEN), -1
        longest = max(parts, key=len)
        words = re.compile("[^\n]{1,60}?".join(map(re.escape, parts)))
        while len(text) >= _RUN and (at := texts.find(longest, at + 1)) >= 0:
            begin, end = texts.rfind("\n", 0, at) + 1, texts.find("\n", at)
            if words.search(texts, begin, end if end >= 0 else len(texts)):
                return True
    return False


def unprovoked() -> list[Message]:
    """Return the messages of which no test has enough words."""
    by_message = {message: _runs(message) for message in messages()}
    counts = Counter(run for runs in by_message.values() for run in runs)
    texts = _texts_of_tests()
    there = {run for at in range(len(texts)) if (run := texts[at : at + _RUN]) in counts}
    there |= {run for run in counts if len(run) < _RUN and run in texts}
    return [
        message
        for message, runs in by_message.items()
        if not ({run for run in runs if counts[run] == 1} or runs) & there
        and not _has_all_words(message, texts)
    ]


def test_a_test_provokes_every_message() -> None:
    found = [f"{one.file}:{one.line}: {one.texts[0]}" for one in unprovoked()]
    assert sorted(found) == [], "no test provokes these"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
