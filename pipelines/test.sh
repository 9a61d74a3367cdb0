#!/bin/sh
# Installs what the tests need, and runs all tests. Tests that need missing benchmark
# data report that they are skipped.
set -eu
cd "$(dirname "$0")/.."
. pipelines/building.sh
./pipelines/setup.sh

say() { printf '\n== %s\n' "$*"; }

say "Fetching the models that only tests use (what is there is only checked)"
"${CARGO_TARGET_DIR:-target}/debug/turnflow" models fetch ocr minilm minilm-half e5-int8 splade glove smollm2

as_root=""
[ "$(id -u)" -eq 0 ] || as_root="sudo -n"

# The tests of the page need a browser. Without one, they report that they are skipped.
if ! command -v chromedriver >/dev/null && command -v apt-get >/dev/null; then
    say "Installing a browser for the tests of the page: chromium chromium-driver"
    $as_root apt-get update -q &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
            chromium chromium-driver ||
        printf 'the browser cannot be installed: the tests of the page are skipped\n'
fi

# The tests of connectors start servers of their own, each with its own data and a free port. Without a server's
# program, they report that they are skipped.
missing=""
command -v git >/dev/null || missing="$missing git"
[ -x /usr/sbin/nats-server ] || command -v nats-server >/dev/null || missing="$missing nats-server"
command -v redis-server >/dev/null || missing="$missing redis-server"
command -v ip >/dev/null || missing="$missing iproute2"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
if [ -n "$missing" ] && command -v apt-get >/dev/null; then
    say "Installing programs for the tests of connectors and clusters; services are not started:$missing"
    policy=/usr/sbin/policy-rc.d
    made=""
    # Whatever happens, services can be started afterwards.
    trap '[ -z "$made" ] || $as_root rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null && $as_root chmod +x "$policy" && made=1
    fi
    # The list is split into words on purpose.
    # shellcheck disable=SC2086
    { $as_root apt-get update -q &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing; } ||
        printf 'not all programs can be installed: their tests are skipped\n'
    [ -z "$made" ] || $as_root rm -f "$policy"
    made=""
fi

servers="${CARGO_TARGET_DIR:-target}/tools/servers"
if [ ! -x "$servers/bin/moto_server" ]; then
    say "Fetching moto, a server with S3's protocol, for the tests of buckets"
    { python3 -m venv "$servers" &&
        "$servers/bin/python" -m pip install --quiet --disable-pip-version-check 'moto[s3,server]==5.2.5'; } ||
        printf 'moto cannot be fetched: its tests are skipped\n'
fi

say "Tests"
# A first failure does not hide the others.
failed=0
if cargo nextest --version >/dev/null 2>&1; then
    python3 pipelines/progress.py cargo nextest run --workspace --no-run
    cargo nextest run --workspace --no-fail-fast || failed=1
    # What passed without running everything, and why.
    say "Skipped"
    report=target/nextest/default/junit.xml
    { grep -ho 'skipped: [^<]*' "$report" 2>/dev/null | sed 's/&apos;\|&quot;/"/g; s/&gt;/>/g; s/&amp;/\&/g' |
        sort | uniq -c | sort -rn; } || true
    grep -q 'skipped: ' "$report" 2>/dev/null || printf 'nothing\n'
else
    cargo test --workspace --lib --bins --tests --no-fail-fast || failed=1
fi

say "Examples in the documentation"
cargo test --workspace --doc || failed=1
[ "$failed" -eq 0 ] || printf '\nSome tests failed; see above.\n'
exit "$failed"
