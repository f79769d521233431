#!/bin/sh
# Set up what the tests need and run them: style, types, import rules, then the tiers fast, process and live.
# Arguments go to pytest: sh tests/run.sh tests/unit -k receipt
# One tier: sh tests/run.sh --tier fast. Long series, which are no part of it: sh tests/run.sh --long [NAME ...]
# CI=true, and in long series: tests of official clients must run; elsewhere they skip, with the reason, where a client's
# tools are missing.
set -eu
cd "$(dirname "$0")/.."
# Hundreds of processes load the same modules: with this, each of them would compile all of them anew.
unset PYTHONDONTWRITEBYTECODE
. deploy/environment.sh
# Most of what is installed is never loaded, and the rest is compiled when it is: 32 s instead of 54.
need_environment .venv/popgate-test --no-compile -e . --group dev

# need_tools WHAT "COMMANDS" PACKAGE...: the packages, unless the commands are there.
need_tools() {
    what=$1 commands=$2
    shift 2
    for command in $commands; do
        command -v "$command" >/dev/null 2>&1 || {
            echo "installing $* for the tests of $what"
            apt_install "$@" || echo "could not: the tests of $what will skip or, with CI=true, fail"
            return
        }
    done
}
need_tools "the Java client and a real RocketMQ" "javac mvn" default-jdk-headless maven
if [ "${CI:-}" = true ] || [ "${1:-}" = --long ]; then
    need_tools "the Node.js client" "node npm" nodejs npm
    PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    # Debian's cargo is older than the client's crates; cargo-web is the one that its browsers are built with.
    need_tools "the Rust client" cargo cargo-web rustc-web gcc libc6-dev
    command -v cargo >/dev/null 2>&1 || need_tools "the Rust client" cargo cargo rustc gcc libc6-dev
    need_tools "the oldest Java client and of TLS" openssl openssl
    need_tools "HTTP/2 with h2spec and gRPC's own client" go golang-go
fi
if [ "${CI:-}" = true ]; then
    # The same examples in every run; elsewhere the models meet new ones each time.
    # Not POPGATE_…: that is for settings, and the gateway refuses those it does not know.
    export TEST_HYPOTHESIS="${TEST_HYPOTHESIS:-ci}"
fi
PATH="$PWD/.venv/bin:$PATH"
export PATH
# With arguments only what the chosen tests ask for is built, by them.
if [ $# -eq 0 ]; then everything=everything; else everything=; fi
python -m tests.support.checks $everything </dev/null

# Standard input is nobody's: a test that reads it must not wait for a person.
exec python -m tests.support.run "$@" </dev/null
