#!/bin/sh
# Set up what the tests need and run all of them: style, types, import rules, then pytest.
# Arguments go to pytest: sh tests/run.sh tests/unit -k receipt
# pytest runs twice: tests/spark has the machine for itself, after all others. Both must pass.
# CI=true: tests of official clients must run; elsewhere they skip, with the reason, where a client's tools are missing.
set -eu
cd "$(dirname "$0")/.."
. deploy/environment.sh
need_environment .venv/popgate-test -e . --group dev

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
if [ "${CI:-}" = true ]; then
    need_tools "the Node.js client" "node npm" nodejs npm
    PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    # Debian's cargo is older than the client's crates; cargo-web is the one that its browsers are built with.
    need_tools "the Rust client" cargo cargo-web rustc-web gcc libc6-dev
    command -v cargo >/dev/null 2>&1 || need_tools "the Rust client" cargo cargo rustc gcc libc6-dev
    need_tools "the oldest Java client and of TLS" openssl openssl
    need_tools "HTTP/2 with h2spec and gRPC's own client" go golang-go
    # The same examples in every run; elsewhere the models meet new ones each time.
    # Not POPGATE_…: that is for settings, and the gateway refuses those it does not know.
    export TEST_HYPOTHESIS="${TEST_HYPOTHESIS:-ci}"
fi
PATH="$PWD/.venv/bin:$PATH"
export PATH
# Fetched here, because a test has no time for it; what cannot be fetched is told by the tests that need it.
python -m popgate.testing.rocketmq fetch >/dev/null 2>&1 || true
python benchmarks/bench.py --build >/dev/null 2>&1 || true
ruff check --quiet .
ruff format --quiet --check .
mypy --no-error-summary
imports=$(lint-imports --no-cache 2>&1) || { echo "$imports"; exit 1; }

# Which of the two have something to do: a path that is named is in one of them, or is above both.
together=no alone=no named=no
for argument in "$@"; do
    place=${argument%%::*}
    [ -e "$place" ] || continue
    named=yes
    case "${place%/}" in
        tests/spark*) alone=yes ;;
        . | tests) together=yes alone=yes ;;
        *) together=yes ;;
    esac
done
[ $named = yes ] || together=yes alone=yes

# run_stage STAGE PYTEST_ARGUMENTS...: fails as pytest does, but that nothing was selected is a failure of both stages only.
run_stage() {
    stage=$1 code=0
    shift
    TEST_STAGE=$stage TEST_FAILURES=$failures/$stage python -m pytest --durations=0 --durations-min=0.3 "$@" || code=$?
    if [ $code = 5 ] && [ $together$alone = yesyes ]; then empty=$((empty + 1)) code=0; fi
    return $code
}
empty=0 status=0
failures=$(mktemp -d)
trap 'rm -rf "$failures"' EXIT
if [ $together = yes ]; then
    run_stage together -n "${TEST_JOBS:-auto}" --dist loadfile "$@" || status=$?
fi
if [ $alone = yes ]; then
    [ $named = yes ] || set -- tests/spark "$@"
    run_stage alone "$@" -n 0 || status=$?
    # Of a long output often only the end is kept.
    if [ -s "$failures/together" ]; then echo "failed before tests/spark:"; cat "$failures/together"; fi
fi
[ $empty -lt 2 ] || status=5
exit $status
