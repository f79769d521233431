#!/bin/sh
# Set up what the tests need and run all of them: style, types, import rules, then pytest.
# Arguments go to pytest: sh tests/run.sh tests/unit -k receipt
# CI=true: tests of official clients must run; elsewhere they skip, with the reason, where Java is missing.
set -eu
cd "$(dirname "$0")/.."
. deploy/environment.sh
need_environment .venv/popgate-test -e . --group dev
if ! command -v javac >/dev/null 2>&1 || ! command -v mvn >/dev/null 2>&1; then
    echo "installing a JDK and Maven for the Java client's tests"
    apt_install default-jdk-headless maven || echo "could not: the Java client's tests will skip or, with CI=true, fail"
fi
if [ "${CI:-}" = true ]; then
    # The same examples in every run; elsewhere the models meet new ones each time.
    # Not POPGATE_…: that is for settings, and the gateway refuses those it does not know.
    export TEST_HYPOTHESIS="${TEST_HYPOTHESIS:-ci}"
fi
PATH="$PWD/.venv/bin:$PATH"
export PATH
ruff check --quiet .
ruff format --quiet --check .
mypy --no-error-summary
imports=$(lint-imports --no-cache 2>&1) || { echo "$imports"; exit 1; }
exec python -m pytest -n "${TEST_JOBS:-auto}" --dist loadfile "$@"
