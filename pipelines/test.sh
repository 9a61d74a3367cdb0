#!/bin/sh
# Installs what the tests need, and runs all tests. Tests that need missing benchmark
# data report that they are skipped.
set -eu
cd "$(dirname "$0")/.."
./pipelines/setup.sh

say() { printf '\n== %s\n' "$*"; }

say "Fetching the models that only tests use (what is there is only checked)"
"${CARGO_TARGET_DIR:-target}/debug/turnflow" models fetch minilm e5-int8 splade glove smollm2

# The tests of the page need a browser. Without one, they report that they are skipped.
if ! command -v chromedriver >/dev/null && command -v apt-get >/dev/null; then
    say "Installing a browser for the tests of the page: chromium chromium-driver"
    as_root=""
    [ "$(id -u)" -eq 0 ] || as_root="sudo -n"
    $as_root apt-get update -q &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
            chromium chromium-driver ||
        printf 'the browser cannot be installed: the tests of the page are skipped\n'
fi

say "Tests"
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace
else
    cargo test --workspace --lib --bins --tests
fi

say "Examples in the documentation"
cargo test --workspace --doc
