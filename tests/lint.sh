#!/usr/bin/env bash
# Formatting and lints, warnings denied. A toolchain without one of the two tools is told how to get it,
# and the tests still run.
set -euo pipefail

if cargo fmt --version >/dev/null 2>&1; then
    cargo fmt --check
else
    echo "NOT CHECKED: formatting; install it with: rustup component add rustfmt" >&2
fi
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy --locked --all-targets -- -D warnings
else
    echo "NOT CHECKED: lints; install it with: rustup component add clippy" >&2
fi
