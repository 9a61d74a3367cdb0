//! Imports of small files in the published shapes, and of hostile ones.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use proptest::prelude::prop_assert;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;

use super::*;
use crate::tasks::{Speaker, read_tasks};
use crate::trec::read_qrels;

/// A folder with these files.
fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join("in").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    fs::create_dir_all(folder.path().join("in")).unwrap();
    folder
}

fn lines(values: &[Value]) -> Vec<u8> {
    values.iter().map(|value| format!("{value}\n")).collect::<String>().into_bytes()
}

fn list(values: &[Value]) -> Vec<u8> {
    serde_json::to_vec_pretty(values).unwrap()
}

fn zipped(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        archive.start_file(*name, SimpleFileOptions::default()).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

fn imported(folder: &TempDir, benchmark: Benchmark, settings: Settings) -> Result<Report, ImportError> {
    import(benchmark, &[folder.path().join("in")], &folder.path().join("out"), &settings)
}

fn out(folder: &TempDir, name: &str) -> PathBuf {
    folder.path().join("out").join(name)
}

fn objects(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The number of records by file.
fn counts(report: &Report) -> BTreeMap<&str, u64> {
    report.files.iter().map(|file| (file.file.as_str(), file.records)).collect()
}

/// Reasons and places, the places without the temporary folder.
fn reasons(left_out: &[LeftOut]) -> Vec<(String, Vec<String>)> {
    let short = |place: &String| place.rsplit_once("/in/").map_or(place.as_str(), |(_, name)| name).to_owned();
    left_out.iter().map(|one| (one.reason.clone(), one.places.iter().map(short).collect())).collect()
}

/// A task as MTRAG publishes it.
fn task(id: &str, collection: &str, said: &[&str], contexts: &[&str]) -> Value {
    let speakers = ["user", "agent"].into_iter().cycle();
    let input: Vec<Value> = said
        .iter()
        .zip(speakers)
        .enumerate()
        .map(|(at, (text, speaker))| json!({"speaker": speaker, "text": text, "metadata": {"created_at": 100 + at}}))
        .collect();
    let contexts: Vec<Value> = contexts.iter().map(|id| json!({"document_id": id, "text": "…"})).collect();
    let (conversation, turn) = id.split_once("<::>").unwrap();
    json!({
        "task_id": id, "conversation_id": conversation, "task_type": "rag", "turn": turn, "Collection": collection,
        "dataset": "D", "contexts": contexts, "input": input, "answerability": ["ANSWERABLE"],
        "Question Type": ["Factoid", "Opinion"], "Multi-Turn": ["Follow-up"],
        "targets": [{"speaker": "agent", "text": "Nine."}],
    })
}

fn mtrag() -> TempDir {
    let passages = lines(&[
        json!({"_id": "p1-0-9", "id": "p1-0-9", "title": "Ferry", "text": "The ferry leaves at nine.", "url": "u"}),
        json!({"_id": "p2-0-9", "title": "", "text": "The lamp is lit."}),
        json!({"_id": "p3-0-9", "title": "Empty", "text": " "}),
    ]);
    let clapnq = "mt-rag-clapnq-elser-512-100-20240503";
    let mut cut =
        serde_json::to_string(&task("c2<::>1", "mt-rag-ibmcloud-elser-512-100-20240502", &["What is it?"], &[]))
            .unwrap();
    cut = cut.replace("[\"Follow-up\"]", "NaN");
    let first = lines(&[task("c1<::>2", clapnq, &["Hello?", "Yes.", "When does it leave?"], &["p1-0-9"])]);
    let reference = [first, cut.into_bytes()].concat();
    let rag = lines(&[task("c1<::>2", clapnq, &["Hello?", "Yes.", "When does it leave?"], &["p2-0-9"])]);
    let message = |speaker: &str, text: &str, time: u32| json!({"speaker": speaker, "text": text, "timestamp": time, "contexts": []});
    let conversations = list(&[
        json!({"author": "a", "retriever": {"collection": {"name": clapnq}}, "messages": [
            message("user", "Hello?", 1), message("agent", "Yes.", 2), message("user", "When does it leave?", 3), message("agent", "Nine.", 4)]}),
        json!({"author": "b", "retriever": {"collection": {"name": "mt-rag-govt-elser-512-100-20240611"}}, "messages": [
            message("user", "Who votes?", 7)]}),
    ]);
    folder(&[
        (
            "corpora/passage_level/clapnq.jsonl.zip",
            zipped(&[("clapnq.jsonl", &passages), ("__MACOSX/._clapnq.jsonl", b"\0")]),
        ),
        ("corpora/document_level/clapnq.jsonl.zip", zipped(&[("clapnq.jsonl", &passages)])),
        ("corpora/passage_level/cloud.jsonl.gz", gzipped(&passages)),
        ("corpora/README.md", b"# Corpora".to_vec()),
        ("mtrag-human/generation_tasks/reference.jsonl", reference),
        ("mtrag-human/generation_tasks/RAG.jsonl", rag),
        ("mtrag-human/conversations/conversations.json", conversations),
        ("mtrag-human/evaluations/reference.json", b"{\"name\": \"R\", \"tasks\": []}".to_vec()),
        (
            "mtrag-human/retrieval_tasks/clapnq/clapnq_lastturn.jsonl",
            lines(&[json!({"_id": "c1<::>2", "text": "|user|: When does it leave?"})]),
        ),
        (
            "mtrag-human/retrieval_tasks/clapnq/qrels/dev.tsv",
            b"query-id\tcorpus-id\tscore\nc1<::>2\tp1-0-9\t1\n".to_vec(),
        ),
        (
            "mtragun-human/retrieval_tasks/qrels/cloud.tsv",
            b"query-id\tcorpus-id\tscore\nc2<::>1\tp9-0-9\t1\nc2<::>1\tp9-0-9\t1\n".to_vec(),
        ),
        ("scripts/evaluation/sample_data/taskb_input.jsonl", lines(&[json!({"task_id": "c1::2", "input": []})])),
    ])
}

#[test]
fn a_download_of_mtrag() {
    let folder = mtrag();
    let report = imported(&folder, Benchmark::Mtrag, Settings::default()).unwrap();
    let want = [
        ("corpus/clapnq.jsonl", 2),
        ("corpus/cloud.jsonl", 2),
        ("qrels.tsv", 2),
        ("queries.lastturn.jsonl", 1),
        ("tasks.jsonl", 2),
        ("tasks.rag.jsonl", 1),
        ("turns.jsonl", 6),
    ];
    assert_eq!(counts(&report), want.into());
    assert_eq!((report.judgements_without_passage, &report.invalid[..]), (1, &[][..]));
    let skipped = reasons(&report.skipped);
    let of = |reason: &str| skipped.iter().find(|(of, _)| of == reason).map(|(_, places)| places.join(" "));
    let archive = "corpora/passage_level/clapnq.jsonl.zip:clapnq.jsonl:3";
    assert!(of("a passage without text").unwrap().contains(archive), "{skipped:?}");
    assert_eq!(of("not a file of MTRAG").as_deref(), Some("mtrag-human/evaluations/reference.json"));
    assert!(of("whole documents, whose passages are imported").is_some(), "{skipped:?}");
    assert!(of("sample data of the evaluation scripts").is_some(), "{skipped:?}");
    assert_eq!(skipped.len(), 4, "{skipped:?}");
    assert!(report.to_string().starts_with("corpus/clapnq.jsonl: 2 passages\n"), "{report}");

    let passage = &objects(&out(&folder, "corpus/clapnq.jsonl"))[0];
    assert_eq!(*passage, json!({"_id": "p1-0-9", "title": "Ferry", "text": "The ferry leaves at nine.", "url": "u"}));
    let tasks = read_tasks(&out(&folder, "tasks.jsonl")).unwrap();
    assert_eq!((tasks[0].collection.as_deref(), tasks[1].collection.as_deref()), (Some("clapnq"), Some("cloud")));
    assert_eq!(
        (tasks[0].turn, tasks[0].target.as_deref(), &tasks[0].contexts[..]),
        (2, Some("Nine."), &["p1-0-9".to_owned()][..])
    );
    assert_eq!((tasks[0].answerability.as_deref(), tasks[0].question_types.len()), (Some("ANSWERABLE"), 2));
    assert_eq!((tasks[0].input[1].speaker, tasks[1].multi_turn.len()), (Speaker::Agent, 0));
    assert_eq!(read_tasks(&out(&folder, "tasks.rag.jsonl")).unwrap()[0].contexts, ["p2-0-9"]);
    let queries = read_tasks(&out(&folder, "queries.lastturn.jsonl")).unwrap();
    assert_eq!((&*queries[0].input[0].text, queries[0].collection.as_deref()), ("When does it leave?", Some("clapnq")));
    assert_eq!(read_qrels(&out(&folder, "qrels.tsv")).unwrap()["c2<::>1"]["p9-0-9"], 1);

    // The first published conversation has the id of its tasks; the second has none.
    let turns = objects(&out(&folder, "turns.jsonl"));
    let reply = json!({"conversation_id": "c1", "turn": 2, "speaker": "agent", "text": "Nine.", "collection": "clapnq", "timestamp": 4});
    assert_eq!(turns[3], reply);
    assert_eq!((&turns[4]["conversation_id"], &turns[4]["timestamp"]), (&json!("c2"), &json!(100)));
    assert_eq!((&turns[5]["conversation_id"], &turns[5]["collection"]), (&json!("b_7"), &json!("govt")));
}

/// One object, on one line or on several; people's judgements are texts.
#[test]
fn published_evaluations_become_answers_and_scores() {
    let metric = |name: &str, author: &str| json!({"name": name, "author": author});
    let evaluation = |task: &str, model: &str, said: &str, annotations: Value| json!({"task_id": task, "model_id": model, "model_response": said, "annotations": annotations});
    let task = json!({
        "task_id": "c<::>1", "input": [{"speaker": "user", "text": "When?"}], "Answerability": ["ANSWERABLE"],
        "contexts": [{"document_id": "p"}, {"document_id": "gone"}], "targets": [{"speaker": "agent", "text": "Nine."}],
        "Turn": "1", "Collection": "mt-rag-govt-elser-512-100-20240611",
    });
    let people =
        |values: [&str; 2]| json!({"4711": {"value": values[0]}, "4712": {"value": values[1], "duration": 3.0}});
    let file = json!({
        "name": "Reference", "models": [], "metrics": [metric("rb_agg", "algorithm"), metric("naturalness", "human")],
        "documents": [{"document_id": "p", "text": "It leaves at nine."}],
        "tasks": [task],
        "evaluations": [
            evaluation("c<::>1", "gpt/4o", "At nine.", json!({
                "rb_agg": {"composite": {"value": 0.5}}, "naturalness": people(["4", "3"]), "rl_f": {"system": {"value": null}},
            })),
            evaluation("c<::>1", "reference", "Nine.", json!({})),
            evaluation("c<::>1", "reference", "Twice.", json!({})),
            evaluation("c<::>9", "reference", "Of no task.", json!({})),
        ],
    });
    for text in [file.to_string(), format!("\u{feff}{file:#}")] {
        let folder = folder(&[("evaluations/reference.json", text.into_bytes())]);
        let report = imported(&folder, Benchmark::Mtrag, Settings::default()).unwrap();
        let want = [
            ("evaluations/reference/answers/gpt-4o.jsonl", 1),
            ("evaluations/reference/answers/reference.jsonl", 1),
            ("evaluations/reference/published.jsonl", 2),
            ("evaluations/reference/tasks.jsonl", 1),
        ];
        assert_eq!(counts(&report), want.into());
        assert_eq!(reasons(&report.skipped).len(), 3, "{report}");
        let of = |name: &str| objects(&out(&folder, &format!("evaluations/reference/{name}.jsonl")));
        let answer = json!({
            "task_id": "c<::>1", "contexts": [{"document_id": "p", "text": "It leaves at nine."}],
            "predictions": [{"text": "At nine."}],
        });
        assert_eq!(of("answers/gpt-4o"), [answer]);
        let first = json!({
            "task_id": "c<::>1", "model": "gpt-4o", "scores": {"rb_agg": 0.5}, "people": {"naturalness": [4.0, 3.0]},
        });
        assert_eq!(of("published")[0], first);
        assert_eq!((&of("tasks")[0]["collection"], &of("tasks")[0]["target"]), (&json!("govt"), &json!("Nine.")));
    }
    let bad = json!({"evaluations": [{"task_id": "c<::>1"}], "tasks": [3]}).to_string();
    let folder = folder(&[("evaluations/bad.json", bad.into_bytes())]);
    let error = imported(&folder, Benchmark::Mtrag, Settings::default()).unwrap_err().to_string();
    assert!(error.contains("a task is not an object") && error.contains("an evaluation needs"), "{error}");
}

#[test]
fn a_download_of_obliqa() {
    let passage = |document: u32, id: &str, text: &str| json!({"ID": "u", "DocumentID": document, "PassageID": id, "Passage": text});
    let document =
        list(&[passage(9, "Part 1.(a)", "Funds report."), passage(9, "2.", ""), passage(9, "Part 1.(a)", "Again.")]);
    let question = json!({"QuestionID": "q1", "Question": "Who reports?", "Passages": [passage(9, "Part 1.(a)", "Funds report.")], "Group": 2});
    let unseen = json!({"QuestionID": "q2", "Question": "And then?"});
    let answer = json!({"QuestionID": "q1", "RetrievedPassages": ["Funds report."], "Answer": "Funds."});
    let folder = folder(&[
        ("StructuredRegulatoryDocuments.zip", zipped(&[("StructuredRegulatoryDocuments/9.json", &document)])),
        ("ObliQA_dev.json", list(&[question])),
        ("RIRAGSharedTask/RIRAG_Unseen_Questions.json", list(&[unseen])),
        ("answers.json", list(&[answer])),
    ]);
    let report = imported(&folder, Benchmark::Obliqa, Settings::default()).unwrap();
    let want = [
        ("answers.jsonl", 1),
        ("corpus.jsonl", 1),
        ("qrels.dev.tsv", 1),
        ("queries.dev.jsonl", 1),
        ("queries.unseen.jsonl", 1),
        ("tasks.dev.jsonl", 1),
        ("tasks.unseen.jsonl", 1),
    ];
    assert_eq!(counts(&report), want.into());
    let place = |line| vec![format!("StructuredRegulatoryDocuments.zip:StructuredRegulatoryDocuments/9.json:{line}")];
    let want = [("a passage without text".to_owned(), place(8)), ("another passage has the id".to_owned(), place(14))];
    assert_eq!(reasons(&report.skipped), want);
    let passages = objects(&out(&folder, "corpus.jsonl"));
    assert_eq!(passages, [json!({"_id": "9-Part 1.(a)", "title": "", "text": "Funds report.", "document": "9"})]);
    assert_eq!(read_qrels(&out(&folder, "qrels.dev.tsv")).unwrap()["q1"]["9-Part 1.(a)"], 1);
    assert_eq!(objects(&out(&folder, "tasks.dev.jsonl"))[0]["group"], 2);
    assert_eq!(objects(&out(&folder, "answers.jsonl"))[0]["predictions"][0]["text"], "Funds.");
}

#[test]
fn downloads_of_hotpotqa() {
    let collection = lines(&[
        json!({"id": "doc-1", "text": "The ferry leaves at nine."}),
        json!({"id": "doc-2", "text": "Nine is late."}),
    ]);
    let question = json!({"id": "q", "text": "When?", "answer": "at nine", "supporting_ids": ["doc-1", "doc-2"]});
    let small = folder(&[
        ("collection.jsonl", collection),
        ("validation.jsonl", lines(&[question])),
        ("test.jsonl", lines(&[json!({"id": "t", "text": "Why?"})])),
        ("predictions.jsonl", lines(&[json!({"id": "q", "answer": "nine", "retrieved_docs": [["doc-2", 0.5]]})])),
    ]);
    let report = imported(&small, Benchmark::Hotpotqa, Settings::default()).unwrap();
    let want = [
        ("answers.jsonl", 1),
        ("corpus.jsonl", 2),
        ("qrels.validation.tsv", 2),
        ("queries.test.jsonl", 1),
        ("queries.validation.jsonl", 1),
        ("tasks.test.jsonl", 1),
        ("tasks.validation.jsonl", 1),
    ];
    assert_eq!(counts(&report), want.into());
    assert_eq!(read_tasks(&out(&small, "tasks.validation.jsonl")).unwrap()[0].target.as_deref(), Some("at nine"));

    let full = folder(&[(
        "hotpot_dev_distractor_v1.json",
        list(&[json!({"_id": "a", "question": "Who?", "answer": "Ada", "type": "bridge", "level": "hard",
            "supporting_facts": [["Ada Lovelace", 0], ["Ada Lovelace", 1]],
            "context": [["Ada Lovelace", ["She wrote.", " Notes."]], ["Ferry", ["It leaves."]]]})]),
    )]);
    let report = imported(&full, Benchmark::Hotpotqa, Settings::default()).unwrap();
    let want = [("corpus.jsonl", 2), ("qrels.tsv", 1), ("queries.jsonl", 1), ("tasks.jsonl", 1)];
    assert_eq!(counts(&report), want.into());
    assert_eq!(objects(&out(&full, "corpus.jsonl"))[0]["text"], "She wrote. Notes.");
    assert_eq!(read_tasks(&out(&full, "tasks.jsonl")).unwrap()[0].question_types, ["bridge"]);
    assert_eq!(read_qrels(&out(&full, "qrels.tsv")).unwrap()["a"]["Ada Lovelace"], 1);
}

/// Nothing is left behind, not even the output folder.
#[test]
fn invalid_records_leave_nothing_unless_they_are_skipped() {
    let good = json!({"id": "q", "text": "When?", "answer": "at nine", "supporting_ids": ["d"]});
    let mut bytes = lines(&[
        good.clone(),
        json!({"id": "r", "text": []}),
        json!({"id": "s", "text": "?", "supporting_ids": "d"}),
        json!([1]),
    ]);
    bytes.extend(b"{\"id\": \"\xff\"}\n{\"id\": \"t\", \"te");
    let lists = [list(&[good]), b"\n[{\"id\": \"u\"".to_vec()].concat();
    let folder = folder(&[("train.jsonl", bytes), ("dev.json", lists)]);
    let error = imported(&folder, Benchmark::Hotpotqa, Settings::default()).unwrap_err();
    let ImportError::Invalid { invalid } = &error else { panic!("{error}") };
    let want = [
        ("a question needs `id`, and `question` or `text`", "train.jsonl:2"),
        ("`supporting_ids` is a list of ids, or `supporting_facts` of pairs", "train.jsonl:3"),
        ("not JSON", "train.jsonl:6"),
        ("not UTF-8", "train.jsonl:5"),
        ("not a JSON object", "train.jsonl:4"),
        ("the list is cut off or damaged", "dev.json:11"),
    ];
    let told = reasons(invalid);
    for (reason, place) in want {
        assert!(
            told.iter().any(|(of, places)| of == reason && places.iter().any(|at| at == place)),
            "{reason} {place} {told:?}"
        );
    }
    assert!(error.to_string().contains("\ninvalid 1: not UTF-8: "), "{error}");
    assert!(!folder.path().join("out").exists());

    let settings = Settings { skip_invalid: true, ..Settings::default() };
    let report = imported(&folder, Benchmark::Hotpotqa, settings).unwrap();
    assert_eq!((counts(&report)["tasks.train.jsonl"], counts(&report)["tasks.dev.jsonl"]), (1, 1));
    assert!(report.to_string().contains("\nskipped, invalid, 1: not UTF-8: "), "{report}");
}

#[test]
fn inputs_without_a_file_of_the_benchmark_are_an_error() {
    let told = |folder: &TempDir, benchmark| imported(folder, benchmark, Settings::default()).unwrap_err().to_string();
    assert_eq!(told(&folder(&[]), Benchmark::Mtrag), "no file of MTRAG is among the inputs");
    let other = folder(&[
        ("a.jsonl", lines(&[json!({"x": 1})])),
        ("b.jsonl", Vec::new()),
        ("c.json", b"{\n\"a\": 1}".to_vec()),
    ]);
    for benchmark in [Benchmark::Mtrag, Benchmark::Obliqa, Benchmark::Hotpotqa] {
        let error = told(&other, benchmark);
        for reason in ["an empty file: ", "one object, not a list of records: ", "not a file of "] {
            assert!(error.contains(reason), "{error}");
        }
        assert!(!other.path().join("out").exists());
    }
    let pointer =
        folder(&[("clapnq.jsonl.zip", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n".to_vec())]);
    assert!(told(&pointer, Benchmark::Mtrag).contains("`git lfs pull`"));
    let broken = folder(&[("clapnq.jsonl.zip", b"PK\x03\x04".to_vec())]);
    assert!(told(&broken, Benchmark::Mtrag).ends_with("clapnq.jsonl.zip: cannot read the archive"));
    let cut = folder(&[("clapnq.jsonl.gz", gzipped(&lines(&[json!({"_id": "a", "text": "b"})]))[..20].to_vec())]);
    assert!(told(&cut, Benchmark::Mtrag).ends_with("clapnq.jsonl.gz: cannot read it"));
    let missing = import(Benchmark::Mtrag, &["no/such".into()], Path::new("x"), &Settings::default()).unwrap_err();
    assert_eq!(missing.to_string(), "no/such: cannot read it");
    let same = folder(&[("a.jsonl", lines(&[json!({"_id": "a", "text": "b"})]))]);
    let input = same.path().join("in");
    let error = import(Benchmark::Mtrag, std::slice::from_ref(&input), &input, &Settings::default()).unwrap_err();
    assert!(error.to_string().ends_with("is both an input and the output folder"), "{error}");
}

/// A few kilobytes that become a hundred megabytes.
#[test]
fn a_bomb_is_refused() {
    let blanks = vec![b' '; 8 << 20];
    let limits = Limits { file: 1 << 20, record: 1 << 20 };
    for (name, bytes) in [
        ("clapnq.jsonl.zip", zipped(&[("clapnq.jsonl", &blanks)])),
        ("clapnq.jsonl.gz", gzipped(&blanks)),
        ("clapnq.json.gz", gzipped(&[b"[".as_slice(), &blanks].concat())),
    ] {
        let folder = folder(&[(name, bytes)]);
        let error = imported(&folder, Benchmark::Mtrag, Settings { limits, ..Settings::default() }).unwrap_err();
        assert!(matches!(error, ImportError::TooLarge { .. }), "{error}");
        assert!(error.to_string().contains("more than 1 MB"), "{error}");
        assert!(!folder.path().join("out").exists());
    }
}

/// A name in an archive or of a file cannot lead out of the output folder.
#[test]
fn names_stay_in_the_output_folder() {
    let passages = lines(&[json!({"_id": "a", "text": "b"})]);
    let folder =
        folder(&[("corpora.zip", zipped(&[("../../evil.jsonl", &passages), ("x/..\\..\\é b.jsonl", &passages)]))]);
    let report = imported(&folder, Benchmark::Mtrag, Settings::default()).unwrap();
    assert_eq!(counts(&report), [("corpus/evil.jsonl", 1), ("corpus/é-b.jsonl", 1)].into());
    assert!(out(&folder, "corpus/evil.jsonl").is_file());
}

/// Why it exists: a second import replaces the files of the first one and reads none of its own.
#[test]
fn an_import_can_be_repeated() {
    let folder = mtrag();
    let inside = folder.path().join("in/imported");
    let again = || import(Benchmark::Mtrag, &[folder.path().join("in")], &inside, &Settings::default()).unwrap();
    assert_eq!(again(), again());
    assert!(fs::read_dir(&inside).unwrap().all(|entry| !entry.unwrap().file_name().to_string_lossy().starts_with('.')));
}

/// Whatever the bytes are, an import ends with a report or an error, and with valid files or none.
#[test]
fn damaged_files_do_no_harm() {
    let samples = [
        (
            Benchmark::Mtrag,
            "reference.jsonl",
            lines(&[task("c<::>1", "fiqa", &["Hello?"], &["p"]), task("c<::>3", "fiqa", &["a", "b", "c"], &[])]),
        ),
        (
            Benchmark::Mtrag,
            "conversations.json",
            list(&[json!({"author": "b", "messages": [{"speaker": "user", "text": "a", "timestamp": 1}]})]),
        ),
        (
            Benchmark::Obliqa,
            "ObliQA_dev.json",
            list(&[json!({"QuestionID": "q", "Question": "?", "Passages": [{"DocumentID": 1, "PassageID": "2"}]})]),
        ),
        (
            Benchmark::Hotpotqa,
            "dev.json",
            list(&[json!({"_id": "a", "question": "?", "supporting_facts": [["T", 0]], "context": [["T", ["x"]]]})]),
        ),
    ];
    let edits = proptest::collection::vec(
        (proptest::prelude::any::<proptest::sample::Index>(), proptest::prelude::any::<u8>()),
        1..4,
    );
    let cut = proptest::prelude::any::<proptest::sample::Index>();
    let config = Config { failure_persistence: None, ..Config::with_cases(100) };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[3; 32]))
        .run(&(0..samples.len(), edits, cut, proptest::bool::ANY), |(sample, edits, cut, skip_invalid)| {
            let (benchmark, name, bytes) = &samples[sample];
            let mut bytes = bytes.clone();
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if skip_invalid {
                bytes.truncate(cut.index(bytes.len()) + 1);
            }
            let folder = folder(&[(*name, bytes)]);
            match imported(&folder, *benchmark, Settings { skip_invalid, ..Settings::default() }) {
                Ok(report) => {
                    for file in report.files.iter().filter(|file| file.file.ends_with(".jsonl")) {
                        prop_assert!(objects(&out(&folder, &file.file)).len() as u64 == file.records);
                    }
                    let tasks = out(&folder, "tasks.jsonl");
                    prop_assert!(!tasks.exists() || read_tasks(&tasks).is_ok());
                    let qrels = out(&folder, "qrels.tsv");
                    prop_assert!(!qrels.exists() || read_qrels(&qrels).is_ok());
                }
                Err(_) => prop_assert!(!folder.path().join("out").exists()),
            }
            Ok(())
        })
        .unwrap();
}

/// A log with feedback in several places, and answers with citations.
#[test]
fn feedback_becomes_tasks_and_judgements() {
    let turn = |conversation: &str, turn: u64, speaker: &str, text: &str, feedback: Value| {
        let mut record = json!({"conversation_id": conversation, "turn": turn, "speaker": speaker, "text": text});
        if !feedback.is_null() {
            record["feedback"] = feedback;
        }
        record
    };
    let none = Value::Null;
    let log = [
        turn("c", 1, "user", "When does the ferry leave?", none.clone()),
        // The log has no answer to turn 1; feedback on it comes with the next question.
        turn("c", 2, "user", "And on Sunday?", json!({"accepted": true})),
        turn("c", 2, "agent", "At ten.", json!([{"helpful": ["p9"]}, {"unhelpful": "p8"}])),
        turn("c", 3, "user", "Thanks", json!({"turn": 1, "unhelpful": ["p2"]})),
        turn("other", 1, "user", "No feedback here", none.clone()),
        turn("d", 1, "user", "Where?", none.clone()),
        turn("d", 1, "agent", "There.", json!({"accepted": false})),
    ];
    let answer = |turn: u64, revision: u64, checks: Value| {
        let hits: Vec<Value> = ["p1", "p2", "p3"].iter().map(|id| json!({"passage": id})).collect();
        json!({
            "conversation_id": "c", "turn": turn, "revision": revision, "status": "answered", "answer": "At nine.",
            "hits": hits, "checks": checks,
        })
    };
    let answers = [answer(1, 0, json!({})), answer(1, 1, json!({"citations": [2, 3, 9]}))];
    let folder = folder(&[("log.jsonl", lines(&log)), ("answers.jsonl", lines(&answers))]);
    let report = imported(&folder, Benchmark::Feedback, Settings::default()).unwrap();
    assert_eq!(counts(&report), BTreeMap::from([("qrels.tsv", 4), ("queries.jsonl", 2), ("tasks.jsonl", 2)]));
    let skipped = [("feedback without a usable passage".to_owned(), vec!["d::1".to_owned()])];
    assert_eq!(reasons(&report.skipped), skipped);
    let qrels = std::fs::read_to_string(out(&folder, "qrels.tsv")).unwrap();
    // Passage 2 was cited in an accepted answer, and later called unhelpful.
    assert_eq!(qrels, "query-id\tcorpus-id\tscore\nc::1\tp2\t0\nc::1\tp3\t1\nc::2\tp8\t0\nc::2\tp9\t1\n");
    let tasks = objects(&out(&folder, "tasks.jsonl"));
    let said = |text: &str, speaker: &str| json!({"speaker": speaker, "text": text});
    assert_eq!(
        tasks[1]["input"],
        json!([said("When does the ferry leave?", "user"), said("At nine.", "agent"), said("And on Sunday?", "user")])
    );
    assert_eq!((&tasks[0]["conversation_id"], &tasks[0]["turn"]), (&json!("c"), &json!(1)));
}

/// Why it exists: who pressed the wrong thumb first taught that the answer's passages are right.
#[test]
fn the_last_thumb_of_a_caller_counts() {
    let said = |conversation: &str, helpful: bool, caller: &str, passage: Value| {
        let mut record = json!({
            "conversation_id": conversation, "turn": 1, "question": "Where?", "passages": ["p1", "p2"], "helpful": helpful,
            "caller": caller,
        });
        if !passage.is_null() {
            record["passage"] = passage;
        }
        record
    };
    let none = Value::Null;
    let kept = [
        said("wrong first", true, "ann", none.clone()),
        said("wrong first", false, "ann", none.clone()),
        said("right in the end", false, "ann", none.clone()),
        said("right in the end", true, "ann", none.clone()),
        said("two people", true, "ann", none.clone()),
        said("two people", false, "bob", none.clone()),
        said("passage", false, "ann", json!("p1")),
        said("passage", true, "ann", none),
    ];
    let folder = folder(&[("feedback.jsonl", lines(&kept))]);
    imported(&folder, Benchmark::Feedback, Settings::default()).unwrap();
    let qrels = std::fs::read_to_string(out(&folder, "qrels.tsv")).unwrap();
    let judged = |conversation: &str| -> Vec<String> {
        let lines = qrels.lines().filter_map(|line| line.strip_prefix(&format!("{conversation}::1\t")));
        lines.map(|line| line.replace('\t', " ")).collect()
    };
    assert_eq!(judged("wrong first"), [""; 0]);
    assert_eq!(judged("right in the end"), ["p1 1", "p2 1"]);
    assert_eq!(judged("two people"), ["p1 1", "p2 1"]);
    assert_eq!(judged("passage"), ["p1 0", "p2 1"]);
}

#[test]
fn feedback_that_cannot_be_read_is_told() {
    for (feedback, reason) in [
        (json!(7), "`feedback` is not an object"),
        (json!({"acepted": true}), "`feedback` has no field `acepted`"),
        (json!({"accepted": "yes"}), "`accepted` is not true or false"),
        (json!({"helpful": 3}), "`helpful` is not a list of passages"),
        (json!({"turn": "one", "helpful": []}), "`turn` of `feedback` is not a number"),
        (json!({"helpful": ["p"]}), "feedback before the first turn"),
    ] {
        let first = json!({"conversation_id": "c", "turn": 1, "speaker": "user", "text": "t"});
        let second = json!({"conversation_id": "c", "turn": 2, "speaker": "user", "text": "t", "feedback": feedback});
        let log = if reason.contains("before") { vec![second] } else { vec![first, second] };
        let folder = folder(&[("log.jsonl", lines(&log))]);
        let error = imported(&folder, Benchmark::Feedback, Settings::default()).unwrap_err();
        let ImportError::Invalid { invalid } = &error else { panic!("{error}") };
        assert_eq!(reasons(invalid)[0].0, reason);
    }
}
