"""Say what the histograms do not hold, also where that cannot be found out."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gotrace.cli import gofunclatency
from gotrace.histogram import Histogram
from gotrace.kernel.attach import AttachError, Rung
from gotrace.report.output import Notice, NoticeKind
from gotrace.session import calibrate
from gotrace.session.latency import LatencyMeter, Period
from gotrace.sites.sites import SiteForm
from tests.cli.plans import plan_of


def footer_of_quick_calls(until: float) -> Notice:
    fake = SimpleNamespace(
        open_calls=lambda: 0, diagnostics=dict, attached=SimpleNamespace(rung=Rung.MULTI)
    )
    quickest = Period({0: Histogram(1, 9, 9, 9, Counter({9: 1}))}, {}, {})
    plan = plan_of("main.f")
    (notice,) = gofunclatency._footer(cast(LatencyMeter, fake), plan, quickest, until)
    return notice


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (AttachError("cannot attach to calibration: multi: no"), "cannot attach to calibration"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "Cannot allocate memory"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_a_cost_that_cannot_be_measured_is_no_error(
    error: Exception, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(form: SiteForm, rung: Rung) -> int:
        raise error

    monkeypatch.setattr(calibrate, "_own_cost", refuse)
    notice = footer_of_quick_calls(time.monotonic() + 60)
    assert notice.kind is NoticeKind.SUMMARY
    assert notice.message.startswith(f"the probes' own cost could not be measured: {why}")
    assert notice.fields == {"what": "probe_cost", "ns": None}


def test_a_cost_that_takes_too_long_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left: its process is ended and reaped."""
    children = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children")
    before = children.read_text().split()
    monkeypatch.setattr(calibrate, "_own_cost", lambda form, rung: signal.sigwait([]))
    notice = footer_of_quick_calls(time.monotonic() + 0.01)
    assert notice.message.endswith("could not be measured: there was no time left for it")
    assert children.read_text().split() == before
