# shellcheck shell=sh
# What the scripts build with. They read this file; it is not run by itself.

# Without incremental compilation a build is as fast, and target/ has 1.6 GB less. Who edits the code uses cargo itself,
# which compiles incrementally; both kinds lie beside each other.
CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
# The Makefile of jemalloc: no debug information, which takes 120 MB and a quarter of the time.
EXTRA_CFLAGS="${EXTRA_CFLAGS:--g0}"
export CARGO_INCREMENTAL EXTRA_CFLAGS
