#!/bin/sh
# Start the gateway on its embedded broker, from a checkout: makes .venv on first use, then serves every door.
# Arguments are handed on: sh deploy/serve.sh --listen grpc://0.0.0.0:8081 --listen remoting://0.0.0.0:8080
set -eu
cd "$(dirname "$0")/.."
. deploy/environment.sh
need_environment .venv/popgate-serve -e .
exec .venv/bin/popgate serve "$@"
