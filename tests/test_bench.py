# SPDX-License-Identifier: Apache-2.0
"""Check the bench's arithmetic, what it writes, and what it makes of tracers that fail."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from tests.bench.__main__ import PARTS, main
from tests.bench.costs import empty_probe
from tests.bench.plot import svg
from tests.bench.rates import Delivery, best
from tests.bench.results import Results, number
from tests.bench.stats import Requirement, Series, Verdict, ratios, total
from tests.bench.targets import Calls, calls_program, find_framed
from tests.bench.tracers import Command, Tracer, TracerError, printed
from tests.toolchains import newest

SVG = "{http://www.w3.org/2000/svg}"


def test_series_has_a_median_and_its_spread() -> None:
    series = Series.of([7.0, 1.0, 4.0])
    assert (series.low, series.median, series.high) == (1.0, 4.0, 7.0)
    assert Series.of([1.0, 2.0, 4.0, 9.0]).median == 3.0
    with pytest.raises(ValueError, match="at least one"):
        Series.of([])


def test_ratios_are_taken_within_rounds() -> None:
    # The second round ran on a machine ten times as busy: the ratio does not see that.
    assert ratios(Series.of([2.0, 20.0]), Series.of([4.0, 40.0])) == Series.of([0.5, 0.5])
    assert ratios(Series.of([1.0, 1.0]), Series.of([0.0, 2.0])) == Series.of([0.5])
    assert ratios(Series.of([1.0]), Series.of([-1.0])) is None
    with pytest.raises(ValueError):
        ratios(Series.of([1.0]), Series.of([1.0, 2.0]))


def test_costs_are_above_the_bare_call_and_floors_add_up() -> None:
    bare = Series.of([2.0, 3.0])
    assert Series.of([12.0, 23.0]).above(bare) == Series.of([10.0, 20.0])
    assert total(Series.of([1.0, 2.0]), Series.of([10.0, 20.0])) == Series.of([11.0, 22.0])


@pytest.mark.parametrize(
    ("values", "bound", "at_most", "verdict"),
    [
        ([0.1, 0.09, 5.0], 0.1, True, Verdict.MET),
        ([0.1, 0.11, 0.12], 0.1, True, Verdict.NOT_MET),
        ([200_000.0], 200_000.0, False, Verdict.MET),
        ([199_999.0], 200_000.0, False, Verdict.NOT_MET),
        ([], 1.0, True, Verdict.NOT_MEASURED),
    ],
)
def test_the_median_decides(
    values: list[float], bound: float, at_most: bool, verdict: Verdict
) -> None:
    series = Series.of(values) if values else None
    assert Requirement("r", series, bound, at_most).verdict is verdict


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.06123, "0.0612"), (2.346, "2.35"), (99.96, "100"), (15_812.4, "15,812"), (0.0, "0")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def delivery(asked: float, capacity: float, loses_above: float) -> Delivery:
    """Return what a reader with these limits makes of one second's calls."""
    calls = int(asked)
    delivered = calls if asked <= loses_above else calls - 1
    return Delivery(asked, calls, delivered, max(1.0, asked / capacity), 1.0, 1.0)


@pytest.mark.parametrize("start", [50_000.0, 1_000_000.0])
def test_best_rate_loses_nothing(start: float) -> None:
    found = best(lambda rate: delivery(rate, 1e9, 300_000), start)
    assert found is not None
    assert found.lossless
    assert 300_000 / 1.35 <= found.rate <= 300_000


def test_best_rate_is_what_arrived_not_what_was_asked() -> None:
    found = best(lambda rate: delivery(rate, 80_000, 1e9), 50_000.0)
    assert found is not None
    assert found.rate == pytest.approx(80_000)


def test_no_rate_is_reported_where_calls_are_always_lost() -> None:
    assert best(lambda rate: delivery(rate, 1e9, 0), 1_000.0) is None


@pytest.fixture
def results() -> Results:
    """Return a run in which one peer was missing."""
    found = Results({"kernel": "6.18"}, "quick")
    found.add("cost of counting", "bare", "ns/call", [2.0, 2.0])
    found.add("cost of counting", "gofunccount", "ns/call", [500.0, 520.0])
    found.add("cost of counting", "bpftrace <count>", "ns/call", [9_000.0, 9_500.0])
    found.add("cost of counting", "dlv trace", "ns/call", [], missing="dlv is not installed")
    found.requirements += [
        Requirement("a ratio", Series.of([0.05, 0.06]), 0.1),
        Requirement("a rate", None, 3.0, at_most=False, why="there is no tools/gotrace"),
    ]
    return found


def test_json_holds_what_was_measured_and_what_was_missing(results: Results) -> None:
    document = json.loads(results.to_json())
    assert document["schema"] == 1
    assert document["machine"] == {"kernel": "6.18"}
    by_contender = {row.pop("contender"): row for row in document["measures"]}
    assert by_contender["gofunccount"] == {
        "case": "cost of counting",
        "unit": "ns/call",
        "values": [500.0, 520.0],
        "median": 510.0,
        "low": 500.0,
        "high": 520.0,
        "note": "",
        "missing": "",
    }
    assert by_contender["dlv trace"]["values"] == []
    assert by_contender["dlv trace"]["median"] is None
    assert by_contender["dlv trace"]["missing"] == "dlv is not installed"
    met, unknown = document["requirements"]
    assert (met["median"], met["bound"], met["at_most"], met["verdict"]) == (
        0.055,
        0.1,
        True,
        "met",
    )
    assert (unknown["verdict"], unknown["why"]) == ("not measured", "there is no tools/gotrace")


def test_text_says_what_is_missing_and_what_is_met(results: Results) -> None:
    words = [" ".join(line.split()) for line in results.lines()]
    assert "dlv trace missing: dlv is not installed" in words
    assert words[-2] == "a ratio 0.055x 0.05 to 0.06 <= 0.1x met"
    assert words[-1] == "a rate - >= 3x not measured: there is no tools/gotrace"


def test_plot_draws_bars_to_scale(results: Results) -> None:
    picture = xml.fromstring(svg(json.loads(results.to_json())))
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert texts[0] == "cost of counting (ns/call)"
    assert "bpftrace <count>" in texts
    assert "dlv trace" not in texts
    ours, theirs = [float(bar.attrib["width"]) for bar in picture.iter(f"{SVG}rect")][1:]
    assert theirs / ours == pytest.approx(9_250 / 510, rel=0.02)


def test_plot_cuts_a_bar_that_dwarfs_the_others(results: Results) -> None:
    results.add("cost of counting", "a debugger", "ns/call", [1_000_000.0])
    picture = xml.fromstring(svg(json.loads(results.to_json())))
    widths = [float(bar.attrib["width"]) for bar in picture.iter(f"{SVG}rect")][1:]
    assert widths[2] / widths[1] == pytest.approx(1.5, rel=0.05)
    assert "... 1,000,000" in [text.text for text in picture.iter(f"{SVG}text")]


def test_plot_command_writes_a_picture(results: Results, tmp_path: Path) -> None:
    source, picture = tmp_path / "bench.json", tmp_path / "bench.svg"
    source.write_text(results.to_json())
    assert main(["--plot", str(source), str(picture)]) == 0
    assert xml.parse(picture).getroot().tag == f"{SVG}svg"


@pytest.mark.parametrize("text", ["{}", '{"schema": 1, "measures": []}', "not JSON"])
def test_plot_command_refuses_what_it_cannot_draw(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "bench.json"
    source.write_text(text)
    assert main(["--plot", str(source), str(tmp_path / "out.svg")]) == 1
    assert capsys.readouterr().err.startswith(f"bench: cannot draw {source}: ")
    assert not (tmp_path / "out.svg").exists()


def test_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["nothing"])
    assert f"there is no 'nothing': choose of {', '.join(PARTS)}" in capsys.readouterr().err


def python(code: str, marker: str = "ready\n", patience: float = 30.0) -> Command:
    """Return a tracer that is a few lines of Python."""
    return Command((sys.executable, "-c", code), printed(marker.encode()), {}, patience)


def test_tracer_is_watched_from_ready_to_end() -> None:
    code = (
        "import signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "filled = bytearray(b'x') * (50 << 20)\n"
        "print('ready', flush=True)\n"
        "signal.sigwait({signal.SIGINT})\n"
        "print('result')\n"
    )
    with Tracer(python(code)) as tracer:
        assert tracer.ready_s > 0
        assert tracer.stop() >= 0
        assert tracer.output() == b"ready\nresult\n"
        assert tracer.peak_mb > 50


def test_tracer_that_fails_is_reported_in_its_own_words() -> None:
    code = "import sys; sys.exit('ERROR: no such probe')"
    with pytest.raises(TracerError, match=r"^ERROR: no such probe$"), Tracer(python(code)):
        pass


def test_tracer_that_is_never_ready_is_ended() -> None:
    tracer = Tracer(python("import signal; signal.pause()", patience=0.01))
    with pytest.raises(TracerError, match="not ready after"), tracer:
        pass
    assert not Path(f"/proc/{tracer.pid}").exists()


def test_framed_function_has_the_sites_that_floors_are_measured_on() -> None:
    newest()
    framed = find_framed(calls_program())
    assert framed.entry < framed.branch < framed.push < framed.ret
    code = framed.binary.read_bytes()
    assert code[framed.push - framed.bias] == 0x55
    assert code[framed.branch - framed.bias] == 0x76
    assert code[framed.ret - framed.bias] == 0xC3
    assert find_framed(calls_program(stripped=True)).ret - framed.entry > 0


def test_program_makes_its_calls_and_times_itself() -> None:
    newest()
    with Calls(calls_program()) as target:
        assert target.run(1_000) > 0
        assert target.pace(1_000, 100_000) >= 0.0099
        assert target.spin(10, 1_000) > 0


@pytest.mark.live
def test_the_floor_can_be_attached() -> None:
    """The package attaches it as it does the tools' programs, and expects of it what they have."""
    framed = find_framed(calls_program())
    with Calls(framed.binary) as target, empty_probe(framed, framed.entry, target.pid):
        assert target.run(100) > 0
