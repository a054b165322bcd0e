# SPDX-License-Identifier: Apache-2.0
"""Write stacks as speedscope reads them, a viewer of flame graphs (https://www.speedscope.app).

The format is that of its file-format-spec.ts: https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from gotrace.profiles.pprof import Line
from gotrace.text import encodable

__all__ = ["speedscope_profile"]


def speedscope_profile(
    name: str, stacks: Iterable[tuple[Sequence[Line], int]], unit: str = "none"
) -> str:
    """Return a profile of stacks, each from its outermost frame on, with a weight.

    ``unit`` is that of weights, by speedscope's FileFormat.ValueUnit: none, nanoseconds, ...
    """
    frames: dict[Line, int] = {}
    samples: list[list[int]] = []
    weights: list[int] = []
    for stack, weight in stacks:
        samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(weight)
    profile = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": encodable(name),
        "exporter": "gotrace",
        "activeProfileIndex": 0,
        "shared": {
            "frames": [
                {"name": encodable(frame.function)}
                | ({"file": encodable(frame.file), "line": frame.line} if frame.file else {})
                for frame in frames
            ]
        },
        "profiles": [
            {
                "type": "sampled",
                "name": encodable(name),
                "unit": unit,
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        ],
    }
    return json.dumps(profile, separators=(",", ":"))
