//! The published systems' pipeline files: all of them check, and each local variant answers.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use turnflow::CATALOG;
use turnflow_engine::plan::plan_file;

use crate::support::{data, model, root};

fn turnflow(args: &[&str], directory: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_turnflow")).args(args).current_dir(directory).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {told}{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout).unwrap()
}

/// Every pipeline file, without what is only there to be included.
fn pipelines() -> Vec<PathBuf> {
    let files = fs::read_dir(root().join("pipelines")).unwrap().map(|entry| entry.unwrap().path());
    let text = |path: &PathBuf| fs::read_to_string(path).unwrap();
    let whole = |path: &PathBuf| text(path).contains("name: ") || text(path).contains("include: ");
    let mut found: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "ron"))
        .filter(|path| text(path).contains("Pipeline(") && whole(path))
        .collect();
    found.sort();
    found
}

/// What MTRAG's baselines differ in.
const MTRAG: [&str; 6] = ["lastturn", "userturns", "conversation", "rewrite", "reference", "reference-rag"];

/// The rows of TechSSN's tables 4 and 5 that have a local variant.
const TECHSSN: [&str; 7] = ["bm25", "hybrid-1-no-rewrite", "hybrid-1", "hybrid-2", "greedy", "no-anchor", "anchor"];

#[test]
fn every_file_checks_and_every_system_has_a_local_variant() {
    let mut names = BTreeSet::new();
    for file in pipelines() {
        let planned = plan_file(&file, &[], &CATALOG);
        for diagnostic in &planned.diagnostics {
            let model = diagnostic.missing.as_deref().and_then(turnflow::models::fetches);
            assert!(model.is_some(), "{}: {}", file.display(), diagnostic.message);
        }
        names.insert(planned.plan.unwrap().name);
    }
    let modes = ["basic", "multi", "agentic"].map(|mode| format!("polyu-{mode}"));
    let settings = MTRAG.map(|setting| format!("mtrag-{setting}"));
    let rows = TECHSSN.map(|row| format!("techssn-{row}"));
    for system in ["techssn", "ragtum", "ragtum-reference", "ragtum-no-rewrite", "fusionrag"]
        .map(str::to_owned)
        .into_iter()
        .chain(modes)
        .chain(settings)
        .chain(rows)
    {
        assert!(names.contains(&system) && names.contains(&format!("{system}-local")), "{system}: {names:?}");
    }
    turnflow(&["check", "techssn.ron", "mtrag-rewrite.ron"], &root().join("pipelines"));
}

/// The tasks and the judgements of a run: two questions about the sample passages, of which the
/// second can only be understood from the turn before it.
fn two_tasks(directory: &Path) -> Vec<String> {
    let (tasks, qrels) = (directory.join("tasks.jsonl"), directory.join("qrels.tsv"));
    let said = |speaker: &str, text: &str| json!({"speaker": speaker, "text": text});
    let first = [said("user", "What is the default of k1?")];
    let second = [
        said("user", "What is BM25?"),
        said("agent", "BM25 ranks passages by the words that they share with the query."),
        said("user", "and its parameter b?"),
    ];
    let task = |id: &str, turn: usize, input: &[Value]| {
        let task = json!({"task_id": id, "conversation_id": id, "turn": turn, "collection": "cloud",
            "input": input, "contexts": ["bm25-b"], "answerability": "ANSWERABLE", "target": "It is 0.75."});
        format!("{task}\n")
    };
    fs::write(&tasks, task("one", 1, &first) + &task("two", 2, &second)).unwrap();
    fs::write(&qrels, "query-id\tcorpus-id\tscore\none\tbm25-k1\t1\ntwo\tbm25-b\t1\n").unwrap();
    let paths = [("--tasks", tasks), ("--qrels", qrels)];
    paths.into_iter().flat_map(|(option, path)| [option.to_owned(), path.to_str().unwrap().to_owned()]).collect()
}

/// Runs a local variant on two tasks, and gives its predictions.
fn answers(pipeline: &str) -> Option<Vec<Value>> {
    for name in ["minilm-int8", "e5-int8", "splade", "glove", "smollm2"] {
        model(name)?;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = root().join(format!("pipelines/{pipeline}.ron"));
    let model = if pipeline.starts_with("techssn") || pipeline.starts_with("mtrag") { "generator" } else { "llm" };
    // A few words show the way as well as many.
    let short = format!("models.{model}.sampling.max_tokens=16");
    let tasks = two_tasks(directory.path());
    let mut args =
        vec!["eval", file.to_str().unwrap(), "--predictions", "out.jsonl", "--state", "state", "--set", &short];
    args.extend(tasks.iter().map(String::as_str));
    turnflow(&args, directory.path());
    let lines = fs::read_to_string(directory.path().join("out.jsonl")).unwrap();
    Some(lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The plan of each row has the parts that the row names.
#[test]
fn the_rows_of_techssn_differ_in_what_they_say() {
    let explain = |file: &str| {
        let planned = plan_file(&root().join("pipelines").join(file), &[], &CATALOG);
        planned.plan.unwrap().explain()
    };
    for (row, with, without) in [
        ("bm25", &["LastTurn", "Bm25"][..], &["Dense", "Rrf", "RerankEnsemble"][..]),
        ("hybrid-1-no-rewrite", &["LastTurn", "Bm25", "Dense", "Rrf"], &["e5", "RerankEnsemble"]),
        ("hybrid-1", &["RuleRewrite", "Dense", "Rrf"], &["e5", "RerankEnsemble", "LastTurn"]),
        ("hybrid-2", &["RuleRewrite", "e5", "Rrf", "Clean", "IdkNormalize"], &["RerankEnsemble"]),
        ("greedy", &["RerankEnsemble", "techssn-no-anchor.txt"], &["beams: 3", "Clean", "IdkNormalize"]),
        ("no-anchor", &["RerankEnsemble", "techssn-no-anchor.txt"], &["Clean", "IdkNormalize"]),
        ("anchor", &["RerankEnsemble", "Anchor"], &["Clean", "IdkNormalize", "techssn-no-anchor.txt"]),
    ] {
        let plan = explain(&format!("techssn-{row}-local.ron"));
        for part in with {
            assert!(plan.contains(part), "{row} lacks {part}: {plan}");
        }
        for part in without {
            assert!(!plan.contains(part), "{row} has {part}: {plan}");
        }
    }
}

/// What a system is to retrieve for the two questions.
#[derive(Clone, Copy, PartialEq)]
enum Retrieves {
    /// The passage asked for comes first, and for the question that needs its context among the
    /// first two.
    What,
    /// The reference passage alone, which the task names.
    Reference,
    /// The reference passage, and then what it finds itself.
    ReferenceFirst,
}

/// The system finds the passages, and its answers say one of the words that each question is about:
/// a model of this size does not say much that is right.
fn answers_from(pipeline: &str, retrieves: Retrieves, says: [&[&str]; 2]) {
    let Some(predictions) = answers(pipeline) else { return };
    assert_eq!(predictions.len(), 2);
    for (at, (prediction, says)) in predictions.iter().zip(says).enumerate() {
        let contexts = prediction["contexts"].as_array().unwrap();
        let document = |context: &Value| context["document_id"].as_str().unwrap().replace("#0", "");
        let documents: Vec<String> = contexts.iter().map(document).collect();
        let found: Vec<&str> = documents.iter().map(String::as_str).collect();
        let is_right = match (retrieves, at) {
            (Retrieves::What, 0) => found[0] == "bm25-k1",
            (Retrieves::What, _) => found[..2].contains(&"bm25-b"),
            (Retrieves::Reference, _) => found == ["bm25-b"],
            (Retrieves::ReferenceFirst, _) => found[0] == "bm25-b" && found.contains(&"bm25-k1"),
        };
        assert!(is_right, "{pipeline}: {prediction}");
        let text = prediction["predictions"][0]["text"].as_str().unwrap().to_lowercase();
        assert!(says.iter().any(|word| text.contains(word)), "{pipeline}: {text:?} says none of {says:?}");
    }
}

/// The words of the two questions and of the passages that answer them.
const ABOUT: [&[&str]; 2] = [&["k1", "default", "parameter k"], &["bm25", "parameter", "passage"]];

#[test]
fn techssn_local_answers() {
    // Its prompt asks for sources by number; so small a model may leave the number out. What it says may also have too few
    // words of its passages, and is then no answer.
    answers_from("techssn-local", Retrieves::What, [&["[1]", "k1"], &["source", "i don't know the answer."]]);
}

#[test]
fn ragtum_local_answers() {
    answers_from("ragtum-local", Retrieves::What, ABOUT);
}

#[test]
fn ragtum_reference_local_answers() {
    answers_from("ragtum-reference-local", Retrieves::Reference, [ABOUT[1], ABOUT[1]]);
}

#[test]
fn fusionrag_local_answers() {
    answers_from("fusionrag-local", Retrieves::What, ABOUT);
}

#[test]
fn mtrag_local_answers_in_every_setting() {
    for setting in MTRAG {
        let (retrieves, says) = match setting {
            "lastturn" => (Retrieves::What, [&["1.2"][..], ABOUT[1]]),
            "reference" => (Retrieves::Reference, ABOUT),
            "reference-rag" => (Retrieves::ReferenceFirst, ABOUT),
            _ => (Retrieves::What, ABOUT),
        };
        answers_from(&format!("mtrag-{setting}-local"), retrieves, says);
    }
}

#[test]
fn polyu_local_answers_in_every_mode() {
    let abstains = "i'm not confident in my answer";
    for mode in ["basic", "multi", "agentic"] {
        let says: [&[&str]; 2] = [&["default", abstains], &["answer", "parameter", abstains]];
        answers_from(&format!("polyu-{mode}-local"), Retrieves::What, says);
    }
}

/// Two retrievers that read fast are enough to tell what can be answered.
#[test]
fn a_learned_threshold_beats_a_fixed_one_and_always_answering() {
    let Some(data) = data("mtrag") else { return };
    if model("minilm-int8").is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let pipeline = format!(
        "Pipeline(include: {:?}, name: \"small\", models: {{\"e5\": Remove, \"splade\": Remove}}, nodes: {{\
         \"e5\": Remove, \"sparse\": Remove,\
         \"fused\": (inputs: [\"lexical\", \"minilm\"], weights: [0.65, 0.35]),\
         \"evidence\": (lists: [\"lexical\", \"minilm\"]),}})",
        root().join("pipelines/abstain-base.ron")
    );
    fs::write(directory.path().join("small.ron"), pipeline).unwrap();
    // Two collections are enough as well.
    let all = fs::read_to_string(data.join("tasks.dev.jsonl")).unwrap();
    let two = |line: &&str| ["clapnq", "fiqa"].iter().any(|name| line.contains(&format!("\"collection\": \"{name}\"")));
    fs::write(directory.path().join("tasks.jsonl"), all.lines().filter(two).collect::<Vec<_>>().join("\n")).unwrap();
    let path = |name: &str| format!("corpora.{name}.source.path={:?}", data.join(format!("corpus/{name}.jsonl")));
    let (clapnq, fiqa) = (path("clapnq"), path("fiqa"));
    let mut args = vec!["calibrate", "small.ron", "--tasks", "tasks.jsonl", "--out", "learned.ron"];
    args.extend(["--json", "figures.json", "--state", "state", "--set", &clapnq, "--set", &fiqa]);
    let shown = turnflow(&args, directory.path());
    assert!(shown.contains("calibrated, held out"), "{shown}");
    let figures: Value = serde_json::from_slice(&fs::read(directory.path().join("figures.json")).unwrap()).unwrap();
    let accuracy = |what: &str| figures[what]["accuracy"].as_f64().unwrap();
    // 0.59, 0.67 and 0.78 when this was written.
    assert!(accuracy("held_out") > accuracy("as_it_is") + 0.03, "{figures:#}");
    assert!(accuracy("held_out") > accuracy("always") + 0.05, "{figures:#}");
    // What was learned is a file that the pipeline takes.
    fs::write(directory.path().join("both.ron"), "Pipeline(include: [\"small.ron\", \"learned.ron\"])").unwrap();
    let plan = turnflow(&["explain", "both.ron"], directory.path());
    assert!(plan.contains("threshold 0.5"), "{plan}");
}
