//! Hot reload: another plan takes over in a running engine.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use turnflow_engine::plan::ChangeKind;
use turnflow_engine::run::{Engine, Options};

use super::LEXICAL;
use crate::support::{Asked, model, plan_of, until};

fn docs(dir: &Path) {
    fs::create_dir(dir.join("docs")).unwrap();
    fs::write(dir.join("docs/a.md"), "The ferry leaves at noon. The lamp is lit. Boats return.").unwrap();
    fs::write(dir.join("docs/b.md"), "A gull sat on the lamp. The tide turned. Nets were mended.").unwrap();
}

fn never() -> bool {
    false
}

#[test]
fn a_change_takes_over_and_the_rest_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    docs(dir.path());
    for workers in [1, 2] {
        let options = Options { workers, ..Options::default() };
        let mut asked = Asked::start(plan_of(dir.path(), LEXICAL), options);
        assert_eq!(asked.ask("lamp").documents("stemmed").len(), 3);
        let epoch = asked.engine.epochs().current().epoch;

        // Another setting of one node.
        let text = LEXICAL.replace("b: 0.6, top: 20", "b: 0.6, top: 1");
        let difference = asked.engine.reload(plan_of(dir.path(), &text), &never).unwrap();
        assert_eq!(difference.nodes["plain"], ChangeKind::Changed(vec!["settings".into()]));
        assert_eq!(difference.nodes["stemmed"], ChangeKind::Kept);
        assert_eq!(difference.corpora["docs"], ChangeKind::Kept);
        let outcome = asked.ask("lamp");
        assert_eq!((outcome.documents("plain").len(), outcome.documents("stemmed").len()), (1, 3));
        assert_eq!(outcome.epoch, epoch + 1, "the switch is one epoch");

        // The same again is nothing to do.
        let difference = asked.engine.reload(plan_of(dir.path(), &text), &never).unwrap();
        assert!(difference.is_empty());

        // Another chunker: the corpus is cut anew.
        let text = text.replace("Sentences(size: 2, overlap: 1)", "Whole()");
        let difference = asked.engine.reload(plan_of(dir.path(), &text), &never).unwrap();
        assert_eq!(difference.corpora["docs"], ChangeKind::Changed(vec!["settings".into()]));
        assert_eq!(asked.ask("lamp").of("stemmed").iter().map(|hit| hit.chunk.id.to_string()).max().unwrap(), "b.md");
        // And followed as before.
        fs::write(dir.path().join("docs/c.md"), "A lamp of its own.").unwrap();
        asked.ask_until("lamp", "the new file", |outcome| outcome.documents("stemmed").len() == 3);
        fs::remove_file(dir.path().join("docs/c.md")).unwrap();
        asked.ask_until("lamp", "the file that is gone", |outcome| outcome.documents("stemmed").len() == 2);

        // Back, with all there was.
        asked.engine.reload(plan_of(dir.path(), LEXICAL), &never).unwrap();
        let outcome = asked.ask("lamp");
        let mut cold = Asked::start(plan_of(dir.path(), LEXICAL), Options::default());
        for node in ["stemmed", "plain", "fused"] {
            assert_eq!(outcome.exact(node), cold.ask("lamp").exact(node));
        }
        until("the old plans to be let go", || asked.engine.generations() == 1);
    }
}

#[test]
fn an_index_is_added_beside_those_that_serve_and_goes_again() {
    let Some(model) = model("minilm-int8") else { return };
    let dir = tempfile::tempdir().unwrap();
    docs(dir.path());
    let options = Options { state: Some(dir.path().join("state")), ..Options::default() };
    let mut asked = Asked::start(plan_of(dir.path(), LEXICAL), options);
    asked.ask("lamp");
    let dense = LEXICAL
        .replace(
            "corpora:",
            &format!(
                "models: {{ \"minilm\": Onnx(path: {:?}, tokenizer: {:?}) }},\n    corpora:",
                model.join("model.onnx"),
                model.join("tokenizer.json")
            ),
        )
        .replace(
            "\"fused\": Rrf(inputs: [\"stemmed\", \"plain\"], top: 20)",
            "\"dense\": Dense(input: \"query\", corpus: \"docs\", model: \"minilm\", top: 20),
             \"fused\": Rrf(inputs: [\"stemmed\", \"plain\", \"dense\"], top: 20)",
        );
    let difference = asked.engine.reload(plan_of(dir.path(), &dense), &never).unwrap();
    assert_eq!(difference.nodes["dense"], ChangeKind::Added);
    let embedded = asked.embedded();
    assert!(embedded > 0);
    let live = asked.ask("What hangs over the lamp?");
    let mut cold = Asked::start(plan_of(dir.path(), &dense), Options::default());
    assert_eq!(live.exact("dense"), cold.ask("What hangs over the lamp?").exact("dense"));
    // A document that comes now is in the new index too.
    fs::write(dir.path().join("docs/c.md"), "A lantern hangs from the mast.").unwrap();
    asked.ask_until("Where is the lantern?", "the new file", |outcome| outcome.documents("dense")[0] == "c.md");
    assert_eq!(asked.embedded(), embedded + 1);
    // The index goes, and comes back from what is stored.
    asked.engine.reload(plan_of(dir.path(), LEXICAL), &never).unwrap();
    until("the old plan to be let go", || asked.engine.generations() == 1);
    asked.engine.reload(plan_of(dir.path(), &dense), &never).unwrap();
    assert_eq!(asked.ask("Where is the lantern?").documents("dense")[0], "c.md");
    assert_eq!(asked.embedded(), embedded + 1, "nothing is embedded again");
}

#[test]
fn what_fails_leaves_the_running_plan_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    docs(dir.path());
    fs::write(dir.path().join("more.jsonl"), "{\"_id\": \"m\", \"text\": \"More lamps.\"}\n").unwrap();
    let mut asked = Asked::start(plan_of(dir.path(), LEXICAL), Options::default());
    let before = asked.ask("lamp").exact("fused");
    // A plan whose new corpus is gone when it is to be read.
    let text = LEXICAL
        .replace("corpora: {", "corpora: { \"more\": Corpus(source: JsonLines(path: \"more.jsonl\"), chunk: Whole()),")
        .replace(
            "\"fused\": Rrf(inputs: [\"stemmed\", \"plain\"], top: 20)",
            "\"other\": Bm25(input: \"query\", corpus: \"more\", top: 20),
             \"fused\": Rrf(inputs: [\"stemmed\", \"plain\", \"other\"], top: 20)",
        );
    let plan = plan_of(dir.path(), &text);
    fs::remove_file(dir.path().join("more.jsonl")).unwrap();
    // It is waited for; so another reload gives this one up.
    let asked_for = std::sync::atomic::AtomicUsize::new(0);
    let soon = || asked_for.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 20;
    let error = asked.engine.reload(plan, &soon);
    assert!(error.is_err(), "{error:?}");
    assert_eq!(asked.ask("lamp").exact("fused"), before);
    assert!(!asked.engine.epochs().current().corpora.contains_key("more"));
    // And the plan can be reloaded when the file is there.
    fs::write(dir.path().join("more.jsonl"), "{\"_id\": \"m\", \"text\": \"More lamps, one lamp.\"}\n").unwrap();
    asked.engine.reload(plan_of(dir.path(), &text), &never).unwrap();
    assert_eq!(asked.ask("lamp").documents("other"), ["m"]);
}

/// Turns that others hand over go on through a source that is another.
#[test]
fn a_source_that_changes_takes_what_is_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    docs(dir.path());
    let mut asked = Asked::start(plan_of(dir.path(), LEXICAL), Options::default());
    assert_eq!(asked.ask("lamp").documents("stemmed").len(), 3);
    let text = LEXICAL.replace("Stdin()", "JsonLines(path: \"turns.jsonl\")");
    let difference = asked.engine.reload(plan_of(dir.path(), &text), &never).unwrap();
    assert_eq!(difference.nodes["turns"], ChangeKind::Changed(vec!["settings".into()]));
    assert_eq!(asked.ask("lamp").documents("stemmed").len(), 3);
}

/// What a reload brings takes nothing away, and letters go where the new file says.
#[test]
fn a_sink_is_emptied_by_a_start_and_not_by_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    docs(dir);
    let turn = |turn: u32| {
        format!("{{\"conversation_id\": \"c\", \"turn\": {turn}, \"speaker\": \"user\", \"text\": \"lamp\"}}\n")
    };
    let log = |text: &str| {
        let mut log = fs::OpenOptions::new().create(true).append(true).open(dir.join("turns.jsonl")).unwrap();
        log.write_all(text.as_bytes()).unwrap();
    };
    let text = super::resume::ANSWERING.replace("answers.jsonl\"", "answers.jsonl\", append: false");
    fs::write(dir.join("answers.jsonl"), "of another run\n").unwrap();
    fs::write(dir.join("more.jsonl"), "of somebody\n").unwrap();
    log(&turn(1));
    let options = || Options { state: Some(dir.join("state")), ..Options::default() };
    let engine = Engine::start(plan_of(dir, &text), options()).unwrap();
    let lines = |file: &str| fs::read_to_string(dir.join(file)).unwrap().lines().count();
    until("the first answer", || engine.delivered() == 1);
    assert_eq!(lines("answers.jsonl"), 1);
    let more = text
        .replace("nodes: {", "dead_letters: \"letters.jsonl\", nodes: {")
        .replace("\"out\":", "\"more\": JsonLinesSink(input: \"final\", path: \"more.jsonl\", append: false), \"out\":")
        .replace("answers.jsonl\", append: false", "answers.jsonl\", append: false, mode: Once");
    engine.reload(plan_of(dir, &more), &never).unwrap();
    log(&("no turn\n".to_owned() + &turn(2)));
    until("the second answer", || engine.delivered() == 2);
    assert_eq!((lines("answers.jsonl"), lines("more.jsonl")), (2, 2));
    assert_eq!((lines("letters.jsonl"), lines("state/dead-letters.jsonl")), (1, 0));
    engine.stop();
    engine.join().unwrap();
}
