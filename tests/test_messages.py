# SPDX-License-Identifier: Apache-2.0
"""docs/messages.md has every message of the code, and tests know each.

To write its lists: python -m tests.test_messages. A section's mark says of which files or folders
below gotrace/ it has the messages; the longest that fits decides. ``!`` is for what is said while a
run goes on.
"""

from __future__ import annotations

import re

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


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
