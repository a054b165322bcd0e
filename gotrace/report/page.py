# SPDX-License-Identifier: Apache-2.0
"""A page of HTML that fetches nothing and runs nothing."""

from __future__ import annotations

from html import escape

from gotrace.text import printable

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
{style}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def page(title: str, style: str, body: str) -> str:
    """Return a page. ``title`` is any text; ``style`` is CSS and ``body`` HTML already."""
    return _PAGE.format(title=escape(printable(title)), style=style, body=body)
