# SPDX-License-Identifier: Apache-2.0
"""The probes of a run, and all that placing them takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, TypeVar

from gotrace.kernel import syscalls as kernel
from gotrace.kernel.attach import Attached, Point
from gotrace.kernel.methods import AttachMethod
from gotrace.records import dataclass
from gotrace.session.choices import ReturnMode
from gotrace.session.open_calls import Diagnostic, diagnostics
from gotrace.session.plan import ProbePlan
from gotrace.settings import SiteSettings
from gotrace.target.target import Target

if TYPE_CHECKING:  # counting does without
    from gotrace.session.scheduler import SchedulerProbes
    from gotrace.session.tasks import Tasks
    from gotrace.session.trace_plan import TracePlan
    from gotrace.session.why.probes import WhyProbes


@dataclass(frozen=True, slots=True)
class Places:
    """At how many places in callers a function's calls are seen returning, by their form.

    ``shared`` are those of the emulated ones that other ways lead to as well.
    """

    emulated: int
    shared: int
    stepped: int

    def text(self) -> str:
        """Return the places in words."""
        parts = [
            f"{self.emulated:,} emulated",
            f"{self.shared:,} of these where other code comes by" if self.shared else "",
            f"{self.stepped:,} single-stepped" if self.stepped else "",
        ]
        return f"places: {', '.join(filter(None, parts))}"


@dataclass(frozen=True, slots=True)
class Move:
    """A function, by number, whose calls are seen returning elsewhere now, or not; None for all.

    ``returns`` is "landing", and ``places`` then where, or "ret", and ``why`` then the reason.
    """

    function: int | None
    returns: str
    why: str = ""
    places: Places | None = None

    def text(self, name: str) -> str:
        """Return it in words; ``name`` is the function's, empty for all."""
        where = "in their callers" if self.returns == "landing" else "at RETs"
        parts = [name, f"calls are seen returning {where}{' now' if name else ''}"]
        parts += [self.places.text() if self.places is not None else "", self.why]
        return ": ".join(filter(None, parts))


class Level(Enum):
    """The treatment of a function whose calls have cost more than the run's budget."""

    COUNTED = "counted"  # they are counted, and not followed to their returns
    OFF = "off"  # nothing: its probes are removed


@dataclass(frozen=True, slots=True)
class PlanRoom:
    """The number of functions and files that programs have room for, of all plans that share them.

    Each of the plans is of one file, and has a number of its own.
    """

    functions: int
    files: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A planned run: its probes, and how they are attached.

    ``traced`` is how values are captured, None if no value is. ``tasks`` is how goroutines are
    identified, None if that does not matter. ``why`` finds out what time goes into, None if that
    is not asked for. ``scheduler`` are the probes of a run that follows the scheduler alone.
    ``forced`` is the way to attach, None for the best; ``announce`` is as for ``attach``.
    ``returns`` says where calls are seen returning; ``shows_calls``: each call is shown, also the
    first one of a caller, and as it comes. ``budget`` is what tracing may take, as a part of one
    CPU, None if the run does not mind it; ``is_minded`` if somebody else does. ``is_priced``: it
    is said what the run's hits cost. ``room`` is for further plans, None if there are none to come.
    """

    target: Target
    plan: ProbePlan
    tasks: Tasks | None = None
    traced: TracePlan | None = None
    why: WhyProbes | None = None
    forced: AttachMethod | None = None
    announce: Callable[[str], None] | None = None
    scheduler: SchedulerProbes | None = None
    returns: ReturnMode = ReturnMode.RET
    shows_calls: bool = False
    budget: float | None = None
    is_minded: bool = False
    is_priced: bool = False
    room: PlanRoom | None = None

    @property
    def functions(self) -> int:
        """Return the number of functions that programs have room for."""
        return self.room.functions if self.room is not None else len(self.plan.names)

    @property
    def counts_hits(self) -> bool:
        return self.is_minded or self.is_priced or self.budget is not None

    def site_settings(self) -> SiteSettings:
        return self.target.settings()


_P = TypeVar("_P", bound="Probing")


class Probing:
    """The probes of a run, which are stopped once. A context manager that detaches."""

    attached: Attached
    #: The cost of a hit beyond that of a program that counts, in ns: an estimate.
    program_ns = 0
    #: A message about a part that is not as it was asked for.
    problem = ""
    #: Whether nothing that the probes have recorded can change any more.
    stopped = False
    #: What can be missing from results, by the word for it, and what counts that.
    LOST: ClassVar[Mapping[str, Sequence[Diagnostic]]] = {}
    _skipped = 0

    @property
    def pause(self) -> float:
        """Return in how many seconds ``move`` is to be called again, if others can wait longer."""
        return math.inf

    def move(self) -> None:
        """Have frequent calls seen returning elsewhere; to be called as often as ``pause`` says."""

    def moved(self) -> Iterable[Move]:
        """Return whose calls have begun to be seen returning elsewhere."""
        return ()

    def lighten(self, function: int) -> Level | None:
        """Make a function, by number, cost less, if there is a way; return its level then.

        To be followed by ``drop_probes``: the kernel takes as long for many as for one.
        """
        return None

    def drop_probes(self) -> Collection[int]:
        """Remove the probes that ``lighten`` has made needless.

        Return the functions whose calls are only counted and cost no more than that since the last
        time. Raises AttachError or GotraceError.
        """
        return ()

    def add(self, prepared: Prepared) -> dict[Point, OSError]:
        """Attach a further plan while hits count; return the points that the kernel refuses.

        Only if there is room for it: its functions have numbers that no others have now. Raises
        AttachError or GotraceError: ``remove`` takes away what was attached before that.
        """
        raise NotImplementedError

    def remove(self, functions: Collection[int]) -> None:
        """Remove the probes of functions, by number: their calls are not seen from now on.

        Only if somebody minds what the run costs. Raises AttachError or GotraceError.
        """
        raise NotImplementedError

    def lighten_all(self) -> bool:
        """Count all calls instead of following them; return whether they were followed before.

        To be followed by ``settle``. Only if somebody minds what the run costs.
        """
        return False

    def settle(self) -> bool:
        """Remove the probes that ``lighten_all`` has made needless; to be called now and then.

        Return whether it was removed now.
        """
        return False

    def stop(self) -> None:
        """Remove the probes; after it, nothing is recorded any more. Raises OSError."""
        if not self.stopped:
            self.attached.stop()
            kernel.wait_for_programs()
            self._skipped = self.attached.program.skipped()
            self.stopped = True

    def skipped(self) -> int:
        """Return how many hits the kernel has run no program for. Raises OSError."""
        return self._skipped if self.stopped else self.attached.program.skipped()

    def diagnostics(self) -> dict[Diagnostic, int]:
        """Return how often each irregularity has occurred so far."""
        return diagnostics(self.attached.program)

    def lost(self) -> dict[str, int]:
        """Return how much is missing from the results so far: see ``LOST``."""
        counts = self.diagnostics() if self.LOST else {}
        return {word: sum(counts[one] for one in causes) for word, causes in self.LOST.items()}

    def __enter__(self: _P) -> _P:
        return self

    def __exit__(self, *error: object) -> None:
        self.attached.close()
