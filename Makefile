# What one does with the project. Each target is one line to type; the how is in the scripts.

# Integration tests start servers and browsers of their own; more at once than this and a small machine
# measures its own scheduler.
TEST_THREADS ?= 3

.PHONY: demo test lint unit it alone setup

# The live page on http://127.0.0.1:8080/, fed by a random walk; REPLAY=1 replays real index prices.
demo:
	cargo run --locked -- demo $(if $(REPLAY),--replay data/eustockmarkets.csv)

# Everything: what is missing is installed first (or named, without root), then no network is needed.
test: setup lint
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test --locked -- --skip alone:: --skip live_page::
	RUST_TEST_THREADS=1 cargo test --locked --test it -- alone:: live_page::
	tests/compose/run.sh --quick

lint:
	tests/lint.sh

unit:
	cargo test --locked --lib

it:
	RUST_TEST_THREADS=$(TEST_THREADS) cargo test --locked --test it -- --skip alone:: --skip live_page::

# What measures time, fills the machine, or watches a page while the clock runs.
alone:
	RUST_TEST_THREADS=1 cargo test --locked --test it -- alone:: live_page:: --nocapture

# Old faults brought back on purpose, one after the other: each must be caught. Minutes, not part of `test`.
mutations:
	tests/mutations/run.sh

.PHONY: mutations

setup:
	tests/setup.sh
	tests/redis_versions.sh
	tests/deploy/setup.sh
	tests/js/setup.sh

# Every scenario five times, the two studies, and the page made from them; about an hour on two cores.
bench: bench-build
	bench/setup.sh
	cd bench && target/release/tb-bench run all --runs 5 --retry 3 --out results/runs
	cd bench && target/release/tb-bench streams --out results/streams.json
	cd bench/study && cargo build --locked --release && target/release/tb-study --out ../results/fanout.json
	cd bench && target/release/tb-bench report --out results

# Before and after a change: a few minutes.
bench-quick: bench-build
	bench/setup.sh
	cd bench && target/release/tb-bench run quick

bench-build:
	cargo build --locked --release
	cd bench && cargo build --locked --release

.PHONY: bench bench-quick bench-build

# The image as it is released and the whole stack, run for real on a Docker Engine; skipped where none answers.
test-compose:
	tests/compose/run.sh

.PHONY: test-compose
