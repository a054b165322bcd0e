# SPDX-License-Identifier: Apache-2.0
"""Build large programs with full DWARF from the Go sources that Debian packages."""

from __future__ import annotations

import fcntl
import functools
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.debian import FetchError, unpack
from tests.live import skip_or_fail
from tests.real.fetch import Source, apt
from tests.toolchains import BuildError, Toolchain, cache_dir, require


@dataclass(frozen=True, slots=True)
class SourceProgram:
    """A program, the package with its sources, and what to build: a package, a directory or a file.

    ``suite`` has the package, and ``minor`` is the Go release that builds it. ``others`` are the
    packages that it takes beside it, None for all that it depends on.
    """

    name: str
    package: str
    main: str
    suite: str = Source.BOOKWORM
    minor: str = "1.19"
    flags: tuple[str, ...] = ()
    others: tuple[str, ...] | None = None


SOURCES = (
    SourceProgram("etcd", "golang-etcd-server-dev", "go.etcd.io/etcd"),
    SourceProgram(
        "gin",
        "golang-github-mcuadros-go-gin-prometheus-dev",
        str(Path(__file__).parent / "gin" / "main.go"),
    ),
    SourceProgram(
        "esbuild", "golang-github-evanw-esbuild-dev", "github.com/evanw/esbuild/cmd/esbuild"
    ),
)

#: Others whose signatures are compared with DWARF's; without a package, a command of Go's own.
OTHERS = (
    SourceProgram("go", "", "cmd/go", minor="1.27"),
    SourceProgram("compile", "", "cmd/compile", minor="1.27"),
    SourceProgram("gofmt", "", "cmd/gofmt", minor="1.27"),
    SourceProgram("vet", "", "cmd/vet", minor="1.27"),
    SourceProgram(
        "nats-server",
        "golang-github-nats-io-nats-server-dev",
        "github.com/nats-io/nats-server",
    ),
    SourceProgram(
        "alertmanager",
        "golang-github-prometheus-alertmanager-dev",
        "github.com/prometheus/alertmanager/cmd/alertmanager",
    ),
    SourceProgram(
        "influxd",
        "golang-github-influxdb-influxdb-dev",
        "github.com/influxdata/influxdb/cmd/influxd",
    ),
    SourceProgram("serf", "golang-github-hashicorp-serf-dev", "github.com/hashicorp/serf/cmd/serf"),
    SourceProgram(
        "syncthing",
        "golang-github-syncthing-syncthing-dev",
        "github.com/syncthing/syncthing/cmd/syncthing",
    ),
    SourceProgram(
        "cfssl", "golang-github-cloudflare-cfssl-dev", "github.com/cloudflare/cfssl/cmd/cfssl"
    ),
    SourceProgram(
        "age",
        "golang-filippo-age-dev",
        "filippo.io/age/cmd/age",
        others=(
            "golang-filippo-edwards25519-dev",
            "golang-golang-x-crypto-dev",
            "golang-golang-x-sys-dev",
            "golang-golang-x-term-dev",
        ),
    ),
    SourceProgram("godoc", "golang-golang-x-tools-dev", "golang.org/x/tools/cmd/godoc"),
    SourceProgram("lego", "golang-github-xenolf-lego-dev", "github.com/go-acme/lego/cmd/lego"),
    SourceProgram("goimports", "golang-golang-x-tools-dev", "golang.org/x/tools/cmd/goimports"),
)

_HERE = Path(__file__).parent / "recipes"
_GRPC, _REDIGO = "golang-google-grpc-dev", "golang-github-gomodule-redigo-dev"
_GO_REDIS = "golang-github-go-redis-redis-dev"
_NET, _TEXT = "golang-golang-x-net-dev", ("golang-golang-x-text-dev",)
_STRIPPED = "-ldflags=-s -w"

#: Programs that know what recipes have to show, with gRPC 1.27, 1.33 and 1.64, golang.org/x/net
#: 0.7, 0.27 and 0.61, go-redis 6.15, and redigo 1.8 and 1.9.
RECIPES = (
    SourceProgram("grpc-1.27", _GRPC, str(_HERE / "grpc"), Source.BULLSEYE, "1.15"),
    SourceProgram("grpc-1.33", _GRPC, str(_HERE / "grpc")),
    SourceProgram("grpc-1.33s", _GRPC, str(_HERE / "grpc"), flags=(_STRIPPED,)),
    SourceProgram("grpc-1.64", _GRPC, str(_HERE / "grpc"), Source.TRIXIE, "1.24"),
    SourceProgram("http-0.7", _NET, str(_HERE / "http"), others=_TEXT),
    SourceProgram("http-0.27", _NET, str(_HERE / "http"), Source.TRIXIE, "1.24", others=_TEXT),
    SourceProgram("http-0.61", _NET, str(_HERE / "http"), Source.FORKY, "1.27", others=_TEXT),
    SourceProgram(
        "http-0.61s",
        _NET,
        str(_HERE / "http"),
        Source.FORKY,
        "1.27",
        (_STRIPPED, "-tags=http2legacy"),
        _TEXT,
    ),
    SourceProgram("redis-6", _GO_REDIS, str(_HERE / "redis"), Source.BULLSEYE, "1.15"),
    SourceProgram("redigo-1.8", _REDIGO, str(_HERE / "redigo")),
    SourceProgram("redigo-1.9", _REDIGO, str(_HERE / "redigo"), Source.TRIXIE, "1.24"),
)

_OTEL, _SYS = "golang-opentelemetry-otel-dev", "golang-golang-x-sys-dev"
_OTEL_MAIN = str(Path(__file__).parents[1] / "fixtures" / "live_spans")
_LOGR = ("golang-github-go-logr-logr-dev", "golang-github-go-logr-stdr-dev")
_UUID = "golang-github-google-uuid-dev"
_XXHASH = ("golang-github-cespare-xxhash-dev", "golang-github-cespare-xxhash-v2-dev")

#: A program with spans, by OpenTelemetry 1.1, 1.31 and 1.46. The package has all parts of it, of
#: which the SDK for traces needs a few others alone.
OTEL = (
    SourceProgram("otel-1.1", _OTEL, _OTEL_MAIN, others=(_SYS,)),
    SourceProgram(
        "otel-1.31",
        _OTEL,
        _OTEL_MAIN,
        Source.TRIXIE,
        "1.24",
        ("-ldflags=-s -w", "-buildmode=pie"),
        (_SYS, _UUID, *_LOGR),
    ),
    SourceProgram(
        "otel-1.46",
        _OTEL,
        _OTEL_MAIN,
        Source.FORKY,
        "1.27",
        others=(_SYS, _UUID, *_LOGR, *_XXHASH),
    ),
)


def compiler(program: SourceProgram = SOURCES[0]) -> Toolchain:
    """Return the toolchain that builds a program: of its suite's release, or near."""
    return require(program.minor)


@functools.cache
def built(name: str) -> Path:
    """Return the path of a program, fetched and built when it is not there; or skip the test."""
    wanted = next(one for one in (*SOURCES, *OTHERS, *RECIPES, *OTEL) if one.name == name)
    place = cache_dir() / "real" / f"source-{name}"
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tree = place / "root"
        if wanted.package and not tree.exists():
            try:
                _fetch(wanted, place, tree)
            except (FetchError, OSError) as error:
                skip_or_fail(f"the sources of {name} cannot be fetched: {error}")
        return _build(wanted, place / name, tree)


def _fetch(wanted: SourceProgram, place: Path, tree: Path) -> None:
    """Unpack the package and all Go sources that it depends on, as apt resolves that."""
    source = apt(wanted.suite)
    packages = [wanted.package, *(wanted.others or ())]
    if wanted.others is None:
        packages = [name for name in source.resolve([wanted.package]) if _SOURCES.fullmatch(name)]
    with tempfile.TemporaryDirectory(prefix="fetch.", dir=place) as directory:
        unpacked = Path(directory) / "root"
        for package in source.download(packages, Path(directory)):
            unpack(package, unpacked)
        unpacked.rename(tree)


_SOURCES = re.compile("golang-.+-dev")


def _build(wanted: SourceProgram, path: Path, tree: Path) -> Path:
    """Build in GOPATH mode, as Debian does; Go's own cache tells what is up to date."""
    env = {
        **compiler(wanted).env(),
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "GOPATH": str(tree / "usr" / "share" / "gocode"),
    }
    unfinished = path.with_name(f"{path.name}.unfinished")
    go = str(compiler(wanted).go)
    place, main = path.parent, wanted.main
    if Path(main).is_dir():
        place, main = Path(main), "."  # as a package: what is for other releases is left out
    command = [go, "build", *wanted.flags, "-o", str(unfinished), main]
    done = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    if path.exists() and path.read_bytes() == unfinished.read_bytes():
        unfinished.unlink()
    else:
        shutil.move(unfinished, path)
    return path
