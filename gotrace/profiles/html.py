# SPDX-License-Identifier: Apache-2.0
"""Write stacks as a page that shows their flame graph, in any browser and without a network.

The page has speedscope's own release in it, which is in ``viewer``, and the profile as speedscope
reads it. The page's policy refuses whatever would be fetched.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from gotrace.profiles.rows import StackProfile
from gotrace.profiles.speedscope import speedscope
from gotrace.text import printable

#: The page's viewer of the profile; REUSE.toml says where it is from.
VIEWER = Path(__file__).parent / "viewer"

#: speedscope shows what is pasted. It reads the view from the address when it starts.
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline' 'wasm-unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<!-- {release}
{license}-->
<style>{style}</style>
<script type="application/json" id="profile">{profile}</script>
<script>if (!location.hash) location.hash = "view=left-heavy";</script>
</head>
<body>
<script>{code}</script>
<script>
const pasted = new Event("paste");
const text = document.getElementById("profile").textContent;
pasted.clipboardData = {{getData: () => text}};
document.dispatchEvent(pasted);
</script>
</body>
</html>
"""


def html(profile: StackProfile) -> str:
    """Return a profile as a page; the stacks with the most come first."""
    parts = {
        name: (VIEWER / file).read_text(encoding="utf-8")
        for name, file in (
            ("release", "release.txt"),
            ("license", "LICENSE"),
            ("style", "speedscope.css"),
            ("code", "speedscope.js"),
        )
    }
    # In a script's text only what begins with this sign has a meaning for HTML.
    embedded = speedscope(profile).replace("<", "\\u003c")
    return _PAGE.format(title=escape(printable(profile.name)), profile=embedded, **parts)
