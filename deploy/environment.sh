# Sourced by deploy/serve.sh and tests/run.sh: a virtual environment in .venv with what is asked for.

# as_root COMMAND...: run it as root if we may, without asking for a password.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null 2>&1; then sudo -n "$@"; else return 1; fi
}

# apt_install PACKAGE...: install Debian packages if this is Debian or Ubuntu and we may.
apt_install() {
    command -v apt-get >/dev/null 2>&1 || return 1
    patient="-o Acquire::Retries=5 -o DPkg::Lock::Timeout=300"
    # shellcheck disable=SC2086 # words
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq $patient update >/dev/null &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get -qq $patient install -y --no-install-recommends "$@" >/dev/null
}

# find_python: print a Python of at least 3.11, that in PYTHON, or the distribution's own, or the first in PATH.
# Distributions build theirs with optimizations by profile; one that somebody compiled often has none, and is slower.
find_python() {
    for candidate in "${PYTHON:-}" /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11; do
        [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
        needs=sys
        # Of Debian's own that is a package, python3-venv; what else is in PATH may do without it.
        [ "$candidate" != /usr/bin/python3 ] || needs=ensurepip,sys
        if "$candidate" -c "import $needs; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

# make_environment PYTHON: make .venv, in place of what is there.
make_environment() {
    why=$("$1" -m venv --clear .venv 2>&1) && return
    rm -rf .venv
    if "$1" -c 'import ensurepip' 2>/dev/null; then
        printf 'cannot make a virtual environment in %s: %s\n' "$PWD/.venv" "$why" >&2
        exit 1
    fi
    apt_install python3-venv || { echo "cannot make a virtual environment: install python3-venv" >&2; exit 1; }
    "$1" -m venv .venv
}

# need_environment STAMP PIP_ARGUMENTS...: make .venv if it is not there and install into it once.
# The stamp remembers what was installed, so that a changed pyproject.toml installs again.
need_environment() {
    stamp=$1
    shift
    python=$(find_python) || {
        apt_install python3 python3-venv || true
        python=$(find_python) || { echo "popgate needs Python 3.11 or newer: install it, or name it in PYTHON" >&2; exit 1; }
    }
    # Without pip it was not made to its end, or Python there is another version than the one that made it.
    if ! .venv/bin/python -c 'import pip' >/dev/null 2>&1; then
        rm -f .venv/popgate-*
        .venv/bin/python -m ensurepip >/dev/null 2>&1 || make_environment "$python"
    fi
    wanted="$* $(cat pyproject.toml deploy/constraints.txt | cksum)"
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        patient="--quiet --disable-pip-version-check --retries 10 --timeout 60"
        # shellcheck disable=SC2086 # words
        .venv/bin/python -m pip install $patient --upgrade 'pip>=25.1'
        # shellcheck disable=SC2086 # words
        .venv/bin/python -m pip install $patient -c deploy/constraints.txt "$@"
        echo "$wanted" >"$stamp"
    fi
}
