# SPDX-License-Identifier: Apache-2.0
"""Read profiles and folded stacks back, by Go's own tool where there is one."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from pathlib import Path

from gotrace.profiles.folded import write_folded
from gotrace.profiles.pprof import CodeMapping, Line, PprofLocation, Profile, ValueType
from gotrace.profiles.speedscope import speedscope_profile
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


def test_go_reads_what_was_written(tmp_path: Path) -> None:
    mapping = CodeMapping(0x400000, 0x500000, "/app/server")
    types = [ValueType("contentions", "count"), ValueType("delay", "nanoseconds")]
    profile = Profile(types, [mapping], 1_700_000_000_000_000_000, 5 * 10**9, "delay")
    profile.add(FIRST, (3, 1 << 40), {"reason": "sync.Mutex.Lock", "goroutine": 17})
    profile.add(SECOND, (1, 0), {})
    path = tmp_path / "x.pb.gz"
    path.write_bytes(profile.encoded())
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
    out = io.StringIO()
    stacks = [
        (["main.main", WAIT.function, "[chan receive]"], 5),
        (["main.main", "main.run"], 7),
        (["main.main", WAIT.function, "[chan receive]"], 1),
        (["main.main", "evil\n\x1b[31m;x"], 2),
    ]
    write_folded(out, stacks)
    lines = out.getvalue().splitlines()
    assert lines == [
        "main.main;main.run 7",
        "main.main;main.wait[go.shape.struct { A int, B string }];[chan receive] 6",
        r"main.main;evil\n\x1b[31m,x 2",
    ]


def test_speedscope_has_the_same_stacks() -> None:
    stacks = [([MAIN, WAIT, INNER], 3), ([MAIN, ÄTHER], 4), ([MAIN], 1)]
    made = json.loads(speedscope_profile("name", stacks))
    frames = made["shared"]["frames"]
    (profile,) = made["profiles"]
    read: Counter[tuple[str, ...]] = Counter()
    for sample, weight in zip(profile["samples"], profile["weights"], strict=True):
        read[tuple(frames[index]["name"] for index in sample)] += weight
    assert read == {tuple(frame.function for frame in stack): n for stack, n in stacks}
    assert (profile["startValue"], profile["endValue"]) == (0, 8)
    assert frames[0] == {"name": "main.main", "file": "/app/main.go", "line": 12}
