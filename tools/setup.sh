#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install what gotrace needs and this machine lacks:
# setup.sh [demo | demo-fleet | test | packages | kernels]
#
# Runtime: the distribution's BCC binding for the system's Python, and a virtual environment .venv
# that sees the binding and has what all commands need, gotraced included. With "demo": also a Go
# toolchain when there is none, which compiles the example server. With "demo-fleet": that, and a
# collector. With "test": all of it, and the tests' tools. With "packages": that, and a browser. With
# "kernels": an emulator for guests, and the Go releases that their programs are compiled with.
set -eu
cd "$(dirname "$0")/.."
venv=.venv

# need PROGRAM PACKAGE...: the packages are missing unless the program, a command line, succeeds.
missing=
need() {
    program=$1
    shift
    sh -c "$program" >/dev/null 2>&1 || missing="$missing $*"
}

need "command -v /usr/bin/python3" python3
need "/usr/bin/python3 -c 'import ensurepip'" python3-venv
need "/usr/bin/python3 -c 'import importlib.util as u, sys; sys.exit(not u.find_spec(\"bcc\"))'" \
    python3-bpfcc
case ${1:-} in
demo | demo-fleet | test) need "command -v go" golang-go ;;
esac
if [ "${1:-}" = test ]; then
    need "command -v gcc && test -e /usr/include/stdio.h" gcc libc6-dev
    need "command -v gccgo" gccgo
    need "command -v gdb" gdb
    need "command -v strace" strace
    need "command -v bpftrace" bpftrace
    need "command -v fish" fish
    need "command -v zsh" zsh
    need "command -v funccount-bpfcc" bpfcc-tools
    need "command -v systemd-analyze" systemd
    need "PATH=$PATH:/usr/sbin command -v debootstrap" debootstrap
fi
if [ "${1:-}" = packages ]; then
    need "command -v chromium" chromium
fi
if [ "${1:-}" = kernels ]; then
    need "command -v qemu-system-x86_64" qemu-system-x86
    need "command -v qemu-system-aarch64" qemu-system-arm
    need "command -v gcc && test -e /usr/include/stdio.h" gcc libc6-dev
    need "command -v aarch64-linux-gnu-gcc" gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    need "command -v gccgo" gccgo
    need "command -v aarch64-linux-gnu-gccgo" gccgo-aarch64-linux-gnu
    need "PATH=$PATH:/usr/sbin:/sbin command -v mke2fs" e2fsprogs
    need "command -v setpriv" util-linux
    # What compiles a kernel, if the guest with pages of 64 KB is asked for.
    need "command -v make && command -v flex && command -v bison && command -v bc" make flex bison bc
    need "test -e /usr/include/libelf.h && command -v pahole && command -v xz" libelf-dev dwarves xz-utils
fi

need_python() {
    version=$(/usr/bin/python3 -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
    case $version in
    2.* | 3.[0-9].*)
        echo "gotrace needs Python 3.10 or newer; /usr/bin/python3 is $version" >&2
        exit 1
        ;;
    esac
}

# Asked before anything is installed, and again of the one that was.
! test -x /usr/bin/python3 || need_python
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ]; then
        sudo=
    else
        sudo=sudo
    fi
    if ! command -v apt-get >/dev/null; then
        echo "gotrace: no apt-get here; install what Debian calls:$missing" >&2
        exit 1
    fi
    if [ -n "$sudo" ] && ! command -v sudo >/dev/null; then
        echo "gotrace: neither root nor sudo; as root: apt-get install$missing" >&2
        exit 1
    fi
    echo "gotrace: installing$missing"
    apt="$sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300"
    $apt update
    # Word splitting makes the list. Recommended packages would add kernel headers.
    # shellcheck disable=SC2086
    $apt install -y --no-install-recommends $missing
    need_python
fi

# An environment that does not see the binding is of no use, whoever made it.
if ! $venv/bin/python -c 'import pip, importlib.util as u, sys; sys.exit(not u.find_spec("bcc"))' \
    2>/dev/null; then
    /usr/bin/python3 -m venv --clear --system-site-packages $venv
fi

# pip takes no time and no network for what is there already.
case ${1:-} in
packages | kernels) extra=test ;;
*) extra=${1:-} ;;
esac
$venv/bin/python - "$extra" <<'PYTHON' | xargs -d '\n' \
    $venv/bin/python -m pip install --quiet --disable-pip-version-check
import configparser, sys

setup = configparser.ConfigParser()
setup.read("setup.cfg")
print(setup["options"]["install_requires"].strip())
extras = setup["options.extras_require"]
groups = {"test": ("test", "demo-fleet")}
for name in ("fleet", "completion", *groups.get(sys.argv[1], (sys.argv[1],))):
    if name in extras:  # of "demo" and "" pip knows nothing
        print("\n".join(line for line in extras[name].split("\n") if line and line[0] != "#"))
PYTHON

# Compiled once, here: else every start would do it where PYTHONDONTWRITEBYTECODE is set.
$venv/bin/python -m compileall -q gotrace

# So are BPF programs, for root, who is to run the tools; else each first start does it.
as_root=
[ "$(id -u)" = 0 ] || as_root="sudo -n -H"
if ! $as_root tools/gotrace compile; then
    echo "gotrace: BPF programs were not compiled: the tools will, or sudo tools/gotrace compile" >&2
fi

case ${1:-} in
test)
    $venv/bin/python -m tests.fetch_toolchains ||
        echo "gotrace: tests skip these toolchains, or fail with GOTRACE_LIVE=1" >&2
    ;;
kernels) $venv/bin/python -m tests.fetch_toolchains 1.15 1.19 1.27 ;;
esac
