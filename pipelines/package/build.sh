#!/bin/sh
# Builds the packages into target/package: a Debian package, a wheel and the handbook.
#     pipelines/package/build.sh [release|dev]
# Without an argument the release profile is built, which takes half an hour on two cores. cargo-deb, mdbook and maturin
# are fetched if they are missing.
set -eu
cd "$(dirname "$0")/../.."
. pipelines/building.sh
profile="${1:-release}"
case "$profile" in
release) directory=release ;;
dev) directory=debug ;;
*) printf 'build.sh: the profile is release or dev\n' >&2 && exit 2 ;;
esac
target="${CARGO_TARGET_DIR:-target}"
out="target/package"
mkdir -p "$out/man"

say() { printf '\n== %s\n' "$*"; }

# Tools outlive the clone where builds do.
tools="$target/tools"
PATH="$(mkdir -p "$tools/bin" && cd "$tools/bin" && pwd):$PATH"
for tool in cargo-deb mdbook; do
    command -v "$tool" >/dev/null || {
        say "Fetching $tool"
        env -u CARGO_TARGET_DIR cargo install --quiet --locked --root "$tools" "$tool"
    }
done
python="$tools/python/bin/python"
[ -x "$tools/python/bin/maturin" ] || {
    say "Fetching maturin"
    python3 -m venv "$tools/python"
    "$python" -m pip install --quiet --disable-pip-version-check 'maturin==1.16.0'
}

say "Building turnflow ($profile profile)"
cargo build --locked --profile "$profile" --package turnflow --bin turnflow
turnflow="$target/$directory/turnflow"
"$turnflow" models fetch onnxruntime pdfium ocr minilm-int8
for shell in bash zsh fish; do
    "$turnflow" completions "$shell" >"$out/turnflow.$shell"
done
mv "$out/turnflow.zsh" "$out/_turnflow"
"$turnflow" man "$out/man"

# The pipelines of the package write to standard output: nobody may write beside them.
rm -rf "$out/pipelines"
mkdir -p "$out/pipelines"
cp pipelines/*.ron "$out/pipelines/"
for pipeline in "$out"/pipelines/*.ron; do
    if grep -q ' Stdout(' "$pipeline"; then
        sed -i '/JsonLinesSink(/d' "$pipeline"
    else
        sed -i 's|JsonLinesSink(input: \("[^"]*"\), path: "[^"]*")|Stdout(input: \1)|' "$pipeline"
    fi
done

say "Debian package"
rm -f "$out"/*.deb
# A package of the dev profile is for tests only.
fast=""
[ "$profile" = release ] || fast="--fast"
# shellcheck disable=SC2086
cargo deb $fast --quiet --locked --package turnflow --profile "$profile" --no-build --strip --no-dbgsym --output "$out/"

say "Wheel"
rm -f "$out"/*.whl
root="$(pwd)"
CARGO_TARGET_DIR="$(cd "$target" && pwd)"
export CARGO_TARGET_DIR
maturin="$(cd "$tools/python/bin" && pwd)/maturin"
(cd pipelines/python &&
    "$maturin" build --quiet --locked --profile "$profile" --strip --compatibility linux --out "$root/$out")

say "Handbook"
pipelines/package/book.sh

ls -lh "$out"/*.deb "$out"/*.whl
