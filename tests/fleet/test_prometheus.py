# SPDX-License-Identifier: Apache-2.0
"""Prometheus itself scrapes gotraced, and PromQL's answers are what the program has counted."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from gotrace.fleet.telemetry.conventions import FAMILIES
from tests.fleet.test_docs import own_metrics
from tests.fleet.test_gotraced import Daemon, calls_of, configured
from tests.fleet.test_gotraced import keys as keys
from tests.fleet.test_gotraced import server as server
from tests.prometheus import Prometheus, prometheus, promtool
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import CLONE, Fixture

METRICS = """\
  - {name: handles, type: counter, probe: main.handle, labels: {failed: '$ret2 != nil'}}
  - {name: handle_seconds, type: histogram, probe: main.handle}
  - {name: key_bytes, type: histogram, probe: main.handle, of: len(key), buckets: {from: 1, to: 64}}
"""


@pytest.mark.live
@pytest.mark.apart
def test_promql_has_the_programs_own_numbers(server: Path, tmp_path: Path) -> None:
    program = prometheus()
    if program is None:
        pytest.skip("no Prometheus: make setup-test")
    place = tmp_path / "prometheus"
    place.mkdir()
    with (
        Daemon(configured(tmp_path, server, METRICS), probes=3) as daemon,
        Prometheus(program, daemon.port, place) as engine,
    ):
        engine.wait_for('up{job="gotraced"}', 1)
        # Series without labels are there from the beginning: their first rise is seen.
        engine.wait_for('handle_seconds_count{target="keys"}', 0)
        first = calls_of(server, "2 150 10")
        engine.wait_for('handle_seconds_count{target="keys"}', first["Calls"])
        with Fixture([server]) as fixture:  # the program again: another process
            second = fixture.work("1 200 10")
            total = first["Calls"] + second["Calls"]
            engine.wait_for("sum(handles_total)", total)
            engine.wait_for("gotraced_target_processes", 1)
            fixture.finish()
        nil = first["Errors"]["nil"] + second["Errors"]["nil"]
        engine.wait_for('handles_total{failed="false"}', nil)
        engine.wait_for(
            'sum(handles_total{failed="true"}) / sum(handles_total)', (total - nil) / total
        )
        engine.wait_for("resets(handle_seconds_count[1h])", 0)
        engine.wait_for('handle_seconds_bucket{le="+Inf"}', total)
        lengths = {
            len(key): first["Keys"].get(key, 0) + second["Keys"].get(key, 0)
            for key in (*first["Keys"], *second["Keys"])
        }
        assert set(lengths) == {len("user:0")}
        engine.wait_for('key_bytes_bucket{le="4.0"}', 0)
        engine.wait_for('key_bytes_bucket{le="8.0"}', total)
        engine.wait_for("key_bytes_sum / key_bytes_count", len("user:0"))
        (quantile,) = engine.ask("histogram_quantile(0.5, key_bytes_bucket)").values()
        assert 4 < quantile <= 8
        engine.wait_for('gotraced_probe_hits_total{probe="handles"} >= bool ' + str(total), 1)
        daemon.end()
        engine.wait_for('up{job="gotraced"}', 0)


DEPLOY = CLONE / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "gotraced.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
#: What Grafana puts into queries, and what it would put there where all is selected.
VARIABLES = {"$__rate_interval": "1m", "$job": ".+", "$target": ".+"}
#: Panels that are empty where all is well.
EMPTY = {"Calls that are missing"}


def queries(panel: dict[str, Any]) -> list[str]:
    found = [target["expr"] for target in panel["targets"]]
    for name, value in VARIABLES.items():
        found = [query.replace(name, value) for query in found]
    assert not any("$" in query for query in found)
    return found


@pytest.mark.live
@pytest.mark.apart
def test_the_dashboards_queries_find_what_the_example_configuration_makes(tmp_path: Path) -> None:
    program = prometheus()
    if program is None:
        pytest.skip("no Prometheus: make setup-test")
    server = Path(shutil.copy(build(FIXTURES / "live_recipes", newest()), tmp_path / "shop"))
    text = (DEPLOY / "kubernetes" / "gotraced.yaml").read_text()
    for old, new in (
        ("0.0.0.0:9435", "127.0.0.1:0\nruntime_metrics: {interval: 100ms}"),
        ("0.0.0.0:9436", "127.0.0.1:0"),
        ("/usr/local/bin/shop", str(server)),
        ("budget: 2%", "budget: 100%\notlp: {endpoint: 'http://127.0.0.1:9', interval: 1s}"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    config = tmp_path / "gotraced.yaml"
    config.write_text(text)
    place = tmp_path / "prometheus"
    place.mkdir()
    with (
        Daemon(config, probes=1) as daemon,
        Prometheus(program, daemon.port, place) as engine,
    ):
        total, made = 0, set()
        for _ in range(2):  # a rate takes two samples of each series
            with Fixture([server]) as fixture:
                done = fixture.work()
                fixture.finish()
            total += len(done["http.server"])
            by_http2 = Counter(line.partition(": ")[2] for line in done["http2"])
            by_http1: Counter[str] = Counter(done["http.server"]) - by_http2
            for line in by_http1:
                status, method, *_ = line.split()
                made.add((method, status))
            made |= {(line.split()[1], "unknown") for line in by_http2}
            engine.wait_for("sum(http_server_seconds_count)", total)
        engine.wait_for("gotraced_target_processes", 0)
        engine.wait_for("count(rate(gotraced_otlp_items_total[1m]) > 0) > bool 0", 1)
        with Fixture([server]) as fixture:  # runtime metrics are of processes that run
            engine.wait_for("count(rate(go_gc_duration_seconds_sum[1m]))", 1)
            answers = {
                title: [engine.ask(query) for query in queries(panel)]
                for title, panel in PANELS.items()
            }
            fixture.work()
            fixture.finish()
        daemon.end()
    for title, rows in answers.items():
        assert all(rows) or title in EMPTY, title
        assert all(math.isfinite(value) for row in rows for value in row.values()), title
    (requests,) = answers["Requests by method and status"]
    assert {(dict(at)["method"], dict(at)["status"]) for at in requests} == made
    (rates,) = answers["Requests"]
    assert list(rates) == [(("target", "shop"),)]
    quantiles = [value for row in answers["Duration"] for value in row.values()]
    assert 0 < quantiles[0] and quantiles == sorted(quantiles) and len(quantiles) == 3
    (attached,) = answers["Programs that probes are attached to"]
    assert attached == {(("probe", "http_server_seconds"), ("target", "shop")): 1}


def test_the_dashboard_is_laid_out() -> None:
    """Panels have numbers of their own, and none lies on another."""
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells
    named = {one["name"] for one in DASHBOARD["templating"]["list"]}
    assert {name.strip("$") for name in VARIABLES} - {"__rate_interval"} <= named


RULES = DEPLOY / "prometheus" / "gotraced.rules.yaml"
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
CASES = Path(__file__).parent / "alerts.yaml"


def test_alerts_are_raised_where_they_must_be(tmp_path: Path) -> None:
    program = promtool()
    if program is None:
        pytest.skip("no promtool: make setup-test")
    for file in (RULES, CASES):
        shutil.copy(file, tmp_path)
    checked = [["check", "rules", RULES.name], ["test", "rules", CASES.name]]
    for words in checked:
        done = subprocess.run(
            [program, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
    raised = {
        case["alertname"]
        for test in yaml.safe_load(CASES.read_text())["tests"]
        for case in test.get("alert_rule_test", ())
        if "exp_alerts" in case
    }
    assert raised == {rule["alert"] for rule in ALERTS}
    page = (CLONE / "docs" / "operating.md").read_text()
    assert raised == set(re.findall(r"^\| `(Go\w+)`", page, re.MULTILINE))


def test_alerts_are_about_metrics_that_there_are() -> None:
    for rule in ALERTS:
        used = set(re.findall(r"\bgo(?:traced)?_\w+", rule["expr"]))
        known = own_metrics() | {family.name for family in FAMILIES}
        assert used and {name.removesuffix("_total") for name in used} <= known
