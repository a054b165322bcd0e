# SPDX-License-Identifier: Apache-2.0
"""OpenSSH's server, with a network, users and keys of its own, for hosts that are this machine.

``make setup-test`` unpacks Debian's package beside the toolchains and installs nothing.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.debian import PrivateApt, unpack
from tests.live import skip_or_fail
from tests.toolchains import toolchain_dir
from tests.tools.harness import Process

_SUITE = "bookworm"
_PORT = 2222
_PATIENCE = 900.0  # seconds, of all tests of a module
#: The network, /run and the users are the server's own; the programs are the machine's.
_BEGIN = """\
set -e
ip link set lo up
mount -t tmpfs none /run
mkdir -m 755 /run/sshd
cp /etc/passwd "$1/passwd"
echo 'sshd:x:65530:65534::/run/sshd:/bin/false' >>"$1/passwd"
mount --bind "$1/passwd" /etc/passwd
export LD_LIBRARY_PATH="$2"
exec "$3" -D -e -f "$1/sshd_config" 2>&1
"""


def sshd_place() -> Path:
    """Return where the fetched packages are unpacked."""
    return toolchain_dir() / "openssh-server"


def sshd() -> Path | None:
    """Return the server's command, None if it has not been fetched."""
    path = sshd_place() / "usr" / "sbin" / "sshd"
    return path if path.exists() else None


def fetch_sshd(unpacked: Path) -> None:
    """Unpack the server and the library that nothing else has. Raises FetchError."""
    with tempfile.TemporaryDirectory(prefix="sshd.", dir=unpacked.parent) as directory:
        place = Path(directory)
        apt = PrivateApt(_SUITE, place)
        apt.update()
        for found in apt.download(["openssh-server", "libwrap0"], place):
            unpack(found, place / "root")
        (place / "root").rename(unpacked)


class Sshd:
    """A server, and the configuration with which ``ssh`` reaches it as web01 to web40."""

    def __init__(self, place: Path, settings: Sequence[str] = ()) -> None:
        """``place`` is an empty directory; ``settings`` are lines of sshd_config."""
        program = sshd()
        if program is None:
            skip_or_fail("OpenSSH's server is not there: make setup-test fetches it")
        for name in ("host_key", "key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)]
            subprocess.run(words, check=True)
        lines = [
            *(f"Port {_PORT}", f"HostKey {place}/host_key", "UsePAM no", "StrictModes no"),
            *(f"AuthorizedKeysFile {place}/key.pub", "PermitRootLogin yes", "MaxStartups 200"),
            *(f"PidFile {place}/pid", *settings),
        ]
        (place / "sshd_config").write_text("\n".join(lines) + "\n")
        hosts = "".join(
            f"Host web{number:02}\n  HostName 127.0.0.{number}\n" for number in range(1, 41)
        )
        (place / "ssh_config").write_text(
            f"{hosts}Host *\n  Port {_PORT}\n  User root\n  IdentityFile {place}/key\n"
            "  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"
            "  LogLevel ERROR\n"
        )
        self.place = place
        self.ssh = f"ssh -F {place}/ssh_config"
        library = sshd_place() / "usr" / "lib" / "x86_64-linux-gnu"
        words = ["unshare", "--mount", "--net", "sh", "-c", _BEGIN, "sh"]
        self._process = Process([*words, str(place), str(library), str(program)], _PATIENCE)
        self._process.read_until("Server listening ")

    def within(self, *words: str) -> list[str]:
        """Return the command line that runs words where the server can be reached."""
        return ["nsenter", "--target", str(self._process.pid), "--mount", "--net", *words]

    def set_network(self, state: str) -> None:
        """Set the network ``up``, or ``down`` without a word to anybody."""
        subprocess.run(self.within("ip", "link", "set", "lo", state), check=True)

    def __enter__(self) -> Sshd:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.__exit__(kind, error, trace)
