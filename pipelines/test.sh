#!/bin/sh
# Runs all tests, after making ready what they need. Tests that need benchmark
# data which is not there say that they are skipped.
set -eu
cd "$(dirname "$0")/.."
./pipelines/setup.sh

say() { printf '\n== %s\n' "$*"; }

say "Fetching the models that only tests use (what is there is only checked)"
"${CARGO_TARGET_DIR:-target}/debug/turnflow" models fetch minilm e5-int8 splade glove smollm2

say "Tests"
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace
else
    cargo test --workspace --lib --bins --tests
fi

say "Examples in the documentation"
cargo test --workspace --doc
