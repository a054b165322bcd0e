# SPDX-License-Identifier: Apache-2.0
"""A notebook's tables stay small."""

from __future__ import annotations

from gotrace.tables import html_table


def test_rows_and_stacks_are_cut() -> None:
    stack = tuple(f"main.f{number}" for number in range(64))
    html = html_table(("stack", "calls"), [(stack, 1)] * 1000)
    assert html.count("<tr><td>main.f0, main.f1, main.f2, main.f3 and 60 more</td>") == 100
    assert "and 900 more" in html
    assert "<td>main.f0, main.f1</td>" in html_table(("stack",), [(", ".join(stack[:2]),)])
