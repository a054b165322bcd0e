# SPDX-License-Identifier: Apache-2.0
"""Make plans of functions that are in no file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from gotrace.elf.functions import FuncInfo, Origin
from gotrace.session.plan import BinaryPlan, ProbePlan
from gotrace.sites.records import SiteForm
from gotrace.sites.sites import FunctionSites, Site, SiteKind
from gotrace.target.target import TargetBinary


def plan_of(*names: str, form: SiteForm = SiteForm.FIRST) -> ProbePlan:
    """Return a plan of functions with these names, each with an entry of a form and a RET."""
    functions = []
    for row, name in enumerate(names):
        entry = 0x1000 * (row + 1)
        function = FuncInfo(name, entry, entry + 0x100, row, Origin.PCLNTAB)
        first = Site(entry, SiteKind.ENTRY, form, 0)
        ret = Site(entry + 0xFF, SiteKind.RET, SiteForm.RET, 0)
        functions.append(FunctionSites(function, first, (ret,), None))
    functions_of = SimpleNamespace(
        has_pclntab=True,
        inlined_by_name=lambda: None,
        inlined_calls=lambda names: [],
        is_wrapper=lambda row: False,
    )
    binary = cast(TargetBinary, SimpleNamespace(functions=functions_of))
    return ProbePlan((BinaryPlan(binary, tuple(functions)),), ())
