#!/usr/bin/env bash
# Builds the image and runs the whole stack for real, as `make test-compose`: the very Dockerfile,
# docker-compose.yml, Caddyfile and nginx.conf, in a Compose project of its own that is gone afterwards.
#
#   --quick               as in `make test`: an image that is built fast instead of a fast one, without the steps that wait
#                         long on purpose, and with bounds for a slow machine
#   REAL_IMAGES=1         take base images from their registries instead of making stand-ins
#   COMPOSE_STEPS=a,b     these steps alone, by the names that the output shows in brackets
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! timeout 60 docker info >/dev/null 2>&1; then
    echo "NOT TESTED: the containers. No Docker Engine answers here; install one and run: make test-compose" >&2
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

build=()
if [ "${1:-}" = --quick ]; then
    build=(--build-arg CARGO_PROFILE_RELEASE_LTO=off --build-arg CARGO_PROFILE_RELEASE_OPT_LEVEL=0)
    export COMPOSE_PATIENT=1
    export COMPOSE_STEPS=${COMPOSE_STEPS:-migrate,scale,recreate,tabs,streams,restart,primary,watch,published}
fi

# What a run that was killed has left; it is in nobody's way, so that failing to remove it is no failure.
for network in $(docker network ls --format '{{.Name}}' | grep '^tickbridge-test-[0-9]*_' || true); do
    pid=${network#tickbridge-test-}
    [ -e "/proc/${pid%%_*}" ] && continue
    docker ps -aq --filter "network=$network" | xargs -r docker rm -fv >/dev/null || true
    docker network rm "$network" >/dev/null || true
    docker volume ls -q --filter "name=^${network%_*}_" | xargs -r docker volume rm >/dev/null 2>&1 || true
done

if ! docker compose version >/dev/null 2>&1 || ! docker buildx version >/dev/null 2>&1; then
    tests/images/make.sh --tools
    export DOCKER_CONFIG=$PWD/target/images/docker
fi
# Elsewhere than on Debian there is nothing to make them of.
if [ -z "${REAL_IMAGES:-}" ] && [ -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
    tests/images/make.sh
fi

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# The host's network, because a registry may be reachable from there alone.
docker build --network host "${build[@]}" \
    --build-arg "VERSION=$version" --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || true)" \
    --tag tickbridge:test .

exec cargo test --locked --test it -- --ignored --exact compose::the_stack_holds_through_scaling_restarts_and_faults --nocapture
