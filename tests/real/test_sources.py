# SPDX-License-Identifier: Apache-2.0
"""Programs with full DWARF: all functions, sites and places, and what they do when they run."""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gotrace.elf.functions import load_functions
from gotrace.elf.image import ElfImage
from tests.abi.test_locations import verdicts
from tests.real.report import figures
from tests.real.sources import SOURCES, built, compiler
from tests.real.walk import functions_of, gosym, walk
from tests.tools.harness import Process, Result, elided, json_counts, of_kind, run_tool, tool
from tests.tools.latency import histograms
from tests.tools.trace import calls_of

each_program = pytest.mark.parametrize("name", [source.name for source in SOURCES])


@each_program
def test_functions_and_sites(name: str) -> None:
    path = built(name)
    with ElfImage.open(path) as image:
        functions = functions_of(load_functions(image))
        start = functions[0].entry
        # The table of this release leaves out what generic names have in brackets.
        ours = [(found.entry - start, elided(found.name)) for found in functions]
        assert ours == [(entry, elided(text)) for entry, text in gosym(path)]
        symbols = text_symbols(path)
        # The end of the text is no function; some have a second name.
        assert {address for address, text in symbols if text != "runtime.etext"} == {
            function.entry for function in functions
        }
        found = walk(image, functions)
    figures(
        f"source: {name}",
        functions=len(functions),
        symbols=len(symbols),
        instructions=found.instructions,
        forms={form.value: count for form, count in found.forms.items()},
        returns=found.returns,
        resolved=len(found.resolved),
        problems=dict(found.problems),
    )
    assert found.wrong == []
    assert found.missed == []
    assert sum(found.forms.values()) > 0.99 * len(functions)


def text_symbols(path: Path) -> list[tuple[int, str]]:
    """Return (address, name) of the text symbols that ``go tool nm`` lists."""
    command = [str(compiler().go), "tool", "nm", str(path)]
    done = subprocess.run(command, env=compiler().env(), capture_output=True, text=True, check=True)
    rows = (line.split(None, 2) for line in done.stdout.splitlines())
    return [(int(row[0], 16), row[2]) for row in rows if len(row) == 3 and row[1] in "Tt"]


@each_program
def test_places_of_all_parameters(name: str) -> None:
    counts, wrong = verdicts(built(name), compiler())
    figures(f"places: {name}", **counts)
    assert wrong == []
    assert counts["agree"] > 10_000
    assert counts["another parameter's place"] + counts["not told"] < counts["agree"] / 1000
    assert counts["spill slot"] + counts["DWARF has none"] < counts["agree"] / 10


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def wait_for(url: str, process: Process) -> None:
    """Ask until somebody answers; a server that has ended fails the test."""
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            assert Path(f"/proc/{process.pid}/exe").exists(), process.errors


def ask(url: str, body: object = None) -> tuple[int, str]:
    """Return the status and text of an answer."""
    data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@contextmanager
def traced(pid: int, counted: Sequence[str], shown: Sequence[str]) -> Iterator[list[Result]]:
    """Count, measure and show functions of a process at once; yield what the tools will say."""
    words = ("--json", "-p", str(pid))
    results: list[Result] = []
    with (
        tool("gofunccount", *words, *counted) as counting,
        tool("gofunclatency", *words, "-F", *counted) as measuring,
        tool("gotrace", *words, "--depth", "2", *shown) as tracing,
    ):
        yield results
        results += [counting.end(), measuring.end(), tracing.end()]


KV = "go.etcd.io/etcd/etcdserver/api/v3rpc.(*kvServer)"
APPLY = "go.etcd.io/etcd/etcdserver.(*applierV3backend).Put"


def text(word: str) -> str:
    return base64.b64encode(word.encode()).decode()


@pytest.mark.live
def test_etcd_at_work(tmp_path: Path) -> None:
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command: list[str | Path] = [built("etcd"), "--data-dir", tmp_path / "data"]
    command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
    command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
    command += [f"--initial-cluster=default={peer}"]
    puts, gets = 40, 25
    with Process(command, stdout=-3) as server:
        wait_for(f"{client}/health", server)
        names = [f"{KV}.Put", f"{KV}.Range", APPLY]
        with traced(server.pid, names, names) as results:
            url = f"{client}/v3/kv"
            for number in range(puts):
                status, _ = ask(f"{url}/put", {"key": text(f"k{number}"), "value": text("v")})
                assert status == 200
            for number in range(gets):
                assert ask(f"{url}/range", {"key": text(f"k{number}")})[0] == 200
            assert ask(f"{url}/put", {"key": "", "value": text("v")})[0] == 400
    counted, measured, shown = results
    # An empty key is refused before it is proposed and applied.
    wanted = {f"{KV}.Put": puts + 1, f"{KV}.Range": gets, APPLY: puts}
    assert json_counts(counted) == wanted
    assert {name: row["count"] for name, row in histograms(measured).items()} == wanted
    assert Counter(call["func"] for call in of_kind(shown, "call")) == wanted
    assert of_kind(shown, "lost") == []
    assert_puts(calls_of(shown, f"{KV}.Put"), puts)
    figures("live: etcd from source", **wanted)


def assert_puts(calls: list[dict[str, Any]], puts: int) -> None:
    """Hold the decoded requests, answers and errors against what was asked for."""
    *good, refused = calls
    keys = [as_text(call["args"]["r"]["Key"]) for call in good]
    assert keys == [f"k{number}" for number in range(puts)]
    assert all(as_text(call["args"]["r"]["Value"]) == "v" for call in calls)
    headers = [call["results"]["$ret1"]["Header"] for call in good]
    assert [header["Revision"] for header in headers] == list(range(2, puts + 2))
    assert all(call["results"]["$ret2"] is None for call in good)
    assert refused["results"]["$ret1"] is None
    assert "key is not provided" in json.dumps(refused["results"]["$ret2"])


def as_text(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, list) else str(value)


GIN = "github.com/gin-gonic/gin"


@pytest.mark.live
def test_gin_at_work() -> None:
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}/user"
    names = ["main.lookup", f"{GIN}.(*Context).Render", f"{GIN}/binding.decodeJSON"]
    with Process([built("gin"), address], stdout=-3) as server:
        wait_for(f"{url}/first", server)
        with traced(server.pid, names, names) as results:
            for name in ("bob", "alice", "eve"):
                assert ask(f"{url}/{name}")[0] == 200
            assert ask(f"{url}/nobody")[0] == 404
            assert ask(url, {"name": "mallory"})[0] == 201
            assert ask(url, {"name": 7})[0] == ask(url, '{"name":')[0] == 400
    counted, measured, shown = results
    wanted = dict(zip(names, (4, 7, 3), strict=True))
    assert json_counts(counted) == wanted
    assert {name: row["count"] for name, row in histograms(measured).items()} == wanted
    assert Counter(call["func"] for call in of_kind(shown, "call")) == wanted
    assert_looked_up([call["results"] for call in calls_of(shown, names[0])])
    given = [call["args"] for call in calls_of(shown, names[1])]
    assert [args["code"] for args in given] == [200, 200, 200, 404, 201, 400, 400]
    types = ["JSON"] * 4 + ["String"] * 3
    assert [args["r"]["$type"] for args in given] == [f"{GIN}/render.{name}" for name in types]
    errors = [next(iter(call["results"].values())) for call in calls_of(shown, names[2])]
    assert [error and error["$type"] for error in errors] == [
        None,
        "*encoding/json.UnmarshalTypeError",
        "*errors.errorString",
    ]
    assert errors[2]["$error"] == "unexpected EOF"
    figures("live: gin from source", **wanted)


def assert_looked_up(results: list[dict[str, Any]]) -> None:
    """Hold structs behind pointers, and a wrapped error, against what the program made of names."""
    *found, missing = results
    names = ("bob", "alice", "eve")
    assert [result["$ret1"] for result in found] == [
        {"Name": name, "Age": len(name), "Roles": ["reader", name]} for name in names
    ]
    assert all(result["$ret2"] is None for result in found)
    error = missing["$ret2"]
    assert error["$error"] == 'lookup "nobody": no such user'
    assert error["$value"]["err"]["$error"] == "no such user"


@pytest.mark.live
def test_esbuild_at_work(tmp_path: Path) -> None:
    files = {"a.js": 'import {b} from "./b.js"\nconsole.log(b)\n', "b.js": "export const b = 1\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    parse = "github.com/evanw/esbuild/internal/js_parser.Parse"
    command = ("--", built("esbuild"), "--bundle", str(tmp_path / "a.js"))
    probe = f'{parse} "<%s> %d bytes: %t", source.KeyPath.Text, len(source.Contents), $ret2'
    result = run_tool("gotrace", probe, *command)
    assert result.status == 0, result.errors
    said = set(re.findall(r" <(.*)> (\d+) bytes: (\w+)\n", "".join(result.lines)))
    for name, content in files.items():
        assert (str(tmp_path / name), str(len(content)), "true") in said
    figures("live: esbuild from source", parsed=len(said))
