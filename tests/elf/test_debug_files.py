# SPDX-License-Identifier: Apache-2.0
"""Find debug files that binutils made, and refuse those of other builds."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import gotrace
from gotrace.abi.function_values import FunctionValues
from gotrace.abi.locations import SignatureSource
from gotrace.elf.image import ElfImage
from gotrace.errors import UsageError
from gotrace.gotypes.binary import Binary
from tests.toolchains import FIXTURES, Toolchain, build, each_of, newest, toolchain
from tests.tools.harness import Fixture, run_tool, tool

PROGRAM = FIXTURES / "dwarf_generics"
_GNU_ID = "0123456789abcdef0123456789abcdef01234567"
_SWAPPED = """package main

type T struct{ A, B int }

//go:noinline
func f(t *T) *T { return t }

func main() { f(&T{1, 2}) }
"""
RELEASES = [found for minor in ("1.19", "1.21", "1.27") if (found := toolchain(minor)) is not None]


class Stripped:
    """A program without debugging information, and the file that has it, apart from it."""

    def __init__(self, folder: Path, whole: Path, *options: str, link: bool = True) -> None:
        self.whole, self.program = whole, folder / "app"
        self.debug = folder / "app.debug"
        objcopy("--only-keep-debug", *options, whole, self.debug)
        subprocess.run(["strip", "-o", self.program, whole], check=True)
        if link:
            objcopy(f"--add-gnu-debuglink={self.debug}", self.program)

    def moved(self, to: Path) -> Path:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(self.debug, to)
        return to


class Rooted(Binary):
    """A binary whose debug files are searched in a folder of the test's."""

    def __init__(self, path: Path, root: str) -> None:
        super().__init__(ElfImage.open(path))
        self.root = root

    @property
    def debug_roots(self) -> tuple[str, ...]:
        return (self.root,)


def objcopy(*words: str | Path) -> None:
    subprocess.run(["objcopy", *words], check=True)


def with_gnu_id(found: Toolchain) -> Path:
    return build(PROGRAM, found, flags=["-ldflags", f"-B 0x{_GNU_ID}"])


def signatures(path: Path, root: str = "") -> list[str]:
    """Return the places of the values of all functions of the program."""
    with Rooted(path, root) as binary:
        values = FunctionValues(binary)
        table = binary.functions
        rows = [row for row, name in enumerate(table.names) if name.startswith("main.")]
        places = [values.of(table.function(row), None) for row in rows]
        assert values.problem is None
        return [repr((one.parameters, one.results, one.source)) for one in places]


@each_of(RELEASES, pytest.mark.slow)
@pytest.mark.parametrize("option", ["", "--compress-debug-sections", "--decompress-debug-sections"])
def test_values_are_those_of_the_whole_program(
    toolchain: Toolchain, option: str, tmp_path: Path
) -> None:
    made = Stripped(tmp_path, build(PROGRAM, toolchain), *filter(None, [option]))
    found = signatures(made.program)
    assert "SignatureSource.DWARF" in found[0]
    assert found == signatures(made.whole)


def test_where_debug_files_are(tmp_path: Path) -> None:
    made = Stripped(tmp_path, with_gnu_id(newest()))
    whole, root, at = signatures(made.whole), tmp_path / "root", str(tmp_path)
    for place in (
        f"{at}/app.debug",
        f"{at}/.debug/app.debug",
        f"{root}/usr/lib/debug{at}/app.debug",
        f"{root}/usr/lib/debug/.build-id/{_GNU_ID[:2]}/{_GNU_ID[2:]}.debug",
    ):
        made.debug = made.moved(Path(place))
        searched = str(root) if place.startswith(str(root)) else ""
        assert signatures(made.program, searched) == whole, place
    assert signatures(made.program) != whole  # it is below the other root


def test_files_of_other_builds_are_refused(tmp_path: Path) -> None:
    whole = build(PROGRAM, newest(), flags=["-ldflags", "-B none"])
    other = build(PROGRAM, newest(), flags=["-ldflags", "-B none -X main.x=y"])
    made = Stripped(tmp_path, whole)
    objcopy("--only-keep-debug", other, made.debug)
    with Binary(ElfImage.open(made.program)) as binary:
        assert binary.dwarf is None
        problem = binary.dwarf_problem or ""
        assert problem.startswith(f"{made.debug} is not the debug file of {made.program}")
        assert "its build ID is " in problem
    # Without build IDs the link's CRC decides.
    for path in (made.program, made.debug):
        objcopy("--remove-section=.note.go.buildid", path)
    with Binary(ElfImage.open(made.program)) as binary:
        assert binary.dwarf is None
        assert "its CRC is " in (binary.dwarf_problem or "")
        with pytest.raises(UsageError, match="has no debugging information"):
            binary.take_debug_file(str(made.program))
        objcopy("--remove-section=.gnu_debuglink", made.program)
    unsure = pytest.raises(UsageError, match="nothing says that they are of one build")
    with Binary(ElfImage.open(made.program)) as binary, unsure:
        binary.take_debug_file(str(made.debug))


@each_of([found for minor in ("1.21", "1.24") if (found := toolchain(minor)) is not None])
@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("-buildid=redacted", "its build ID is 'redacted', which other builds have too"),
        (f"-buildid=redacted -B 0x{_GNU_ID}", "its build ID is 'redacted'"),
        (f"-buildid= -B 0x{_GNU_ID}", "its Go build ID is empty, which other builds have too"),
        (f"-B 0x{_GNU_ID}", "its build ID is "),
    ],
)
def test_build_ids_that_all_programs_have_are_not_believed(
    toolchain: Toolchain, flags: str, why: str, tmp_path: Path
) -> None:
    """Only the source of the programs differs, and not in code: no address says it."""
    wholes = []
    for name, fields in (("a", "A, B"), ("b", "B, A")):
        source = tmp_path / name / "main.go"
        source.parent.mkdir()
        source.write_text(_SWAPPED.replace("A, B", fields))
        wholes.append(build(source, toolchain, flags=["-trimpath", "-ldflags", flags]))
    made = Stripped(tmp_path, wholes[0], link=False)
    own = made.moved(tmp_path / "own.debug")
    objcopy("--only-keep-debug", wholes[1], made.debug)
    is_real = "-buildid" not in flags
    with Binary(ElfImage.open(made.program)) as binary:
        with pytest.raises(UsageError, match=why):
            binary.take_debug_file(str(made.debug))
        if is_real:
            binary.take_debug_file(str(own))
        else:
            with pytest.raises(UsageError, match=why):
                binary.take_debug_file(str(own))
    # The CRC is of one file alone.
    objcopy(f"--add-gnu-debuglink={own}", made.program)
    with Binary(ElfImage.open(made.program)) as binary:
        with pytest.raises(UsageError, match=why if is_real else "its CRC is "):
            binary.take_debug_file(str(made.debug))
        assert binary.debug_image.path == str(own)


def test_a_file_that_the_user_linked_by_mistake(tmp_path: Path) -> None:
    """objcopy writes the CRC of any file, so that names and addresses are compared as well."""
    longer = f"func f(t *T) *T {{ {'t.A = t.A*t.B + 7;' * 20} return t }}"
    wholes = []
    for name, old, new in (
        ("a", "", ""),
        ("renamed", "f(", "g("),
        ("longer", "func f(t *T) *T { return t }", longer),
    ):
        source = tmp_path / name / "main.go"
        source.parent.mkdir()
        source.write_text(_SWAPPED.replace(old, new))
        flags = ["-trimpath", "-ldflags", "-buildid=redacted"]
        wholes.append(build(source, newest(), flags=flags))
    made = Stripped(tmp_path, wholes[0], link=False)
    for whole, function, name in (
        (wholes[1], "main.f", "main.g at the address of main.f"),
        (wholes[2], "main.main", "has no function at its address"),
    ):
        objcopy("--only-keep-debug", whole, made.debug)
        linked = tmp_path / "linked"
        objcopy(f"--add-gnu-debuglink={made.debug}", made.program, linked)
        with Binary(ElfImage.open(linked)) as binary:
            values, table = FunctionValues(binary), binary.functions
            asked = table.function(list(table.names).index(function))
            assert SignatureSource.DWARF not in (
                values.source(asked),
                values.of(asked, None).source,
            )
            assert name in f"{values.problem} {values.why_unknown(asked)}"


def test_a_file_that_the_user_names(tmp_path: Path) -> None:
    made = Stripped(tmp_path, build(PROGRAM, newest()), link=False)
    probe = f"{made.program}:main.Each*"
    moved = made.moved(tmp_path / "kept" / "any name")
    shown = run_tool("gotrace", "-l", probe, "--debug-file", moved)
    assert shown.status == 0, shown.errors
    note = f"the debugging information of {made.program} is that of {moved}"
    assert note in shown.errors
    for tried, why in ((made.program, "it has no debugging information"), ("/none", "No such")):
        refused = run_tool("gotrace", "-l", probe, "--debug-file", tried)
        assert refused.status == 2, refused.errors
        assert refused.errors.count("\n") == 1 and why in refused.errors
        with pytest.raises(gotrace.UsageError, match=why):
            gotrace.path(made.program, debug_file=str(tried)).functions("main.*")
    assert "is that of" not in run_tool("gotrace", "-l", probe).errors


@pytest.mark.live
def test_the_file_is_in_the_mount_namespace_of_the_process(tmp_path: Path) -> None:
    whole = build(FIXTURES / "trace_generics", newest(), flags=["-ldflags", f"-B 0x{_GNU_ID}"])
    made = Stripped(tmp_path, whole, link=False)
    hidden = made.moved(tmp_path / ".build-id" / _GNU_ID[:2] / f"{_GNU_ID[2:]}.debug")
    inside = f"mkdir -p /usr/lib/debug; mount --bind {tmp_path} /usr/lib/debug; exec {made.program}"
    with Fixture(["unshare", "-m", "sh", "-c", inside]) as fixture:
        pid = fixture.ready
        with tool("gotrace", "-v", "-p", str(pid), "main.take[*") as tracing:
            truth = fixture.work()
            result = tracing.end()
        assert fixture.finish() == 0
    assert result.status == 0, result.errors
    assert f"/proc/{pid}/root/usr/lib/debug/.build-id/" in result.errors
    assert truth["Calls"][0] in "".join(result.lines).replace(
        "go.shape.struct { X int; Y int }", "..."
    )
    assert os.path.exists(hidden)
