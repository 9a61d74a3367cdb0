#!/bin/sh
# Asks questions about turnflow's handbook while editing it.
#
# Works on copies in target/quickstart; the repository's files do not change.
set -eu
cd "$(dirname "$0")/.."
./pipelines/setup.sh

target="${CARGO_TARGET_DIR:-target}"
turnflow="$target/debug/turnflow"
work="$target/quickstart"
answers="$work/answers.jsonl"
pid=""

say() { printf '\n== %s\n\n' "$*"; }
fail() {
    printf '\nquickstart: %s\n' "$*" >&2
    exit 1
}

stop() {
    [ -n "$pid" ] || return 0
    kill -INT "$pid" 2>/dev/null || true
    wait "$pid" || true
    pid=""
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# wait_for SECONDS WHAT COMMAND…: waits until the command succeeds.
wait_for() {
    tries=$(($1 * 10))
    what="$2"
    shift 2
    until "$@"; do
        kill -0 "$pid" 2>/dev/null || fail "turnflow has ended while waiting for $what"
        [ "$tries" -gt 0 ] || fail "timed out waiting for $what"
        tries=$((tries - 1))
        sleep 0.1
    done
}
answered() { [ -e "$answers" ] && [ "$(wc -l <"$answers")" -ge "$1" ]; }
epoch() { sed -n 's/.*"epoch":\([0-9]*\).*/\1/p' "$work/state/epoch.json"; }
published() { [ "$(epoch)" -gt "$1" ]; }

# ask QUESTION: appends a call to the assistant's log, as its proxy would, and waits until the question is answered.
turns=0
ask() {
    turns=$((turns + 1))
    messages=$(printf '[{"role": "user", "content": "%s"}]' "$1")
    printf '{"id": "ask-%s", "session_id": "quickstart-%s", "request": {"model": "small-chat", "messages": %s}}\n' \
        "$turns" "$turns" "$messages" >>"$work/assistant.jsonl"
    expected=$((expected + 1))
    wait_for 60 "the answer" answered "$expected"
    answer=$(grep "\"conversation_id\":\"quickstart-$turns\"" "$answers")
}

rm -rf "$work"
mkdir -p "$work"
cp -R examples/handbook "$work/handbook"
cp examples/assistant.jsonl "$work/assistant.jsonl"
# What the log says, as turns; each call repeats the ones before it.
"$turnflow" map --preset openai-chat "$work/assistant.jsonl" >"$work/turns.jsonl"
expected=$(grep -c '"speaker":"user"' "$work/turns.jsonl")

say "Running pipelines/quickstart.ron on a copy of the handbook: $expected questions in the log of an assistant"
"$turnflow" run pipelines/quickstart.ron \
    --state "$work/state" \
    --set "corpora.handbook.source.path=\"$work/handbook\"" \
    --set "nodes.turns.path=\"$work/assistant.jsonl\"" \
    --set "nodes.out.path=\"$answers\"" &
pid=$!
wait_for 120 "the first answers" answered "$expected"

say "A question about a page that is going to change"
question="Who is the engineer on call for the search service?"
ask "$question"

say "Editing $work/handbook/sample-team.md while turnflow runs: Ada Brandt becomes Grace Lindqvist"
before=$(epoch)
sed 's/Ada Brandt/Grace Lindqvist/' "$work/handbook/sample-team.md" >"$work/edited.md"
diff "$work/handbook/sample-team.md" "$work/edited.md" || true
mv "$work/edited.md" "$work/handbook/sample-team.md"
wait_for 30 "the epoch with the edit" published "$before"

say "The same question again (epoch $before is now epoch $(epoch))"
ask "$question"
case "$answer" in
*'"answer":"'*'Grace Lindqvist'*'"hits":['*'"document":"sample-team.md"'*) ;;
*) fail "the answer does not follow the edit: $answer" ;;
esac
case "$answer" in
*'Ada Brandt'*) fail "the answer still has the old text: $answer" ;;
esac

say "A question about a page that is going to be deleted"
question="On which shelf do the lighthouse maps lie?"
ask "$question"
case "$answer" in
*'shelf 71'*) ;;
*) fail "the page is not found before it is deleted: $answer" ;;
esac

say "Deleting $work/handbook/sample-archive.md while turnflow runs"
before=$(epoch)
rm "$work/handbook/sample-archive.md"
wait_for 30 "the epoch without the page" published "$before"

say "The same question again (epoch $(epoch))"
ask "$question"
case "$answer" in
*'sample-archive.md'* | *'shelf 71'*) fail "the deleted page is still cited: $answer" ;;
*'"status":"idk"'*) ;;
*) fail "another page is taken for an answer: $answer" ;;
esac

say "Stopping turnflow with an interrupt, as Ctrl-C does"
stop
trap - EXIT

cat <<END

Both answers followed the documents, without a restart. What to try next:

  $turnflow ask pipelines/quickstart.ron "How are lists of hits fused?" --trace
  $turnflow explain pipelines/quickstart.ron
  $turnflow run pipelines/hybrid.ron --once
  less $answers

  $turnflow chat pipelines/quickstart.ron

The handbook in examples/handbook says what a pipeline file can have. To see the pipeline at work:

  $turnflow serve pipelines/quickstart.ron

and open http://127.0.0.1:8100
END
