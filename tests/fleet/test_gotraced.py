# SPDX-License-Identifier: Apache-2.0
"""gotraced on a real program: its numbers are those that the program has counted itself."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from gotrace.fleet.gotraced import main
from tests.toolchains import build, newest
from tests.tools.harness import Fixture, Process, code_of, run_tool, tool_command

FIXTURES = Path(__file__).parent.parent / "fixtures"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


@pytest.fixture(scope="module")
def keys() -> Path:
    return build(FIXTURES / "live_keys", newest())


@pytest.fixture
def server(keys: Path, tmp_path: Path) -> Path:
    """Return a copy of the program of its own: others trace the same one by its path."""
    return Path(shutil.copy(keys, tmp_path / "server"))


class Daemon(Process):
    """gotraced, listening on a port that it has chosen, with its log at hand."""

    def __init__(
        self,
        config: Path,
        *options: str,
        probes: int,
        within: Sequence[str | Path] = (),
        **more: Any,
    ) -> None:
        """``within`` are the words of a command that executes it."""
        command = [*within, *tool_command("gotraced", "--config", str(config), *options)]
        super().__init__(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
        self.port = int(self.read_until("gotraced: INFO: listening on 127.0.0.1:")[0])
        rest, self.log = self.read_until(f"gotraced: INFO: {probes} probes attached")
        self.log.append(rest)

    def get(self, path: str, accept: str = "") -> str:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"Accept": accept}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: str = answer.read().decode()
            return text

    def samples(self) -> Samples:
        """Scrape, in both formats, which must say the same of the configuration's metrics."""
        found = parsed(plain(self.get("/metrics")))
        text = self.get("/metrics", OPENMETRICS)
        again = parsed(openmetrics(text))  # type: ignore[no-untyped-call]
        for name, rows in found.items():
            if not name.startswith(("gotraced_", "process_")):
                assert again[name] == rows, name
        return found

    def end(self) -> None:
        self.signal(signal.SIGTERM)
        assert self.wait() == 0

    def __enter__(self) -> Daemon:
        return self


def parsed(families: Any) -> Samples:
    found: Samples = {}
    for family in families:
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "target"}
            found.setdefault(sample.name, {})[tuple(sorted(labels.items()))] = sample.value
    return found


def by(name: str, values: dict[str, int]) -> dict[tuple[tuple[str, str], ...], float]:
    return {((name, value),): float(count) for value, count in values.items()}


def configured(path: Path, server: Path, metrics: str, more: str = "budget: 100%") -> Path:
    file = path / "gotraced.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: keys, exe: {server}}}]\n"
        f"metrics:\n{metrics}\n{more}\nerrors: text\n"
    )
    file.chmod(0o600)
    return file


def calls_of(server: Path, order: str) -> dict[str, Any]:
    """Run the program once, from its start to its end, and return what it has counted."""
    with Fixture([server]) as fixture:
        truth = fixture.work(order)
        fixture.finish()
    return truth


def wait_until(is_so: Callable[[], bool]) -> None:
    """Ask again and again, for at most a minute."""
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


METRICS = """\
  - {name: handles, type: counter, probe: main.handle}
  - {name: handle_seconds, type: histogram, probe: main.handle}
  - {name: errors, type: counter, probe: main.handle, labels: {error: $ret2}}
  - {name: shards, type: counter, probe: main.handle (shard > 2), labels: {shard: shard}}
  - {name: few, type: counter, probe: main.handle, labels: {shard: shard}, series: 4}
  - {name: key_bytes, type: histogram, probe: main.handle, of: len(key), buckets: {from: 1, to: 64}}
  - {name: vias, type: counter, probe: main.via*, functions: true}"""


@pytest.mark.live
@pytest.mark.apart
def test_numbers_are_the_programs_own_over_restarts(server: Path, tmp_path: Path) -> None:
    check_numbers(server, tmp_path)


def check_numbers(server: Path, tmp_path: Path) -> int:
    """Hold all kinds of metrics to what two processes have counted; return how many calls."""
    config = configured(tmp_path, server, METRICS)
    with Daemon(config, probes=7) as daemon:
        assert daemon.get("/healthz") == daemon.get("/readyz") == "ok\n"
        assert daemon.samples()["handles_total"] == {(): 0}
        total: Counter[str] = Counter()
        shards: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        keys: Counter[str] = Counter()
        for _ in range(2):  # the second process is another one, and the counters go on
            truth = calls_of(server, "2 300 10")
            total.update(calls=truth["Calls"], first=truth["First"])
            shards.update(truth["Shards"])
            errors.update(truth["Errors"])
            keys.update(truth["Keys"])
            found = daemon.samples()
            calls = {(): total["calls"]}
            assert found["handles_total"] == found["handle_seconds_count"] == calls
            assert found["errors_total"] == by("error", errors)
            wanted = {shard: count for shard, count in shards.items() if int(shard) > 2}
            assert found["shards_total"] == by("shard", wanted)
            few = found["few_total"]
            others = few.pop((("shard", "others"),))
            assert few.items() <= by("shard", shards).items()
            assert (len(few), sum(few.values()) + others) == (4, total["calls"])
            assert found["gotraced_metric_others_total"][(("metric", "few"),)] == others
            assert found["key_bytes_count"] == calls
            assert found["key_bytes_sum"] == {(): sum(len(k) * n for k, n in keys.items())}
            buckets = {dict(at)["le"]: n for at, n in found["key_bytes_bucket"].items()}
            below = {bound: sum(n for k, n in keys.items() if len(k) < bound) for bound in (8, 64)}
            assert {bound: buckets[f"{bound}.0"] for bound in below} == below
            assert buckets["+Inf"] == total["calls"]
            first, second = total["first"], total["calls"] - total["first"]
            assert found["vias_total"] == by(
                "function", {"main.viaFirst": first, "main.viaSecond": second}
            )
        hits = found["gotraced_probe_hits_total"]
        assert hits[(("probe", "handles"),)] == total["calls"]
        assert hits[(("probe", "handle_seconds"),)] >= 2 * total["calls"]
        cost = found["gotraced_probe_cost_seconds_total"]
        assert 0 < cost[(("probe", "handles"),)] < cost[(("probe", "handle_seconds"),)]
        # Each way to lose a call is there from the start.
        lost = found["gotraced_probe_lost_total"]
        assert set(lost.values()) == {0}
        reasons = {dict(at)["reason"] for at in lost if ("probe", "handle_seconds") in at}
        assert {"unwound", "stacks_full", "open_at_detach"} <= reasons
        with pytest.raises(urllib.error.HTTPError, match="404"):
            daemon.get("/")
        daemon.end()
    return total["calls"]


@pytest.mark.live
@pytest.mark.apart
def test_no_call_of_processes_that_come_and_go_is_missing(server: Path, tmp_path: Path) -> None:
    """A process need not be seen to start for its calls to be counted."""
    metrics = """\
  - {name: handles, type: counter, probe: main.handle}
  - {name: handle_seconds, type: histogram, probe: main.handle}
  - {name: shards, type: counter, probe: main.handle, labels: {shard: shard}}"""
    with Daemon(configured(tmp_path, server, metrics), probes=3) as daemon:
        for _ in range(5):
            running = [
                subprocess.Popen([server], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
                for _ in range(12)
            ]
            for process in running:
                process.communicate(b"1 50 5\n\n")
                assert process.returncode == 0
        found = daemon.samples()
        assert found["handles_total"] == found["handle_seconds_count"] == {(): 60 * 50}
        assert found["shards_total"] == by("shard", {str(n): 60 * 5 for n in range(10)})
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_the_end_leaves_no_breakpoint(server: Path, tmp_path: Path) -> None:
    config = configured(tmp_path, server, METRICS)
    with Fixture([server]) as fixture:
        before = code_of(fixture.ready)
        with Daemon(config, probes=7) as daemon:
            assert daemon.samples()["gotraced_target_processes"] == {(): 1}
            fixture.work("1 100 10")
            assert code_of(fixture.ready) != before
            daemon.end()
            daemon.wait_for_keepers()
        assert code_of(fixture.ready) == before
        assert fixture.work("1 100 10")["Calls"] == 100
        fixture.finish()


@pytest.mark.live
@pytest.mark.apart
def test_a_new_file_at_the_same_path_is_followed(server: Path, tmp_path: Path) -> None:
    metrics = "  - {name: handles, type: counter, probe: main.handle}"
    with (
        Fixture([server]) as old,
        Daemon(configured(tmp_path, server, metrics), "-v", probes=1) as daemon,
    ):
        shutil.copy(server, tmp_path / "fresh")
        os.replace(tmp_path / "fresh", server)
        daemon.read_until("gotraced: INFO: handles in keys")  # as soon as it is there
        truth = calls_of(server, "1 200 10")["Calls"]
        truth += old.work("1 300 10")["Calls"]  # which still runs, and is still counted
        found = daemon.samples()
        assert found["handles_total"] == {(): truth} == {(): 500}
        assert found["gotraced_probe_attached"] == {(("probe", "handles"),): 2}
        old.finish()
        daemon.read_until("gotraced: INFO: keys:")  # the old file's program has ended
        assert daemon.samples()["handles_total"] == {(): truth}
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_reloading_loses_no_counter(server: Path, tmp_path: Path) -> None:
    kept = """\
  - {name: handles, type: counter, probe: main.handle}
  - {name: errors, type: counter, probe: main.handle, labels: {error: $ret2}}"""
    with Daemon(configured(tmp_path, server, kept), "-v", probes=2) as daemon:
        first = calls_of(server, "1 100 10")
        added = f"{kept}\n  - {{name: vias, type: counter, probe: main.viaFirst}}"
        configured(tmp_path, server, added.replace("main.handle", "main.handle (shard < 9)"))
        daemon.signal(signal.SIGHUP)
        daemon.read_until("gotraced: INFO: reloaded")
        daemon.read_until("gotraced: INFO: vias in keys")
        second = calls_of(server, "1 100 10")
        found = daemon.samples()
        # The probes of both are others now, and they go on from where they were.
        nine = first["Calls"] + second["Calls"] - second["Shards"]["9"]
        assert found["handles_total"] == {(): nine}
        assert sum(found["errors_total"].values()) == nine
        assert found["vias_total"] == {(): second["First"]}

        (tmp_path / "gotraced.yaml").write_text("targets: 1\n")
        daemon.signal(signal.SIGHUP)
        daemon.read_until("gotraced: ERROR: not reloaded")
        third = calls_of(server, "1 100 10")
        found = daemon.samples()
        assert found["vias_total"] == {(): second["First"] + third["First"]}
        assert found["gotraced_reloads_total"] == by("result", {"done": 1, "failed": 1})
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_a_probe_over_its_budget_is_detached(server: Path, tmp_path: Path) -> None:
    metrics = """\
  - {name: handles, type: histogram, probe: main.handle}
  - {name: unwinds, type: counter, probe: main.unwinds}"""
    config = configured(tmp_path, server, metrics, "budget: 0.01%")
    with Daemon(config, probes=2) as daemon, Fixture([server]) as fixture:
        fixture.say("endless")
        fixture.read_until("endless")
        daemon.read_until("gotraced: WARNING: handles in keys: its calls are only counted")
        daemon.read_until("gotraced: WARNING: handles in keys: detached")
        fixture.say()
        fixture.read_until("ended")
        counted = daemon.samples()["handles_count"]
        assert fixture.work("1 100 10")["Calls"] == 100
        assert counted[()] > 0
        # Nothing counts, so no 0; it may go between the two scrapes of ``samples``.
        wait_until(lambda: "handles_count" not in daemon.get("/metrics"))
        found = daemon.samples()
        assert found["unwinds_total"] == {(): 2}
        assert found["gotraced_probe_over_budget_total"] == by(
            "probe", {"handles": 2, "unwinds": 0}
        )
        assert found["gotraced_probe_attached"] == by("probe", {"handles": 0, "unwinds": 1})
        fixture.finish()
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_probes_that_are_gone_are_not_silently_missed(server: Path, tmp_path: Path) -> None:
    metrics = "  - {name: handles, type: counter, probe: main.handle}"
    with Daemon(configured(tmp_path, server, metrics), probes=1) as daemon:
        first = calls_of(server, "1 60 5")["Calls"]
        with open(f"/proc/{daemon.pid}/task/{daemon.pid}/children") as children:
            (keeper,) = map(int, children.read().split())
        os.kill(keeper, signal.SIGKILL)
        daemon.read_until(
            "gotraced: ERROR: handles: the process that held the probes, gotrace-keeper, was"
        )
        daemon.read_until("gotraced: ERROR: handles in keys: its probes are gone: tried again in")
        found = daemon.samples()
        assert found["gotraced_probe_attached"] == by("probe", {"handles": 0})
        assert found["handles_total"] == {(): first}
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_targets_by_name(server: Path, tmp_path: Path) -> None:
    name = Path(shutil.copy(server, tmp_path / f"named{os.getpid() % 10**6}")).name
    config = tmp_path / "c.yaml"
    config.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: n, comm: {name}}}]\nbudget: 100%\n"
        "metrics:\n  - {name: handles, type: counter, probe: main.handle}\n"
    )
    with Daemon(config, "-v", probes=0) as daemon, Fixture([tmp_path / name]) as fixture:
        daemon.read_until("gotraced: INFO: handles in n")
        assert fixture.work("1 150 10")["Calls"] == 150
        assert daemon.samples()["handles_total"] == {(): 150}
        fixture.finish()
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_processes_that_end_unseen_are_counted(server: Path, tmp_path: Path) -> None:
    """Of a name alone and of a name and a user; a process of a traced file is not missed."""
    name = f"short-lived-one{os.getpid() % 10**6}"  # longer than what the kernel keeps of it
    for directory in ("go", "other"):
        (tmp_path / directory).mkdir()
    traced = shutil.copy(server, tmp_path / "go" / name)
    short = shutil.copy(shutil.which("true") or "/bin/true", tmp_path / "other" / name)
    config = tmp_path / "c.yaml"
    config.write_text(
        "listen: 127.0.0.1:0\nbudget: 100%\ntargets:\n"
        f"  - {{name: n, comm: {name}}}\n  - {{name: nobody, comm: {name}, user: 65534}}\n"
        f"  - {{name: exe, exe: {traced}x}}\n"
        "metrics:\n  - {name: handles, type: counter, probe: main.handle, targets: [n]}\n"
    )
    with Daemon(config, "-v", probes=0) as daemon:
        assert missed(daemon) == {"n": 0, "nobody": 0}
        for _ in range(20):
            subprocess.run([short], check=True)
        assert missed(daemon) == {"n": 20, "nobody": 0}
        with Fixture([traced]) as fixture:
            daemon.read_until("gotraced: INFO: handles in n")
            fixture.work("1 15 1")
            fixture.finish()
        subprocess.run([short], check=True)
        assert missed(daemon) == {"n": 21, "nobody": 0}
        daemon.end()


def missed(daemon: Daemon) -> dict[str, float]:
    return {
        sample.labels["target"]: sample.value
        for family in plain(daemon.get("/metrics"))
        for sample in family.samples
        if sample.name == "gotraced_target_missed_processes_total"
    }


@pytest.mark.live
@pytest.mark.apart
def test_only_calls_of_a_user_count(server: Path, tmp_path: Path) -> None:
    for place in (server, *server.parents):
        if place.is_relative_to(Path("/tmp")) and place != Path("/tmp"):
            place.chmod(0o755)
    config = tmp_path / "c.yaml"
    config.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: n, exe: {server}, user: 65534}}]\n"
        "metrics:\n  - {name: handles, type: counter, probe: main.handle}\nbudget: 100%\n"
    )
    as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(server)]
    with Daemon(config, probes=1) as daemon, Fixture(as_user) as ours, Fixture([server]) as other:
        calls = ours.work("1 60 5")["Calls"]
        other.work("1 70 5")
        assert daemon.samples()["handles_total"] == {(): calls}
        wait_until(lambda: daemon.samples()["gotraced_target_processes"] == {(): 1})
        ours.finish()
        other.finish()
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_containers_of_one_image_are_counted_once(server: Path, tmp_path: Path) -> None:
    """Their file systems show one file under two devices; the kernel has one place for probes."""
    image, own, root = (tmp_path / name for name in ("image", "own", "root"))
    for directory in (image, own, root):
        directory.mkdir()
    server.rename(image / "server")
    mounted = (
        f"mount -t tmpfs none {own} && mkdir {own}/upper {own}/work && mount -t overlay overlay"
        f" -o lowerdir={image},upperdir={own}/upper,workdir={own}/work {root}"
    )
    container = ["unshare", "--mount", "sh", "-c", f"{mounted} && exec {root}/server"]
    if subprocess.run([*container[:-1], mounted], capture_output=True).returncode:
        pytest.skip("overlay file systems cannot be mounted here")
    metrics = "  - {name: handles, type: counter, probe: main.handle}"
    config = configured(tmp_path, root / "server", metrics)
    with (
        Fixture(container) as one,
        Daemon(config, probes=1) as daemon,
        Fixture(container) as other,
    ):
        devices = {os.stat(f"/proc/{each.ready}/exe").st_dev for each in (one, other)}
        assert len(devices) == 2
        calls = one.work("1 70 5")["Calls"] + other.work("1 80 5")["Calls"]
        assert daemon.samples()["handles_total"] == {(): calls}
        one.finish()
        other.finish()
        daemon.end()


@pytest.mark.live
@pytest.mark.apart
def test_identical_files_that_share_nothing_are_all_counted(server: Path, tmp_path: Path) -> None:
    """As on snapshots: the same inode number, size and time, on two devices."""
    name = f"twin{os.getpid() % 10**6}"
    root = tmp_path / "root"
    root.mkdir()
    mounted = (
        f"mount -t tmpfs none {root} && cp {server} {root}/{name}"
        f" && touch -d @1000000000 {root}/{name}"
    )
    container = ["unshare", "--mount", "sh", "-c", f"{mounted} && exec {root}/{name}"]
    if subprocess.run([*container[:-1], mounted], capture_output=True).returncode:
        pytest.skip("file systems cannot be mounted here")
    config = tmp_path / "c.yaml"
    config.write_text(
        f"listen: 127.0.0.1:0\ntargets: [{{name: n, comm: {name}}}]\nbudget: 100%\n"
        "metrics:\n  - {name: handles, type: counter, probe: main.handle}\n"
    )
    with Fixture(container) as one, Fixture(container) as other:
        found = [os.stat(f"/proc/{each.ready}/exe") for each in (one, other)]
        if len({(status.st_ino, status.st_size, status.st_mtime_ns) for status in found}) != 1:
            pytest.skip("file systems in memory number their files apart here")
        assert len({status.st_dev for status in found}) == 2
        with Daemon(config, probes=1) as daemon:
            wait_until(
                lambda: daemon.samples()["gotraced_probe_attached"] == by("probe", {"handles": 2})
            )
            calls = one.work("1 70 5")["Calls"] + other.work("1 80 5")["Calls"]
            assert daemon.samples()["handles_total"] == {(): calls}
            wait_until(lambda: daemon.samples()["gotraced_target_unprobed_processes"] == {(): 0})
            daemon.end()
        one.finish()
        other.finish()


@pytest.mark.apart
def test_check_says_what_would_be_traced(server: Path, tmp_path: Path) -> None:
    config = configured(tmp_path, server, METRICS)
    result = run_tool("gotraced", "--check", config)
    assert (result.status, result.errors) == (0, "")
    assert f"target keys: {server}, 0 processes\n" in result.lines
    assert "metric vias in keys: main.viaFirst, main.viaSecond\n" in result.lines
    configured(tmp_path, server, "  - {name: n, type: counter, probe: main.nosuch}")
    result = run_tool("gotraced", "--check", config)
    assert result.status == 3
    assert any("nothing: no function matches" in line for line in result.lines)
    assert "metric n: in none of the programs that are here\n" in result.lines
    nosuch = f"{METRICS}\n  - {{name: n, type: counter, probe: main.nosuch}}"
    configured(tmp_path, server, nosuch)
    result = run_tool("gotraced", "--check", config)
    assert result.status == 3
    assert "metric vias in keys: main.viaFirst, main.viaSecond\n" in result.lines
    configured(tmp_path, server, "  - {name: n, type: countr, probe: main.handle}")
    result = run_tool("gotraced", "--check", config)
    assert (result.status, result.lines) == (2, [])
    assert result.errors.startswith(f"gotraced: {config}, line 4: 'countr'")
    config.chmod(0o666)
    result = run_tool("gotraced", "--config", config)
    assert result.status == 2
    assert result.errors == (
        f"gotraced: configuration {config} is refused: every user may write to it: chmod o-w\n"
    )


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("yaml", "PyYAML"),
        ("jsonschema", "jsonschema"),
        ("prometheus_client", "prometheus-client"),
        ("opentelemetry.exporter.otlp.proto.http", "opentelemetry-sdk "),
    ],
)
@pytest.mark.parametrize("option", ["--config", "--check"])
def test_without_its_packages_it_says_what_to_install(
    option: str,
    module: str,
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = configured(tmp_path, tmp_path / "none", "  - {name: n, type: counter, probe: f}")
    loaded = dict(sys.modules)
    for name, one in loaded.items():
        if name.startswith("gotrace.fleet.") and name != "gotrace.fleet.gotraced":
            above, _, last = name.rpartition(".")
            # An import sets this, too: later tests would patch a module that nobody uses.
            monkeypatch.setattr(loaded[above], last, one)
            monkeypatch.delitem(sys.modules, name)
    if "." in module:
        otlp = "{endpoint: 'http://[::1]:9', protocol: http}"
        config.write_text(f"{config.read_text()}\notlp: {otlp}\n")
        for name in list(sys.modules):
            if name.startswith(module):
                monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert main([option, str(config)]) == 1
    for name in sys.modules.keys() - loaded.keys():
        if name.startswith("gotrace.fleet."):
            del sys.modules[name]  # it belongs to packages that are gone after this
    what = module.partition(".")[0]
    assert capsys.readouterr().err.startswith(
        f"gotraced: {what} is not installed, which this configuration needs: make setup in a clone,"
        f" or pip install {package}"
    )


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield


@pytest.mark.live
@pytest.mark.apart
def test_recipes_by_name(tmp_path: Path) -> None:
    built = build(FIXTURES / "live_recipes", newest())
    program = Path(shutil.copy(built, tmp_path / "recipes"))
    metrics = """\
  - name: requests
    type: counter
    probe: '@http.server'
    labels: {method: req.Method, path: req.URL.Path}
  - {name: request_seconds, type: histogram, probe: '@http.server'}"""
    with Daemon(configured(tmp_path, program, metrics), probes=2) as daemon:
        with Fixture([program]) as fixture:
            done = fixture.work()
            fixture.finish()
        shown = done["http.server"]
        found = daemon.samples()
        truth = Counter(tuple(text.partition(",")[0].split(" ")[1:3]) for text in shown)
        assert truth
        wanted = {(("method", m), ("path", p)): float(n) for (m, p), n in truth.items()}
        assert found["requests_total"] == wanted
        assert found["request_seconds_count"] == {(): len(shown)}
        daemon.end()
