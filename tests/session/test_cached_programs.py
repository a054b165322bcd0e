# SPDX-License-Identifier: Apache-2.0
"""Hold each program that is kept to what the compiler makes of its source now."""

from __future__ import annotations

from pathlib import Path

import pytest

from gotrace.architecture import Architecture
from gotrace.kernel import program_cache
from gotrace.kernel.compiler import Compiled, compile_program, patched
from gotrace.kernel.program_cache import cached_program
from gotrace.settings import ProgramSettings
from tests.session.test_stacks import SHAPES

pytestmark = pytest.mark.live

#: The upper half of a mark in an instruction.
MARK = b"rtog"


#: The last shape of each source, which has most of its settings.
_CHOSEN = {settings.source: settings for settings, _ in SHAPES}


@pytest.mark.parametrize("settings", _CHOSEN.values(), ids=_CHOSEN)
def test_kept_program_is_what_is_compiled_now(
    settings: ProgramSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tmp_path.chmod(0o700)
    compiled: list[Compiled] = []

    def compile_once(settings: ProgramSettings, arch: Architecture | None) -> Compiled:
        assert not compiled, "compiled again"
        compiled.append(compile_program(settings, arch))
        return compiled[0]

    monkeypatch.setattr(program_cache, "compile_program", compile_once)
    cached_program(settings)
    (now,) = compiled
    assert (found := cached_program(settings)) == now and found is not now
    maps = list(range(100, 100 + len(now.maps)))
    for name, code in now.functions.items():
        loaded = patched(code, maps, settings.values())
        assert patched(found.functions[name], maps, settings.values()) == loaded
        assert MARK not in loaded  # where no value was put in
