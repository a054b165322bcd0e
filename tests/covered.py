# SPDX-License-Identifier: Apache-2.0
"""How often a program calls its functions, by the coverage counters of another build of it."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

from tests.toolchains import Toolchain, build, minor, newest


def covered_calls(source: Path, toolchain: Toolchain, at: Path) -> Counter[str]:
    """Return how often the program calls each function, by its coverage counters.

    Programs have them since Go 1.20, and calls do not depend on the release.
    """
    toolchain = toolchain if minor(toolchain) >= 20 else newest()
    binary = build(source, toolchain, flags=("-cover", "-covermode=count"))
    environment = {**os.environ, "GOCOVERDIR": str(at)}
    subprocess.run([binary], input=b"x", check=True, capture_output=True, env=environment)
    profile = at / "cover.txt"
    command = [str(toolchain.go), "tool", "covdata", "textfmt", f"-i={at}", f"-o={profile}"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **toolchain.env()})
    blocks = re.findall(r"main\.go:(\d+)\.\d+,\S+ \d+ (\d+)$", profile.read_text(), re.MULTILINE)
    executed: dict[int, int] = {}
    for line, count in blocks:
        executed.setdefault(int(line), int(count))
    calls: Counter[str] = Counter()
    for number, text in enumerate((source / "main.go").read_text().splitlines(), 1):
        if match := re.match(r"func (?:\([^)]*\) )?(\w+)[\[(]", text):
            # A function's first block begins with its line, or with its first statement.
            calls[match[1]] = executed[min(line for line in executed if line >= number)]
    return calls
