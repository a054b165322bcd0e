# SPDX-License-Identifier: Apache-2.0
"""gotop on a terminal: each key, other sizes, the program's end, and what is left of it."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from gotrace.report.table import fitted
from gotrace.screen.view import _HELP
from tests.toolchains import FIXTURES, build, newest
from tests.tools.harness import Fixture, code_of, tool_command
from tests.tools.screens import Screen

pytestmark = pytest.mark.live

TOP = FIXTURES / "live_top"
REQUESTS = FIXTURES / "live_requests"
POOL = FIXTURES / "live_pool"
ENDS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGALRM,
)


def program() -> Fixture:
    return Fixture([build(TOP, newest())])


def gotop(*words: str | int, **options: object) -> Screen:
    return Screen(tool_command("gotop", *map(str, words)), **options)  # type: ignore[arg-type]


def test_groups_down_to_a_stack() -> None:
    with program() as fixture:
        fixture.work("leak 40")
        with gotop("-i", "0.1", "-p", fixture.ready) as screen:
            screen.until(r"^live_top \(process \d+\), go1\.")
            screen.until(r"nothing is attached")
            screen.until(r"^ +40 .* chan receive +main\.forget")
            # What is drawn while goroutines are read does not say that there are none.
            assert b"; 0 more of the runtime" not in screen.raw
            for _ in range(3):
                fixture.work("leak 10")
                screen.until(r"goroutines")
            screen.until(r"^ +70 +\+30 .*main\.forget")
            screen.press("\r")
            screen.until(r"^ +GOROUTINE +WAITING")
            screen.until(r"chan receive +<-chan \w+ 0x[0-9a-f]+ +main\.main")
            screen.until(r"^70 goroutines \[chan receive\]")
            screen.press("\x1bOB\x1b[6~\x1b[5~\x1bOBjk\r")
            screen.until(r"^goroutine \d+ \[chan receive\]")
            screen.until(r"^main\.forget\(\.\.\.\)\n.*/main\.go:\d+")
            screen.press("\x1b")
            screen.until(r"^ +GOROUTINE")
            screen.press("\x1bOD")
            screen.until(r"^ +COUNT")
            screen.press("q")
            assert screen.wait() == 0
            screen.check_restored()
        assert fixture.finish() == 0


def test_a_leak_is_marked() -> None:
    with program() as fixture, gotop("-i", "0.2", "-p", fixture.ready) as screen:
        screen.until(r"^ +COUNT")
        for count in (20, 40, 60):
            fixture.work("leak 20")
            screen.until(rf"^ +{count} .*main\.forget")
        screen.until(r"^ +60 +\+60 ! .*main\.forget")
        screen.press("q")
        assert screen.wait() == 0
        assert fixture.finish() == 0


def test_filter_sort_pause_and_help() -> None:
    with program() as fixture:
        fixture.work("leak 40")
        with gotop("-i", "0.1", "-p", fixture.ready) as screen:
            screen.until(r"main\.forget")
            screen.press("/nowherex\x7f\r")
            screen.until(r"nothing has 'nowhere' in it")
            screen.press("/\x15forget\r")
            screen.until(r"^1 group by count, with 'forget'")
            screen.press("/aband")
            screen.until(r"lines with: aband_$")
            fixture.work("leak 2")
            screen.until(r"^ +42 .*main\.forget")  # figures go on while a question is open
            screen.press("oned\x1b")
            screen.until(r"^1 group by count, with 'forget'")
            screen.press("/\r")
            screen.until(r"^2 groups by count -- h help")
            for order in ("growth", "waiting", "leaks", "count"):
                screen.press("s")
                screen.until(rf"groups by {order} ")
            screen.press("p")
            screen.until(r"^\[PAUSED\] live_top")
            fixture.work("leak 5")
            screen.press("s")
            screen.until(r"^ +42 .*main\.forget")
            screen.press("p")
            screen.until(r"^ +47 .*main\.forget")
            screen.press("h")
            screen.until(r"^q +leave")
            for text in _HELP:
                assert f"\n{text}\n" in screen.text  # none is cut
            screen.press("x")
            screen.until(r"^ +COUNT")
            screen.press("?")
            screen.until(r"^q +leave")
            screen.press("q")
            assert screen.wait() == 0
            screen.check_restored()
        assert fixture.finish() == 0


def test_waits_say_their_price_first() -> None:
    with program() as fixture:
        code = code_of(fixture.ready)
        with gotop("-i", "0.1", "-p", fixture.ready) as screen:
            screen.until(r"^ +COUNT")
            screen.press("w")
            screen.until(r"this program changes [\d,]+ states a second: waits will take about")
            screen.press("n")
            screen.until(r"^not attached$")
            screen.until(r"^not attached: press w")
            assert code_of(fixture.ready) == code
            screen.press("w")
            screen.until(r"Attach\?\s\(y/N\)$")
            screen.press("h")  # keys do their work while something is asked
            screen.until(r"^q +leave(.*\n)+.*Attach\?\s\(y/N\)$")
            screen.press("s")
            screen.until(r"^not attached: press w(.*\n)+.*Attach\?\s\(y/N\)$")
            screen.press("\r")  # no is the default
            screen.until(r"^not attached$")
            screen.press("w")
            screen.until(r"Attach\?\s\(y/N\)$")
            screen.press("g")  # which needs no answer
            screen.until(r"^ +COUNT")
            assert code_of(fixture.ready) == code
            screen.press("wh")
            screen.until(r"^q +leave(.*\n)+attaching: counting|Attach\?\s\(y/N\)$")
            screen.until(r"Attach\?\s\(y/N\)")
            screen.press("y")
            screen.until(r"^attached: waits \(about ")
            fixture.work("call 20")
            screen.until(r"sleep +main\.work +timer")
            screen.press("\r")
            screen.until(r"^main\.work\(\.\.\.\)")
            screen.press("\x1bss")
            screen.until(r"waits? by count")
            screen.press("g")
            screen.until(r"^ +COUNT")
            screen.press("wd")
            screen.until(r"^nothing is attached")
            screen.press("q")
            assert screen.wait() == 0
        assert code_of(fixture.ready) == code
        assert fixture.finish() == 0


def test_the_screen_goes_on_while_probes_are_attached(tmp_path: Path) -> None:
    compiles = {"XDG_CACHE_HOME": str(tmp_path)}
    with program() as fixture:
        code = code_of(fixture.ready)
        with gotop("-i", "0.05", "-p", fixture.ready, env=compiles) as screen:
            screen.until(r"^ +COUNT")
            screen.press("fmain.*\r")
            screen.until(r"^attaching: counting")
            fixture.work("leak 40")
            screen.until(r"^4\d goroutines(.*\n)+attaching: counting")
            screen.press("\x1b")
            screen.until(r"^attaching is given up")
            fixture.work("leak 40")
            screen.until(r"^8\d goroutines")
            screen.until(r"^not attached$")
            screen.press("w")  # another program to compile
            screen.until(r"^attaching: counting")
            screen.press("q")
            began = time.monotonic()
            assert screen.wait() == 0
            assert time.monotonic() - began < 1
            screen.check_restored()
            screen.wait_for_keepers()
        assert code_of(fixture.ready) == code
        assert fixture.finish() == 0


def test_functions_have_calls_and_errors() -> None:
    with program() as fixture:
        with gotop("-i", "0.2", "-p", fixture.ready) as screen:
            screen.until(r"^ +COUNT")
            screen.press("f")
            screen.until(r"^functions, such as main\.\*: _")
            screen.press("main.absent\r")
            screen.until(r"main\.absent")
            screen.press("Fmain.work\r")
            screen.until(r"1 function is called 0 times a second: .*\n?.*Attach\?\s\(y/N\)")
            screen.press("y")
            screen.until(r"^attached: calls of main\.work")
            fixture.work("call 300")
            screen.until(r"^ +[1-9][\d.,]* +\d\S+s +\d\S+s +[1-9][\d.]* .*main\.work")
            screen.press("sss")
            screen.until(r"functions? by errors")
            screen.press("p\r")
            screen.until(r"time +: count|no call has returned since")
            screen.press("\x1bpd")
            screen.until(r"^nothing is attached")
            screen.press("q")
            assert screen.wait() == 0
            screen.check_restored()
        assert fixture.finish() == 0


def test_a_function_has_callers_parts_and_calls() -> None:
    with program() as fixture:
        code = code_of(fixture.ready)
        with gotop("-i", "0.1", "-f", "main.work", "-p", fixture.ready, lines=50) as screen:
            screen.until(r"^attached: calls of main\.work")
            screen.press("f")
            fixture.work("call 20")
            screen.until(r"^ .* main\.work$")
            screen.press("\r")
            price = r"main\.work is called [\d,]+ times a\s+second, and this program changes"
            screen.until(price)
            screen.until(r"time +: count|no call has returned since")  # which was there before
            screen.press("n")
            screen.until(r"^not attached$")
            screen.press("\r")
            screen.until(price)
            screen.press("y")
            screen.until(r"^attached: .*each call of main\.work")
            fixture.work("call 30")
            screen.until(r"^30 calls looked at in \d+s$")
            screen.until(r"^ +\S+s +\d\d\.\d%  blocked: sleep +\*{12}")
            screen.until(r"^ +30 100\.0%  main\.main at ")
            # The line is cut at the screen's edge if the call has run for long enough.
            latest = r"\(sleep (\S+\) main\.work\(n=29\)|.*, running .*main\.work\(n=)"
            screen.until(rf"^\d\d:\d\d:\d\d\.\d{{6}} \S+s +1 +{latest}")
            screen.press("\x1b")
            screen.until(r"^attached: calls of main\.work \(about \S+ of one CPU\)$")
            screen.press("d")
            screen.until(r"^nothing is attached")
            screen.press("q")
            assert screen.wait() == 0
            screen.check_restored()
            screen.wait_for_keepers()
        assert code_of(fixture.ready) == code
        assert fixture.finish() == 0


def test_requests_down_to_a_tree() -> None:
    with Fixture([build(REQUESTS, newest())]) as fixture:
        code = code_of(fixture.ready)
        with gotop("-i", "0.1", "-p", fixture.ready, lines=60, columns=120) as screen:
            screen.until(r"^ +COUNT")
            screen.press("r")
            screen.until(r"^root of requests, such as main\.handle; Enter for @http\.server: _")
            screen.press("\x1b")
            screen.until(r"^not attached: press r")
            screen.press("rmain.absent\r")
            screen.until(r"main\.absent")
            screen.press("Rmain.handle\r")
            screen.until(r"hands work on, or waits for it, 0 times a second, and calls functions")
            screen.press("n")
            screen.until(r"^not attached$")
            assert code_of(fixture.ready) == code
            screen.press("rmain.handle\r")
            screen.until(r"Attach\?\s\(y/N\)")
            screen.press("y")
            screen.until(r"^attached: requests of main\.handle \(about ")
            screen.until(r"^no request is whole yet")
            fixture.work("fan-out 6")
            screen.until(r"^ +6 +\S+ +\S+s +\S+s +\S+s +\d\d:\d\d:\d\d .* main\.handle$")
            screen.press("s")
            screen.until(r"requests? by count")
            screen.press("\r")
            screen.until(r"^ DURATION AT +REQUEST +MOSTLY")
            screen.until(r"^ +\S+s \d\d:\d\d:\d\d  main\.handle\(id=\d.* \d+% \w.* main\.\w+")
            screen.press("\r")
            screen.until(r"^DURATION +SELF +GOID +CALL")
            screen.until(r"process \d+: 25 calls in 9 goroutines$")
            screen.until(r"go: main\.fanOut\.func1|go: main\.job\(id=\d, name=\"fan\"\)")
            screen.until(r"^critical path:$")
            screen.press("\x1b\x1bd")
            screen.until(r"^nothing is attached")
            screen.press("q")
            assert screen.wait() == 0
            screen.check_restored()
            screen.wait_for_keepers()
        assert code_of(fixture.ready) == code
        assert fixture.finish() == 0


def test_requests_and_calls_of_a_server_are_those_of_its_recipe() -> None:
    with Fixture([build(POOL, newest())]) as fixture:
        with gotop("-i", "0.1", "-p", fixture.ready) as screen:
            screen.until(r"^ +COUNT")
            screen.press("r")
            screen.until(r"; Enter for @http\.server: _$")
            screen.press("\r")
            screen.until(r"Attach\?\s\(y/N\)$")
            screen.press("y")
            screen.until(r"^attached: requests of @http\.server ")
            screen.press("f")
            screen.until(r"^functions, such as main\.\*, or @http\.server: _$")
            screen.press("@http.server\r")
            screen.until(r"Attach\?\s\(y/N\)$")
            screen.press("y")
            screen.until(r"^attached: .*, calls of @http\.server|^attached: calls of @http\.server")
            fixture.work("10")
            for path in ("users", "report"):
                screen.until(rf"^ +\S+ +.*  POST /{path}$")
            screen.press("r")
            screen.until(r"^ +50 .*ServeHTTP$")
            screen.press("\r")
            lock = r"0 POST /users, 0 bytes +\d+% sync\.Mutex\.Lock "
            screen.until(rf"^ +\S+ms \d\d:\d\d:\d\d  {lock}")
            screen.press("q")
            assert screen.wait() == 0
        assert fixture.finish() == 0


def test_cpu_time_is_by_function() -> None:
    with Fixture([build(POOL, newest())]) as fixture:
        with gotop("-i", "0.5", "-p", fixture.ready) as screen:
            screen.until(r"^ +COUNT")
            screen.press("c")
            screen.until(r"^attached: samples of CPU time")
            screen.until(r"^ +SELF/S +TOTAL/S  FUNC$")
            fixture.work("100")
            screen.until(r"^ +\S+s +\S+s  (net/http|runtime|internal)\S*\.")
            screen.press("s")
            screen.until(r"functions? sampled by total")
            screen.press("d")
            screen.until(r"^nothing is attached")
            screen.press("q")
            assert screen.wait() == 0
        assert fixture.finish() == 0


def test_options_attach_at_the_start() -> None:
    with program() as fixture:
        words = ("-i", "0.1", "-w", "-f", "main.work", "-r", "main.work", "-p", fixture.ready)
        with gotop(*words, columns=200) as screen:
            screen.until(r"^attached: waits .* calls of main\.work .* requests of main\.work")
            screen.until(r"^0 roots of requests by .* -- g goroutines, h help")
            screen.press("g")
            screen.until(r"^\d+ groups? by .* -- r requests, h help")
            screen.press("q")
            assert screen.wait() == 0
        assert fixture.finish() == 0


def test_other_sizes() -> None:
    with program() as fixture:
        fixture.work("leak 40")
        with gotop("-i", "0.1", "-p", fixture.ready) as screen:
            screen.until(r"main\.forget")
            for lines, columns in ((50, 200), (10, 40), (3, 10), (1, 1), (24, 80)):
                screen.redrawn(lines, columns)
            screen.press("g")
            screen.until(r"^ +40 .*main\.forget")
            screen.until(r"q leave$")
            screen.press("q")
            assert screen.wait() == 0
            screen.check_restored()
        assert fixture.finish() == 0


@pytest.mark.parametrize(
    "env",
    [{"NO_COLOR": "1"}, {"TERM": "vt100"}, {"LC_ALL": "C"}, {"TERM": "tmux-256color"}],
    ids=str,
)
def test_other_terminals(env: dict[str, str]) -> None:
    with program() as fixture:
        fixture.work("leak 40")
        with gotop("-i", "0.1", "-p", fixture.ready, env=env) as screen:
            screen.until(r"main\.forget")
            if "NO_COLOR" in env:
                assert b"\x1b[31m" not in screen.raw
            if env.get("LC_ALL") == "C":
                assert screen.raw.isascii()
            screen.press("q")
            assert screen.wait() == 0
        assert fixture.finish() == 0


@pytest.mark.parametrize("name", ["dumb", "unknown", "", "no-such-terminal"])
def test_terminals_without_a_cursor_are_refused_with_what_to_do(name: str) -> None:
    with program() as fixture:
        with gotop("-p", fixture.ready, env={"TERM": name}) as screen:
            assert screen.wait() == 1
            screen.check_restored()
            lines = screen.raw.decode().splitlines()
            assert f"the terminal (TERM={name}) cannot be drawn on" in lines[0]
            assert "-b prints results" in lines[-1] and len(lines) <= 2
        assert fixture.finish() == 0


def test_several_processes() -> None:
    with program() as one, program() as other:
        one.work("leak 11")
        other.work("leak 22")
        with gotop("-i", "0.1", "-p", f"{one.ready} {other.ready}") as screen:
            screen.until(rf"^\[1 of 2\] live_top \(process {one.ready}\)")
            screen.until(r"^ +11 .*main\.forget")
            screen.press("\t")
            screen.until(rf"^\[2 of 2\] live_top \(process {other.ready}\)")
            screen.until(r"^ +22 .*main\.forget")
            assert other.finish() == 0
            screen.until(r"^\[2 of 2, ENDED\]")
            screen.press("\t\r")
            assert one.finish() == 0
            assert screen.wait() == 0
            screen.check_restored()
            assert f"process {one.ready} has ended" in screen.raw.decode()


@pytest.mark.parametrize(
    "attached",
    [(), ("-w", "-f", "main.*", "-r", "main.serve")],
    ids=["free", "attached"],
)
def test_a_target_that_is_killed(attached: tuple[str, ...]) -> None:
    with program() as fixture:
        fixture.work("steady 5")
        with gotop("-i", "0.05", *attached, "-p", fixture.ready, columns=200) as screen:
            screen.until(r"^attached: waits.*requests" if attached else r"^ +COUNT")
            fixture.signal(signal.SIGKILL)
            assert screen.wait() == 0
            screen.check_restored()
            assert f"process {fixture.ready} has ended" in screen.raw.decode()


@pytest.mark.parametrize("seed", range(int(os.environ.get("GOTRACE_KILLS", "25"))))
def test_whatever_ends_it_the_terminal_is_as_it_was(seed: int) -> None:
    """At random moments, in all of what it does; no probe is left either."""
    chance = random.Random(seed)
    number = ENDS[seed % len(ENDS)]
    with program() as fixture:
        fixture.work("steady 5")
        code = code_of(fixture.ready)
        with gotop("-i", "0.05", "-p", fixture.ready) as screen:
            if seed % 5:
                screen.until(r"^ +COUNT")
                keys = chance.choice(
                    [
                        *("", "h", "/for", "wy", "w", "\r", "p", "rmain.work\ry"),
                        *("fmain.work\ry", "fmain.s*\ry\r", "fmain.s*\ry\ry"),
                    ]
                )
                screen.press(keys)
            time.sleep(chance.uniform(0, 1.5 if seed % 5 else 0.5))  # the moment is the test
            screen.process.send_signal(number)
            status = screen.wait()
            screen.check_restored()
            assert status in (0, 130, -number)
            screen.wait_for_keepers()
        assert code_of(fixture.ready) == code
        fixture.finish()


def test_keys_of_the_terminal_end_it() -> None:
    """Ctrl-\\ is a signal that would leave the terminal as it is drawn on."""
    with program() as fixture:
        with gotop("-p", fixture.ready) as screen:
            screen.until(r"^ +COUNT")
            screen.press("\x1c")
            assert screen.wait() == -signal.SIGQUIT
            screen.check_restored()
        assert fixture.finish() == 0


def test_a_terminal_that_is_gone_ends_it() -> None:
    """Though the signal that says so is ignored, as by nohup."""
    command = ["env", "--ignore-signal=HUP", *tool_command("gotop", "-i", "1000", "-p")]
    with program() as fixture, Screen([*command, str(fixture.ready)]) as screen:
        screen.until(r"^ +COUNT")
        assert screen.hang_up() == 0
        assert fixture.finish() == 0


def test_narrow_columns_have_the_ends_of_names() -> None:
    name = "github.com/prometheus/prometheus/tsdb.(*Head).run"
    assert fitted(name, 60) == name
    assert fitted(name, 20) == "tsdb.(*Head).run"
    assert fitted(name, 12) == "..*Head).run"
    assert [len(fitted(name, room)) <= room for room in range(1, 60)] == [True] * 59
