# SPDX-License-Identifier: Apache-2.0
"""Read profiles and folded stacks back, by Go's own tool where there is one."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from gotrace.cli.stream import ResultFile
from gotrace.errors import GotraceError
from gotrace.profiles.folded import folded
from gotrace.profiles.html import html
from gotrace.profiles.pprof import pprof
from gotrace.profiles.rows import (
    CodeMapping,
    Line,
    PprofLocation,
    ProfileForm,
    ProfileRow,
    StackProfile,
    ValueType,
)
from gotrace.profiles.speedscope import speedscope
from gotrace.profiles.write import Make, is_profile, write_profile
from gotrace.requests.model import save
from tests.profiles.raw import raw_text

MAIN = Line("main.main", "/app/main.go", 12)
WAIT = Line("main.wait[go.shape.struct { A int; B string }]", "/app/wait.go", 30)
INNER = Line("sync.(*Mutex).Lock", "/go/src/sync/mutex.go", 90)
DEEP = Line("runtime.gopark", "/go/src/runtime/proc.go", 400)
ÄTHER = Line("example.org/ä%2eb.Äther", "/app/ä.go", 1)

#: Stacks from the innermost frame on: INNER is inlined into WAIT.
FIRST = (
    PprofLocation(0x401000, (DEEP,)),
    PprofLocation(0x402000, (INNER, WAIT)),
    PprofLocation(0x403000, (MAIN,)),
)
SECOND = (PprofLocation(0x401000, (DEEP,)), PprofLocation(0x404000, (ÄTHER,)))

CALLS = ProfileForm((ValueType("calls", "count"),), 0)


def profile_of(stacks: Iterable[tuple[list[Line], int]], note: str = "") -> StackProfile:
    """Return a profile of stacks from the outermost frame on, each with its calls."""
    rows = [
        ProfileRow([PprofLocation(0, (line,)) for line in reversed(stack)], (calls,), note=note)
        for stack, calls in stacks
    ]
    return StackProfile(CALLS, rows, "name", began_ns=1)


def test_go_reads_what_was_written(tmp_path: Path) -> None:
    mapping = CodeMapping(0x400000, 0x500000, "/app/server")
    types = (ValueType("contentions", "count"), ValueType("delay", "nanoseconds"))
    rows = [
        ProfileRow(FIRST, (3, 1 << 40), {"reason": "sync.Mutex.Lock", "goroutine": 17}),
        ProfileRow(SECOND, (1, 0)),
    ]
    began = 1_700_000_000_000_000_000
    profile = StackProfile(ProfileForm(types, 1), rows, "", [mapping], began, 5 * 10**9)
    path = tmp_path / "x.pb.gz"
    path.write_bytes(pprof(profile))
    text = raw_text(path)
    assert "PeriodType" in text and "Duration: 5" in text
    samples = re.search(r"Samples:\n(.*?)Locations", text, re.DOTALL)
    assert samples
    assert samples[1].splitlines()[0] == "contentions/count delay/nanoseconds[dflt]"
    numbers = re.findall(r"^ +(\d+) +(\d+): ([\d ]+?) *$", samples[1], re.MULTILINE)
    assert numbers == [("3", str(1 << 40), "1 2 3"), ("1", "0", "1 4")]
    assert "reason:[sync.Mutex.Lock]" in samples[1] and "goroutine:[17]" in samples[1]
    for location in {*FIRST, *SECOND}:
        inner = location.lines[0]
        found = re.search(rf"{location.address:#x} M=1 (.*)", text)
        assert found and found[1].startswith(f"{inner.function} {inner.file}:{inner.line}")
    after = text[text.index("0x402000") :].splitlines()[1]
    assert after.strip().startswith(f"{WAIT.function} {WAIT.file}:{WAIT.line}")
    assert re.search(r"0x400000/0x500000/0x0 /app/server .*\[FN\]\[FL\]\[LN\]\[IN\]", text)


def test_folded_stacks_are_added_up() -> None:
    wait = [MAIN, WAIT, Line("[chan receive]", "", 0)]
    run = [MAIN, Line("main.run", "/app/main.go", 20)]
    evil = [MAIN, Line("evil\n\x1b[31m;x", "", 0)]
    lines = folded(profile_of([(wait, 5), (run, 7), (wait, 1), (evil, 2)])).splitlines()
    assert lines == [
        "main.main;main.run 7",
        "main.main;main.wait[go.shape.struct { A int, B string }];[chan receive] 6",
        r"main.main;evil\n\x1b[31m,x 2",
    ]


def test_speedscope_has_the_same_stacks() -> None:
    stacks = [([MAIN, WAIT, INNER], 3), ([MAIN, ÄTHER], 4), ([MAIN], 1)]
    made = json.loads(speedscope(profile_of(stacks)))
    frames = made["shared"]["frames"]
    (profile,) = made["profiles"]
    read: Counter[tuple[str, ...]] = Counter()
    for sample, weight in zip(profile["samples"], profile["weights"], strict=True):
        read[tuple(frames[index]["name"] for index in sample)] += weight
    assert read == {tuple(frame.function for frame in stack): n for stack, n in stacks}
    assert (profile["startValue"], profile["endValue"]) == (0, 8)
    assert frames[0] == {"name": "main.main", "file": "/app/main.go", "line": 12}
    assert made["name"] == profile["name"] == "name"


def test_a_function_is_one_frame_whatever_its_lines() -> None:
    """Viewers show one box a frame of the file: a function's lines are not boxes of their own."""
    spin = [Line("main.Spin", "/app/main.go", line) for line in (7, 8, 9)]
    other = Line("main.Spin", "/app/other.go", 7)
    stacks = [([MAIN, one], weight) for one, weight in zip(spin, (65, 29, 5), strict=True)]
    made = json.loads(speedscope(profile_of([*stacks, ([MAIN, spin[0], spin[1], other], 1)])))
    assert made["shared"]["frames"] == [
        {"name": "main.main", "file": "/app/main.go", "line": 12},
        {"name": "main.Spin", "file": "/app/main.go"},
        {"name": "main.Spin", "file": "/app/other.go", "line": 7},
    ]
    (profile,) = made["profiles"]
    assert profile["samples"] == [[0, 1], [0, 1], [0, 1], [0, 1, 1, 2]]
    assert profile["weights"] == [65, 29, 5, 1]


def test_a_note_is_the_innermost_frame_without_labels() -> None:
    noted = profile_of([([MAIN], 2)], "[select]")
    assert folded(noted) == "main.main;[select] 2\n"
    assert [frame["name"] for frame in json.loads(speedscope(noted))["shared"]["frames"]] == [
        "main.main",
        "[select]",
    ]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("x.pb.gz", pprof),
        ("x.pprof", pprof),
        ("x.speedscope.json", speedscope),
        ("x.folded", folded),
        ("x.html", html),
        ("x", None),
        ("x.json", None),
        ("folded", None),
    ],
)
def test_the_name_chooses_the_form(name: str, make: Make | None, tmp_path: Path) -> None:
    profile, path = profile_of([([MAIN, ÄTHER], 4)]), tmp_path / name
    assert is_profile(str(path)) is (make is not None)
    write_profile(path, profile)
    content = (make or pprof)(profile)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    write_profile(path, profile, speedscope)
    assert path.read_text() == speedscope(profile)


def test_names_that_no_file_can_have_are_written(tmp_path: Path) -> None:
    write_profile(tmp_path / "x.folded", profile_of([([Line("main.\udcff", "", 0)], 1)]))
    assert (tmp_path / "x.folded").read_text().endswith(" 1\n")


def test_no_name_in_a_profile_steers_a_terminal() -> None:
    found = gzip.decompress(pprof(profile_of([([Line("main.\x1b[2J\u202e", "", 0)], 1)])))
    assert rb"main.\x1b[2J\u202e" in found and b"\x1b" not in found


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link away")
@pytest.mark.parametrize("name", ["x.html", "x.ndjson", "x.json", "x.pftrace", "x.trace"])
def test_links_of_others_are_not_followed(name: str, tmp_path: Path) -> None:
    """As the kernel refuses to open them under fs.protected_symlinks (proc_sys_fs(5))."""

    def write(path: Path) -> None:
        if name == "x.html":
            write_profile(path, profile_of([([MAIN], 1)]))
        elif name == "x.ndjson":
            with ResultFile(str(path)) as file:
                file.write("new")
        else:
            save(path, [])

    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    victims = [tmp_path / "victim", tmp_path / "folder" / name]
    victims[1].parent.mkdir()
    links = [shared / name, shared / "folder"]
    for link, path, victim in zip(links, (links[0], links[1] / name), victims, strict=True):
        victim.write_text("old")
        link.symlink_to(victim if path == link else victim.parent)
        os.chown(link, 65534, 65534, follow_symlinks=False)
        within = tmp_path / "own" / name  # a link of ours that leads there
        within.parent.mkdir(exist_ok=True)
        within.unlink(missing_ok=True)
        within.symlink_to(os.path.relpath(path, within.parent))
        for one in (path, within):
            refused = f"{one}: cannot write: {link} is a link of another user's in a directory"
            with pytest.raises(GotraceError, match=f"^{re.escape(refused)} .*: give another path$"):
                write(one)
            assert victim.read_text() == "old"
    # A link of ours is followed, and so is one of whom the directory belongs to.
    for owner, folder in ((0, 0), (65534, 65534)):
        os.chown(links[0], owner, owner, follow_symlinks=False)
        os.chown(shared, folder, folder)
        victims[0].write_text("old")
        write(links[0])
        assert links[0].is_symlink() and victims[0].read_bytes() != b"old"
    os.chown(shared, 0, 0)
    shared.chmod(0o777)  # not sticky
    write(links[0])


def test_a_failure_to_write_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "none" / "x.pb.gz"
    with pytest.raises(GotraceError, match=f"^{path}: cannot write: No such file or directory$"):
        write_profile(path, profile_of([([MAIN], 1)]))
