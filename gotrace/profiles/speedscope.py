# SPDX-License-Identifier: Apache-2.0
"""Write stacks as speedscope reads them, a viewer of flame graphs (https://www.speedscope.app).

The format is that of its file-format-spec.ts: https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

import json

from gotrace.profiles.rows import Line, StackProfile
from gotrace.text import encodable


def speedscope(profile: StackProfile) -> str:
    """Return a profile as a file of speedscope's.

    The unit of its form is that of weights, by FileFormat.ValueUnit: none, nanoseconds, ...
    Viewers show one frame for each entry of the table of frames. So a function of a file is one
    entry, which has a line only if all of its frames have the same one.
    """
    numbers: dict[tuple[str, str], int] = {}
    frames: list[set[Line]] = []
    samples: list[list[int]] = []
    weights: list[int] = []
    for stack, weight in profile.weighted():
        sample = []
        for frame in stack:
            number = numbers.setdefault((frame.function, frame.file), len(numbers))
            if number == len(frames):
                frames.append(set())
            frames[number].add(frame)
            sample.append(number)
        samples.append(sample)
        weights.append(weight)
    made = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": encodable(profile.name),
        "exporter": "gotrace",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(lines) for lines in frames]},
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


def _frame(lines: set[Line]) -> dict[str, str | int]:
    """Return the entry of a function, of which these frames are."""
    one = next(iter(lines))
    made: dict[str, str | int] = {"name": encodable(one.function)}
    if one.file:
        made["file"] = encodable(one.file)
        if len(lines) == 1:
            made["line"] = one.line
    return made
