//! Many small edits leave a bounded number of files and bytes, and the same hits. The long form
//! is `turnflow-stress edits`.

use std::fs;
use std::path::Path;

use turnflow_engine::component::DiskUsage;
use turnflow_engine::run::Options;

use super::WORDS;
use crate::support::{Asked, model, plan_of, until};

/// So often in an ordinary run of the tests.
const EDITS: usize = 300;

fn pipeline(model: Option<&Path>) -> String {
    let (models, node, inputs) = match model {
        None => (String::new(), "", r#"["lexical"]"#),
        Some(model) => (
            format!(
                "models: {{ \"minilm\": Onnx(path: {:?}, tokenizer: {:?}) }},",
                model.join("model.onnx"),
                model.join("tokenizer.json")
            ),
            r#""dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 10),"#,
            r#"["lexical", "dense"]"#,
        ),
    };
    format!(
        r#"Pipeline(
    {models}
    maintenance: (every_s: 0, publications: 25),
    corpora: {{ "docs": Corpus(source: Directory(path: "docs"), chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs", top: 10),
        {node}
        "fused": Rrf(inputs: {inputs}, top: 20),
    }},
)"#
    )
}

fn edited(model: Option<&Path>, edits: usize, most_files: u64, most_bytes: u64) {
    let dir = tempfile::tempdir().unwrap();
    let (docs, state) = (dir.path().join("docs"), dir.path().join("state"));
    fs::create_dir(&docs).unwrap();
    let text = |number: usize| {
        let words: Vec<&str> = (0..8).map(|at| WORDS[(number * (7 + at) + at * at) % WORDS.len()]).collect();
        format!("Edit {number}: {}.", words.join(" "))
    };
    for number in 0..20 {
        fs::write(docs.join(format!("{number}.md")), text(number)).unwrap();
    }
    let options = Options { state: Some(state.clone()), ..Options::default() };
    let plan = || plan_of(dir.path(), &pipeline(model));
    let mut asked = Asked::start(plan(), options.clone());
    let mut most = DiskUsage::default();
    for edit in 20..20 + edits {
        let epoch = asked.engine.epochs().current().epoch;
        fs::write(docs.join(format!("{}.md", edit % 20)), text(edit)).unwrap();
        until("the edit's epoch", || asked.engine.epochs().current().epoch > epoch);
        let now = DiskUsage::of(&state);
        most = DiskUsage { files: most.files.max(now.files), bytes: most.bytes.max(now.bytes) };
    }
    until("maintenance", || asked.engine.maintenance().runs > 0);
    assert!(most.files <= most_files && most.bytes <= most_bytes, "{most:?}");
    let question = "The keeper of the harbour in the fog";
    let before = asked.ask(question);
    let report = asked.engine.maintain();
    assert_eq!(report.len(), if model.is_some() { 2 } else { 1 });
    assert!(report.iter().all(|(_, done)| done.as_ref().is_ok_and(|done| done.after.files <= 25)), "{report:?}");
    assert_eq!(asked.engine.maintenance().failures, 0);
    assert_eq!(asked.ask(question).exact("fused"), before.exact("fused"));
    let epoch = asked.engine.epochs().current().epoch;
    fs::write(docs.join("3.md"), "A zeppelin.").unwrap();
    until("an epoch after maintenance", || asked.engine.epochs().current().epoch > epoch);
    assert_eq!(asked.ask("zeppelin").documents("lexical"), ["3.md"]);
    let last = asked.ask(question);
    drop(asked);

    let mut again = Asked::start(plan(), options);
    assert_eq!(again.embedded(), 0, "a restart embeds nothing");
    assert_eq!(again.ask(question).exact("fused"), last.exact("fused"));
}

#[test]
fn edits_leave_few_files_of_an_inverted_index() {
    // redb's file of checkpoints alone begins with a megabyte.
    edited(None, EDITS, 200, 2_000_000);
}

#[test]
fn edits_leave_a_bounded_number_of_files_of_vectors() {
    let Some(model) = model("minilm-int8") else { return };
    // Three files an edit until maintenance, which lets publications go first.
    edited(Some(&model), 60, 200 + 3 * 60, 10_000_000);
}
