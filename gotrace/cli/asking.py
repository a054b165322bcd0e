# SPDX-License-Identifier: Apache-2.0
"""Runs of gofleet: what hosts or pods are asked, and the sums of their answers."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from gotrace.cli.fleet_options import GofleetOptions
from gotrace.cli.stream import ResultFile, result_stream
from gotrace.errors import GotraceError, UsageError
from gotrace.hosts.bundle import Bundle, read_bundles
from gotrace.hosts.kubernetes import Kubernetes
from gotrace.hosts.names import are_pods, host_names, selections
from gotrace.hosts.remote import Reach
from gotrace.hosts.run import HostResult, HostRuns
from gotrace.hosts.ssh import Ssh
from gotrace.profiles.write import write_profile
from gotrace.report.output import JsonOutput, Patience, TextOutput
from gotrace.results.kinds import SAMPLING, TOOLS
from gotrace.results.merging import Merged, merge
from gotrace.target.wait import Interrupts
from gotrace.text import counted, printable

#: Options for hosts, and those for pods, with what they are if they are not given.
_OF_SSH: Mapping[str, object] = {"ssh": "ssh", "sudo": False, "push": None}
_OF_KUBERNETES: Mapping[str, object] = {
    "kubectl": "kubectl",
    "image": None,
    "container": None,
    "pods_in": None,
    "sys_admin": False,
}
#: Options of a command that leave less than is needed, and what does the same here.
_ELSEWHERE = {
    **dict.fromkeys(("-o", "--output"), "gofleet -o FILE writes one"),
    **dict.fromkeys(("-f", "--folded"), "gofleet -o x.folded writes all stacks"),
    **dict.fromkeys(("-l", "--list", "--diff", "--heat", "--watch"), "it has nothing to add up"),
    **dict.fromkeys(
        (f"{tool} {option}" for tool in SAMPLING for option in ("-g", "--goroutines", "--stacks")),
        "it has functions of all hosts",
    ),
    "gostacks --by": "groups of all hosts are by stack",
    "--top": "gofleet --top N has the largest of all hosts",
}


def add_up(options: GofleetOptions, command: Sequence[str]) -> int:
    """Ask hosts, or read recordings, write the sums and return the exit status."""
    options = options.with_form_of_files()
    if options.merge:
        if command:
            raise UsageError("--merge reads files: leave out -- and the command")
        _write(options, merge(*options.merge, by_host=options.by_host))
        return 0
    return _ask(options, command)


def _ask(options: GofleetOptions, command: Sequence[str]) -> int:
    """Run the command everywhere, write the results, and return the exit status."""
    words = _remote_words(options, command)
    way, hosts = _way(options, command)
    what = "pod" if isinstance(way, Kubernetes) else "host"
    if not options.quiet:
        asked = counted(f"asking {{}} {what}{{s}}", len(hosts))
        _say(f"{asked}: {shlex.join(command)}: Ctrl-C ends it everywhere")
    attached = _Attached(0 if options.quiet else len(hosts), what)
    at_once = min(options.at_once, len(hosts))
    runs = HostRuns(way, hosts, words, at_once, attached.one, options.ttl)
    answers = _Answers(options.by_host, command)
    failed: list[int] = []
    with _ended_by_signals(runs.stop, runs.abandon):
        for result in runs.results():
            with result.output:
                problem = answers.take(result)
            if problem is not None:
                failed.append(result.status)
                _say(f"{result.host}: {problem}")
            elif result.is_timed_out:
                _say(f"{result.host}: ended by --ttl, after {options.ttl:g} s")
    merged, others = answers.agreed()
    for host, problem in others:
        failed.append(1)
        _say(f"{host}: {problem}")
    if merged.hosts:
        _write(options, merged)
    if not failed:
        return 0
    return failed[0] if len({*failed}) == 1 and not merged.hosts and failed[0] in (2, 3) else 1


def _way(options: GofleetOptions, command: Sequence[str]) -> tuple[Reach, list[str]]:
    """Return how hosts or pods are reached, and their names. Raises UsageError, HostError."""
    places = options.on or []
    of_pods = {*map(are_pods, places)}
    if len(of_pods) > 1:
        raise UsageError("--on: hosts (ssh:) and pods (k8s:) cannot be asked at once")
    (is_of_pods,) = of_pods
    for name, default in (_OF_SSH if is_of_pods else _OF_KUBERNETES).items():
        if getattr(options, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is for --on {'ssh' if is_of_pods else 'k8s'}: only")
    ttl = max(1, round(options.ttl))
    if is_of_pods:
        wanted = selections(places)
        kubectl = _split("--kubectl", options.kubectl)
        for word in _own(command):
            if re.match(r"-p|--pid\b|-c|--cmd\b|--core\b", word):
                raise UsageError(f"{word}: the pods say what is traced: --container chooses one")
        if not options.image:
            raise UsageError(
                "--image IMAGE has to be an image with the tools: deploy/Containerfile"
            )
        pods = Kubernetes(kubectl, options.image, ttl, options.pods_in, options.sys_admin)
        return pods, pods.find(wanted, options.container)
    hosts = host_names(places)
    bundles: list[Bundle] = []
    if options.push:
        if options.remote_command:
            raise UsageError("--push brings the command: leave out --remote-command")
        bundles = read_bundles(options.push, command[0])
    return Ssh(_split("--ssh", options.ssh), ttl, options.sudo, bundles), hosts


class _Attached:
    """Says when the probes are in place on all of so many hosts, or pods."""

    def __init__(self, hosts: int, what: str) -> None:
        self._hosts = hosts
        self._what = what
        self._lock = threading.Lock()
        self._seen = 0

    def one(self) -> None:
        """Take note of one more."""
        with self._lock:
            self._seen += 1
            if self._seen == self._hosts:
                _say(counted(f"tracing on {{}} {self._what}{{s}}", self._hosts))


def _remote_words(options: GofleetOptions, command: Sequence[str]) -> list[str]:
    """Return the command for the hosts. Raises UsageError."""
    tools = ", ".join(TOOLS)
    if not command:
        raise UsageError(f"give what to run on the hosts after --: one of {tools}")
    tool, *rest = command
    if tool not in TOOLS:
        raise UsageError(f"{tool!r}: what can be added up is {tools}")
    own = _own(rest)
    for word in own:
        option = word.partition("=")[0]
        if instead := _ELSEWHERE.get(f"{tool} {option}") or _ELSEWHERE.get(option):
            raise UsageError(f"{option} cannot be given to {tool} here: {instead}")
    called = [tool]
    if options.remote_command:
        called = _split("--remote-command", options.remote_command)
    return [*called, *(() if "--json" in own else ("--json",)), *rest]


def _own(words: Sequence[str]) -> Sequence[str]:
    """Return a command's words without those of a command that it starts."""
    return words[: words.index("--")] if "--" in words else words


def _split(option: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}") from error
    if not words:
        raise UsageError(f"{option} {text!r}: there is no command")
    return words


class _Answers:
    """The output of hosts, added up by the question that they say they were asked.

    A host may have been given other words, or lie: the answer of most hosts is the one that counts.
    """

    def __init__(self, by_host: bool, command: Sequence[str]) -> None:
        self._by_host = by_host
        self._command = command
        self._sums: list[Merged] = []

    def take(self, result: HostResult) -> str | None:
        """Add a host's rows; return their fault, None if they are whole.

        Whatever fails is that host's alone.
        """
        try:
            is_empty = next(result.lines(), None) is None
            if is_empty or not (result.problem is None or _is_whole(result)):
                return result.problem or "it printed nothing"
            one = Merged(self._by_host)
            one.add(result.lines(), result.host, is_live=True)
            if one.tool not in (None, self._command[0]):
                return f"it has rows of {one.tool}, and was asked for {self._command[0]}"
            self._add(one, result.host)
        except Exception as error:
            is_known = isinstance(error, GotraceError)
            return str(error) if is_known else f"{type(error).__name__}: {error}"
        return result.problem

    def _add(self, one: Merged, host: str) -> None:
        for merged in self._sums:
            with suppress(UsageError):  # of another question
                merged.add(one, host)
                return
        merged = Merged(self._by_host)
        merged.add(one, host)
        self._sums.append(merged)

    def agreed(self) -> tuple[Merged, list[tuple[str, str]]]:
        """Return the answer of most hosts, and the other hosts, each with its fault."""
        words = {*self._command}

        def weight(merged: Merged) -> tuple[int, bool]:
            return len(merged.hosts), words.issuperset(merged.options.get("patterns", ()))

        chosen = max(self._sums, key=weight, default=Merged(self._by_host))
        problem = "it says that it was asked something else than most hosts"
        others = [one for one in self._sums if one is not chosen]
        return chosen, [(host, problem) for one in others for host in one.hosts]


def _is_whole(result: HostResult) -> bool:
    """Return whether a command that failed has come to its end all the same."""
    return any('"kind":"detached"' in line for line in result.lines())


@contextmanager
def _ended_by_signals(stop: Callable[[], None], abandon: Callable[[], None]) -> Iterator[None]:
    """End runs at the first signal, and wait for nothing more at the second."""
    interrupts = Interrupts()

    def end(number: int, frame: object) -> None:
        (lambda: None, stop, abandon)[interrupts.ordinal()]()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(f"gofleet: {printable(text)}", file=sys.stderr, flush=True)


def _write(options: GofleetOptions, merged: Merged) -> None:
    """Write results where the options want them. Raises GotraceError, OSError."""
    from gotrace.report.merged import merged_profile, write_merged  # takes what reports take

    files = options.files
    for path in files.profiles:
        profile = merged_profile(merged)
        if profile is None:
            raise UsageError(f"-o {path} has stacks, and there are none in these results")
        write_profile(path, profile)
        _say(f"wrote {counted('{:,} stack{s}', len(profile.rows))} to {path}")
    for path in filter(None, (files.text, files.json)):
        with ResultFile(path) as file:
            as_json = path == files.json
            output = JsonOutput(file) if as_json else TextOutput(file, sys.stderr, options.quiet)
            write_merged(output, merged, options.top)
        if not options.quiet:
            _say(f"wrote {path}")
    if any(files) and not options.json:
        return
    out = result_stream(sys.stdout, Patience())
    output = JsonOutput(out) if options.json else TextOutput(out, sys.stderr, options.quiet)
    write_merged(output, merged, options.top)
