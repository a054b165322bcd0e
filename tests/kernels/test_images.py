# SPDX-License-Identifier: Apache-2.0
"""Check what guests are made of: kept, whole, and renewed only where that works."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.debian import FetchError
from tests.kernels import images
from tests.kernels.releases import Release

RELEASE = Release("6.1", "bookworm", "6.1.")


def module(depends: str) -> bytes:
    return b"\x7fELF\0license=GPL\0depends=" + depends.encode() + b"\0name=x\0"


@dataclass
class FakeApt:
    """An apt with one kernel of a version, whose downloads can fail."""

    version: str
    directory: Path
    fails: bool = False
    downloads: list[Sequence[str]] = field(default_factory=list)

    def records(self, prefix: str) -> list[Mapping[str, str]]:
        if self.fails:
            raise FetchError("apt-get: no network")
        name = f"linux-image-{self.version}-cloud-amd64"
        return [{"Package": name, "Version": f"{self.version}-1", "Depends": "kmod"}]

    def download(self, names: Sequence[str], directory: Path) -> list[Path]:
        self.downloads.append(names)
        tree = self.directory / f"tree-{self.version}"
        drivers = tree / "lib" / "modules" / f"{self.version}-cloud-amd64" / "kernel" / "drivers"
        drivers.mkdir(parents=True, exist_ok=True)
        (tree / "boot").mkdir(exist_ok=True)
        (tree / "boot" / f"vmlinuz-{self.version}").write_bytes(b"image " + self.version.encode())
        (drivers / "virtio.ko").write_bytes(module(""))
        (drivers / "virtio_blk.ko.xz").write_bytes(lzma.compress(module("virtio")))
        (tree / "DEBIAN").mkdir(exist_ok=True)
        control = f"Package: {names[0]}\nVersion: 1\nArchitecture: all\nMaintainer: x\n"
        (tree / "DEBIAN" / "control").write_text(f"{control}Description: x\n")
        package = directory / "kernel.deb"
        command = ["dpkg-deb", "--build", "--root-owner-group", "-Znone", str(tree), str(package)]
        subprocess.run(command, check=True, capture_output=True)
        return [package]


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeApt:
    if shutil.which("dpkg-deb") is None:
        pytest.skip("there is no dpkg-deb")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fake = FakeApt("6.1.5", tmp_path)
    monkeypatch.setattr(images, "_apt", lambda suite, arch: fake)
    return fake


def age(days: float) -> None:
    """Make what is known of the kernel look that old."""
    then = time.time() - days * 86400
    os.utime(images.kernels_dir() / "6.1" / "kernel.json", (then, then))


def test_kernel_is_fetched_once(apt: FakeApt) -> None:
    first = images.kernel(RELEASE)
    assert first.name == "6.1.5-cloud-amd64"
    assert first.image.read_bytes() == b"image 6.1.5"
    assert [path.name for path in first.modules] == ["virtio.ko", "virtio_blk.ko"]
    assert first.modules[1].read_bytes() == module("virtio")
    assert images.kernel(RELEASE) == first
    assert len(apt.downloads) == 1


def test_newer_kernel_takes_the_place_of_an_old_one(apt: FakeApt) -> None:
    first = images.kernel(RELEASE)
    apt.version = "6.1.7"
    assert images.kernel(RELEASE) == first  # for some days
    age(8)
    second = images.kernel(RELEASE)
    assert second.image.read_bytes() == b"image 6.1.7"
    assert not first.image.exists()


def test_same_kernel_is_not_fetched_again(apt: FakeApt) -> None:
    first = images.kernel(RELEASE)
    age(8)
    assert images.kernel(RELEASE) == first
    assert len(apt.downloads) == 1


def test_old_kernel_does_without_a_network(apt: FakeApt) -> None:
    first = images.kernel(RELEASE)
    age(8)
    apt.fails = True
    assert images.kernel(RELEASE) == first
    assert first.image.exists()


def test_no_kernel_and_no_network(apt: FakeApt) -> None:
    apt.fails = True
    with pytest.raises(FetchError, match="no network"):
        images.kernel(RELEASE)


def test_interrupted_fetch_leaves_nothing_that_looks_whole(
    apt: FakeApt, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(package: Path, tree: Path) -> None:
        (tree / "boot").mkdir(parents=True)
        (tree / "boot" / "vmlinuz-6.1.5").write_bytes(b"ima")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(images, "unpack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            images.kernel(RELEASE)
    assert sorted(path.name for path in (images.kernels_dir() / "6.1").iterdir()) == ["lock"]
    assert images.kernel(RELEASE).image.read_bytes() == b"image 6.1.5"


def test_modules_load_after_what_they_need() -> None:
    contents = {
        "virtio_pci": module("virtio_ring,virtio,virtio-pci-modern-dev"),
        "virtio_ring": module(""),
        "virtio": module("virtio_ring"),
        "virtio_pci_modern_dev": module(""),
        "virtio_blk": module("virtio_ring,virtio"),
        "unrelated": module(""),
    }
    order = images.load_order(contents, ("virtio_pci", "virtio_blk", "ext4"))
    assert order == ["virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"]


def test_archive_has_the_kernels_format() -> None:
    entries = [("bin", 0o40755, b""), ("init", 0o100755, b"#!/bin/sh\n"), ("odd", 0o100644, b"x")]
    archive = images.cpio(entries)
    assert len(archive) % 4 == 0
    seen, at = [], 0
    while at < len(archive):
        assert archive[at : at + 6] == b"070701"
        words = [int(archive[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, size, length = words[1], words[6], words[11]
        name = archive[at + 110 : at + 110 + length - 1].decode()
        at = (at + 110 + length + 3) & ~3
        seen.append((name, mode, archive[at : at + size]))
        at = (at + size + 3) & ~3
    assert seen == [*entries, ("TRAILER!!!", 0, b"")]


def test_file_system_holds_the_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_text("content\n")
    (tree / "link").symlink_to("deep/file")
    image = tmp_path / "image"
    debugfs = shutil.which("debugfs", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if debugfs is None:
        pytest.skip("there is no debugfs: install e2fsprogs")
    images.file_system(tree, image, spare=0)
    command = [debugfs, "-R", "cat /deep/file", str(image)]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "content\n"


def test_facts_of_a_kernel_are_readable(apt: FakeApt) -> None:
    images.kernel(RELEASE)
    facts = json.loads((images.kernels_dir() / "6.1" / "kernel.json").read_text())
    assert facts["version"] == "6.1.5-1"
