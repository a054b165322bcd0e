# SPDX-License-Identifier: Apache-2.0
"""Check how guests are run and their results read, with a stand-in for the emulator."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels import guest, images
from tests.kernels.__main__ import Outcome, line, order_of, summarise
from tests.kernels.order import POSSIBLE, Order, Result, parse_result, read_order
from tests.kernels.releases import RELEASES, release

ORDER = Order(
    ["multi"],
    full_methods=["multi"],
    minors=["1.27"],
    pairs=True,
    is_quick=False,
    rounds=60,
)
GUEST = guest.Guest(release("6.18"), cpus=2, boot="preempt=full", limit=20)


def end(ok: bool = True) -> Result:
    return Result("end", "", ok, 1.0, "6.18.15", last=True)


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the path of a script of Python that runs in place of the emulator."""
    script = tmp_path / "emulator.py"
    busybox = tmp_path / "busybox"
    busybox.write_bytes(b"")
    kernel = images.Kernel(tmp_path / "vmlinuz", (), "6.18.15")
    monkeypatch.setattr(images, "kernel", lambda wanted: kernel)
    monkeypatch.setattr(images, "root", lambda arch: tmp_path)
    monkeypatch.setattr(guest, "command_line", lambda *words: [sys.executable, str(script)])
    yield script


def results(work: Path, limit: float = 20) -> list[Result]:
    one = guest.Guest(GUEST.release, GUEST.cpus, GUEST.boot, limit)
    return [result for result, _ in guest.run(one, work, work / "log")]


def test_results_are_read_as_they_come(emulator: Path, tmp_path: Path) -> None:
    said = [Result("counts", "multi", True, 1.5, "12 calls"), end()]
    lines = ["booting\n", said[0].to_line(), "\x1b[0m noise " + said[1].to_line()]
    emulator.write_text(f"import sys\nsys.stdout.write({''.join(lines)!r})\n")
    assert results(tmp_path) == said


def test_guest_that_ends_early(emulator: Path, tmp_path: Path) -> None:
    emulator.write_text("import sys\nsys.exit('could not set up the disk')\n")
    with pytest.raises(guest.GuestError, match="ended early: could not set up the disk"):
        results(tmp_path)


def test_guest_that_takes_too_long_is_ended(emulator: Path, tmp_path: Path) -> None:
    emulator.write_text("import threading\nthreading.Event().wait()\n")
    with pytest.raises(guest.GuestError, match=r"took longer than 1 s: see .*/log"):
        results(tmp_path, limit=1)


def test_a_line_that_was_cut_is_no_result() -> None:
    text = Result("counts", "multi", True, 1.5, "12 calls").to_line()
    assert parse_result(text[:-9]) is None
    assert parse_result("@check {}\n") is None


def test_command_line_bounds_the_guest() -> None:
    kernel = images.Kernel(Path("/k/vmlinuz"), (), "6.18.15")
    names = (Path("/root.ext4"), Path("/initrd"), Path("/work.ext4"), Path("/log"))
    words = guest.command_line(GUEST, kernel, *names)
    assert words[words.index("-smp") + 1] == "2"
    assert words[words.index("-append") + 1].endswith(" preempt=full")
    assert words[words.index("-cpu") + 1] == "max,-cx16"
    assert "--pdeathsig" in words
    disks = [words[n + 1] for n, word in enumerate(words) if word == "-drive"]
    assert all("snapshot=on" in disk for disk in disks)


def test_processors_are_emulated_by_threads_of_their_own_unless_asked() -> None:
    kernel = images.Kernel(Path("/k/vmlinuz"), (), "6.18.15")
    names = (Path("/root.ext4"), Path("/initrd"), Path("/work.ext4"), Path("/log"))
    one = dataclasses.replace(GUEST, cpus=1)
    together = dataclasses.replace(GUEST, together=True, emulator=["-trace", "x"])
    emulated = [guest.command_line(each, kernel, *names) for each in (GUEST, one, together)]
    assert [words[words.index("-accel") + 1] for words in emulated] == [
        "tcg,thread=multi",
        "tcg,thread=single",
        "tcg,thread=single",
    ]
    assert [words[words.index("-smp") + 1] for words in emulated] == ["2", "1", "2"]
    assert [words[-2:] == ["-trace", "x"] for words in emulated] == [False, False, True]


def test_order_survives_the_way_to_the_guest(tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text(ORDER.to_json())
    assert read_order(path) == ORDER


def test_work_image_has_the_clone_and_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def note(tree: Path, image: Path, spare: int) -> None:
        seen.extend(str(path.relative_to(tree)) for path in tree.rglob("*"))

    monkeypatch.setattr(images, "file_system", note)
    (tmp_path / "program").write_bytes(b"x")
    with guest.work_image(ORDER, {"live_count-1.27": tmp_path / "program"}):
        pass
    wanted = {"order.json", "fixtures/live_count-1.27", "clone/tools/gotrace"}
    assert wanted | {"clone/bpf/count.c", "clone/tests/kernels/guest/start"} <= set(seen)
    assert not any(name.startswith("clone/tests/fixtures/") for name in seen)


def test_processors_that_are_not_there() -> None:
    one = guest.Guest(release("newest-128"), 2, "", 60.0)
    kernel = images.Kernel(Path("vmlinuz"), (), "7.3.4")
    words = guest.command_line(one, kernel, Path("root"), Path("initrd"), Path("work"), Path("log"))
    assert words[words.index("-smp") + 1] == "128"
    assert words[words.index("-append") + 1].endswith(" maxcpus=2")
    assert order_of(one.release, False, 60, []).only == list(POSSIBLE)


@pytest.mark.parametrize("one", RELEASES, ids=lambda one: one.name)
def test_where_time_is_short_the_other_methods_only_count(one: object) -> None:
    chosen = next(known for known in RELEASES if known is one)
    quick, full = (order_of(chosen, quick, 60, []) for quick in (True, False))
    assert quick.methods == full.methods == full.full_methods == list(chosen.methods)
    assert quick.full_methods == [chosen.methods[0]]
    assert set(quick.minors) < set(full.minors)
    assert quick.rounds < full.rounds and quick.is_quick and not full.is_quick


def test_summary_names_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    bad = Result("migration", "multi", False, 2.0, "main.migrate: 1 of 2 calls")
    good = Result("counts", "multi", True, 2.0, "12 calls")
    outcomes = [Outcome(GUEST, [good, bad, end(False)]), Outcome(GUEST, [good], "ended early")]
    assert summarise(outcomes) == 1
    printed = capsys.readouterr().out
    assert "1 of 2 checks passed" in printed
    assert "failed: multi migration" in printed
    assert "ended early" in printed
    assert summarise([Outcome(GUEST, [good, end()])]) == 0
    assert summarise([Outcome(GUEST, [good, end()])], [good.check]) == 0
    assert summarise([Outcome(GUEST, [good, end()])], [good.check, "latency"]) == 1
    assert "'latency'" in capsys.readouterr().out


def test_a_check_is_a_line() -> None:
    text = line("6.18", Result("counts", "multi", True, 12.3, "342,998 calls"))
    assert text.split() == ["6.18", "multi", "counts", "ok", "12.3", "s", "342,998", "calls"]
