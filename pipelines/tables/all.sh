#!/bin/sh
# Runs tables of the papers with models from packages, and writes one page with all of them.
#
#     pipelines/tables/all.sh MTRAG OBLIQA RESULTS [TABLE …]
#
# MTRAG and OBLIQA are the directories of the data, and RESULTS/tables.md becomes the page. Without TABLE, such as techssn-4,
# these are all tables that need no data of HotpotQA; those with generated answers take hours on two cores. SAMPLE=24 in the
# environment takes a random sample of that many tasks. What was interrupted continues.
set -u
if [ $# -lt 3 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 1
fi
mtrag=$1 obliqa=$2 results=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
turnflow=${TURNFLOW:-turnflow}
if [ $# -eq 0 ]; then
    set -- mtrag-3 mtrag-4 mtrag-5 mtrag-15 mtrag-16a mtrag-16b mtrag-16c techssn-3 techssn-4 techssn-5 ragtum-2 \
        fusionrag-1 fusionrag-2
fi
mkdir -p "$results" || exit 1
: > "$results/tables.md.part" || exit 1
failed=
for table in "$@"; do
    case $table in
        fusionrag-*) data=$obliqa ;;
        polyu-*)
            echo "$table needs HotpotQA: run it with turnflow eval" >&2
            exit 1
            ;;
        *) data=$mtrag ;;
    esac
    "$turnflow" eval "$here/$table.ron" --local --data "$data" --results "$results/$table" \
        ${SAMPLE:+--sample "$SAMPLE"} || failed="$failed $table"
    # Its table says which rows failed, and why.
    if [ -e "$results/$table/table.md" ]; then
        cat "$results/$table/table.md" >> "$results/tables.md.part"
        echo >> "$results/tables.md.part"
    fi
done
mv "$results/tables.md.part" "$results/tables.md"
echo "the page is $results/tables.md"
if [ -n "$failed" ]; then
    echo "failed:$failed" >&2
    exit 1
fi
