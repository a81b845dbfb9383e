#!/usr/bin/env bash
# Fetches what checks the live page for people with disabilities, once: axe-core, out of a Python package, into
# target/. It is not shipped. Without Python or a registry that check is left out, and that is said.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=target/axe
[ -s "$folder/axe.min.js" ] && exit 0
wheel=$(mktemp -d)
trap 'rm -rf "$wheel"' EXIT
fetch() {
    python3 -m pip download --quiet --no-deps --dest "$wheel" 'axe-playwright-python==0.1.8'
    python3 -m zipfile -e "$wheel"/*.whl "$wheel"
    mkdir -p "$folder"
    cp "$wheel/axe_playwright_python/axe.min.js" "$folder/axe.min.js"
}
if ! fetch >/dev/null 2>&1; then
    rm -rf "$folder"
    echo "NOT CHECKED: the live page with axe-core; for that python3 with pip must reach a registry" >&2
fi
