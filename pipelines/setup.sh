#!/bin/sh
# Installs what quickstart.sh and test.sh need: system packages, the binary
# (dev profile), and the models. Skips what is already installed.
set -eu
cd "$(dirname "$0")/.."
. pipelines/building.sh

say() { printf '\n== %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# System packages, each with a check whether it is missing.
missing=""
command -v cc >/dev/null && command -v c++ >/dev/null && command -v make >/dev/null || missing="$missing build-essential"
command -v pkg-config >/dev/null || missing="$missing pkg-config"
pkg-config --exists openssl zlib 2>/dev/null || missing="$missing libssl-dev zlib1g-dev"
command -v protoc >/dev/null || missing="$missing protobuf-compiler libprotobuf-dev"
command -v python3 >/dev/null || missing="$missing python3"
python3 -m pip --version >/dev/null 2>&1 || missing="$missing python3-pip"
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
command -v update-ca-certificates >/dev/null || [ -e /etc/ssl/certs ] || missing="$missing ca-certificates"

if [ -n "$missing" ]; then
    command -v apt-get >/dev/null ||
        fail "please install what these Debian packages bring, and run this again:$missing"
    say "Installing system packages:$missing"
    as_root=""
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "as root, run: apt-get install$missing"
        as_root="sudo"
        # If no password prompt is possible, fail instead of waiting.
        [ -t 0 ] || as_root="sudo -n"
    fi
    $as_root apt-get update -q
    # The list is split into words on purpose.
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q $missing
fi

# shellcheck disable=SC1091
command -v cargo >/dev/null || [ ! -e "${HOME:-}/.cargo/env" ] || . "${HOME:-}/.cargo/env"
command -v cargo >/dev/null || fail "cargo is missing; install Rust 1.94 or newer, and run this again"

if [ -e "${CARGO_TARGET_DIR:-target}/debug/turnflow" ]; then
    say "Building turnflow (dev profile)"
else
    say "Building turnflow (dev profile). The first time takes twenty minutes to three quarters of an hour on two cores, and 3 GB of disk"
fi
python3 pipelines/progress.py cargo build --package turnflow --bin turnflow
turnflow="${CARGO_TARGET_DIR:-target}/debug/turnflow"

say "Fetching models into models/ (what is there is only checked)"
if [ -n "${ORT_DYLIB_PATH:-}" ]; then
    "$turnflow" models fetch pdfium minilm-int8
else
    "$turnflow" models fetch onnxruntime pdfium minilm-int8
fi
"$turnflow" models list
