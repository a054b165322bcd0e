# SPDX-License-Identifier: Apache-2.0
"""The options of gofleet, for its parser and its runs."""

from __future__ import annotations

from gotrace.cli.conflicts import Conflict
from gotrace.cli.options import FileOptions, Heading, positive, seconds
from gotrace.records import dataclass

_AT_ONCE, _SECONDS = 64, 600.0
_OF_RUNS = "--container --at-once --ttl --ssh --sudo --push --remote-command --image --kubectl"


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GofleetOptions(FileOptions):
    """The options of gofleet."""

    NEEDS_ONE = True
    CONFLICTS = (
        Conflict(
            f"{_OF_RUNS} --pods-in --sys-admin",
            "--merge",
            "{1} is for --on, and --merge asks nobody: leave it out",
        ),
    )

    on: list[str] | None = Heading.TARGET.option(
        "--on PLACE",
        "run the command that follows -- on these hosts, ssh:web[01-40],db1, or for these"
        " pods, k8s:deploy/shop, k8s:NAMESPACE/sts/db, k8s:pod/web-0, 'k8s:-l app=shop' (may be"
        " repeated)",
        alone="source",
    )
    merge: list[str] | None = Heading.TARGET.option(
        "--merge FILE...",
        "add up recordings (x.ndjson, x.ndjson.gz), each of a host or merged before",
        alone="source",
    )
    container: str | None = Heading.TARGET.option(
        "--container NAME",
        "this container of each pod (default: the one that kubectl logs takes)",
    )
    at_once: int = Heading.RUN.option(
        "--at-once N",
        f"hosts at a time (default {_AT_ONCE})",
        positive,
        default=_AT_ONCE,
    )
    ttl: float = Heading.RUN.option(
        "--ttl TIME",
        "end the command on each host after this time, whatever becomes of gofleet (default 10m)",
        seconds,
        default=_SECONDS,
    )
    ssh: str = Heading.RUN.option(
        "--ssh CMD",
        "how hosts are reached: 'ssh -F fleet.conf' (default ssh)",
        default="ssh",
    )
    sudo: bool = Heading.RUN.option("--sudo", "run the command by sudo -n there")
    push: list[str] | None = Heading.RUN.option(
        "--push BUNDLE",
        "bring this bundle (make bundle) to hosts that do not have it, and run its command;"
        " may be repeated: each host gets the one for its architecture",
    )
    remote_command: str | None = Heading.RUN.option(
        "--remote-command CMD",
        "what the command is called there: /opt/gotrace/bin/gofunclatency",
    )
    image: str | None = Heading.RUN.option(
        "--image IMAGE",
        "for k8s: the image with the tools, of deploy/Containerfile, which a pod runs on each"
        " node of the pods until the end",
    )
    kubectl: str = Heading.RUN.option(
        "--kubectl CMD",
        "how the cluster is reached: 'kubectl --context prod -n shop' (default kubectl)",
        default="kubectl",
    )
    pods_in: str | None = Heading.RUN.option(
        "--pods-in NAMESPACE",
        "the namespace for the pods on the nodes (default: kubectl's)",
    )
    sys_admin: bool = Heading.RUN.option(
        "--sys-admin",
        "give the pods on the nodes CAP_SYS_ADMIN, which Linux 5.15 to 6.5 asks for",
    )
    by_host: bool = Heading.VALUES.option("--by-host", "keep the rows of each host apart")
    top: int | None = Heading.OUTPUT.option("--top N", "print only the N largest rows", positive)
    quiet: bool = Heading.OUTPUT.option("-q --quiet", "leave out headings")
