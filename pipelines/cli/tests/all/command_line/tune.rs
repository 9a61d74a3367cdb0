//! Weights that are learned.

use std::fs;

use super::{directory, run};
use crate::support::model;

/// Two lists of which one is better: what is learned says so, and can be included.
#[test]
fn learned_weights_are_a_file_to_include() {
    let directory = directory();
    let path = directory.path();
    fs::write(
        path.join("fused.ron"),
        r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "stemmed": Bm25(input: "query", corpus: "docs"),
        "plain": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace),
        "other": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, k1: 0.1),
        "fused": Hybrid(inputs: ["plain", "stemmed"]),
    },
)"#,
    )
    .unwrap();
    let task = |id: usize, text: &str| format!("{{\"_id\": \"q{id}\", \"text\": \"{text}\"}}\n");
    // Only stemming finds "leaving" in "leaves"; the other words are in both.
    let tasks: String = (0..10).map(|id| task(id, "the leaving in the tower at the")).collect();
    fs::write(path.join("tasks.jsonl"), tasks).unwrap();
    let qrels: String = (0..10).map(|id| format!("q{id}\tferry\t1\n")).collect();
    fs::write(path.join("qrels.tsv"), format!("query-id\tcorpus-id\tscore\n{qrels}")).unwrap();

    let labelled = ["--tasks", "tasks.jsonl", "--qrels", "qrels.tsv"];
    // Files that cannot be written are told before the tasks run.
    let tune = ["tune", "fused.ron", "--node", "fused", "--output", "missing/learned.ron"];
    run(path, &[&tune, &labelled[..]].concat()).one_line(1, &["`--output`", "`missing/learned.ron`"]);
    for option in ["--output", "--run", "--predictions", "--report"] {
        let eval = ["eval", "fused.ron", option, "tasks.jsonl/out"];
        run(path, &[&eval, &labelled[..]].concat()).one_line(1, &[&format!("`{option}`: cannot write"), "out`"]);
    }
    let tuned =
        run(path, &[&["tune", "fused.ron", "--node", "fused", "--output", "learned.ron"], &labelled[..]].concat());
    assert_eq!((tuned.code, tuned.err.as_str()), (Some(0), ""), "{tuned:?}");
    assert!(tuned.out.contains("10 questions") && tuned.out.contains("learned, held out"), "{tuned:?}");
    fs::write(path.join("best.ron"), "Pipeline(include: [\"fused.ron\", \"learned.ron\"], name: \"best\")").unwrap();
    assert_eq!(run(path, &["check", "best.ron"]).code, Some(0));
    let explained = run(path, &["explain", "best.ron"]);
    assert!(explained.out.contains("weights: ["), "{explained:?}");

    let both = run(path, &[&["eval", "best.ron", "--hits", "plain,stemmed,fused"], &labelled[..]].concat());
    let figures = |node: &str| both.out.lines().find(|line| line.starts_with(node)).map(str::to_owned);
    assert!(figures("stemmed").is_some() && figures("fused").is_some(), "{both:?}");

    // A model that the node does not need is not loaded: this one could not be.
    let dense = r#"models: { "none": Onnx(path: "model.onnx", tokenizer: "tokenizer.json") },
    nodes: { "dense": Dense(input: "query", corpus: "docs", model: "none") }"#;
    fs::write(path.join("more.ron"), format!("Pipeline(include: \"fused.ron\", {dense})")).unwrap();
    let tuned = run(path, &[&["tune", "more.ron", "--node", "fused"], &labelled[..]].concat());
    assert_eq!((tuned.code, tuned.err.as_str()), (Some(0), ""), "{tuned:?}");

    run(path, &[&["tune", "fused.ron", "--node", "plain"], &labelled[..]].concat())
        .one_line(1, &["no node `plain` has weights to learn", "`fused`"]);
    run(path, &[&["eval", "fused.ron", "--hits", "nope"], &labelled[..]].concat())
        .one_line(1, &["no node `nope` outputs Hits"]);
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// All questions begin with words that lead to the wrong passages. An adapter learns to ignore them. Passages are not
/// embedded again, and a file for another model is refused.
#[test]
fn a_query_adapter_is_learned_and_used() {
    let Some(minilm) = model("minilm-int8") else { return };
    let directory = directory();
    let path = directory.path();
    let (file, tokenizer) = (minilm.join("model.onnx"), minilm.join("tokenizer.json"));
    let pipeline = format!(
        r#"Pipeline(
    models: {{ "minilm": Onnx(path: {file:?}, tokenizer: {tokenizer:?}) }},
    corpora: {{ "docs": Corpus(source: JsonLines(path: "places.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 20),
        "lexical": Bm25(input: "query", corpus: "docs", top: 20),
        "trees": TreeRerank(inputs: ["dense", "lexical"]),
    }},
)"#
    );
    fs::write(path.join("dense.ron"), pipeline).unwrap();
    let things = [
        "ferry", "museum", "bakery", "library", "castle", "harbour", "school", "bridge", "market", "hospital",
        "prison", "station", "theatre", "garden", "factory", "cinema", "airport", "church", "brewery", "zoo",
    ];
    let mut passages = String::new();
    for (at, thing) in things.iter().enumerate() {
        passages += &format!("{{\"_id\": \"{thing}\", \"text\": \"The {thing} is in street {at}.\"}}\n");
        let festival = "is a day of fruit and music for everyone who likes bananas.";
        passages += &format!("{{\"_id\": \"f{at}\", \"text\": \"Banana festival {at} {festival}\"}}\n");
    }
    fs::write(path.join("places.jsonl"), passages).unwrap();
    let asked = |thing: &&str| {
        let text = format!("At the banana festival, with fruit and music, someone wants to see the {thing}.");
        format!("{{\"_id\": \"q-{thing}\", \"text\": \"{text}\"}}\n")
    };
    fs::write(path.join("tasks.jsonl"), things.iter().map(asked).collect::<String>()).unwrap();
    let judged: String = things.iter().map(|thing| format!("q-{thing}\t{thing}\t1\n")).collect();
    fs::write(path.join("qrels.tsv"), format!("query-id\tcorpus-id\tscore\n{judged}")).unwrap();

    let labelled = ["--tasks", "tasks.jsonl", "--qrels", "qrels.tsv", "--state", "state"];
    let output = ["tune", "dense.ron", "--node", "dense", "--output", "learned.safetensors"];
    let tuned = run(path, &[&output, &labelled[..]].concat());
    assert_eq!((tuned.code, tuned.err.as_str()), (Some(0), ""), "{tuned:?}");
    assert!(tuned.out.contains("20 questions, 40 passages, model `minilm`"), "{tuned:?}");
    assert!(tuned.out.contains("written to learned.safetensors"), "{tuned:?}");

    let set = ["--set", "models.minilm.adapter=\"learned.safetensors\"", "--state", "state"];
    let index = run(path, &[&["index", "dense.ron", "--json"], &set[..]].concat());
    assert_eq!((index.code, json(&index.out)["corpora"][0]["embedded"].as_u64()), (Some(0), Some(0)), "{index:?}");
    let scored = |set: &[&str]| {
        let eval = ["eval", "dense.ron", "--tasks", "tasks.jsonl", "--qrels", "qrels.tsv", "--output", "scored.json"];
        let scored = run(path, &[&eval, set].concat());
        assert_eq!(scored.code, Some(0), "{scored:?}");
        json(&fs::read_to_string(path.join("scored.json")).unwrap())["metrics"]["map@10"].as_f64().unwrap()
    };
    let (before, after) = (scored(&["--state", "state"]), scored(&set));
    assert!(after > before, "{before} {after}");

    // Features of trees are computed with adapters that were learned without their questions.
    let features = ["tune", "dense.ron", "--node", "trees", "--features", "features", "--folds", "2"];
    let set_adapter = &set[..2];
    let tuned = run(path, &[&features, &labelled[..], set_adapter].concat());
    assert_eq!((tuned.code, tuned.err.as_str()), (Some(0), ""), "{tuned:?}");
    assert!(tuned.out.contains("learned again for each fold: the adapter of `minilm`"), "{tuned:?}");

    // The same file for a model with other settings.
    let other = [&set[..], &["--set", "models.minilm.max_tokens=64"]].concat();
    let refused = run(path, &[&["index", "dense.ron"], &other[..]].concat());
    refused.one_line(3, &["model `minilm`", "learned.safetensors", "learned for another model"]);
    let missing = run(path, &["check", "dense.ron", "--set", "models.minilm.adapter=\"none\""]);
    assert_eq!(missing.code, Some(1), "{missing:?}");
}

/// The questions that were asked before, and the features of trees, are learned without the questions that they are
/// measured on.
#[test]
fn questions_asked_before_and_features_leave_out_what_is_measured() {
    let Some(minilm) = model("minilm-int8") else { return };
    let directory = directory();
    let path = directory.path();
    let (file, tokenizer) = (minilm.join("model.onnx"), minilm.join("tokenizer.json"));
    let pipeline = format!(
        r#"Pipeline(
    models: {{ "minilm": Onnx(path: {file:?}, tokenizer: {tokenizer:?}) }},
    corpora: {{ "docs": Corpus(source: JsonLines(path: "places.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs"),
        "asked": AskedBefore(input: "query", corpus: "docs", model: "minilm", top: 5),
        "ranked": TreeRerank(inputs: ["lexical", "asked"], depth: 10),
        "answer": ExtractiveAnswer(input: "ranked"),
    }},
)"#
    );
    fs::write(path.join("trees.ron"), pipeline).unwrap();
    // The passages say nothing of the questions' words, so only questions that were asked before find them.
    let things = ["ferry", "museum", "bakery", "castle", "harbour", "bridge"];
    let passage = |thing: &&str| {
        let letters = thing.len();
        format!("{{\"_id\": \"{thing}\", \"text\": \"Opens at nine, {letters}.\", \"letters\": {letters}}}\n")
    };
    fs::write(path.join("places.jsonl"), things.iter().map(passage).collect::<String>()).unwrap();
    let forms = ["Where is the THING?", "Please show me the THING.", "I want to see the THING.", "Is there a THING?"];
    let mut tasks = String::new();
    let mut judged = "query-id\tcorpus-id\tscore\n".to_owned();
    for (at, form) in forms.iter().enumerate() {
        for thing in things {
            tasks += &format!("{{\"_id\": \"{thing}-{at}\", \"text\": \"{}\"}}\n", form.replace("THING", thing));
            judged += &format!("{thing}-{at}\t{thing}\t1\n");
        }
    }
    fs::write(path.join("tasks.jsonl"), tasks).unwrap();
    fs::write(path.join("qrels.tsv"), judged).unwrap();

    let labelled = ["--tasks", "tasks.jsonl", "--qrels", "qrels.tsv", "--state", "state", "--folds", "3"];
    let asked = ["tune", "trees.ron", "--node", "asked", "--output", "asked.jsonl"];
    let tuned = run(path, &[&asked, &labelled[..]].concat());
    assert_eq!((tuned.code, tuned.err.as_str()), (Some(0), ""), "{tuned:?}");
    assert!(tuned.out.contains("24 questions, held out in 3 folds"), "{tuned:?}");
    let recall = tuned.out.lines().find_map(|line| line.trim().strip_prefix("recall@10")).unwrap();
    assert!(recall.trim().parse::<f64>().unwrap() > 80.0, "{tuned:?}");
    assert_eq!(fs::read_to_string(path.join("asked.jsonl")).unwrap().lines().count(), 24);

    // A question that is known now: its passage is found, and the trees' node without trees orders by ranks.
    let set = ["--set", "nodes.asked.questions=\"asked.jsonl\""];
    let found =
        run(path, &[&["ask", "trees.ron", "Where is the museum?", "--json", "--state", "state"], &set[..]].concat());
    assert_eq!((found.code, &json(&found.out)["hits"][0]["passage"]), (Some(0), &"museum".into()), "{found:?}");
    // A filter leaves it out.
    let short = ["--set", "nodes.asked.filter=Lt(\"letters\", 6)"];
    let question = ["ask", "trees.ron", "Where is the museum?", "--json", "--state", "state"];
    let found = run(path, &[&question[..], &set[..], &short[..]].concat());
    let (code, found) = (found.code, json(&found.out));
    let ids: Vec<&str> = found["hits"].as_array().unwrap().iter().filter_map(|hit| hit["passage"].as_str()).collect();
    assert_eq!((code, ids), (Some(0), vec!["ferry"]), "{found}");
    fs::write(path.join("bad.jsonl"), "{\"question\": 1}\n").unwrap();
    let bad = run(path, &["check", "trees.ron", "--set", "nodes.asked.questions=\"bad.jsonl\""]);
    assert!(bad.code == Some(1) && bad.out.contains("line 1"), "{bad:?}");

    let tune = ["tune", "trees.ron", "--node", "ranked"];
    run(path, &[&tune, &labelled[..]].concat()).one_line(1, &["`--features DIR`", "trees.py"]);
    let tuned = run(path, &[&tune[..], &["--features", "features"], &labelled[..]].concat());
    assert_eq!((tuned.code, tuned.err.as_str()), (Some(0), ""), "{tuned:?}");
    assert!(tuned.out.contains("learned again for each fold: the questions of `asked`"), "{tuned:?}");
    let about = json(&fs::read_to_string(path.join("features/features.json")).unwrap());
    // Three folds, and three pairs of them.
    assert_eq!(about["sets"].as_array().unwrap().len(), 6, "{about}");
    let columns = about["columns"].as_array().unwrap();
    let width = columns.len();
    assert!(columns.contains(&"asked.score".into()) && columns.contains(&"rrf".into()), "{about}");
    let mut questions = 0;
    for set in ["without-0", "without-1", "without-2"] {
        let read = |name: &str| fs::read(path.join("features").join(set).join(name)).unwrap();
        let labels = (read("labels.npy").len() - 128) / 4;
        assert_eq!(read("rows.npy").len(), 128 + 4 * labels * width);
        let list = |name: &str| json(&String::from_utf8(read(name)).unwrap()).as_array().unwrap().clone();
        questions += list("questions.json").len();
        let passages = list("passages.json");
        assert_eq!(passages.len(), list("questions.json").len());
        assert_eq!(passages.iter().map(|ids| ids.as_array().unwrap().len()).sum::<usize>(), labels);
    }
    assert_eq!(questions, 24);
    let other = ["tune", "trees.ron", "--node", "lexical", "--features", "features"];
    run(path, &[&other, &labelled[..]].concat()).one_line(1, &["`--features` needs a TreeRerank", "`lexical`"]);
}
