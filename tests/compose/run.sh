#!/usr/bin/env bash
# Builds the image and runs the whole stack for real, as `make test-compose`: the very Dockerfile,
# docker-compose.yml, Caddyfile and nginx.conf, in a Compose project of its own that is gone afterwards.
#
#   REAL_IMAGES=1         take base images from their registries instead of making stand-ins
#   COMPOSE_STEPS=a,b     while one develops: these steps alone, by the names that the output shows in brackets
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! docker info >/dev/null 2>&1; then
    echo "NOT TESTED: the containers. No Docker Engine answers here; install one and run: make test-compose" >&2
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
if ! docker compose version >/dev/null 2>&1 || ! docker buildx version >/dev/null 2>&1; then
    tests/images/make.sh --tools
    export DOCKER_CONFIG=$PWD/target/images/docker
fi
[ -n "${REAL_IMAGES:-}" ] || tests/images/make.sh

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# The host's network, because a registry may be reachable from there alone.
docker build --network host --build-arg "VERSION=$version" --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || true)" \
    --tag tickbridge:test .

exec cargo test --locked --test it -- --ignored --exact compose::the_stack_holds_through_scaling_restarts_and_faults --nocapture
