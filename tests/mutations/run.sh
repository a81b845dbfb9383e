#!/usr/bin/env bash
# Brings old faults back on purpose, one at a time, in a copy of the last commit, and runs the tests that must
# catch them: tests/mutations/run.sh [name...]. It fails if a fault is not caught, does not build, or if those
# tests fail without any fault.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
root=$(git rev-parse --show-toplevel)

names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for patch in *.patch; do names+=("${patch%.patch}"); done
fi

folder=$(mktemp -d)
tree=$folder/tree
cleanup() {
    git -C "$root" worktree remove --force "$tree" || true
    rm -rf "$folder"
}
trap cleanup EXIT
git -C "$root" worktree add --quiet --detach "$tree" HEAD
cd "$tree"
# Not the usual one: a binary with a fault in it must not lie where tests look for the product.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target/mutations}
# The faults differ in a few lines each.
export CARGO_INCREMENTAL=1 RUST_BACKTRACE=0

tests_of() {
    sed -n 's/^Caught by: //p' "$here/$1.patch"
}

# Runs the tests of a patch, whose words are the arguments of cargo and a filter.
run() {
    read -ra words <<<"$(tests_of "$1")"
    local filter=${words[-1]}
    unset 'words[-1]'
    cargo test --quiet --locked "${words[@]}" "${@:2}" -- "$filter"
}

declare -A sound=()
failed=0
for name in "${names[@]}"; do
    tests=$(tests_of "$name")
    if [ -z "${sound[$tests]:-}" ]; then
        if ! run "$name" >"$folder/log" 2>&1; then
            tail -n 40 "$folder/log"
            echo "$tests fails without any fault" >&2
            exit 1
        fi
        sound[$tests]=yes
    fi
    if ! git apply "$here/$name.patch"; then
        echo "DOES NOT APPLY: $name"
        failed=1
        continue
    fi
    if ! run "$name" --no-run >"$folder/log" 2>&1; then
        tail -n 40 "$folder/log"
        echo "DOES NOT BUILD: $name"
        failed=1
    elif run "$name" >"$folder/log" 2>&1; then
        echo "NOT CAUGHT:     $name ($tests)"
        failed=1
    else
        echo "caught:         $name ($tests)"
        grep -E '^thread .* panicked at|^repeat with|^---- ' "$folder/log" | sed 's/^/    /' | head -n 6
    fi
    git checkout --quiet -- .
done
exit $failed
