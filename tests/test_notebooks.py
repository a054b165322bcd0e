# SPDX-License-Identifier: Apache-2.0
"""Results in a notebook, as nbclient runs it: tables whose names are escaped, and frames."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

CLONE = Path(__file__).parent.parent

pytestmark = pytest.mark.slow

_HOSTILE = "main.<script>alert(1)</script>"
_CELLS = """\
import gotrace
from gotrace.api.rows import Counts
gotrace.diff("a.ndjson", "b.ndjson")
---
Counts({"main.<script>alert(1)</script>": 7})
---
gotrace.Histogram(3, 9, 2, 4, {2: 1, 3: 1, 4: 1})
---
from gotrace.api.rows import Latencies
named = Latencies(["main.<script>alert(1)</script>"])
named["main.<script>alert(1)</script>"] = gotrace.Histogram(3, 9, 2, 4, {2: 1, 3: 1, 4: 1})
named
---
gotrace.diff("a.ndjson", "b.ndjson").to_frame()
---
print(len(Counts(a=1).to_frame()), gotrace.Histogram(1, 2, 2, 2, {2: 1}).to_frame().shape)
"""


def record(path: Path, count: int) -> None:
    row = {"kind": "count", "func": _HOSTILE, "count": count, "ts": 1.0, "interval_s": 1.0}
    path.write_text(json.dumps(row) + "\n")


def test_results_are_tables_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    record(tmp_path / "a.ndjson", 100)
    record(tmp_path / "b.ndjson", 900)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(CLONE)]))
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(text) for text in _CELLS.split("---\n")]
    )
    client = nbclient.NotebookClient(
        notebook, timeout=90, resources={"metadata": {"path": str(tmp_path)}}
    )
    ran: Any = client.execute()
    shown = [cell.outputs[-1] for cell in ran.cells]
    pages = [output.data["text/html"] for output in shown[:5]]
    assert all("<table" in page and "<script" not in page for page in pages)
    name = "main.&lt;script&gt;alert(1)&lt;/script&gt;"
    assert f"<td>{name}</td><td>800</td>" in pages[0]
    assert f"<td>{name}</td><td>7</td>" in pages[1]
    assert "<td>2 - 3</td><td>2</td><td><svg" in pages[2]
    assert f"<td>{name}</td><td>3</td><td>9</td>" in pages[3]
    assert shown[5].text == "1 (1, 3)\n"
