# SPDX-License-Identifier: Apache-2.0
"""Write stacks as speedscope reads them, a viewer of flame graphs (https://www.speedscope.app).

The format is that of its file-format-spec.ts: https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import json

from gotrace.profiles.rows import Line, StackProfile
from gotrace.text import encodable

__all__ = ["speedscope"]


def speedscope(profile: StackProfile) -> str:
    """Return a profile as a file of speedscope's.

    The unit of its form is that of weights, by FileFormat.ValueUnit: none, nanoseconds, ...
    """
    frames: dict[Line, int] = {}
    samples: list[list[int]] = []
    weights: list[int] = []
    for stack, weight in profile.weighted():
        samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(weight)
    made = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": encodable(profile.name),
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
                "name": encodable(profile.name),
                "unit": profile.form.unit,
                "startValue": 0,
                "endValue": sum(weights),
                "samples": samples,
                "weights": weights,
            }
        ],
    }
    return json.dumps(made, separators=(",", ":"))
