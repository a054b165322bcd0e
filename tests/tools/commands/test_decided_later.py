# SPDX-License-Identifier: Apache-2.0
"""Add up calls that a predicate wants which the kernel does not decide, as gotrace shows them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.toolchains import newest
from tests.tools.harness import Fixture, of_kind, run_tool, tool

pytestmark = pytest.mark.live

#: Its answers are in interfaces, as those of net/http are.
_SOURCE = r"""package main

import (
	"encoding/json"
	"fmt"
	"os"
)

type answer struct{ status int }
type stream struct{ status int64 }

//go:noinline
func handle(w any, path string, status int) {
	switch to := w.(type) {
	case *answer:
		to.status = status
	case *stream:
		to.status = int64(status)
	}
}

func main() {
	truth := map[string]int{}
	fmt.Println("ready", os.Getpid())
	fmt.Scanln()
	for n := 0; n < 97; n++ {
		status, path := 200+100*(n%4), fmt.Sprint("/", n%3)
		handle(&answer{}, path, status)
		handle(&stream{}, path, status)
		handle(nil, path, status)
		if status >= 400 {
			truth[path]++
		}
	}
	text, _ := json.Marshal(truth)
	fmt.Printf("truth %s\n", text)
	fmt.Scanln()
}
"""


def _program(directory: Path) -> Path:
    (directory / "later.go").write_text(_SOURCE)
    command = f"{newest().go} build later.go"
    subprocess.run(command.split(), check=True, cwd=directory, env=newest().env())
    return directory / "later"


def test_by_a_field_of_what_an_interface_holds(tmp_path: Path) -> None:
    probe = "main.handle ($exit(w.(*main.answer).status) >= 400)"
    by = ("--json", "--by", "path")
    with (
        Fixture([_program(tmp_path)]) as fixture,
        tool("gofunccount", *by, "-p", str(fixture.ready), probe) as counting,
        tool("gofunclatency", *by, "-p", str(fixture.ready), probe) as measuring,
        tool("gofunclatency", *by, "--of", "status", "-p", str(fixture.ready), probe) as adding,
        tool("gofunccount", *by, "--rows", "1", "-p", str(fixture.ready), probe) as full,
        tool("gotrace", "--json", "-p", str(fixture.ready), probe) as tracing,
    ):
        truth = fixture.work()
        results = [one.end() for one in (counting, measuring, adding)]
        without_room, shown = full.end(), tracing.end()
        assert fixture.finish() == 0
    for result in results:
        rows = of_kind(result, "count") or of_kind(result, "histogram")
        assert {row["by"]["path"]: row["count"] for row in rows} == truth
        assert not of_kind(result, "lost")
    assert len(of_kind(shown, "call")) == sum(truth.values())
    (said,) = (
        row["message"] for row in of_kind(without_room, "summary") if row["what"] == "others"
    )
    assert said.endswith("; nobody knows whether the predicate wants them")


def test_what_a_key_does_not_have_whole_is_refused(tmp_path: Path) -> None:
    path = shutil.copy(_program(tmp_path), tmp_path / "other")
    for probe in ('main.handle (path < "/2")', "main.handle (w.(*main.answer).status < 3)"):
        result = run_tool("gofunccount", "--by", "path", f"{path}:{probe}", "-d", "0.05")
        is_text = "path" in probe
        assert result.status == (2 if is_text else 0), result.errors
        assert ("the kernel cannot decide this" in result.errors) is is_text
