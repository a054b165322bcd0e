# SPDX-License-Identifier: Apache-2.0
"""Kernels, a root file system and an initramfs for guests, made of packages that are unpacked.

Nothing is installed and nothing needs root: the files of a guest's root belong to whoever made it,
and its programs run as the guest's root. All is kept in the cache; what is there is whole, however
an earlier run was interrupted.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.debian import FetchError, PrivateApt, unpack
from tests.kernels.compiling import compile_kernel, configuration, digest
from tests.kernels.releases import Release, choose, choose_source
from tests.toolchains import cache_dir

#: What the guest's userland is unpacked from: Debian 12, the tools' own packages, a shell; a peer.
ROOT_SUITE = "bookworm"
ROOT_PACKAGES = (
    *("python3", "python3-bpfcc", "python3-capstone", "python3-pyelftools", "python3-tabulate"),
    *("python3-bcrypt", "python3-h11", "python3-jsonschema", "python3-prometheus-client"),
    "python3-yaml",
    *("python3-pytest", "bpftrace"),
    *("busybox-static", "bash", "dash", "coreutils", "grep", "sed", "mount", "util-linux"),
)
#: Directories that no package brings; ``guest`` is where the second disk is mounted.
_DIRECTORIES = ("proc", "sys", "dev", "run", "tmp", "root", "guest", "etc")

#: What the guest needs to see its disks, and what those modules depend on.
_MODULES = ("virtio_pci", "virtio_blk", "ext4")

#: Debian's lists are fetched again after that many days; without a network the old ones do.
_STALE_DAYS = 7


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: its image, the modules to load in that order, and its own name (uname -r)."""

    image: Path
    modules: tuple[Path, ...]
    name: str


def kernels_dir() -> Path:
    """Return the directory of all that guests are made of."""
    return cache_dir() / "kernels"


def kernel(release: Release) -> Kernel:
    """Return a kernel, fetched where it is missing or a newer one is out. Raises FetchError.

    A kernel that is compiled here is compiled again if its configuration is another one, too.
    """
    place = kernels_dir() / release.kernel
    suffix = f"-{digest(configuration(release.kernel))}" if release.source else ""
    with _locked(place):
        known = _read(place / "kernel.json")
        is_known = known is not None and known["directory"].endswith(suffix)
        if not is_known or _stale(place / "kernel.json"):
            try:
                _renew_kernel(release, place, known, suffix)
            except FetchError:
                if not is_known:
                    raise
        facts = _read(place / "kernel.json")
        assert facts is not None
        files = place / facts["directory"]
        modules = tuple(files / name for name in facts["modules"])
        return Kernel(files / "vmlinuz", modules, facts["name"])


def _renew_kernel(
    release: Release, place: Path, known: Mapping[str, str] | None, suffix: str
) -> None:
    """Fetch the newest kernel of a series unless it is there, and note what it consists of."""
    apt = _apt(release.suite, release.arch)
    records = apt.records("linux-")
    if release.source:
        packages = choose_source(records, release.source)
    else:
        packages = choose(records, release.series, release.flavour)
    kept = packages.version + suffix
    if known is not None and known["directory"] == kept:
        os.utime(place / "kernel.json")
        return
    with tempfile.TemporaryDirectory(prefix="fetch.", dir=place) as directory:
        tree, files = Path(directory) / "tree", Path(directory) / kept
        files.mkdir()
        downloaded = apt.download(packages.names, Path(directory))
        modules: list[str] = []
        if release.source:
            wanted = configuration(release.kernel)
            name = compile_kernel(downloaded[0], wanted, tree, files / "vmlinuz")
        else:
            for package in downloaded:
                unpack(package, tree)
            name, modules = _take_kernel(tree, files)
        shutil.rmtree(place / kept, ignore_errors=True)
        files.rename(place / kept)
    facts = {
        "name": name,
        "version": packages.version,
        "directory": kept,
        "modules": [f"{name}.ko" for name in modules],
    }
    unfinished = place / "kernel.json.unfinished"
    unfinished.write_text(json.dumps(facts, indent=1))
    unfinished.rename(place / "kernel.json")
    if known is not None:
        shutil.rmtree(place / known["directory"], ignore_errors=True)


def _take_kernel(tree: Path, files: Path) -> tuple[str, list[str]]:
    """Copy the kernel of unpacked packages and the modules to load; return their names."""
    _, image = _largest(tree.glob("**/vmlinuz*"))
    folders = [path for path in tree.glob("**/modules/*") if (path / "kernel").is_dir()]
    if len(folders) != 1:
        raise FetchError(f"{image.name} has modules of {len(folders)} kernels")
    shutil.copy(image, files / "vmlinuz")
    found = {_module_name(path): path for path in folders[0].rglob("*.ko*")}
    contents = {name: _module(path) for name, path in found.items()}
    modules = load_order(contents, _MODULES)
    for name in modules:
        (files / f"{name}.ko").write_bytes(contents[name])
    return folders[0].name, modules


def _largest(paths: Iterable[Path]) -> tuple[int, Path]:
    found = [(path.stat().st_size, path) for path in paths if path.is_file()]
    if not found:
        raise FetchError("the kernel's packages hold no vmlinuz")
    return max(found)


def _module_name(path: Path) -> str:
    return path.name.partition(".")[0].replace("-", "_")


def _module(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def load_order(contents: Mapping[str, bytes], wanted: Sequence[str]) -> list[str]:
    """Return the wanted modules and what they depend on, in the order in which they load.

    ``contents`` are the modules' files by name; what is not among them is built into the kernel.
    The dependencies are those in .modinfo, from the source's symbols (scripts/mod/modpost.c).
    """
    order: list[str] = []
    for name in wanted:
        if name in contents and name not in order:
            match = re.search(rb"\0depends=([\w,-]*)\0", contents[name])
            needed = match[1].decode().replace("-", "_").split(",") if match else []
            for one in [*load_order(contents, needed), name]:
                if one not in order:
                    order.append(one)
    return order


def root(arch: str) -> Path:
    """Return the directory with the guests' root: ``root.ext4`` and ``busybox``.

    It is made anew where the list of packages in this module, or a package's version in Debian,
    is another one. Raises FetchError.
    """
    place = kernels_dir() / f"root{_suffix(arch)}"
    with _locked(place):
        known = _read(place / "root.json")
        made_of = repr((ROOT_SUITE, ROOT_PACKAGES, _DIRECTORIES))
        key = hashlib.sha256(made_of.encode()).hexdigest()[:16]
        if known is None or known["key"] != key or _stale(place / "root.json"):
            try:
                _renew_root(place, key, known, arch)
            except FetchError:
                if known is None or known["key"] != key:
                    raise
        facts = _read(place / "root.json")
        assert facts is not None
        return place / facts["directory"]


def _suffix(arch: str) -> str:
    return "" if arch == "amd64" else f"-{arch}"


def _renew_root(place: Path, key: str, known: Mapping[str, str] | None, arch: str) -> None:
    apt = _apt(ROOT_SUITE, arch)
    versions = apt.resolve(ROOT_PACKAGES)
    digest = hashlib.sha256(repr(sorted(versions.items())).encode()).hexdigest()
    directory = f"{key}-{digest[:16]}"
    if known is None or known["directory"] != directory:
        packages = apt.download_with_dependencies(ROOT_PACKAGES)
        wanted = {name: version.replace(":", "%3a") for name, version in versions.items()}
        with tempfile.TemporaryDirectory(prefix="make.", dir=place) as temporary:
            tree, files = Path(temporary) / "tree", Path(temporary) / "files"
            files.mkdir()
            _plant(tree)
            for package in packages:
                name, version = package.name.split("_")[:2]
                if wanted.get(name) == version:
                    unpack(package, tree)
                else:
                    package.unlink()
            _furnish(tree)
            shutil.copy(tree / "bin" / "busybox", files / "busybox")
            file_system(tree, files / "root.ext4", spare=64 << 20)
            shutil.rmtree(place / directory, ignore_errors=True)
            files.rename(place / directory)
    unfinished = place / "root.json.unfinished"
    unfinished.write_text(json.dumps({"key": key, "directory": directory}))
    unfinished.rename(place / "root.json")
    if known is not None and known["directory"] != directory:
        shutil.rmtree(place / known["directory"], ignore_errors=True)


def _plant(tree: Path) -> None:
    """Make the links by which Debian's top-level directories are those of /usr."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")


#: What no guest reads, a third of all bytes.
_SUPERFLUOUS = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/perl")


def _furnish(tree: Path) -> None:
    """Add what packages' scripts would have made, and compile Python's modules."""
    for name in _SUPERFLUOUS:
        shutil.rmtree(tree / name, ignore_errors=True)
    for name in _DIRECTORIES:
        (tree / name).mkdir(exist_ok=True)
    (tree / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (tree / "etc" / "group").write_text("root:x:0:\n")
    (tree / "etc" / "hostname").write_text("guest\n")
    if not (tree / "bin" / "sh").is_symlink():
        (tree / "bin" / "sh").symlink_to("dash")
    compile_modules(tree, "usr/lib/python3.11", "usr/lib/python3")


def compile_modules(tree: Path, *folders: str) -> None:
    """Compile Python modules with the tree's own interpreter, which the host's need not resemble.

    In the guest it would take minutes. What does not compile is left to be reported there. In a
    tree of another architecture the host's interpreter does it, if that is of the same release.
    """
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    libraries = tree / "usr" / "lib" / "x86_64-linux-gnu"
    if libraries.exists():
        loader = (tree / "lib64" / "ld-linux-x86-64.so.2", "--library-path", libraries)
        python: tuple[str | Path, ...] = (*loader, tree / "usr" / "bin" / "python3.11")
        env["PYTHONHOME"] = str(tree / "usr")
    elif shutil.which("python3.11"):
        python = ("python3.11",)
    else:
        return
    command = [str(word) for word in (*python, "-S", "-m", "compileall", "-q")]
    command += ["--invalidation-mode", "unchecked-hash", *folders]
    subprocess.run(command, cwd=tree, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


#: What ext4 takes for itself in a small file system, at most.
_OVERHEAD = 8 << 20


def file_system(tree: Path, image: Path, spare: int) -> None:
    """Write a tree as a sparse ext4 image with some bytes to spare. Raises FetchError."""
    program = shutil.which("mke2fs", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if program is None:
        raise FetchError("there is no mke2fs: install e2fsprogs")
    inodes = sum(len(names) + len(files) for _, names, files in os.walk(tree))
    used = sum(
        os.lstat(os.path.join(folder, name)).st_size + 4096
        for folder, names, files in os.walk(tree)
        for name in (*names, *files)
    )
    size = (used + inodes * 512 + spare + _OVERHEAD) // 1024
    command = [program, "-q", "-F", "-t", "ext4", "-d", str(tree), "-N", str(inodes + 4096)]
    # No journal: the guest's copy is thrown away.
    command += ["-O", "^has_journal", "-m", "0", str(image), f"{size}k"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise FetchError(f"mke2fs: {done.stderr.strip()}")


def initramfs(kernel: Kernel, busybox: Path, init: Path) -> bytes:
    """Return an initramfs that loads a kernel's modules and then runs the script ``init``."""
    entries: list[tuple[str, int, bytes]] = [
        *((name, stat.S_IFDIR | 0o755, b"") for name in ("bin", "modules", "dev", "root")),
        *((name, stat.S_IFDIR | 0o755, b"") for name in ("proc", "sys")),
        ("bin/busybox", stat.S_IFREG | 0o755, busybox.read_bytes()),
        ("init", stat.S_IFREG | 0o755, init.read_bytes()),
    ]
    for number, module in enumerate(kernel.modules):
        # Their names are in the order in which a shell lists them.
        entries.append((f"modules/{number:02}-{module.name}", stat.S_IFREG | 0o644, b""))
        entries[-1] = (*entries[-1][:2], module.read_bytes())
    return cpio(entries)


def cpio(entries: Sequence[tuple[str, int, bytes]]) -> bytes:
    """Return an archive of (name, mode, content) in the kernel's initramfs format.

    Source: Documentation/driver-api/early-userspace/buffer-format.rst.
    """
    archive = io.BytesIO()
    for number, (name, mode, content) in enumerate([*entries, ("TRAILER!!!", 0, b"")], 1):
        encoded = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
        archive.write(b"070701" + b"".join(b"%08X" % field for field in fields) + encoded)
        archive.write(bytes(-archive.tell() % 4) + content)
        archive.write(bytes(-archive.tell() % 4))
    return archive.getvalue()


def _apt(suite: str, arch: str) -> PrivateApt:
    """Return an apt whose list of packages is not old. Raises FetchError."""
    place = kernels_dir() / f"apt-{suite}{_suffix(arch)}"
    apt = PrivateApt(suite, place, arch)
    updated = place / "updated"
    place.mkdir(parents=True, exist_ok=True)
    with _locked(place):
        if not updated.exists() or _stale(updated):
            apt.update()
            updated.touch()
    return apt


def _stale(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _STALE_DAYS * 86400


def _read(path: Path) -> dict[str, str] | None:
    try:
        facts: dict[str, str] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return facts


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold a place in the cache against every other process."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
