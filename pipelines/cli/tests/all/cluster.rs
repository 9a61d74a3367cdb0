//! `turnflow cluster`: several processes of the real binary, what they answer, and how they end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use turnflow_engine::record::AnswerRecord;

use crate::support::{PATIENCE, answers, model, until};

const WORDS: &[&str] = &[
    "harbour", "ferry", "tide", "lamp", "keeper", "storm", "signal", "anchor", "rope", "chart", "compass", "gull",
    "island", "north", "wind", "sail", "boat", "net", "salt", "fog", "pier", "buoy", "deck", "mast", "the", "a",
];

/// Some words that depend on the number.
pub fn words(mut number: u64, count: u64) -> String {
    let mut word = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (number >> 33) as usize % WORDS.len();
        WORDS[at.min((number >> 20) as usize % WORDS.len())]
    };
    (0..count).map(|_| word()).collect::<Vec<_>>().join(" ")
}

/// The words as sentences of seven.
fn sentences(words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    words.chunks(7).map(|words| format!("The {}. ", words.join(" "))).collect()
}

/// Writes the documents with these numbers; `version` changes the text of every seventh.
pub fn write_documents(directory: &Path, numbers: std::ops::Range<u64>, version: u64) {
    let mut rows = String::new();
    for number in numbers {
        let of = if number.is_multiple_of(7) { version } else { 0 };
        let text = sentences(&words(number * 31 + of * 1000, 5 + number % 40));
        let groups = match number % 3 {
            0 => json!(["staff"]),
            1 => json!(["staff", "public"]),
            _ => json!("*"),
        };
        let row = json!({"_id": format!("d{number}"), "text": text, "part": number % 5, "groups": groups});
        writeln!(rows, "{row}").unwrap();
    }
    std::fs::write(directory.join("corpus.jsonl"), rows).unwrap();
}

fn turns_of(conversations: u64, turns: std::ops::RangeInclusive<u64>) -> String {
    let mut rows = String::new();
    for turn in turns {
        for conversation in 0..conversations {
            let text = words(conversation * 977 + turn * 13, 3 + turn % 5);
            let groups = if conversation.is_multiple_of(2) { json!(["staff"]) } else { json!(["public"]) };
            let row = json!({"conversation_id": format!("c{conversation}"), "turn": turn, "speaker": "user", "text": text,
                "part": conversation % 5, "principal": {"groups": groups}});
            writeln!(rows, "{row}").unwrap();
        }
    }
    rows
}

pub fn write_turns(directory: &Path, conversations: u64, turns: std::ops::RangeInclusive<u64>) {
    std::fs::write(directory.join("turns.jsonl"), turns_of(conversations, turns)).unwrap();
}

/// Adds the turns with this number to a log.
pub fn append_turns(log: &Path, conversations: u64, turn: u64) {
    let log = std::fs::File::options().append(true).open(log);
    log.unwrap().write_all(turns_of(conversations, turn..=turn).as_bytes()).unwrap();
}

/// Every retriever that can be divided, and what reads its index.
pub fn pipeline(model: &Path) -> String {
    let model = model.display();
    format!(
        r#"Pipeline(
    name: "divided",
    models: {{ "minilm": Onnx(path: "{model}/model.onnx", tokenizer: "{model}/tokenizer.json", pooling: Mean, max_tokens: 64) }},
    corpora: {{ "docs": Corpus(
        source: JsonLines(path: "corpus.jsonl"), chunk: Sentences(size: 2, overlap: 0), access: "groups",
    ) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": UserTurns(input: "turns", last: 2),
        "lexical": Bm25(input: "query", corpus: "docs", top: 20),
        "expanded": Bm25(input: "query", corpus: "docs", top: 20, feedback: (passages: 5, terms: 5)),
        "okapi": Bm25(input: "query", corpus: "docs", tokenizer: Whitespace, idf: Okapi, top: 20),
        "filtered": Bm25(input: "query", corpus: "docs", filter: Eq("part", FromTurn("part")), top: 20),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 20),
        "moved": Dense(input: "query", corpus: "docs", model: "minilm", top: 20, feedback: (passages: 3, weight: 0.3)),
        "fused": Rrf(inputs: ["lexical", "expanded", "okapi", "filtered", "dense", "moved"], k: 60, top: 30),
        "ranked": RerankEnsemble(input: "fused", corpus: "docs", members: [
            (by: Score, weight: 1.0), (by: BiEncoder, model: "minilm", weight: 0.5),
        ], depth: 30, top: 20),
        "diverse": Diversify(input: "ranked", corpus: "docs", model: "minilm", depth: 20, top: 15),
        "answer": ExtractiveAnswer(input: "diverse", passages: 3, sentences: 2),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    }},
)"#
    )
}

pub fn turnflow(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
    command.current_dir(directory).args(arguments).stdin(Stdio::null());
    command
}

/// An address of this machine that nobody uses.
pub fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Runs a cluster to its end; returns what it logged.
fn once(directory: &Path, processes: usize, workers: usize) -> String {
    let (processes, workers) = (processes.to_string(), workers.to_string());
    let arguments =
        ["cluster", "p.ron", "--processes", &processes, "--workers", &workers, "--once", "--state", "s", "-v"];
    let output = turnflow(directory, &arguments).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{log}");
    log
}

/// What an answer says, without what differs from run to run.
pub type Said = (String, Vec<(String, u32, String)>);

/// The answers by conversation and turn; each is there once.
pub fn said(directory: &Path) -> BTreeMap<(String, u32), Said> {
    let mut all = BTreeMap::new();
    for record in answers(&directory.join("answers.jsonl")) {
        let AnswerRecord { conversation_id, turn, answer, hits, .. } = record;
        let hits = hits.iter().map(|hit| (hit.passage.to_string(), hit.score.to_bits(), hit.text.to_string()));
        let said = (answer.to_string(), hits.collect());
        let key = (conversation_id.to_string(), turn);
        assert!(all.insert(key.clone(), said).is_none(), "{key:?} is answered twice");
    }
    all
}

/// Contents that a model computed in a run, by what its processes logged.
fn embedded(log: &str) -> u64 {
    let counts = log.split("embedded: ").skip(1);
    counts.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn any_number_of_processes_finds_the_same_and_embeds_nothing_again() {
    let Some(model) = model("minilm-int8") else { return };
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("p.ron"), pipeline(&model)).unwrap();
    let mut expected = Vec::new();
    for version in 0..2 {
        write_documents(directory, version * 20..150 + version * 10, version);
        write_turns(directory, 12, 1..=3);
        let _ = std::fs::remove_dir_all(directory.join("alone"));
        let _ = std::fs::remove_file(directory.join("answers.jsonl"));
        let run =
            turnflow(directory, &["run", "p.ron", "--once", "--workers", "1", "--state", "alone"]).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let alone = said(directory);
        assert_eq!(alone.len(), 36);
        assert!(alone.values().all(|(_, hits)| !hits.is_empty()));
        expected.push(alone);
    }
    // The documents change between the runs; the indexes of each run are those of the run before.
    for (at, (processes, workers)) in [(2, 1), (4, 2), (1, 1), (3, 1)].into_iter().enumerate() {
        let version = at as u64 % 2;
        write_documents(directory, version * 20..150 + version * 10, version);
        let _ = std::fs::remove_file(directory.join("answers.jsonl"));
        let _ = std::fs::remove_file(directory.join("s/turns.redb"));
        let log = once(directory, processes, workers);
        assert_eq!(said(directory), expected[at % 2], "{processes} processes");
        let count = embedded(&log);
        match at {
            0 => assert!(count > 100, "{log}"),
            // The documents that are new, and those that changed.
            1 => assert!((1..100).contains(&count), "{count} embedded: {log}"),
            // All have been embedded in some process.
            _ => assert_eq!(count, 0, "{processes} processes: {log}"),
        }
    }
    // One process takes all over.
    let checked = turnflow(directory, &["index", "p.ron", "--state", "s"]).output().unwrap();
    let told = String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success() && told.contains(" 0 chunks embedded"), "{told}");
    let verified = turnflow(directory, &["verify", "p.ron", "--state", "s"]).output().unwrap();
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
}

/// A cluster or a process of one, which ends with the value.
pub struct Cluster(pub Child);

impl Cluster {
    pub fn start(directory: &Path, arguments: &[&str]) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(directory.join("log")).unwrap();
        let mut command = turnflow(directory, &["cluster", "p.ron", "--state", "s", "--max-pause", "0.1"]);
        Self(command.args(arguments).stderr(log).spawn().unwrap())
    }

    /// The ids of the processes.
    pub fn members(&self) -> Vec<i32> {
        let path = format!("/proc/{0}/task/{0}/children", self.0.id());
        let list = std::fs::read_to_string(path).unwrap_or_default();
        list.split_whitespace().map(|id| id.parse().unwrap()).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub fn signal(process: i32, signal: i32) {
    // SAFETY: the process is a child of a child that runs.
    unsafe { libc::kill(process, signal) };
}

pub const LEXICAL: &str = r#"Pipeline(
    name: "lexical",
    corpora: { "docs": Corpus(source: JsonLines(path: "corpus.jsonl", watch: true), chunk: Whole) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl", follow: true),
        "query": LastTurn(input: "turns"),
        "found": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": ExtractiveAnswer(input: "found"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    },
)"#;

#[test]
fn a_lost_process_ends_all_and_they_go_on_where_they_were() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("p.ron"), LEXICAL).unwrap();
    write_documents(directory, 0..60, 0);
    write_turns(directory, 5, 1..=2);
    let mut cluster = Cluster::start(directory, &["--processes", "3", "--workers", "1"]);
    let count = || answers(&directory.join("answers.jsonl")).len();
    let log = || std::fs::read_to_string(directory.join("log")).unwrap();
    until("every turn is answered", || directory.join("answers.jsonl").exists() && count() == 10);
    for (lost, turn) in [(1, 3), (0, 4)] {
        let before = cluster.members();
        assert_eq!(before.len(), 3);
        signal(before[lost], libc::SIGKILL);
        until("the others are replaced", || {
            let now = cluster.members();
            now.len() == 3 && now.iter().all(|member| !before.contains(member))
        });
        append_turns(&directory.join("turns.jsonl"), 5, turn);
        until("the new turns are answered", || count() == 5 * turn as usize);
        let (killed, others) = (format!("process {lost} was ended by signal 9"), format!("lost process {lost} ("));
        assert!(log().contains(&killed) && log().contains(&others), "{}", log());
    }
    // A change of a document is published in all processes.
    write_documents(directory, 0..60, 1);
    // Any process stops all of them.
    signal(cluster.members()[2], libc::SIGTERM);
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = cluster.0.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", log());
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}: {}", log());
    assert!(!log().contains("panic"), "{}", log());
    assert_eq!(said(directory).len(), 20);
}

#[test]
fn an_interrupt_of_all_processes_ends_a_cluster_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("p.ron"), LEXICAL).unwrap();
    write_documents(directory, 0..60, 0);
    write_turns(directory, 5, 1..=2);
    let mut cluster = Cluster::start(directory, &["--processes", "3", "--workers", "1"]);
    let log = || std::fs::read_to_string(directory.join("log")).unwrap();
    let is_answered =
        || directory.join("answers.jsonl").exists() && answers(&directory.join("answers.jsonl")).len() == 10;
    until("every turn is answered", is_answered);
    // As a terminal does it.
    let mut all = cluster.members();
    assert_eq!(all.len(), 3);
    all.push(cluster.0.id().try_into().unwrap());
    all.into_iter().for_each(|process| signal(process, libc::SIGINT));
    until("the cluster ends", || cluster.0.try_wait().unwrap().is_some());
    let status = cluster.0.wait().unwrap();
    assert!(status.success(), "{status}: {}", log());
    assert!(!log().contains("rror") && !log().contains("lost"), "{}", log());
    assert_eq!(said(directory).len(), 10);
}

/// A process waits for the others before it empties the file of a sink.
#[test]
fn a_start_that_waits_for_other_processes_leaves_files_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let pipeline = LEXICAL.replace(r#"path: "answers.jsonl""#, r#"path: "answers.jsonl", append: false"#);
    std::fs::write(directory.join("p.ron"), pipeline).unwrap();
    write_documents(directory, 0..3, 0);
    write_turns(directory, 1, 1..=1);
    std::fs::write(directory.join("answers.jsonl"), "{}\n").unwrap();
    std::fs::write(directory.join("hosts"), format!("{}\n{}\n", free_address(), free_address())).unwrap();
    let to = std::fs::File::create(directory.join("log")).unwrap();
    let arguments = ["run", "p.ron", "--process", "0", "--hosts", "hosts", "--state", "s", "-v"];
    let mut first = Cluster(turnflow(directory, &arguments).stderr(to).spawn().unwrap());
    let log = || std::fs::read_to_string(directory.join("log")).unwrap();
    until("it waits", || log().contains("waiting for the processes of the cluster"));
    signal(i32::try_from(first.0.id()).unwrap(), libc::SIGTERM);
    let mut status = None;
    until("it ends", || {
        status = first.0.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0), "{}", log());
    assert_eq!(std::fs::read_to_string(directory.join("answers.jsonl")).unwrap(), "{}\n");
}

#[test]
fn dead_letters_tags_and_replays_of_a_cluster_are_those_of_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    // A table whose declared field has another type in some rows.
    let typed = LEXICAL.replace(r#"chunk: Whole)"#, r#"chunk: Whole, fields: { "part": Integer })"#);
    std::fs::write(directory.join("p.ron"), typed).unwrap();
    write_documents(directory, 0..60, 0);
    let rows = std::fs::read_to_string(directory.join("corpus.jsonl")).unwrap();
    let bad = rows.replace(r#""part":3"#, r#""part":"three""#);
    std::fs::write(directory.join("corpus.jsonl"), bad).unwrap();
    write_turns(directory, 5, 1..=2);
    let letters = |state: &str| {
        let file = std::fs::read_to_string(directory.join(state).join("dead-letters.jsonl")).unwrap();
        let mut lines: Vec<String> = file.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let run = turnflow(directory, &["run", "p.ron", "--once", "--state", "alone"]).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let alone = said(directory);
    std::fs::rename(directory.join("answers.jsonl"), directory.join("alone.jsonl")).unwrap();
    let expected = letters("alone");
    assert_eq!(expected.len(), 12, "{expected:?}");
    for _ in 0..2 {
        once(directory, 3, 1);
        assert_eq!(letters("s"), expected);
    }
    assert_eq!(said(directory), alone);
    // A tag of the cluster's state, and what it is good for after the documents have changed.
    let ran = |arguments: &[&str]| {
        let output = turnflow(directory, arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    ran(&["tag", "p.ron", "before", "--state", "s"]);
    write_documents(directory, 40..90, 1);
    let replay = ["replay", "p.ron", "--log", "turns.jsonl", "--tags", "s", "--answers", "answers.jsonl"];
    let same = ran(&[&replay[..], &["--tag", "before"]].concat());
    assert!(same.contains("10 turns: 10 the same"), "{same}");
    let changed = turnflow(directory, &replay).output().unwrap();
    let told = String::from_utf8_lossy(&changed.stdout);
    assert!(told.contains("10 turns") && !told.contains("10 the same"), "{changed:?}");
    // The cluster finds the changed documents, and the letters of before are still there.
    once(directory, 2, 1);
    assert_eq!(letters("s").iter().filter(|letter| expected.contains(letter)).count(), expected.len());
}

fn failed(output: &Output, code: i32, reasons: &[&str]) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{told}");
    assert!(reasons.iter().all(|reason| told.contains(reason)), "{told}");
}

#[test]
fn a_process_that_cannot_be_in_a_cluster_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("p.ron"), LEXICAL).unwrap();
    write_documents(directory, 0..3, 0);
    write_turns(directory, 1, 1..=1);
    let run = |arguments: &[&str]| turnflow(directory, arguments).output().unwrap();
    failed(&run(&["run", "p.ron", "--process", "1"]), 2, &["--hosts"]);
    std::fs::write(directory.join("hosts"), "# two\n127.0.0.1:1\n127.0.0.1:2 # second\n").unwrap();
    failed(&run(&["run", "p.ron", "--process", "2", "--hosts", "hosts"]), 1, &["no process 2", "has 2"]);
    std::fs::write(directory.join("hosts"), "10.0.0.1:7100\n10.0.0.2:7100\n").unwrap();
    failed(&run(&["run", "p.ron", "--process", "0", "--hosts", "hosts"]), 1, &["10.0.0.1", "secret"]);
    std::fs::write(directory.join("hosts"), "# nothing\n").unwrap();
    failed(&run(&["run", "p.ron", "--process", "0", "--hosts", "hosts"]), 1, &["names no process"]);
    std::fs::write(directory.join("secret"), "short\n").unwrap();
    std::fs::write(directory.join("hosts"), "127.0.0.1:1\n127.0.0.1:2\n").unwrap();
    let arguments = ["run", "p.ron", "--process", "0", "--hosts", "hosts", "--secret", "secret"];
    failed(&run(&arguments), 1, &["16"]);
    // The other process is missing.
    std::fs::write(directory.join("hosts"), format!("{}\n{}\n", free_address(), free_address())).unwrap();
    let missing = run(&["run", "p.ron", "--process", "0", "--hosts", "hosts", "--wait", "1"]);
    failed(&missing, 4, &["process 1", "did not connect within 1 s"]);
    // An operator that reads the whole index.
    let grouped = r#""grouped": GroupByDocument(input: "found", corpus: "docs", top: 3), "answer": ExtractiveAnswer(input: "grouped")"#;
    let whole = LEXICAL.replace(r#""answer": ExtractiveAnswer(input: "found")"#, grouped);
    std::fs::write(directory.join("p.ron"), whole).unwrap();
    let cluster = run(&["cluster", "p.ron", "--processes", "2", "--once"]);
    failed(&cluster, 1, &["node `grouped`", "`GroupByDocument` cannot be used in a cluster"]);
}
