# SPDX-License-Identifier: Apache-2.0
"""Refuse conditions and formats where calls are not looked at one by one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gotrace.errors import UsageError, said

_CONDITION = re.compile(r"""\s+(?=[("`])""")
#: A format at the end of a probe, perhaps after a predicate, and its values.
_FORMAT = re.compile(r"""(?:^|(?<=\))\s+)(?:"(?:[^"\\]|\\.)*"|`[^`]*`)\s*(?:,\s*(.+))?$""")


def check_bare(patterns: Iterable[str], tool: str, regexp: bool) -> None:
    """Raise UsageError for a predicate or format in a pattern; ``tool`` is who takes none."""
    for pattern in () if regexp else map(str.rstrip, patterns):
        if found := _CONDITION.search(pattern):
            from gotrace.probes.pattern import split_target
            from gotrace.probes.spec import name_end

            name = len(pattern) - len(split_target(pattern)[1])
            if not (found := _CONDITION.search(pattern, name_end(pattern, name))):
                continue  # the blanks are in brackets, as in F[func() (bool, error)]
            function, condition = pattern[: found.start()], pattern[found.end() :]
            if "$panicked" in condition:
                cure = said(f"type gotrace '{function} {condition}'", "use trace()")
                raise UsageError(f"{tool} adds calls up where they return: {cure}")
            if printed := _FORMAT.search(condition):
                from shlex import join

                probe = f"{function} {condition[: printed.start()]}".rstrip()
                words = join(["--by", printed[1] or "$func", probe])
                counted = said(f"type {tool} {words}", "use trace()")
                raise UsageError(f"{tool} prints no format: {counted}")
            typed = said(f"type {tool} --by '$func' '{function} {condition}'", "give by='$func'")
            raise UsageError(f"{tool} takes {condition!r} only with {said('--by', 'by')}: {typed}")
