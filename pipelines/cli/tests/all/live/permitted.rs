//! Filters and permissions: what a turn finds is what brute force finds among the passages that it may find, and nothing
//! of any other passage reaches it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::{Just, any, prop_oneof};
use proptest::sample::select;
use proptest::strategy::Strategy;
use serde_json::{Value as Json, json};
use turnflow_engine::connector::Mode;
use turnflow_engine::record::TurnRecord;
use turnflow_engine::run::{Engine, Options};

use super::WORDS;
use crate::support::{Asked, Outcome, answers, data, holds, model, plan_of, until};

/// A row: its words, and its groups, if it has such a field.
type Row = (Vec<usize>, Option<Vec<&'static str>>);

const GROUPS: [&str; 3] = ["ann", "bob", "*"];

/// A word that only this row has.
fn secret(row: usize) -> String {
    format!("secret{row}x")
}

fn write(dir: &Path, rows: &BTreeMap<usize, Row>) {
    let row = |(id, (words, groups)): (&usize, &Row)| {
        let words: Vec<&str> = words.iter().map(|word| WORDS[*word]).collect();
        let mut row = json!({"_id": id.to_string(), "text": format!("{} {}.", words.join(" "), secret(*id))});
        row["even"] = (id % 2 == 0).into();
        row["number"] = (*id).into();
        if let Some(groups) = groups {
            row["groups"] = json!(groups);
        }
        row.to_string() + "\n"
    };
    fs::write(dir.join("docs.new"), rows.iter().map(row).collect::<String>()).unwrap();
    fs::rename(dir.join("docs.new"), dir.join("docs.jsonl")).unwrap();
}

fn may_read(row: &Row, groups: &[&str]) -> bool {
    row.1.iter().flatten().any(|group| *group == "*" || groups.contains(group))
}

/// The directories of MiniLM, SPLADE and GloVe.
type Models = [PathBuf; 3];

fn models() -> Option<Models> {
    Some([model("minilm-int8")?, model("splade")?, model("glove")?])
}

fn pipeline(access: &str, filter: &str, models: Option<&Models>, k1: f32) -> String {
    let (models, by_model, lists) = match models {
        Some([minilm, splade, glove]) => (
            format!(
                "models: {{
                    \"m\": Onnx(path: {:?}, tokenizer: {:?}),
                    \"s\": OnnxSparse(path: {:?}, tokenizer: {:?}),
                    \"w\": WordVectors(path: {:?}, words: {:?}),
                }},",
                minilm.join("model.onnx"),
                minilm.join("tokenizer.json"),
                splade.join("model.onnx"),
                splade.join("tokenizer.json"),
                glove.join("vectors.npy"),
                glove.join("words.txt")
            ),
            format!(
                "\"dense\": Dense(input: \"query\", corpus: \"docs\", model: \"m\", top: 6{filter}),
                 \"tokens\": MultiVector(input: \"query\", corpus: \"docs\", model: \"m\", top: 6{filter}),
                 \"sparse\": Sparse(input: \"query\", corpus: \"docs\", model: \"s\", top: 6{filter}),
                 \"static\": Static(input: \"query\", corpus: \"docs\", model: \"w\", top: 6{filter}),"
            ),
            ", \"dense\", \"tokens\", \"sparse\", \"static\"",
        ),
        None => (String::new(), String::new(), ""),
    };
    format!(
        r#"Pipeline(
    mode: Live(standing: 500),
    {models}
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole(){access}) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "all": FullConversation(input: "turns"),
        "named": References(input: "query", corpus: "docs"{filter}),
        "lexical": Bm25(input: "query", corpus: "docs", k1: {k1}, top: 6{filter}),
        "said": Bm25(input: "all", corpus: "docs", top: 6{filter}),
        {by_model}
        "fused": Rrf(inputs: ["named", "lexical", "said"{lists}], top: 20),
        "documents": GroupByDocument(input: "fused", corpus: "docs"),
        "answer": ExtractiveAnswer(input: "documents", sentences: 3),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    }},
)"#
    )
}

fn record(conversation: &str, turn: u32, text: &str, groups: &[&str], contexts: &[usize]) -> TurnRecord {
    let contexts: Vec<String> = contexts.iter().map(ToString::to_string).collect();
    let mut record = json!({"conversation_id": conversation, "turn": turn, "speaker": "user", "text": text,
        "contexts": contexts});
    if !groups.is_empty() {
        record["principal"] = json!({"name": "n", "groups": groups});
    }
    serde_json::from_value(record).unwrap()
}

/// Everything that a trace shows of a turn.
fn shown(outcome: &Outcome) -> String {
    serde_json::to_string(&outcome.values).unwrap()
}

fn row() -> impl Strategy<Value = Row> {
    let groups = prop_oneof![1 => Just(None), 6 => vec(select(&GROUPS[..]), 0..3).prop_map(Some)];
    (vec(0..WORDS.len(), 3..8), groups)
}

/// One step: rows that change (`None` is deleted), whether the pipeline is reloaded, and whether the process restarts.
type Step = (Vec<(usize, Option<Row>)>, bool, bool);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = (0..12_usize, proptest::option::weighted(0.8, row()));
    vec((vec(change, 1..5), any::<bool>(), proptest::bool::weighted(0.3)), 5)
}

/// Random documents, permissions, edits, reloads and restarts: what each principal finds is what brute force finds among
/// what he may read, with the same scores; nothing of other documents is in a hit, a prompt, an answer or a trace.
fn live_through(model: Option<&Models>, workers: usize, history: Vec<Step>) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut rows: BTreeMap<usize, Row> =
        (0..12).map(|id| (id, (vec![id, id + 1, id + 2], Some(vec!["ann"])))).collect();
    write(dir, &rows);
    fs::write(dir.join("turns.jsonl"), "").unwrap();
    let options = |state: bool| Options {
        workers,
        state: state.then(|| dir.join("state")),
        corpora: Mode::Follow,
        ..Options::default()
    };
    let access = ", access: \"groups\"";
    let mut k1 = 1.2;
    let mut asked = Asked::start(plan_of(dir, &pipeline(access, "", model, k1)), options(true));
    // The same without permissions.
    let mut open =
        Asked::start(plan_of(dir, &pipeline("", "", model, k1).replace("top: 6", "top: 100")), options(false));
    for (step, (changes, reloads, restarts)) in history.into_iter().enumerate() {
        let before: Vec<u64> = [&asked, &open].iter().map(|one| one.engine.epochs().current().epoch).collect();
        let old = rows.clone();
        for (id, row) in changes {
            match row {
                Some(row) => drop(rows.insert(id, row)),
                None => drop(rows.remove(&id)),
            }
        }
        write(dir, &rows);
        if rows != old {
            for (one, before) in [&asked, &open].iter().zip(before) {
                until("the next epoch", || one.engine.epochs().current().epoch > before);
            }
        }
        if restarts {
            drop(asked);
            asked = Asked::start(plan_of(dir, &pipeline(access, "", model, k1)), options(true));
        }
        if reloads {
            k1 += 0.1;
            asked.engine.reload(plan_of(dir, &pipeline(access, "", model, k1)), &|| false).unwrap();
            let text = pipeline("", "", model, k1).replace("top: 6", "top: 100");
            open.engine.reload(plan_of(dir, &text), &|| false).unwrap();
        }
        let conversation = format!("c{step}");
        for (turn, groups) in
            [&[][..], &["ann"], &["bob"], &["ann", "bob"], &["*"], &["none"], &["far"]].into_iter().enumerate()
        {
            let text =
                format!("{} {} {}", WORDS[(step * 3 + turn) % 20], WORDS[(step + 5) % 20], WORDS[(turn * 2) % 20]);
            let contexts: Vec<usize> = (0..12).chain(100..180).collect();
            let found = asked.ask_record(record(&conversation, turn as u32 + 1, &text, groups, &contexts));
            let every = open.ask_record(record(&conversation, turn as u32 + 1, &text, groups, &contexts));
            let readable: BTreeSet<String> =
                rows.iter().filter(|(_, row)| may_read(row, groups)).map(|(id, _)| id.to_string()).collect();
            for node in
                ["lexical", "dense", "tokens", "sparse", "static"].iter().filter(|node| found.hits.contains_key(**node))
            {
                let expected = every.exact(node).into_iter().filter(|(id, _)| readable.contains(id)).take(6);
                assert_eq!(found.exact(node), expected.collect::<Vec<_>>(), "{node} for {groups:?}");
            }
            assert_eq!(found.documents("named").into_iter().collect::<BTreeSet<_>>(), readable, "{groups:?}");
            let shown = shown(&found);
            for id in (0..12).chain(100..180).filter(|id| !readable.contains(&id.to_string())) {
                assert!(!shown.contains(&secret(id)), "{id} is shown to {groups:?}: {shown}");
            }
        }
    }
}

#[test]
fn nobody_finds_what_he_may_not_read() {
    holds(11, 6, steps(), |history| live_through(None, 2, history));
}

#[test]
fn nobody_finds_what_he_may_not_read_with_models() {
    let Some(models) = models() else { return };
    holds(12, 2, steps(), |history| live_through(Some(&models), 2, history));
}

/// A permission that is taken away holds from the next epoch on: standing answers are revised.
#[test]
fn standing_answers_lose_what_may_no_longer_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let of = |groups: &[&'static str]| {
        BTreeMap::from([(1, (vec![0, 1, 2], Some(groups.to_vec()))), (2, (vec![0, 5], Some(vec!["*"])))])
    };
    write(dir, &of(&["ann"]));
    let lines: Vec<String> = [&["ann"][..], &["bob"], &[]]
        .iter()
        .enumerate()
        .map(|(at, groups)| {
            serde_json::to_string(&record(&format!("c{at}"), 1, &format!("{} {}", WORDS[0], WORDS[1]), groups, &[1]))
                .unwrap()
        })
        .collect();
    fs::write(dir.join("turns.jsonl"), lines.join("\n") + "\n").unwrap();
    let text = pipeline(", access: \"groups\"", "", None, 1.2);
    let start = || {
        let options = Options { state: Some(dir.join("state")), ..Options::default() };
        Engine::start(plan_of(dir, &text), options).unwrap()
    };
    let says = |conversation: &str| {
        let records = answers(&dir.join("answers.jsonl"));
        let last = records.into_iter().rfind(|record| *record.conversation_id == *conversation && !record.retracted);
        last.map(|record| serde_json::to_string(&record.hits).unwrap() + &record.answer).unwrap_or_default()
    };
    let engine = start();
    until("the answers", || ["c0", "c1", "c2"].iter().all(|id| !says(id).is_empty()));
    assert!(says("c0").contains(&secret(1)) && !says("c1").contains(&secret(1)) && !says("c2").contains(&secret(1)));
    write(dir, &of(&["bob"]));
    until("the revisions", || !says("c0").contains(&secret(1)) && says("c1").contains(&secret(1)));
    engine.stop();
    engine.join().unwrap();
    // While nothing runs, it changes too.
    write(dir, &of(&[]));
    let engine = start();
    until("the revision after a restart", || !says("c1").contains(&secret(1)));
    engine.stop();
    engine.join().unwrap();
}

/// A change of the metadata alone is a new epoch, and no passage is embedded again.
#[test]
fn a_change_of_metadata_embeds_nothing() {
    let Some(models) = models() else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("turns.jsonl"), "").unwrap();
    let mut rows: BTreeMap<usize, Row> = (0..20).map(|id| (id, (vec![id % 20, 3], Some(vec!["ann"])))).collect();
    write(dir, &rows);
    let plan = || plan_of(dir, &pipeline(", access: \"groups\"", "", Some(&models), 1.2));
    let mut asked = Asked::start(plan(), Options { state: Some(dir.join("state")), ..Options::default() });
    assert_eq!(asked.embedded(), 60);
    let epoch = asked.engine.epochs().current().epoch;
    rows.values_mut().for_each(|row| row.1 = Some(vec!["bob"]));
    write(dir, &rows);
    until("the next epoch", || asked.engine.epochs().current().epoch > epoch);
    assert_eq!(asked.embedded(), 60);
    let found = asked.ask_record(record("c", 1, WORDS[3], &["bob"], &[]));
    assert_eq!((found.of("lexical").len(), found.of("dense").len()), (6, 6));
    assert_eq!(found.of("dense")[0].chunk.metadata.to_json()["groups"], json!(["bob"]));
    drop(asked);
    let mut asked = Asked::start(plan(), Options { state: Some(dir.join("state")), ..Options::default() });
    assert_eq!(asked.embedded(), 0);
    assert_eq!(asked.ask_record(record("c", 1, WORDS[3], &["ann"], &[])).of("dense").len(), 0);
}

/// ObliQA's questions with random filters: every retriever finds what it finds without the filter, restricted to the
/// passages that meet it.
#[test]
fn filtered_retrieval_equals_brute_force_on_real_questions() {
    let Some(obliqa) = data("obliqa") else { return };
    let text = |filter: &str, top: usize| {
        format!(
            r#"Pipeline(
    corpora: {{ "docs": Corpus(source: JsonLines(path: {:?}), chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "english": Bm25(input: "query", corpus: "docs", top: {top}{filter}),
        "plain": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, idf: Okapi, top: {top}{filter}),
        "both": Rrf(inputs: ["english", "plain"]),
    }},
)"#,
            obliqa.join("corpus.jsonl")
        )
    };
    let filter =
        ", filter: Or([In(\"document\", FromTurn(\"documents\")), Prefix(\"document\", FromTurn(\"begins\"))])";
    let here = Path::new(".");
    let options = || Options { workers: 2, ..Options::default() };
    let mut filtered = Asked::start(plan_of(here, &text(filter, 20)), options());
    let mut open = Asked::start(plan_of(here, &text("", 13_000)), options());
    let queries = fs::read_to_string(obliqa.join("queries.dev.jsonl")).unwrap();
    let mut state = 5_u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let (mut some, mut none) = (0, 0);
    for (at, query) in queries.lines().enumerate() {
        let query: Json = serde_json::from_str(query).unwrap();
        let documents: Vec<String> = (0..below(6)).map(|_| (1 + below(40)).to_string()).collect();
        let begins: Vec<String> = (0..below(2)).map(|_| (1 + below(4)).to_string()).collect();
        let record: TurnRecord = serde_json::from_value(json!({"conversation_id": format!("q{at}"), "turn": 1,
            "speaker": "user", "text": query["text"], "documents": documents, "begins": begins}))
        .unwrap();
        let meets = |document: &str| {
            documents.iter().any(|one| *one == *document) || begins.iter().any(|begin| document.starts_with(&**begin))
        };
        let (found, every) = (filtered.ask_record(record.clone()), open.ask_record(record));
        for node in ["english", "plain"] {
            let expected: Vec<(String, u32)> = every
                .of(node)
                .iter()
                .filter(|hit| hit.chunk.metadata.values("document").iter().any(|value| meets(&value.to_string())))
                .take(20)
                .map(|hit| (hit.chunk.id.to_string(), hit.score.to_bits()))
                .collect();
            if expected.is_empty() {
                none += 1
            } else {
                some += 1
            }
            assert_eq!(found.exact(node), expected, "{node}: {documents:?} {begins:?}");
        }
    }
    assert!(some > 3000 && none > 100, "{some} {none}");
}

/// What a pipeline file says wrongly about fields is told at its place.
#[test]
fn filters_are_checked_against_the_declared_fields() {
    use turnflow_engine::plan::plan;
    use turnflow_engine::spec::load_str;
    let told = |fields: &str, filter: &str| {
        let text = pipeline(fields, &format!(", filter: {filter}"), None, 1.2);
        let planned = plan(load_str("test.ron", Path::new("."), &text, &[]), &turnflow::CATALOG);
        let told = planned.diagnostics.iter().filter(|diagnostic| diagnostic.code != "no-such-path");
        told.map(|diagnostic| format!("{diagnostic:?}")).collect::<Vec<_>>().join("\n")
    };
    let declared = ", fields: {\"lang\": Text, \"date\": Date, \"size\": Integer, \"public\": Boolean}";
    for (filter, problem) in [
        (r#"Eq("lng", "en")"#, "the field `lng` of corpus `docs` is not declared in `fields`"),
        (r#"Eq("size", "ten")"#, "the field `size` of corpus `docs` is a whole number, and cannot be compared with"),
        (r#"And([Exists("lang"), Not(Exists("size2"))])"#, "`size2`"),
        (r#"Eq("lang", ["en"])"#, "use `In` for a list"),
        (r#"Equals("lang", "en")"#, "Equals"),
        (r#"Eq("lang", FromTurns("x"))"#, "FromTurns"),
    ] {
        let told = told(declared, filter);
        assert!(told.contains(problem), "{filter}: {told}");
    }
    for filter in [
        r#"And([Eq("lang", "en"), Ge("date", "2026"), Lt("size", 1.5), Eq("public", true)])"#,
        r#"Not(Eq("lang", FromTurn("lang")))"#,
    ] {
        assert_eq!(told(declared, filter), "");
    }
    assert_eq!(told("", r#"Eq("anything", 7)"#), "");
}
