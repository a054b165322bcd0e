# SPDX-License-Identifier: Apache-2.0
"""Folders and files that another user could have changed are refused."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gotrace.errors import GotraceError, UsageError
from gotrace.fleet import spool
from gotrace.fleet.spool import Spool
from gotrace.fleet.trusted import check_folder

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
NOBODY = 65534


def test_folders(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    check_folder(str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700
    check_folder(str(folder))
    with pytest.raises(UsageError, match="No such file or directory"):
        check_folder(str(tmp_path / "no" / "new"))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="Not a directory"):
        check_folder(str(tmp_path / "file"))
    folder.chmod(0o730)
    with pytest.raises(UsageError, match="other users may write to it: chmod go-w"):
        check_folder(str(folder))


@needs_root
def test_a_folder_of_another_user_is_no_spool(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(UsageError, match="refused: user 65534 owns it"):
        Spool(str(tmp_path), 1 << 20)
    os.chown(tmp_path, 0, 0)
    tmp_path.chmod(0o1777)
    with pytest.raises(UsageError, match="other users may write to it"):
        Spool(str(tmp_path), 1 << 20)


def test_a_spool_follows_no_links(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    (folder / f"{0:020}-3.otlp").symlink_to(secret)
    (folder / f"{1:020}-3.otlp").hardlink_to(secret)
    os.mkfifo(folder / f"{2:020}-3.otlp")
    spool = Spool(str(folder), 1 << 20)
    assert len(spool) == 0 and spool.oldest() is None
    (folder / f"{1:020}-7.part").symlink_to(secret)  # as long as it is here, nothing is written
    assert not spool.add(b"data", 7) and spool.add(b"data", 8)
    (folder / f"{1:020}-8.otlp").unlink()
    (folder / f"{1:020}-8.otlp").symlink_to(secret)
    assert spool.oldest() is None
    assert secret.read_text() == "secret"
    spool.close()


def test_a_spool_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(spool, "_lock", refuse)
    with pytest.raises(GotraceError, match=r"otlp: disk: cannot use .*: Input/output error"):
        Spool(str(tmp_path / "spool"), 1 << 20)


def test_a_spool_removes_only_what_it_has_left(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    (folder / "film.part").touch()
    (folder / f"{1:020}-7.part").touch()
    Spool(str(folder), 1 << 20).close()
    assert [path.name for path in folder.iterdir()] == ["film.part"]


@needs_root
def test_a_spool_sends_nothing_of_another_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / f"{1:020}-3.otlp"
    path.write_text("forged")
    os.chown(path, NOBODY, NOBODY)
    spool = Spool(str(tmp_path), 1 << 20)
    assert len(spool) == 0
    spool.close()


def test_what_is_removed_gives_its_room_back(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path / "spool"), 1000)
    assert spool.add(b"1" * 600, 1) and not spool.add(b"2" * 600, 2)
    assert spool.problem == "it has 0 MB"
    next((tmp_path / "spool").iterdir()).unlink()
    assert spool.add(b"2" * 600, 2) and spool.problem is None
    assert spool.oldest() == (b"2" * 600, 2, 0)
    next((tmp_path / "spool").iterdir()).unlink()
    assert spool.oldest() is None and spool.add(b"3" * 600, 3)
    spool.drop_oldest()
    assert spool.add(b"4" * 600, 4) and len(spool) == 1
    spool.close()


def test_a_spool_knows_later_how_often_a_request_was_refused(tmp_path: Path) -> None:
    folder = str(tmp_path / "spool")
    spool = Spool(folder, 1000)
    assert spool.add(b"1", 1) and spool.add(b"2", 2, refused=19)
    spool.close()
    spool = Spool(folder, 1000)
    assert spool.oldest() == (b"1", 1, 0)
    spool.drop_oldest()
    assert spool.oldest() == (b"2", 2, 19)
    spool.close()


def test_a_spool_is_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before in the same process goes on beside it, as in a reload."""
    monkeypatch.setattr("gotrace.fleet.spool._LOCKING", 0.0)
    folder = str(tmp_path / "spool")
    before = Spool(folder, 1000)
    after = Spool(folder, 1000)
    assert before.add(b"1", 1) and after.add(b"2", 1)
    found = [path.read_bytes() for path in (tmp_path / "spool").iterdir()]
    assert sorted(found) == [b"1", b"2"]
    before.close()
    reason = "another gotraced uses it"
    assert reason in in_another_process(folder)
    reader, writer = os.pipe()
    if not (child := os.fork()):  # as one that holds probes: it has the same descriptors
        os.read(reader, 1)
        os._exit(0)
    try:
        after.close()
        assert in_another_process(folder) == ""
    finally:
        os.write(writer, b"1")
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def in_another_process(folder: str) -> str:
    """Return why a spool cannot be used there, nothing if it can."""
    text = (
        "import sys, gotrace.fleet.spool as spool\n"
        "spool._LOCKING = 0.0\n"
        "try: spool.Spool(sys.argv[1], 1000).close()\n"
        "except Exception as error: print(error, end='')"
    )
    words = [sys.executable, "-c", text, folder]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
