#!/bin/sh
# Builds the image and runs it as a cluster does: as another user than root, with a root file system that cannot be written.
#     pipelines/package/image_test.sh [PROGRAM]
# The program is not compiled for it: by default, that of the dev profile is taken. Needs root, buildah, bubblewrap, curl
# and python3, and no daemon. Where the registry cannot be reached, debootstrap makes the base image.
set -eu
cd "$(dirname "$0")/../.."
program="${1:-${CARGO_TARGET_DIR:-target}/debug/turnflow}"
base="docker.io/library/debian:bookworm-slim"
work="$(mktemp -d)"
server=""
finish() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -z "$server" ] || wait "$server" || true
    images umount --all >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap finish EXIT

say() { printf '\n== %s\n' "$*"; }
fail() {
    printf 'image: %s\n' "$*" >&2
    [ ! -e "$work/log" ] || cat "$work/log" >&2
    exit 1
}
images() { buildah --root "$work/images" --runroot "$work/run" --storage-driver vfs "$@"; }

say "Base image"
images pull --quiet "$base" 2>/dev/null || {
    printf '%s cannot be fetched: debootstrap makes it\n' "$base"
    debootstrap --variant=minbase bookworm "$work/base" http://deb.debian.org/debian >"$work/log" 2>&1 ||
        fail "no base image"
    tar -C "$work/base" -cf "$work/base.tar" .
    rm -rf "$work/base"
    container="$(images from scratch)"
    images add --quiet "$container" "$work/base.tar" / >/dev/null
    images commit --quiet --rm "$container" "$base" >/dev/null
    rm "$work/base.tar"
}

say "Image"
pipelines/package/image.sh "$program"
images bud --isolation chroot --format docker --build-arg PROGRAM=built --file pipelines/package/Dockerfile \
    --tag turnflow . >"$work/log" 2>&1 || fail "it cannot be built"
container="$(images from turnflow)"
root="$(images mount "$container")"
config() {
    images inspect --type image turnflow |
        python3 -c "import json, sys; print(json.loads(json.load(sys.stdin)['Config'])['config']$1)"
}
check="$(config "['Healthcheck']['Test'][3]")"
user="$(config "['User']")"
[ "$user" = 10001:10001 ] || fail "it runs as $user"

say "Run"
mkdir "$work/docs" "$work/state"
cp connectors/readers/tests/pdf/pages.pdf examples/handbook/glossary.md "$work/docs/"
chmod -R a+rX "$work"
# The layers are below directories that only root may enter.
chmod a+x "$work" "$work/images" "$work/images/vfs" "$work/images/vfs/dir"
chown 10001:10001 "$work/state"
inside() {
    exec setpriv --reuid 10001 --regid 10001 --clear-groups --no-new-privs --inh-caps=-all \
        bwrap --die-with-parent --ro-bind "$root" / --dev /dev --proc /proc --tmpfs /tmp --ro-bind "$work/docs" /docs \
        --bind "$work/state" /var/lib/turnflow --chdir /var/lib/turnflow --unshare-user --unshare-ipc --clearenv \
        --setenv PATH /usr/bin:/bin --setenv TURNFLOW_TOKENS test=a-token-of-the-test "$@"
}
if (inside touch /written) 2>/dev/null; then fail "the root file system can be written"; fi
[ "$(inside id -u)" = 10001 ] || fail "it runs as root"
if (inside bash -c "$check") 2>/dev/null; then fail "it is healthy before it runs"; fi
(inside turnflow serve /etc/turnflow/pipeline.ron --state /var/lib/turnflow --listen 0.0.0.0:8100) >"$work/log" 2>&1 &
server="$!"
tries=0
until curl --silent --fail http://127.0.0.1:8100/readyz >/dev/null; do
    tries=$((tries + 1))
    { [ "$tries" -lt 120 ] && kill -0 "$server"; } || fail "it is never ready"
    sleep 1
done
(inside bash -c "$check") || fail "it is not healthy"
found="$(curl --silent --fail --header 'Authorization: Bearer a-token-of-the-test' \
    'http://127.0.0.1:8100/v1/search?query=lamp%20of%20the%20lighthouse')"
case "$found" in
*pages.pdf*) ;;
*) fail "a PDF file is not found: $found" ;;
esac
[ -s "$work/state/epoch.json" ] || fail "the state is not in its volume"
printf 'the image is in order\n'
