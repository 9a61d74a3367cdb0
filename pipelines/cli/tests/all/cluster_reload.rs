//! Reloads of a cluster: all processes change to the new pipeline, and turns get the answers that one process gives.

use std::path::Path;

use crate::cluster::{Cluster, LEXICAL, append_turns, said, signal, turnflow, write_documents, write_turns};
use crate::support::{answers, model, until};

/// What the answers of a turn say, by conversation.
type Answers = Vec<(String, Vec<(String, u32, String)>)>;

fn of_turn(directory: &Path, turn: u32) -> Answers {
    let all = said(directory).into_iter().filter(|((_, of), _)| *of == turn);
    all.map(|((conversation, _), (_, hits))| (conversation, hits)).collect()
}

/// A cluster whose pipeline changes, and one process that answers the same turns.
struct Changing<'a> {
    directory: &'a Path,
    cluster: Cluster,
    turn: u32,
    /// The file of the turns.
    log: &'static str,
}

impl<'a> Changing<'a> {
    fn start(directory: &'a Path, pipeline: &str) -> Self {
        std::fs::write(directory.join("p.ron"), pipeline).unwrap();
        write_documents(directory, 0..60, 0);
        write_turns(directory, 5, 1..=1);
        let cluster = Cluster::start(directory, &["--processes", "3", "--workers", "2", "--watch"]);
        let this = Self { directory, cluster, turn: 1, log: "turns.jsonl" };
        until("the first turns are answered", || directory.join("answers.jsonl").exists() && this.answered() == 5);
        this
    }

    fn answered(&self) -> usize {
        answers(&self.directory.join("answers.jsonl")).len()
    }

    fn told(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap()
    }

    /// Writes the file, and waits until the log has as many of these lines as there are now, and one more.
    fn reload(&self, pipeline: &str, line: &str) {
        let (before, failed) = (self.told().matches(line).count(), self.told().matches("not reloaded").count());
        std::fs::write(self.directory.join("p.ron"), pipeline).unwrap();
        until(line, || {
            let log = self.told();
            let has_failed = line == "reloaded in" && log.matches("not reloaded").count() > failed;
            assert!(!has_failed, "{log}");
            log.matches(line).count() > before
        });
    }

    /// Asks in each conversation.
    fn ask(&mut self) {
        self.turn += 1;
        append_turns(&self.directory.join(self.log), 5, self.turn.into());
        until("the new turns are answered", || self.answered() == 5 * self.turn as usize);
    }

    /// Asks, and compares the answers with those of one process that starts with this pipeline.
    fn same_as_alone(&mut self, pipeline: &str) {
        self.ask();
        let alone = tempfile::tempdir().unwrap();
        std::fs::write(alone.path().join("p.ron"), pipeline.replace(self.log, "turns.jsonl")).unwrap();
        std::fs::copy(self.directory.join("corpus.jsonl"), alone.path().join("corpus.jsonl")).unwrap();
        write_turns(alone.path(), 5, self.turn.into()..=self.turn.into());
        let run = turnflow(alone.path(), &["run", "p.ron", "--once", "--workers", "1"]).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let expected = of_turn(alone.path(), self.turn);
        assert_eq!(expected.len(), 5);
        assert!(expected.iter().all(|(_, hits)| !hits.is_empty()), "{expected:?}");
        assert_eq!(of_turn(self.directory, self.turn), expected, "{}", self.told());
    }

    fn end(mut self) {
        let log = self.told();
        assert!(!log.contains("panic") && !log.contains("ERROR") && !log.contains("starting all"), "{log}");
        signal(self.cluster.0.id().try_into().unwrap(), libc::SIGTERM);
        until("the cluster ends", || self.cluster.0.try_wait().unwrap().is_some());
        let ended = self.cluster.0.wait().unwrap();
        assert!(ended.success(), "{ended}: {}", self.told());
        assert_eq!(said(self.directory).len(), 5 * self.turn as usize);
        let verified = turnflow(self.directory, &["verify", "p.ron", "--state", "s"]).output().unwrap();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
    }
}

#[test]
fn all_processes_of_a_cluster_change_to_a_new_pipeline() {
    let directory = tempfile::tempdir().unwrap();
    let mut changing = Changing::start(directory.path(), LEXICAL);
    let check = |changing: &mut Changing<'_>, pipeline: &str| {
        changing.reload(pipeline, "reloaded in");
        changing.same_as_alone(pipeline);
    };
    // An operator.
    let fewer = LEXICAL.replace("top: 5", "top: 3");
    check(&mut changing, &fewer);
    // How documents are cut: other passages in every process.
    let cut = fewer.replace("chunk: Whole", "chunk: Sentences(size: 2, overlap: 1)");
    check(&mut changing, &cut);
    // Another index, for the documents that are there.
    let okapi = r#""okapi": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, idf: Okapi, top: 9),
        "fused": Rrf(inputs: ["found", "okapi"]),
        "answer": ExtractiveAnswer(input: "fused")"#;
    let more = cut.replace(r#""answer": ExtractiveAnswer(input: "found")"#, okapi);
    check(&mut changing, &more);
    // The documents change after the switch.
    write_documents(directory.path(), 5..80, 1);
    // Another corpus, and a source under another name.
    let second = more
        .replace("corpora: {", r#"corpora: { "copy": Corpus(source: JsonLines(path: "corpus.jsonl"), chunk: Whole),"#)
        .replace(r#""okapi": Bm25(input: "query", corpus: "docs""#, r#""okapi": Bm25(input: "query", corpus: "copy""#);
    changing.reload(&second, "reloaded in");
    changing.same_as_alone(&second);
    // Another log.
    let other = second.replace("turns.jsonl", "more.jsonl");
    std::fs::write(directory.path().join("more.jsonl"), "").unwrap();
    changing.reload(&other, "reloaded in");
    changing.log = "more.jsonl";
    changing.same_as_alone(&other);
    let second = other;
    // What cannot run changes nothing.
    changing.reload(&second.replace("Rrf(", "Rff("), "not reloaded");
    changing.same_as_alone(&second);
    // Both corpora at once, and back to the beginning.
    check(&mut changing, &LEXICAL.replace("turns.jsonl", "more.jsonl"));
    let log = changing.told();
    assert!(!log.contains("the reload was cancelled"), "{log}");
    changing.end();
}

/// The source of the corpus has ended when the pipeline changes.
#[test]
fn a_corpus_that_is_not_followed_changes_too() {
    let directory = tempfile::tempdir().unwrap();
    let still = LEXICAL.replace("watch: true", "watch: false");
    let mut changing = Changing::start(directory.path(), &still);
    let check = |changing: &mut Changing<'_>, pipeline: &str| {
        changing.reload(pipeline, "reloaded in");
        changing.same_as_alone(pipeline);
    };
    let okapi = r#""okapi": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, idf: Okapi, top: 9),
        "fused": Rrf(inputs: ["found", "okapi"]),
        "answer": ExtractiveAnswer(input: "fused")"#;
    let more = still.replace(r#""answer": ExtractiveAnswer(input: "found")"#, okapi);
    check(&mut changing, &more);
    let cut = more.replace("chunk: Whole", "chunk: Sentences(size: 2, overlap: 1)");
    check(&mut changing, &cut);
    check(&mut changing, &cut.replace("tokenizer: Whitespace", "tokenizer: English"));
    check(&mut changing, &still);
    changing.end();
}

#[test]
fn a_cluster_loads_models_and_embeds_when_it_reloads() {
    let Some(model) = model("minilm-int8") else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut changing = Changing::start(directory.path(), LEXICAL);
    let model = model.display();
    let dense = r#""dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 9),
        "fused": Rrf(inputs: ["found", "dense"]),
        "answer": ExtractiveAnswer(input: "fused")"#;
    let models = format!(
        r#"models: {{ "minilm": Onnx(path: "{model}/model.onnx", tokenizer: "{model}/tokenizer.json", pooling: Mean, max_tokens: 64) }},
    corpora: {{"#
    );
    let with_model =
        LEXICAL.replace(r#""answer": ExtractiveAnswer(input: "found")"#, dense).replace("corpora: {", &models);
    // A model that is not there changes nothing in any process.
    changing.reload(&with_model.replace("model.onnx", "nothing.onnx"), "not reloaded");
    changing.same_as_alone(LEXICAL);
    changing.reload(&with_model, "reloaded in");
    changing.same_as_alone(&with_model);
    // Other passages are embedded before they are served.
    let cut = with_model.replace("chunk: Whole", "chunk: Sentences(size: 1, overlap: 0)");
    changing.reload(&cut, "reloaded in");
    changing.same_as_alone(&cut);
    changing.reload(LEXICAL, "reloaded in");
    changing.same_as_alone(LEXICAL);
    changing.end();
}

#[test]
fn a_process_whose_file_differs_keeps_a_cluster_from_reloading() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let ports = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let hosts = ports.map(|port| format!("{}\n", port.local_addr().unwrap())).concat();
    let of = |process: usize| directory.join(process.to_string());
    let mut both = Vec::new();
    for process in 0..2 {
        std::fs::create_dir(of(process)).unwrap();
        std::fs::write(of(process).join("hosts"), &hosts).unwrap();
        std::fs::write(of(process).join("p.ron"), LEXICAL).unwrap();
        write_documents(&of(process), 0..40, 0);
        write_turns(&of(process), 5, 1..=1);
        let log = std::fs::File::create(of(process).join("log")).unwrap();
        let number = process.to_string();
        let arguments = ["run", "p.ron", "--workers", "1", "--process", &number, "--hosts", "hosts"];
        both.push(Cluster(turnflow(&of(process), &arguments).stderr(log).spawn().unwrap()));
    }
    let log = |process: usize| std::fs::read_to_string(of(process).join("log")).unwrap();
    let count = || answers(&of(0).join("answers.jsonl")).len();
    until("the turns are answered", || of(0).join("answers.jsonl").exists() && count() == 5);
    let reload = || signal(both[0].0.id().try_into().unwrap(), libc::SIGHUP);
    let other = LEXICAL.replace("top: 5", "top: 1");
    std::fs::write(of(0).join("p.ron"), &other).unwrap();
    reload();
    let refused = "not reloaded: process 1: its file has another pipeline than that of process 0";
    until("process 1 refuses", || log(0).contains(refused));
    append_turns(&of(0).join("turns.jsonl"), 5, 2);
    until("the old pipeline answers", || count() == 10);
    std::fs::write(of(1).join("p.ron"), &other).unwrap();
    reload();
    until("both reload", || log(0).contains("reloaded in"));
    append_turns(&of(0).join("turns.jsonl"), 5, 3);
    until("the new pipeline answers", || count() == 15);
    let hits = answers(&of(0).join("answers.jsonl")).into_iter().map(|answer| (answer.turn, answer.hits.len()));
    for (turn, hits) in hits {
        assert!(if turn == 3 { hits == 1 } else { hits > 1 }, "{turn}: {hits}");
    }
    // Only process 0 reloads.
    signal(both[1].0.id().try_into().unwrap(), libc::SIGHUP);
    until("process 1 says so", || log(1).contains("process 0 reloads the pipeline of a cluster"));
    signal(both[1].0.id().try_into().unwrap(), libc::SIGINT);
    until("both end", || both.iter_mut().all(|process| process.0.try_wait().unwrap().is_some()));
    for (process, ended) in both.iter_mut().enumerate() {
        assert!(ended.0.wait().unwrap().success() && !log(process).contains("ERROR"), "{}", log(process));
    }
}
