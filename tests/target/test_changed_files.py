# SPDX-License-Identifier: Apache-2.0
"""Files that change between being read, being attached to and being run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gotrace.elf import ElfError
from gotrace.elf.image import ElfImage, FileIdentity
from gotrace.kernel import syscalls as kernel
from gotrace.kernel.attach import AttachError
from gotrace.kernel.methods import AttachMethod
from gotrace.probes.select import Selector
from gotrace.session.count import CallCounter
from gotrace.session.latency import LatencyMeter, LatencyOptions
from gotrace.session.lifetime import Lifetime
from gotrace.session.plan import BinaryRequest, ProbePlan, make_plan
from gotrace.session.probing import Prepared
from gotrace.session.tasks import find_tasks
from gotrace.target.target import Target
from tests.toolchains import FIXTURES, build, newest, require

METHODS = [AttachMethod.MULTI, AttachMethod.COOKIE, AttachMethod.ADDRESS]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    shutil.copy(build(FIXTURES / "live_count", newest()), path)
    return path


@pytest.fixture
def target() -> Iterator[Target]:
    found = Target()
    yield found
    found.close()


def plan_of(target: Target, path: Path) -> ProbePlan:
    request = BinaryRequest(str(path), Selector(["main.leaf", "main.smallFrame"]))
    return make_plan(target, [request], returns=True, verb="count")


def overwrite(path: Path) -> None:
    """Write one byte as it was, in place, at another time than the file's last change."""
    with path.open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(first)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def test_identity_is_that_of_before_reading(copied: Path) -> None:
    before = FileIdentity.of(str(copied))
    with ElfImage.open(copied) as image:
        overwrite(copied)
        assert image.identity == before != FileIdentity.of(str(copied))


@pytest.mark.live
@pytest.mark.parametrize("method", METHODS)
def test_a_file_that_was_written_to_is_not_attached(
    method: AttachMethod, copied: Path, target: Target
) -> None:
    plan = plan_of(target, copied)
    overwrite(copied)
    with pytest.raises(AttachError, match=rf"{copied}: it was written to while it was being read"):
        CallCounter(Prepared(target, plan, forced=method))
    prepared = Prepared(target, plan, find_tasks(target, plan), forced=method)
    with pytest.raises(AttachError, match="written to"):
        LatencyMeter(prepared, LatencyOptions())


@pytest.mark.live
def test_a_file_that_is_written_to_while_attaching_is_let_go(
    copied: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its probes are gone when the error comes: nobody is left who would hold them."""
    plan = plan_of(target, copied)
    with CallCounter(Prepared(target, plan, forced=AttachMethod.MULTI)):
        assert keepers() == ["gotrace-keeper"]
    link = kernel.link_uprobe_multi

    def link_and_overwrite(*arguments: Any) -> int:
        made = link(*arguments)
        overwrite(copied)
        return made

    monkeypatch.setattr(kernel, "link_uprobe_multi", link_and_overwrite)
    with pytest.raises(AttachError, match="written to"):
        CallCounter(Prepared(target, plan, forced=AttachMethod.MULTI))
    assert keepers() == []


def keepers() -> list[str]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    names = [Path(f"/proc/{child}/comm").read_text().strip() for child in children]
    return [name for name in names if name == "gotrace-keeper"]


@pytest.mark.live
def test_a_file_that_was_replaced_by_another_is_attached(copied: Path, target: Target) -> None:
    """The processes that run what was read are those that are counted."""
    plan = plan_of(target, copied)
    shutil.copy(build(FIXTURES / "live_count", require("1.19")), copied.with_name("new"))
    copied.with_name("new").rename(copied)
    with CallCounter(Prepared(target, plan)) as counter:
        assert not counter.attached.failed
        lifetime = Lifetime(target, plan)
        assert lifetime.replaced_files() == [str(copied)]
        assert lifetime.replaced_files() == []
        assert lifetime.overwritten_file() is None


def test_a_file_that_is_written_to_during_a_run(copied: Path, target: Target) -> None:
    plan = plan_of(target, copied)
    lifetime = Lifetime(target, plan)
    assert lifetime.overwritten_file() is None
    overwrite(copied)
    assert lifetime.overwritten_file() is None  # the same bytes
    with copied.open("ab") as file:
        file.write(b"more")
    assert lifetime.overwritten_file() is None  # not in the code
    with ElfImage.open(copied) as image:
        offset = image.offset_of(plan.functions[1].entry)
    with copied.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xf4")
    assert lifetime.overwritten_file() == str(copied)
    assert lifetime.replaced_files() == []


def test_a_file_that_is_cut_during_a_run(copied: Path, target: Target) -> None:
    """Reading it through the mapping would be the end of the tool."""
    lifetime = Lifetime(target, plan_of(target, copied))
    os.truncate(copied, 10)
    assert lifetime.overwritten_file() == str(copied)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_command_that_is_replaced_before_it_starts(copied: Path, replaced: bool) -> None:
    target = Target.of(None, [str(copied), "100"])
    try:
        request = BinaryRequest(None, Selector(["main.leaf"]))
        plan = make_plan(target, [request], returns=False, verb="count")
        if replaced:
            shutil.copy("/bin/sleep", copied.with_name("new"))
            copied.with_name("new").rename(copied)
        assert target.command is not None
        target.command.release()
        missed = Lifetime(target, plan).missed_command()
        os.kill(target.command.pid, 9)
        target.command.reap()
    finally:
        target.close()
    assert missed == (str(copied) if replaced else None)


def test_a_file_that_became_shorter_is_still_read_as_it_was(copied: Path, target: Target) -> None:
    """A mapping of it would end this process by SIGBUS."""
    plan = plan_of(target, copied)
    (file,) = plan.binaries
    functions, image = file.binary.functions, file.binary.image
    os.truncate(copied, 10)
    assert [call.name for call in functions.inlined_calls()]
    assert functions.declared_at(plan.functions[0].row) is not None
    image.section_bytes(image.sections[-1])


def test_a_file_that_was_let_go_of_is_read_again(copied: Path, target: Target) -> None:
    plan = plan_of(target, copied)
    (file,) = plan.binaries
    binary, image = file.binary, file.binary.image
    names, entry = list(binary.functions.names), plan.functions[0].entry
    code = image.read(entry, 16)
    target.rest()
    assert image.read(entry, 16) == image.read_only(entry, 16) == code
    assert list(binary.functions.names) == names
    view = image.section_bytes(image.sections[-1])
    before = bytes(view)
    target.rest()
    assert view == before  # who has it keeps it
    os.truncate(copied, 10)
    with pytest.raises(ElfError, match="cannot be read again: it was written to"):
        image.read(entry, 16)
    with pytest.raises(ElfError, match="written to"):
        _ = binary.functions
    assert image.read_only(entry, 16) is None


def test_a_file_that_changes_while_it_is_copied_is_refused(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv

    def read_and_overwrite(*arguments: Any) -> int:
        overwrite(copied)
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", read_and_overwrite)
    with pytest.raises(ElfError, match="it is being written to"):
        ElfImage.open(copied, copied=True)
    with ElfImage.open(copied) as image:
        assert image.data[:4] == b"\x7fELF"
