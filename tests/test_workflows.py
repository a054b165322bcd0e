# SPDX-License-Identifier: Apache-2.0
"""What the workflows run is there, and a release has all that is installed from."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

CLONE = Path(__file__).parent.parent
WORKFLOWS = sorted((CLONE / ".github" / "workflows").glob("*.yml"))

Json = dict[Any, Any]


def read(path: Path) -> Json:
    found: Json = yaml.safe_load(path.read_text())
    return found


def steps(path: Path) -> list[Json]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def scripts(path: Path) -> list[str]:
    return [step["run"] for step in steps(path) if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_what_is_run_is_there(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CLONE / "Makefile").read_text(), re.MULTILINE))
    asked = {
        word
        for script in scripts(path)
        for words in re.findall(r"^make (.*)$", script, re.MULTILINE)
        for word in words.split()
        if "=" not in word
    }
    assert asked and asked <= targets
    for script in scripts(path):
        assert subprocess.run(["bash", "-n", "-c", script]).returncode == 0
        for name in re.findall(r"build -f (\S+)", script):
            assert (CLONE / name).is_file(), name


#: What a job may do beside reading the repository, by its workflow and name.
RIGHTS = {
    ("release.yml", "release"): {"contents": "write", "id-token": "write", "attestations": "write"},
    ("release.yml", "image"): {"packages": "write", "id-token": "write", "attestations": "write"},
    ("release.yml", "wheels"): {"id-token": "write"},
}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_jobs_end_and_have_few_rights(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 360
        rights = {"contents": "read", **RIGHTS.get((path.name, name), {})}
        assert job.get("permissions", workflow["permissions"]) == rights


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_commits_and_a_bot_moves_them(path: Path) -> None:
    """A tag can be moved to another commit. The comment is for the bot, and for readers."""
    used = re.findall(r"uses: (.*)$", path.read_text(), re.MULTILINE)
    assert len(used) == sum("uses" in step for step in steps(path))
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action) for action in used)
    bot = read(CLONE / ".github" / "dependabot.yml")
    assert [one["package-ecosystem"] for one in bot["updates"]] == ["github-actions"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_scripts_take_no_text_of_others(path: Path) -> None:
    """What an expression stands for would be run: scripts have variables of the environment."""
    assert not any("${{" in script for script in scripts(path))


def test_a_release_is_tested_before_it_is_attached() -> None:
    path = CLONE / ".github" / "workflows" / "release.yml"
    # YAML 1.1 reads the key "on" as true.
    assert read(path)[True] == {"push": {"tags": ["v*"]}}
    jobs = read(path)["jobs"]
    text = "\n".join(step.get("run") or step["uses"] for step in jobs["release"]["steps"])
    order = ["make test\n", "make test-install", "ARCH=arm64", "diff -r first", "podman build"]
    order += [
        "anchore/sbom-action@",
        "deploy/krew",
        "sha256sum --",
        "actions/attest-build-provenance@",
    ]
    order += ["gotrace.intoto.jsonl", "gh release create"]
    places = [text.index(step) for step in order]
    assert places == sorted(places)
    assert text.endswith("dist/*")
    # The second build takes nothing that the first has compiled: see CACHE in the Makefile.
    (builds,) = (one for one in scripts(path) if "diff -r first" in one)
    made = re.findall(r"^make .*$", builds, re.MULTILINE)
    assert len(made) == 2 and all('CACHE="$second"' in line for line in made)
    assert 'second="$(sudo mktemp -d)"' in builds
    # What publishes comes after that, and only where the repository asks for it.
    for name, variable in (("image", "vars.IMAGE"), ("wheels", "vars.PUBLISH")):
        assert jobs[name]["needs"] == "release" and variable in jobs[name]["if"]
        assert jobs[name]["environment"] == "release"
    signed = "\n".join(step.get("run", "") for step in jobs["image"]["steps"])
    assert 'cosign sign --yes "$IMAGE@$DIGEST"' in signed and "--key" not in signed


def test_kernels_are_tried_each_night_on_both_architectures() -> None:
    path = CLONE / ".github" / "workflows" / "nightly.yml"
    assert set(read(path)[True]) == {"schedule", "workflow_dispatch"}
    assert read(path)["jobs"]["kernels"]["strategy"]["matrix"]["arch"] == ["amd64", "arm64"]
    assert scripts(path) == ['make test-kernels-quick ARCH="$ARCH"']


def test_a_release_is_attached_with_notes() -> None:
    text = "\n".join(scripts(CLONE / ".github" / "workflows" / "release.yml"))
    notes = re.search(r"--notes-file (\S+)", text)
    assert notes is not None and (CLONE / notes[1]).is_file()


def test_a_wheel_is_made_with_the_cache_that_make_is_given() -> None:
    words = ["make", "-n", "bundle", "CACHE=/second", "WHEEL=x.whl"]
    made = subprocess.run(words, cwd=CLONE, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in made.splitlines() if "package.py wheel" in line)
    assert 'XDG_CACHE_HOME="/second" .venv/bin/python tools/package.py' in line


def test_an_sbom_is_made_of_unpacked_files(tmp_path: Path) -> None:
    """syft finds Python's packages by METADATA in *.dist-info, which it seeks in folders alone."""
    path = CLONE / ".github" / "workflows" / "release.yml"
    (script,) = (one for one in scripts(path) if "zipfile" in one)
    of_files, _ = (step["with"] for step in steps(path) if "sbom" in step.get("uses", ""))
    names = ("a.whl", "b.whl", "a.tar.gz", "b.tar.gz")
    (tmp_path / "dist").mkdir()
    for name in names:
        metadata = f"gotrace/lib/{name}.dist-info/METADATA"
        if name.endswith(".whl"):
            with zipfile.ZipFile(tmp_path / "dist" / name, "w") as wheel:
                wheel.writestr(metadata, name)
        else:
            with tarfile.open(tmp_path / "dist" / name, "w:gz") as bundle:
                member = tarfile.TarInfo(metadata)
                member.size = len(name)
                bundle.addfile(member, io.BytesIO(name.encode()))
    (tmp_path / "dist" / "a.deb").touch()
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    scanned = tmp_path / of_files["path"]
    found = [one.read_text() for one in scanned.rglob("*.dist-info/METADATA")]
    assert sorted(found) == sorted(names)
    assert (scanned / "a.deb").is_file() and of_files["output-file"].startswith("dist/")


def test_a_release_has_a_manifest_that_krew_takes(tmp_path: Path) -> None:
    """By krew's own checks: internal/index/validation, and how it unpacks (internal/download)."""
    (tmp_path / "dist").mkdir()
    for arch in ("amd64", "arm64"):
        (tmp_path / "dist" / f"gotrace-{arch}.tar.gz").write_text(arch)
    (tmp_path / "deploy").symlink_to(CLONE / "deploy")
    (script,) = (one for one in scripts(WORKFLOWS[-1]) if "krew" in one)
    home = {"GOTRACE_HOME": "https://example.com/a/gotrace", "GITHUB_REF_NAME": "v0.1.0"}
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env={**os.environ, **home}, check=True)
    manifest = read(tmp_path / "dist" / "gotrace.yaml")
    assert set(manifest) == {"apiVersion", "kind", "metadata", "spec"}
    assert manifest["apiVersion"] == "krew.googlecontainertools.github.com/v1alpha2"
    assert manifest["kind"] == "Plugin" and manifest["metadata"] == {"name": "gotrace"}
    spec = manifest["spec"]
    assert set(spec) == {
        *("version", "homepage", "shortDescription", "description", "caveats", "platforms"),
    }
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert spec["homepage"] == home["GOTRACE_HOME"]
    assert "\n" not in spec["shortDescription"]
    assert len(spec["shortDescription"]) <= 50  # krew's guide to names and texts
    for arch, platform in zip(("amd64", "arm64"), spec["platforms"], strict=True):
        assert set(platform) == {"selector", "uri", "sha256", "bin"}
        assert platform["selector"] == {"matchLabels": {"os": "linux", "arch": arch}}
        assert platform["sha256"] == hashlib.sha256(arch.encode()).hexdigest()
        release = f"{spec['homepage']}/releases/download/v0.1.0"
        assert platform["uri"] == f"{release}/gotrace-{arch}.tar.gz"
        assert platform["bin"] == "gotrace/bin/gofleet"
    assert not re.search(r"VERSION|HOME|SHA256_", (tmp_path / "dist" / "gotrace.yaml").read_text())
