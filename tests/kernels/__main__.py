# SPDX-License-Identifier: Apache-2.0
"""Try the tools on other kernels: python -m tests.kernels [KERNEL...]; see docs/kernels.md."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.debian import FetchError
from tests.kernels import images
from tests.kernels.guest import Guest, GuestError, run, work_image
from tests.kernels.order import BUNDLE, Order, Result
from tests.kernels.programs import MINORS, bundle, compiled_programs, programs
from tests.kernels.releases import QUICK, RELEASES, Release, names_for, release
from tests.kernels.table import keep

_ROUNDS = 60
_LIMIT = 5400.0  # seconds for a guest; see docs/kernels.md for what one takes of a processor


@dataclass
class Outcome:
    """What came of one guest: its results, and why it did not come to its end where it did not."""

    guest: Guest
    results: list[Result]
    problem: str | None = None
    seconds: float = 0.0
    processor_seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.problem is None and all(result.ok for result in self.results)


def main() -> int:
    """Run the guests asked for; return 1 when a check has failed or a guest did not end well."""
    options = _options(sys.argv[1:])
    try:
        releases = [release(name) for name in options.kernels]
        print("making ready: kernels, root file system, fixtures", flush=True)
        for one in releases:
            images.root(one.arch)
            images.kernel(one)
        fixtures = {one.arch: programs(one.arch) for one in releases}
        compiled = {one.arch: compiled_programs(one.arch) for one in releases}
        for arch in fixtures if BUNDLE in options.only else ():
            fixtures[arch][BUNDLE] = bundle(arch)
    except FetchError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    guests = [
        Guest(
            one,
            options.cpus or one.cpus,
            options.boot or one.boot,
            options.limit,
            options.together,
            shlex.split(options.emulator),
        )
        for one in releases
    ]
    slots = _Slots((os.cpu_count() or 1) + 1)  # a guest does not need all of its own all the time
    with ThreadPoolExecutor(len(guests)) as pool:
        outcomes = list(
            pool.map(
                lambda guest: _try(
                    guest,
                    fixtures[guest.release.arch],
                    compiled[guest.release.arch],
                    options,
                    slots,
                ),
                guests,
            )
        )
    return summarise(outcomes, options.only)


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels", description=__doc__)
    names = [one.name for one in RELEASES]
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=f"of {', '.join(names)}")
    parser.add_argument("--arch", default="amd64", choices=("amd64", "arm64"), help="of kernels")
    parser.add_argument("--quick", action="store_true", help=f"of {', '.join(QUICK)}; less of each")
    parser.add_argument("--cpus", type=int, help="processors of each guest")
    parser.add_argument("--together", action="store_true", help="emulate them in one thread")
    parser.add_argument("--emulator", default="", help="further words for QEMU")
    parser.add_argument("--boot", help="further words for the kernels' command line")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="of migrating goroutines")
    parser.add_argument("--only", action="append", default=[], help="run this check only")
    parser.add_argument("--limit", type=float, default=_LIMIT, help="seconds for each guest")
    parser.add_argument("--seed", type=int, default=None, help="of what is done at random")
    options = parser.parse_args(words)
    if options.seed is None:
        options.seed = random.randrange(1 << 16)
    options.kernels = options.kernels or names_for(options.arch, options.quick)
    return options


class _Slots:
    """The machine's processors, of which each guest takes its own number while it runs."""

    def __init__(self, count: int) -> None:
        self._count = self._free = count
        self._changed = threading.Condition()

    def take(self, wanted: int) -> int:
        wanted = min(wanted, self._count)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= wanted)
            self._free -= wanted
        return wanted

    def give(self, taken: int) -> None:
        with self._changed:
            self._free += taken
            self._changed.notify_all()


def order_of(
    one: Release,
    quick: bool,
    rounds: int,
    only: Sequence[str],
    seed: int = 0,
) -> Order:
    """Return what to check in a guest."""
    # Where time is short, on the other methods calls are only counted, and a tool killed; latencies
    # and values are of one Go release.
    full = one.methods[:1] if quick else one.methods
    minors = MINORS[-1:] if quick else MINORS
    return Order(
        list(one.methods),
        full_methods=list(full),
        minors=list(minors),
        pairs=one.pairs,
        is_quick=quick,
        rounds=rounds // 3 if quick else rounds,
        only=list(only or one.only),
        seed=seed,
    )


def _try(
    guest: Guest,
    fixtures: dict[str, Path],
    compiled: Path | None,
    options: argparse.Namespace,
    slots: _Slots,
) -> Outcome:
    outcome = Outcome(guest, [])
    name = guest.release.name
    logs = images.kernels_dir() / "logs"
    logs.mkdir(exist_ok=True)
    order = order_of(
        guest.release,
        options.quick,
        options.rounds,
        options.only,
        options.seed,
    )
    taken = slots.take(guest.cpus)
    before = time.monotonic()
    try:
        with work_image(order, fixtures, compiled) as work:
            for result, spent in run(guest, work, logs / f"{name}.log"):
                outcome.results.append(result)
                outcome.processor_seconds = max(outcome.processor_seconds, spent)
                print(line(name, result), flush=True)
    except (GuestError, FetchError) as error:
        outcome.problem = str(error)
        print(f"{name:<7} {error}", flush=True)
    finally:
        slots.give(taken)
    outcome.seconds = time.monotonic() - before
    if outcome.problem is None and not (options.only or options.quick or guest.release.only):
        keep(name, outcome.results)
    return outcome


def line(name: str, result: Result) -> str:
    """Return one check's line: kernel, method, check, how it ended, seconds, what was seen."""
    state = "ok" if result.ok else "FAILED"
    what = f"{name:<7} {result.method:<11} {result.check:<17} {state:<6}"
    return f"{what} {result.seconds:6.1f} s  {result.detail}"


def summarise(outcomes: Sequence[Outcome], only: Sequence[str] = ()) -> int:
    """Print what came of each guest; return 1 where not all is well."""
    print()
    for outcome in outcomes:
        guest, results = outcome.guest, [r for r in outcome.results if not r.last]
        failed = [f"{r.method} {r.check}".strip() for r in results if not r.ok]
        words = f"{len(results) - len(failed)} of {len(results)} checks passed"
        kernel = next((r.detail for r in outcome.results if r.last), "")
        spent = f"{outcome.seconds:.0f} s ({outcome.processor_seconds:.0f} s of processor time)"
        print(f"{guest.release.name:<7} {words} in {spent}  {kernel}")
        for name in failed:
            print(f"{'':<7} failed: {name}")
        if outcome.problem:
            print(f"{'':<7} {outcome.problem}")
    seen = {result.check for outcome in outcomes for result in outcome.results}
    missing = [check for check in only if check not in seen]
    for check in missing:
        print(f"no guest has run a check {check!r}: docs/kernels.md has their names")
    return 0 if all(outcome.passed for outcome in outcomes) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
