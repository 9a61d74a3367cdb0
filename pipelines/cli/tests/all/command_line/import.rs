//! `turnflow import`, and what `check` and `eval` make of its files.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::run;

/// Two corpora; each turn names its own, by its name or an alias.
const ROUTED: &str = r#"Pipeline(
    corpora: {
        "clapnq": Corpus(
            source: JsonLines(path: "out/corpus/clapnq.jsonl"), chunk: Whole(), aliases: ["mt-rag-clapnq-*"],
        ),
        "cloud": Corpus(
            source: JsonLines(path: "out/corpus/cloud.jsonl"), chunk: Whole(), aliases: ["ibmcloud"],
        ),
    },
    nodes: {
        "turns": JsonLines(path: "out/turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: FromTurn),
    },
)"#;

fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A download of MTRAG with two collections.
fn download() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let passage = |id: &str, text: &str| json!({"_id": id, "title": "", "text": text, "url": "u"});
    let ferry = [passage("ferry-0-9", "The ferry leaves at nine."), passage("empty", "")];
    write(directory.path(), "mt/corpora/passage_level/clapnq.jsonl", &lines(&ferry));
    let lamp = [passage("lamp-0-9", "The keeper lights the lamp."), passage("lamp-0-9", "Again.")];
    write(directory.path(), "mt/corpora/passage_level/cloud.jsonl", &lines(&lamp));
    let task = |id: &str, collection: &str, question: &str, passage: &str| {
        json!({"task_id": format!("{id}<::>1"), "conversation_id": id, "turn": "1", "Collection": collection,
            "input": [{"speaker": "user", "text": question, "metadata": {"created_at": 5}}],
            "contexts": [{"document_id": passage, "text": "…"}], "targets": [{"speaker": "agent", "text": "T."}],
            "answerability": ["ANSWERABLE"], "Question Type": ["Factoid"], "Multi-Turn": ["N/A"]})
    };
    let tasks = [
        task("a", "mt-rag-clapnq-elser-512-100-20240503", "When does the ferry leave?", "ferry-0-9"),
        task("b", "ibmcloud", "Who lights the lamp?", "lamp-0-9"),
    ];
    write(directory.path(), "mt/generation_tasks/reference.jsonl", &lines(&tasks));
    let qrels = "query-id\tcorpus-id\tscore\na<::>1\tferry-0-9\t1\nb<::>1\tlamp-0-9\t1\n";
    write(directory.path(), "mt/retrieval_tasks/qrels/all.tsv", qrels);
    write(directory.path(), "routed.ron", ROUTED);
    directory
}

#[test]
fn a_download_becomes_files_that_are_checked_and_scored() {
    let directory = download();
    let path = directory.path();
    let imported = run(path, &["import", "mtrag", "mt", "--output", "out"]).good();
    let want = "corpus/clapnq.jsonl: 1 passage\ncorpus/cloud.jsonl: 1 passage\nqrels.tsv: 2 judgements\n\
                tasks.jsonl: 2 tasks\nturns.jsonl: 2 turns\n\
                skipped 1: a passage without text: mt/corpora/passage_level/clapnq.jsonl:2\n\
                skipped 1: another passage has the id: mt/corpora/passage_level/cloud.jsonl:2\n";
    assert_eq!((imported.out.as_str(), imported.err.as_str()), (want, ""));
    run(path, &["check", "routed.ron"]).good();
    let explained = run(path, &["explain", "routed.ron"]).good();
    assert!(explained.out.contains("→ Whole()  aliases: \"mt-rag-clapnq-*\"\n"), "{explained:?}");

    // The published tasks give the same figures as the imported ones.
    let figures = |tasks: &str, state: &str| -> Value {
        let arguments = [
            "eval",
            "routed.ron",
            "--tasks",
            tasks,
            "--qrels",
            "out/qrels.tsv",
            "--state",
            state,
            "--json",
            "out.json",
            "--predictions",
            "said.jsonl",
            "--run",
            "run.trec",
        ];
        run(path, &arguments).good();
        serde_json::from_slice(&fs::read(path.join("out.json")).unwrap()).unwrap()
    };
    let of_import = figures("out/tasks.jsonl", "s1");
    assert_eq!(fs::read_to_string(path.join("run.trec")).unwrap().lines().count(), 2);
    let of_published = figures("mt/generation_tasks/reference.jsonl", "s1");
    assert_eq!((&of_import["metrics"], &of_import["by"]), (&of_published["metrics"], &of_published["by"]));
    assert_eq!(of_published["metrics"]["recall@1"], 1.0);
    assert_eq!(
        (&of_published["failed"], &of_published["by"]["collection"]["clapnq"]["queries"]),
        (&json!(0), &json!(1))
    );
    // The benchmark's scripts look for the published name.
    let said = fs::read_to_string(path.join("said.jsonl")).unwrap();
    assert!(said.contains("\"Collection\":\"mt-rag-clapnq-elser-512-100-20240503\""), "{said}");
}

#[test]
fn ids_with_blanks_are_scored_and_encoded_in_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let passage = json!({"ID": "u", "DocumentID": 9, "PassageID": "Part 1.(a)", "Passage": "A fund reports yearly."});
    let question =
        json!({"QuestionID": "q", "Question": "When does a fund report?", "Passages": [passage], "Group": 1});
    write(path, "StructuredRegulatoryDocuments/9.json", &json!([passage]).to_string());
    write(path, "ObliQA_dev.json", &json!([question]).to_string());
    let imported =
        run(path, &["import", "obliqa", "StructuredRegulatoryDocuments", "ObliQA_dev.json", "-o", "out", "--json"])
            .good();
    let report: Value = serde_json::from_str(&imported.out).unwrap();
    assert_eq!(report["files"][0], json!({"file": "corpus.jsonl", "record": "passage", "records": 1}));
    write(path, "p.ron", &super::LEXICAL.replace("docs.jsonl", "out/corpus.jsonl"));
    write(path, "turns.jsonl", "");
    let arguments = ["eval", "p.ron", "--tasks", "out/tasks.jsonl", "--qrels", "out/qrels.tsv", "--run", "run.trec"];
    run(path, &arguments).good();
    let written = fs::read_to_string(path.join("run.trec")).unwrap();
    assert!(written.starts_with("q Q0 9-Part%201.(a) 1 "), "{written}");
    let against = [&arguments[..6], &["--against", "run.trec"]].concat();
    let compared = run(path, &against).good();
    assert!(!compared.err.contains("no hits"), "{compared:?}");
}

#[test]
fn wrong_input_ends_with_one_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    write(path, "dev.jsonl", "{\"id\": \"q\", \"text\": \"When?\", \"answer\": \"nine\"}\n{\"id\": \"r\", \"te");
    let cut = run(path, &["import", "hotpotqa", "dev.jsonl", "--output", "out"]);
    assert_eq!((cut.code, cut.out.as_str()), (Some(1), ""), "{cut:?}");
    assert!(cut.err.contains("nothing was written") && cut.err.contains("invalid 1: not JSON: dev.jsonl:2"), "{cut:?}");
    let json = run(path, &["import", "hotpotqa", "dev.jsonl", "--output", "out", "--format", "json"]);
    let report: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((json.code, &report["invalid"][0]["places"]), (Some(1), &json!(["dev.jsonl:2"])));
    assert!(!path.join("out").exists());
    let skipped = run(path, &["import", "hotpotqa", "dev.jsonl", "--output", "out", "--skip-invalid"]).good();
    assert!(skipped.out.contains("tasks.jsonl: 1 task\n"), "{skipped:?}");

    run(path, &["import", "mtrag", "no/such", "--output", "new"]).one_line(1, &["no/such: cannot read it"]);
    run(path, &["import", "mtrag", "dev.jsonl", "--output", "dev.jsonl"]).one_line(1, &["--output", "cannot write"]);
    fs::create_dir(path.join("empty")).unwrap();
    let empty = run(path, &["import", "mtrag", "empty", "--output", "new"]);
    assert_eq!((empty.code, empty.err.as_str()), (Some(1), "error: no file of MTRAG is among the inputs\n"));
    assert!(!path.join("new").exists());
    for arguments in
        [&["import", "mtrag", "x"][..], &["import", "trec", "x", "-o", "y"], &["import", "mtrag", "-o", "y"]]
    {
        let wrong = run(path, arguments);
        assert_eq!(wrong.code, Some(2), "{wrong:?}");
    }
}
