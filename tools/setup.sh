#!/bin/sh
# Install what gotrace needs and this machine lacks: setup.sh [test]
#
# Runtime: the distribution's BCC binding for the system's Python, a Go toolchain when there is
# none, and a virtual environment .venv that sees the binding. With "test": also the tests' tools.
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
need "command -v go" golang-go
if [ "${1:-}" = test ]; then
    need "command -v gcc && test -e /usr/include/stdio.h" gcc libc6-dev
    need "command -v gccgo" gccgo
    need "command -v gdb" gdb
    need "command -v bpftrace" bpftrace
    need "command -v funccount-bpfcc" bpfcc-tools
fi

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
fi

# An environment that does not see the binding is of no use, whoever made it.
if ! $venv/bin/python -c 'import pip, importlib.util as u, sys; sys.exit(not u.find_spec("bcc"))' \
    2>/dev/null; then
    /usr/bin/python3 -m venv --clear --system-site-packages $venv
fi

# pip takes no time and no network for what is there already.
$venv/bin/python - "$@" <<'PYTHON' | xargs -d '\n' \
    $venv/bin/python -m pip install --quiet --disable-pip-version-check
import configparser, sys

setup = configparser.ConfigParser()
setup.read("setup.cfg")
print(setup["options"]["install_requires"].strip())
for extra in sys.argv[1:]:
    print(setup["options.extras_require"][extra].strip())
PYTHON

# Compiled once, here: else every start would do it where PYTHONDONTWRITEBYTECODE is set.
$venv/bin/python -m compileall -q gotrace

if [ "${1:-}" = test ]; then
    $venv/bin/python -m tests.fetch_toolchains ||
        echo "gotrace: tests skip these toolchains, or fail with GOTRACE_LIVE=1" >&2
fi
