# SPDX-License-Identifier: Apache-2.0
"""Delve, the Go debugger, as a second opinion: where it is, and a client for its JSON-RPC server.

The package of Debian's next release runs on older ones, too: it needs libc only. ``make
setup-test`` unpacks it beside the toolchains and installs nothing.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.debian import fetch_program, fetched_program
from tests.toolchains import toolchain_dir
from tests.tools.harness import Process

_SUITE = "forky"

_LOAD = {
    "FollowPointers": True,
    "MaxVariableRecurse": 3,
    "MaxStringLen": 400,
    "MaxArrayValues": 64,
    "MaxStructFields": -1,
}
_ARGUMENT = 1 << 3  # api.VariableArgument; results are listed too


def delve_place() -> Path:
    """Return where the fetched package is unpacked."""
    return toolchain_dir() / "delve"


def delve() -> Path | None:
    """Return the debugger's command, the fetched one first; None where there is none."""
    return fetched_program("dlv", delve_place())


class Delve:
    """A debugger that has started a program and stopped it before its first instruction."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rw")
        self._calls = 0

    def call(self, method: str, **arguments: Any) -> Any:
        """Call the server (Delve's service/rpc2) and return its result."""
        self._calls += 1
        order = {"method": f"RPCServer.{method}", "params": [arguments], "id": self._calls}
        self._stream.write(json.dumps(order) + "\n")
        self._stream.flush()
        answer = json.loads(self._stream.readline())
        assert answer["error"] is None, (method, arguments, answer["error"])
        return answer["result"]

    def entered(self, functions: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield (function, its arguments) at each entry of the functions that an expression names.

        An argument is Delve's api.Variable.
        """
        for name in self.call("ListFunctions", Filter=functions)["Funcs"]:
            self.call("CreateBreakpoint", Breakpoint={"functionName": name, "LoadArgs": _LOAD})
        while not (state := self.call("Command", name="continue")["State"])["exited"]:
            thread = state["currentThread"]
            found = thread["breakPointInfo"].get("arguments") or []
            arguments = [variable for variable in found if variable["flags"] & _ARGUMENT]
            yield thread["function"]["name"], arguments


@contextmanager
def debugging(debugger: Path, program: Path, typed: str) -> Iterator[Delve]:
    """Start a program under the debugger; ``typed`` is what it reads."""
    with tempfile.TemporaryDirectory(prefix="gotrace-delve-") as directory:
        place, typing = Path(directory) / "socket", Path(directory) / "typed"
        typing.write_text(typed)
        words = (debugger, "exec", program, "--headless", "--api-version", "2")
        redirected = ("-r", f"stdin:{typing}", "-r", "stdout:/dev/null")
        with Process((*words, "--listen", f"unix:{place}", *redirected)) as serving:
            serving.read_until("API server listening")
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(place))
                yield Delve(connection)


def fetch(unpacked: Path) -> None:
    """Unpack Debian's package into a directory. Raises FetchError."""
    fetch_program("delve", _SUITE, unpacked)


def version(debugger: Path) -> str:
    """Return the debugger's release."""
    said = subprocess.run([debugger, "version"], capture_output=True, text=True).stdout
    return next((line.split()[1] for line in said.splitlines() if line.startswith("Version")), "?")
