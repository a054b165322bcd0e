"""Say what the histograms do not hold, also where that cannot be found out."""

from __future__ import annotations

import errno
import os
from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest

from gotrace.cli import gofunclatency
from gotrace.histogram import Histogram
from gotrace.kernel.attach import AttachError, Rung
from gotrace.report.output import NoticeKind
from gotrace.session.latency import LatencyMeter, Period
from gotrace.sites.sites import SiteForm
from tests.cli.plans import plan_of


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

    monkeypatch.setattr(gofunclatency, "probe_cost", refuse)
    fake = SimpleNamespace(
        open_calls=lambda: 0, diagnostics=dict, attached=SimpleNamespace(rung=Rung.MULTI)
    )
    quickest = Period({0: Histogram(1, 9, 9, 9, Counter({9: 1}))}, {}, {})
    plan = plan_of("main.f")
    (notice,) = gofunclatency._footer(cast(LatencyMeter, fake), plan, quickest)
    assert notice.kind is NoticeKind.SUMMARY
    assert notice.message.startswith(f"the probes' own cost could not be measured: {why}")
    assert notice.fields == {"what": "probe_cost", "ns": None}
