# SPDX-License-Identifier: Apache-2.0
"""Hold what the tools say of threads, goroutines and requests to what programs know of them."""

from __future__ import annotations

from typing import Any

from tests.goroutines.test_parked import check_dump, take
from tests.kernels.checking import Checks
from tests.kernels.runs import MINORS, fixture_program
from tests.tools.gooffcpu import test_names
from tests.tools.gooncpu import test_oncpu
from tests.tools.gotrace import test_tree
from tests.tools.harness import Fixture, of_kind, run_tool, tool

#: Samples a second, of an emulated processor. No whole number of Go's naps is a period.
_HERTZ = "97"

#: Ways to hand work on, how many requests of each, and the least share of jobs that is attributed:
#: the first of each way are less often known, and here they are a larger part.
_ALL_KINDS = (*test_tree.KINDS, *test_tree.HELD, *test_tree.MISLEADING)
_REQUESTS, _LEAST = 20, 0.97


def check_threads(checks: Checks) -> None:
    """Run the checks."""
    checks.run("gostacks, gotop", "", _goroutines)
    if checks.order.pairs:
        checks.run("gooncpu", "", _samples)
        checks.run("gooffcpu --names", "", _system_calls)
        checks.run("gotrace tree", "", _requests)


def _goroutines() -> str:
    seen = []
    for minor in MINORS:
        with Fixture([fixture_program("live_parked", minor)]) as fixture:
            dump = take(fixture.ready)
            words = ("-p", str(fixture.pid), "--json")
            stacks = run_tool("gostacks", *words)
            (top,) = of_kind(run_tool("gotop", "-b", "-n", "1", *words), "program")
            truth = fixture.work("dump")
            assert fixture.finish() == 0
        known = check_dump(truth, dump)
        listed = len(of_kind(stacks, "goroutine"))
        assert top["goroutines"] == listed == known, (top["goroutines"], listed, known)
        seen.append(f"Go {minor}: {known} goroutines")
    return "; ".join(seen)


def _samples() -> str:
    seen = []
    for minor in MINORS:
        path = fixture_program("live_oncpu", minor)
        _, result = test_oncpu.sampled(path, "hot 6s", "--json", "-F", _HERTZ)
        test_oncpu.check_sums(result)
        test_oncpu.check_ratio(result)
        (sums,) = of_kind(result, "cpu")
        whole = test_oncpu.check_callers(result)
        assert whole > sums["samples"] * 0.9, (whole, sums)
        assert 0.9 < sums["cpu_ns"] / sums["clock_ns"] < 1.1, sums
        seen.append(f"Go {minor}: {whole} of {sums['samples']} samples with all callers")
    return "; ".join(seen)


def _system_calls() -> str:
    calls = 0
    for minor in MINORS:
        with Fixture([fixture_program("live_syscalls", minor)]) as fixture:
            words = ("-p", str(fixture.ready), *test_names.WORDS, "--json")
            with tool("gooffcpu", *words) as tracing:
                truth: dict[str, Any] = fixture.work("go")
                result = tracing.end()
            assert fixture.finish() == 0
        test_names.check(truth, result)
        calls += sum(each["calls"] for each in truth.values())
    return f"{calls:,} calls of {len(truth)} names"


def _requests() -> str:
    """Requests of all kinds: in the newer release those that mislead as well."""
    seen = []
    for minor, kinds in zip(MINORS, (test_tree.KINDS, _ALL_KINDS), strict=True):
        program = fixture_program("live_requests", minor)
        found, _ = test_tree.play(program, kinds, _REQUESTS)
        wrong = {kind: one.wrong[:3] for kind, one in found.items() if one.wrong}
        assert wrong == {}, wrong
        right = sum(found[kind].right for kind in test_tree.KINDS)
        jobs = sum(found[kind].truth["jobs"] for kind in test_tree.KINDS)
        assert right >= _LEAST * jobs, (right, jobs)
        seen.append(f"Go {minor}: {right} of {jobs} jobs in {len(kinds)} ways, 0 wrong parents")
    return "; ".join(seen)
