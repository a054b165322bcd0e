# SPDX-License-Identifier: Apache-2.0
"""Documents say of each command what gotrace/doctor/needs.py does, and that is what it needs.

To write them: python -m tests.test_needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gotrace.doctor import trials
from gotrace.doctor.needs import NEEDS, Btf, Need, Rights, whole
from gotrace.kernel import missing_features
from gotrace.kernel.program_cache import cached_program
from gotrace.settings import ProgramSettings
from tests.toolchains import DEBIAN_GO, WHEEL_VERSIONS

CLONE = Path(__file__).parent.parent
README = CLONE / "README.md"
_BEGIN, _END = "needs: python -m tests.test_needs", "end of needs"
_OTHERS = "CAP_SYS_PTRACE for processes of other users"


def release(text: str) -> str:
    return text.rpartition(".")[0]


def go_releases(oldest: str) -> str:
    """Return the releases of Go that are tested, from the oldest that will do."""
    single = [one for one in map(release, DEBIAN_GO) if minor(one) >= minor(oldest)]
    return f"{', '.join(single)} and {release(WHEEL_VERSIONS[0])} to {release(WHEEL_VERSIONS[-1])}"


def minor(text: str) -> int:
    return int(text.split(".")[1])


def table() -> str:
    """Return README's table."""
    head = (
        "| command | Linux | Go | capabilities, if not root | kernel BTF |\n|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {_name(need)} | {need.linux} | {need.go} | {_rights(need)} | {need.btf.value} |\n"
        for need in NEEDS
    )


def _name(need: Need) -> str:
    parts = ", ".join(f"`{part}`" for part in need.part.split(", ")) if need.part else ""
    return f"`{need.command}`{' ' if parts else ''}{parts}"


def _rights(need: Need) -> str:
    rights = need.rights.value + ("; CAP_IPC_LOCK" if need.buffers else "")
    return re.sub(r"CAP_\w+", r"`\g<0>`", rights)


def requirements(command: str) -> str:
    """Return what a man page begins its REQUIREMENTS with."""
    need = whole(command)
    lines = [
        f"Linux {need.linux} or newer on amd64 or arm64, of which arm64 was not tried on hardware.",
        f"A program for the same, of Go {need.go} or newer (tested with {go_releases(need.go)}).",
    ]
    lines += [".PP", f"root, or {_missing(need)}."]
    if need.buffers:
        lines += ["Event buffers need CAP_IPC_LOCK, or a larger ulimit -l."]
    if need.rights is not Rights.NONE:
        lines += [f"Kernel BTF (/sys/kernel/btf/vmlinux): {need.btf.value}."]
    for part in (each for each in NEEDS if each.command == command and each.part):
        needs = [f"Linux {part.linux}", f"Go {part.go}"]
        if part.rights is not need.rights:
            is_none = part.rights is Rights.NONE
            needs.append("no capabilities" if is_none else part.rights.value)
        if part.btf is not Btf.NONE and part.btf is not need.btf:
            reason = "" if part.btf is Btf.NEEDED else f" {part.btf.value}"
            needs.append(f"kernel BTF{reason}")
        if part.buffers and not need.buffers:
            needs.append("CAP_IPC_LOCK")
        options = ", ".join(f"\\fB{each}\\fR" for each in part.part.split(", "))
        lines += [".PP", f"With {options}: {'; '.join(needs)}."]
    lines += [".PP", "Python 3.10."]
    if need.rights is Rights.NONE:
        lines[-1] += " The BCC binding is not needed" + (
            " without these options." if command == "gotop" else "."
        )
    else:
        lines += [
            "The wheel and the bundle have the BPF programs of usual runs; others need the"
            " distribution's BCC binding:",
            "python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora).",
        ]
    return "\n".join(lines).replace("-", "\\-").replace("'", "\\(aq") + "\n"


def _missing(need: Need) -> str:
    if need.rights is Rights.NONE:
        return _OTHERS
    return f"{need.rights.value}; {_OTHERS}"


def texts() -> Iterator[tuple[Path, str, str, str]]:
    """Yield each document, the marks around its part, and the part."""
    yield README, f"<!-- {_BEGIN} -->\n\n", f"\n<!-- {_END} -->\n", table()
    for command in dict.fromkeys(need.command for need in NEEDS):
        page = CLONE / "docs" / "man" / f"{command}.8"
        yield page, f'.\\" {_BEGIN}\n', f'.\\" {_END}\n', requirements(command)


def replaced(page: str, begin: str, end: str, text: str) -> str:
    """Return a document with a part as it has to be. Raises ValueError if marks are missing."""
    before, rest = page.split(begin)
    return f"{before}{begin}{text}{end}{rest.split(end)[1]}"


def test_documents_say_what_is_declared() -> None:
    for path, begin, end, text in texts():
        page = path.read_text()
        assert page == replaced(page, begin, end, text), f"{path}: {_BEGIN}"


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("gofunclatency", trials._latency_settings),
        ("gotrace", trials._trace_settings),
        ("gooffcpu", trials._wait_settings),
        ("gooncpu", trials._oncpu_settings),
        ("goalloc", trials._alloc_settings),
    ],
)
def test_programs_use_what_their_release_has_and_nothing_newer(
    command: str, settings: Callable[[], ProgramSettings]
) -> None:
    code = cached_program(settings()).functions.values()
    used = [each for part in code for each in missing_features._decode(part)]
    found = [one.release for one in missing_features._FEATURES if any(map(one.is_used, used))]
    assert found[-1] == whole(command).linux


if __name__ == "__main__":
    for path, begin, end, text in texts():
        path.write_text(replaced(path.read_text(), begin, end, text))
