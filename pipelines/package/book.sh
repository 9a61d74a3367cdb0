#!/bin/sh
# Builds the handbook as a book in target/package/book. Needs mdbook.
#
# The pages are copied: the handbook's directory is also a corpus, which has no table of contents.
set -eu
cd "$(dirname "$0")/../.."
book="target/package/book"
rm -rf "$book"
mkdir -p "$book/src"
cp pipelines/package/book.toml "$book/book.toml"
cp examples/handbook/*.md "$book/src/"
rm "$book/src/sample-archive.md" "$book/src/sample-team.md"
cp -R examples/images "$book/src/images"
# In the repository, images lie beside the handbook.
sed -i 's|(\.\./images/|(images/|g' "$book"/src/*.md
{
    printf '# Summary\n\n'
    for page in introduction pipeline-files sources parquet buckets git web nats kafka postgres redis chunkers metadata retrieval language-models models answers conversations live-answers recorded gaps alerts review logs five-logs \
        serving libraries page commands monitoring containers epochs state backup upgrades cluster performance troubleshooting glossary; do
        printf -- '- [%s](%s.md)\n' "$(sed -n '1s/^# //p' "$book/src/$page.md")" "$page"
    done
} >"$book/src/SUMMARY.md"
mdbook build "$book"
# Each page must be in the table of contents.
for page in "$book"/src/*.md; do
    name="$(basename "$page" .md)"
    [ "$name" = SUMMARY ] || [ -e "$book/book/$name.html" ] || {
        printf 'book: %s.md is not in the table of contents of %s\n' "$name" "$0" >&2
        exit 1
    }
done
