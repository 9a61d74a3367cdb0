//! `--backup`: lost disks, with the real binary, a real encoder, and a server with S3's protocol.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::cluster::signal;
use crate::servers::{S3, Server};
use crate::support::{answers, model, until};

/// A pipeline with two indexes that cost model calls, and one that does not.
fn pipeline(model: &Path) -> String {
    let model = model.display();
    format!(
        r#"Pipeline(
    name: "kept",
    models: {{ "minilm": Onnx(path: "{model}/model.onnx", tokenizer: "{model}/tokenizer.json", pooling: Mean, max_tokens: 64) }},
    corpora: {{
        "docs": Corpus(source: JsonLines(path: "corpus.jsonl"), chunk: Whole()),
        "notes": Corpus(source: JsonLines(path: "notes.jsonl"), chunk: Whole()),
    }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 5),
        "others": Dense(input: "query", corpus: "notes", model: "minilm", top: 5),
        "lexical": Bm25(input: "query", corpus: "docs", top: 5),
        "fused": Rrf(inputs: ["dense", "others", "lexical"], k: 60, top: 8),
        "answer": ExtractiveAnswer(input: "fused"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl", append: false),
    }},
)"#
    )
}

/// A directory with the pipeline, documents and turns; `None` without the model.
fn prepared(documents: usize) -> Option<tempfile::TempDir> {
    let model = model("minilm-int8")?;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    std::fs::write(path.join("p.ron"), pipeline(&model)).unwrap();
    for (file, what, count) in [("corpus.jsonl", "The ferry", documents), ("notes.jsonl", "The lamp", documents / 3)] {
        let mut rows = String::new();
        for number in 0..count {
            let text = format!("{what} number {number} leaves harbour {} at {} o'clock.", number % 7, number % 24);
            writeln!(rows, "{}", json!({"_id": format!("d{number}"), "text": text})).unwrap();
        }
        std::fs::write(path.join(file), rows).unwrap();
    }
    let turn = |number: u32| {
        let text = format!("When does ferry {number} leave?");
        format!("{}\n", json!({"conversation_id": format!("c{number}"), "turn": 1, "speaker": "user", "text": text}))
    };
    std::fs::write(path.join("turns.jsonl"), (0..6).map(turn).collect::<String>()).unwrap();
    Some(directory)
}

/// A server with an empty bucket named `copies`.
fn bucket() -> Option<Server> {
    let server = Server::start(S3)?;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port)).unwrap();
    let request = "PUT /copies HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    Some(server)
}

/// A command whose environment leads to the server on this port.
fn turnflow(directory: &Path, port: u16, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
    command.current_dir(directory).args(arguments).stdin(Stdio::null());
    command.env("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")).env("AWS_ALLOW_HTTP", "true");
    command.env("AWS_REGION", "us-east-1").env("AWS_ACCESS_KEY_ID", "any").env("AWS_SECRET_ACCESS_KEY", "any");
    command
}

fn log(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command to its end; returns what it logged.
fn once(directory: &Path, port: u16, arguments: &[&str]) -> String {
    let output = turnflow(directory, port, arguments).args(["--once", "--state", "s", "-v"]).output().unwrap();
    assert!(output.status.success(), "{}", log(&output));
    log(&output)
}

/// Contents that a model computed, by what the processes logged.
fn embedded(log: &str) -> u64 {
    let counts = log.split("embedded: ").skip(1);
    counts.map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()).sum()
}

/// A conversation, its answer, and the passages behind it with their scores.
type Said = (String, String, Vec<(String, u32)>);

/// All answers.
fn said(directory: &Path) -> Vec<Said> {
    let records = answers(&directory.join("answers.jsonl")).into_iter();
    let mut said: Vec<_> = records
        .map(|record| {
            let hits = record.hits.iter().map(|hit| (hit.passage.to_string(), hit.score.to_bits())).collect();
            (record.conversation_id.to_string(), record.answer.to_string(), hits)
        })
        .collect();
    said.sort();
    said
}

fn lose_disk(directory: &Path) {
    std::fs::remove_dir_all(directory.join("s")).unwrap();
}

/// The files of a backup in a directory, relative to it.
fn files(backup: &Path) -> Vec<String> {
    let (mut files, mut open) = (Vec::new(), vec![backup.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten() {
            let path: PathBuf = entry.unwrap().path();
            match path.is_dir() {
                true => open.push(path),
                false => files.push(path.strip_prefix(backup).unwrap().to_str().unwrap().to_owned()),
            }
        }
    }
    files.sort();
    files
}

#[test]
fn a_lost_disk_costs_a_download_and_no_embedding() {
    let (Some(directory), Some(server)) = (prepared(90), bucket()) else { return };
    let (directory, port) = (directory.path(), server.port);
    let run = ["run", "p.ron", "--backup", "s3://copies/deep/down"];
    let first = once(directory, port, &run);
    assert!(embedded(&first) >= 120, "{first}");
    let expected = said(directory);
    assert_eq!(expected.len(), 6);
    assert_eq!(embedded(&once(directory, port, &run)), 0);
    lose_disk(directory);
    let restored = once(directory, port, &run);
    assert_eq!(embedded(&restored), 0, "{restored}");
    assert_eq!(restored.matches("the index is restored from the backup").count(), 2, "{restored}");
    assert_eq!(said(directory), expected);
    // One corpus is lost, and in the other a document is new.
    std::fs::remove_dir_all(directory.join("s/corpora/docs")).unwrap();
    let mut notes = std::fs::File::options().append(true).open(directory.join("notes.jsonl")).unwrap();
    notes.write_all(b"{\"_id\": \"new\", \"text\": \"A new note.\"}\n").unwrap();
    assert_eq!(embedded(&once(directory, port, &run)), 1);
    lose_disk(directory);
    assert_eq!(embedded(&once(directory, port, &run)), 0);
}

#[test]
fn two_lost_disks_cost_no_embedding_with_any_number_of_processes() {
    let (Some(directory), Some(server)) = (prepared(90), bucket()) else { return };
    let (directory, port) = (directory.path(), server.port);
    let backup = directory.join("backup");
    std::fs::create_dir(&backup).unwrap();
    let in_directory = format!("file://{}", backup.display());
    for url in ["s3://copies", &in_directory] {
        let cluster = |processes: &str| {
            let arguments = ["cluster", "p.ron", "--workers", "1", "--backup", url, "--processes", processes];
            once(directory, port, &arguments)
        };
        let first = cluster("2");
        assert!(embedded(&first) >= 120, "{url}: {first}");
        let expected = said(directory);
        for processes in ["2", "1", "3", "1"] {
            lose_disk(directory);
            let log = cluster(processes);
            assert_eq!(embedded(&log), 0, "{url}: {processes} processes: {log}");
            assert_eq!(said(directory), expected, "{url}: {processes} processes");
        }
        lose_disk(directory);
    }
    // What the processes had that are gone is with the first one.
    let files = files(&backup);
    assert!(files.iter().all(|file| file.starts_with("kept/process-0/")), "{files:?}");
    // Nothing is kept of an index that needs no model.
    assert!(!files.iter().any(|file| file.contains("bm25")), "{files:?}");
}

/// The descriptions of the copies in a directory's backup.
fn copies(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let backup = directory.join("backup");
    let described = files(&backup).into_iter().filter(|file| file.ends_with("/copy.json"));
    described.filter_map(|file| Some((file.clone(), std::fs::read(backup.join(file)).ok()?))).collect()
}

#[test]
fn a_run_that_is_killed_leaves_a_copy_that_can_be_restored() {
    let Some(directory) = prepared(1500) else { return };
    let directory = directory.path();
    std::fs::create_dir(directory.join("backup")).unwrap();
    let url = format!("file://{}", directory.join("backup").display());
    let run = ["run", "p.ron", "--backup", &url];
    let whole = once(directory, 1, &run[..2]);
    let (all, expected) = (embedded(&whole), said(directory));
    let begins = || directory.join("s/corpora/docs").is_dir();
    let mut before = BTreeMap::new();
    // While the disk is empty, when something is copied, while it is restored, and when more is copied, if there is more.
    for kill_when in ["it begins", "a copy is complete", "it begins", "the copy has changed"] {
        lose_disk(directory);
        std::fs::write(directory.join("answers.jsonl"), "").unwrap();
        let mut killed = turnflow(directory, 1, &run).args(["--state", "s"]).stderr(Stdio::null()).spawn().unwrap();
        until(kill_when, || match kill_when {
            "it begins" => begins(),
            "a copy is complete" => !copies(directory).is_empty(),
            _ => copies(directory) != before || said(directory) == expected,
        });
        killed.kill().unwrap();
        killed.wait().unwrap();
        before = copies(directory);
    }
    assert!(!before.is_empty());
    lose_disk(directory);
    let last = once(directory, 1, &run);
    assert!(embedded(&last) < all, "{all} embedded at first: {last}");
    assert!(!last.contains("damaged"), "{last}");
    assert_eq!(said(directory), expected);
    lose_disk(directory);
    assert_eq!(embedded(&once(directory, 1, &run)), 0);
}

#[test]
fn a_copy_that_is_damaged_is_made_again() {
    let Some(directory) = prepared(30) else { return };
    let directory = directory.path();
    let backup = directory.join("backup");
    std::fs::create_dir(&backup).unwrap();
    let url = format!("file://{}", backup.display());
    let run = ["run", "p.ron", "--backup", &url];
    let all = embedded(&once(directory, 1, &run));
    let expected = said(directory);
    for file in files(&backup).iter().filter(|file| file.contains("/docs/") && file.contains("/files/")) {
        let path = backup.join(file);
        let mut content = std::fs::read(&path).unwrap();
        content[0] ^= 1;
        std::fs::write(path, content).unwrap();
    }
    lose_disk(directory);
    let log = once(directory, 1, &run);
    assert!(log.contains("the backup of an index is damaged"), "{log}");
    assert!((1..all).contains(&embedded(&log)), "{log}");
    assert_eq!(said(directory), expected);
    lose_disk(directory);
    assert_eq!(embedded(&once(directory, 1, &run)), 0);
}

#[test]
fn a_store_that_refuses_stops_only_a_start_that_needs_it() {
    let (Some(directory), Some(server)) = (prepared(9), bucket()) else { return };
    let (directory, port) = (directory.path(), server.port);
    let run = ["run", "p.ron", "--backup", "s3://missing/x"];
    let failed = turnflow(directory, port, &run).args(["--once", "--state", "s"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(3), "{}", log(&failed));
    assert!(log(&failed).contains("its backup in s3://missing/x cannot be read"), "{}", log(&failed));
    once(directory, port, &run[..2]);
    let told = once(directory, port, &run);
    assert_eq!(told.matches("the backup cannot be written; will retry").count(), 1, "{told}");
    assert!(told.contains("the backup is not up to date"), "{told}");
    let wrong = turnflow(directory, port, &["run", "p.ron", "--backup", "ftp://x"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{}", log(&wrong));
}

#[test]
fn what_index_stores_is_copied_and_restored() {
    let Some(directory) = prepared(30) else { return };
    let directory = directory.path();
    std::fs::create_dir(directory.join("backup")).unwrap();
    let url = format!("file://{}", directory.join("backup").display());
    let done = |command: &str| {
        let arguments = [command, "p.ron", "--backup", &url, "--state", "s", "--format", "json"];
        let output = turnflow(directory, 1, &arguments).output().unwrap();
        assert!(output.status.success(), "{}", log(&output));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let corpora = told["corpora"].as_array().into_iter().flatten();
        corpora.map(|corpus| corpus["embedded"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(done("index"), 40);
    lose_disk(directory);
    assert_eq!(done("index"), 0);
    // What maintenance has merged is copied too.
    std::fs::remove_dir_all(directory.join("backup")).unwrap();
    std::fs::create_dir(directory.join("backup")).unwrap();
    done("maintain");
    lose_disk(directory);
    assert_eq!(done("index"), 0);
}

#[test]
fn a_signal_ends_a_start_that_waits_for_its_backup() {
    let Some(directory) = prepared(9) else { return };
    let directory = directory.path();
    // It takes connections and never answers.
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let arguments = ["run", "p.ron", "--backup", "s3://copies", "--state", "s"];
    // The sink empties its file at a start, but not at one that is given up.
    std::fs::write(directory.join("answers.jsonl"), "{}\n").unwrap();
    let to = std::fs::File::create(directory.join("log")).unwrap();
    let mut run = Killed(turnflow(directory, port, &arguments).stderr(to).spawn().unwrap());
    silent.set_nonblocking(true).unwrap();
    let mut asked = Vec::new();
    until("the store is asked", || {
        asked.extend(silent.accept());
        assert!(run.0.try_wait().unwrap().is_none(), "{}", std::fs::read_to_string(directory.join("log")).unwrap());
        !asked.is_empty()
    });
    signal(i32::try_from(run.0.id()).unwrap(), libc::SIGTERM);
    let mut status = None;
    until("the run ends", || {
        status = run.0.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.and_then(|status| status.code()), Some(0));
    assert_eq!(std::fs::read_to_string(directory.join("answers.jsonl")).unwrap(), "{}\n");
    drop(asked);
}

#[test]
fn of_two_runs_with_the_same_backup_the_first_one_stops_it() {
    let Some(directory) = prepared(9) else { return };
    let directory = directory.path();
    std::fs::create_dir(directory.join("backup")).unwrap();
    let url = format!("file://{}", directory.join("backup").display());
    let start = |name: &str| {
        let log = std::fs::File::create(directory.join(format!("{name}.log"))).unwrap();
        let sink = format!("nodes.out.path={:?}", format!("{name}.jsonl"));
        let run = ["run", "p.ron", "--backup", &url, "--state", name, "-v", "--set", &sink];
        Killed(turnflow(directory, 1, &run).stderr(log).stdout(Stdio::null()).spawn().unwrap())
    };
    let log = |name: &str| std::fs::read_to_string(directory.join(format!("{name}.log"))).unwrap();
    let _first = start("first");
    until("two copies", || {
        files(&directory.join("backup")).iter().filter(|file| file.ends_with("copy.json")).count() == 2
    });
    let _second = start("second");
    until("the second run", || log("second").contains("ready"));
    assert_eq!(embedded(&log("second")), 0, "{}", log("second"));
    let mut number = 0;
    until("the first run to notice", || {
        number += 1;
        let text = format!("{{\"_id\": \"n{number}\", \"text\": \"A change, number {number}.\"}}\n");
        let mut file = std::fs::File::options().append(true).open(directory.join("corpus.jsonl")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_secs(2));
        log("first").contains("another run writes the same backup")
    });
    assert!(!log("second").contains("another run"), "{}", log("second"));
}

/// A process that is killed in the end.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}
