//! What is said of a pipeline file: its mistakes, its plan, its picture.

use std::fs;

use serde_json::Value;

use super::{LEXICAL, directory, run};
use crate::support::root;

#[test]
fn check_tells_every_file_and_where() {
    let directory = directory();
    let good = run(directory.path(), &["check", "lexical.ron", "answering.ron"]).good();
    assert_eq!((good.out.as_str(), good.err.as_str()), ("lexical.ron: no errors\nanswering.ron: no errors\n", ""));

    let bad = run(directory.path(), &["check", "lexical.ron", "bad.ron"]);
    assert_eq!((bad.code, bad.err.as_str()), (Some(1), ""), "{bad:?}");
    assert!(bad.out.starts_with("lexical.ron: no errors\n"), "{bad:?}");
    assert!(bad.out.contains("error[unknown-input]") && bad.out.contains("--> bad.ron:3:30"), "{bad:?}");
    assert!(bad.out.ends_with("\n1 error\n"), "{bad:?}");

    let gone = run(directory.path(), &["check", "lexica.ron"]);
    assert_eq!(gone.code, Some(1), "{gone:?}");
    assert!(gone.out.contains("no file `lexica.ron`") && gone.out.contains("did you mean `lexical.ron`?"), "{gone:?}");
}

/// `turnflow check *.ron` in a directory where not all are pipelines.
#[test]
fn check_passes_over_what_is_no_pipeline_alone() {
    let directory = directory();
    let path = directory.path();
    let write = |name: &str, text: &str| fs::write(path.join(name), text).unwrap();
    fs::copy(root().join("pipelines/models.ron"), path.join("models.ron")).unwrap();
    write("fast.weights.ron", "Pipeline(nodes: {\"query\": (last: 2)})");
    write("gpu.ron", "Pipeline(models: {\"minilm\": (device: Cuda(0))})");
    let corpora = "corpora: {\"docs\": Corpus(source: JsonLines(path: \"docs.jsonl\"), chunk: Whole())}";
    write("corpora.ron", &format!("Pipeline({corpora})"));
    let files = ["models.ron", "fast.weights.ron", "gpu.ron", "corpora.ron", "lexical.ron"];
    let parts = run(path, &[&["check"], &files[..]].concat()).good();
    let told = "models.ron: a list of models to fetch: not checked on its own\n\
                fast.weights.ron: a fragment to be included: not checked on its own\n\
                gpu.ron: a fragment to be included: not checked on its own\n\
                corpora.ron: a fragment to be included: not checked on its own\n\
                lexical.ron: no errors\n";
    assert_eq!(parts.out, told);
    assert_eq!(run(path, &["check", "--format", "json", "models.ron", "gpu.ron"]).good().out, "[]\n");

    // With what it is included in, a fragment is checked.
    write("both.ron", "Pipeline(include: [\"lexical.ron\", \"fast.weights.ron\"])");
    let both = run(path, &["check", "both.ron"]);
    assert!(both.code == Some(1) && both.out.contains("unknown field `last`"), "{both:?}");
    // A pipeline that lacks something is no fragment.
    write("empty.ron", "Pipeline(name: \"empty\")");
    let models = "models: {\"m\": Onnx(path: \"model.onnx\", tokenizer: \"tokenizer.json\")}";
    write("no-nodes.ron", &format!("Pipeline({models}, {corpora})"));
    write("kindless.ron", &LEXICAL.replace("LastTurn(", "("));
    write("no-models.ron", "(models: [(name: \"x\")])");
    for (file, code) in [
        ("empty.ron", "missing-field"),
        ("no-nodes.ron", "missing-field"),
        ("kindless.ron", "wrong-type"),
        ("no-models.ron", "not-a-pip"),
    ] {
        let told = run(path, &["check", file]);
        assert!(told.code == Some(1) && told.out.contains(&format!("error[{code}")), "{told:?}");
    }
}

#[test]
fn check_as_json_has_file_line_and_column() {
    let directory = directory();
    let bad = run(directory.path(), &["check", "--format", "json", "lexical.ron", "bad.ron"]);
    assert_eq!((bad.code, bad.err.as_str()), (Some(1), ""), "{bad:?}");
    let told: Value = serde_json::from_str(&bad.out).unwrap();
    assert_eq!(told.as_array().unwrap().len(), 1, "{told}");
    let text = fs::read_to_string(directory.path().join("bad.ron")).unwrap();
    let start = text.find("\"turns\"").unwrap();
    assert_eq!(told[0]["code"], "unknown-input");
    // The column counts characters, start and end count bytes.
    let place = serde_json::json!({"file": "bad.ron", "line": 3, "column": 30, "start": start, "end": start + 7});
    assert_eq!(told[0]["place"], place);

    let good = run(directory.path(), &["check", "--format", "json", "lexical.ron"]).good();
    assert_eq!(good.out, "[]\n");
}

#[test]
fn explain_shows_what_set_has_changed() {
    let directory = directory();
    let plain = run(directory.path(), &["explain", "lexical.ron"]).good();
    assert!(plain.out.contains("LastTurn") && plain.out.contains("Turns [turns] → Queries"), "{plain:?}");
    assert!(plain.out.contains("k1: 1.2") && plain.out.contains("top: 100"), "{plain:?}");
    let sets = ["explain", "lexical.ron", "--set", "corpora.docs.source.watch=false", "--set", "name=\"other\""];
    let set = run(directory.path(), &sets).good();
    assert!(set.out.contains("pipeline \"other\"") && set.out.contains("watch: false"), "{set:?}");

    let wrong = run(directory.path(), &["explain", "lexical.ron", "--set", "nodes.query.input=\"turn\""]);
    assert_eq!((wrong.code, wrong.out.as_str()), (Some(1), ""), "{wrong:?}");
    assert!(
        wrong.err.contains("did you mean `turns`?") && wrong.err.contains("--set nodes.query.input:1:1"),
        "{wrong:?}"
    );
}

/// Answers are stamped with the hash: other prompts are another pipeline.
#[test]
fn the_hash_covers_the_texts_of_prompts() {
    let directory = directory();
    let path = directory.path();
    let nodes = "\"asked\": Prompt(input: \"a<b & \\\"c\\\"\", prompt: \"prompt.txt\")";
    fs::write(path.join("asking.ron"), format!("Pipeline(include: \"lexical.ron\", nodes: {{{nodes}}})")).unwrap();
    let hash = |prompt: &str| {
        fs::write(path.join("prompt.txt"), prompt).unwrap();
        let told = run(path, &["explain", "asking.ron"]).good().out;
        told.lines().next().and_then(|line| line.split_once("hash ")).map(|(_, hash)| hash.to_owned()).unwrap()
    };
    let short = hash("Answer shortly. {question}");
    assert_eq!(short, hash("Answer shortly. {question}"));
    assert_ne!(short, hash("Answer at length. {question}"));
}

/// The names of the elements, if every one that opens closes.
fn elements(xml: &str) -> Vec<&str> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    for part in xml.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag has an end");
        assert!(!text.contains('>'), "{part}");
        let entities = part.split('&').skip(1);
        entities
            .for_each(|rest| assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|e| rest.starts_with(e)), "{part}"));
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None => {
                let name = tag.split([' ', '/']).next().unwrap();
                all.push(name);
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

#[test]
fn graph_draws_every_node_in_three_forms() {
    let directory = directory();
    let pipeline = LEXICAL.replace("chunk: Whole()", "chunk: Whole(), fields: {\"part\": Integer}");
    fs::write(directory.path().join("lexical.ron"), pipeline).unwrap();
    let graph = |arguments: &[&str]| run(directory.path(), &[&["graph", "lexical.ron"], arguments].concat()).good().out;
    let svg = graph(&[]);
    assert_eq!(elements(&svg).iter().filter(|name| **name == "g").count(), 4, "three nodes and a corpus: {svg}");
    assert!(svg.contains("a&lt;b &amp; &quot;c&quot;"), "{svg}");
    let dot = graph(&["--format", "dot"]);
    assert!(dot.starts_with("digraph") && dot.contains("\"turns\" -> \"query\""), "{dot}");
    let mermaid = graph(&["--format", "mermaid"]);
    assert!(mermaid.starts_with("flowchart LR\n") && mermaid.contains("n0 -->|Turns| n1"), "{mermaid}");
    let declared = "fields: {&quot;part&quot;: Integer}";
    assert!(svg.contains(declared) && dot.contains(r#"fields: {\"part\": Integer}"#), "{svg}{dot}");
    assert!(mermaid.contains("<i>fields: {#quot;part#quot;: Integer}</i>"), "{mermaid}");
    assert_eq!(graph(&["-o", "picture.svg"]), "");
    assert_eq!(fs::read_to_string(directory.path().join("picture.svg")).unwrap(), svg);
}
