//! `turnflow run` when its file changes, and when a signal asks for it.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::support::{answers, until};

const PIPELINE: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: Directory(path: "docs"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "hits": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": ExtractiveAnswer(input: "hits"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    },
)"#;

struct Running {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Running {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
        command.arg("run").arg(dir.join("p.ron")).arg("--state").arg(dir.join("state")).args(arguments);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        Self { child, said }
    }

    /// Reads what it tells until a line holds this.
    fn until(&mut self, text: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended before it told {text:?}: {all}");
            all.push_str(&line);
            if line.contains(text) {
                return all;
            }
        }
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(dir: &Path, turn: u32) {
    let mut log = fs::OpenOptions::new().create(true).append(true).open(dir.join("turns.jsonl")).unwrap();
    let text = "{\"conversation_id\": \"c\", \"turn\": TURN, \"speaker\": \"user\", \"text\": \"lamp\"}";
    writeln!(log, "{}", text.replace("TURN", &turn.to_string())).unwrap();
}

#[test]
fn a_file_that_changes_is_taken_over_and_a_bad_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("docs")).unwrap();
    fs::write(dir.join("docs/a.md"), "The lamp is lit at dusk every day.").unwrap();
    fs::write(dir.join("docs/b.md"), "Another lamp hangs over the old pier.").unwrap();
    fs::write(dir.join("p.ron"), PIPELINE).unwrap();
    say(dir, 1);
    let mut running = Running::start(dir, &["--watch"]);
    let answered = |count: usize| {
        until("the answer", || answers(&dir.join("answers.jsonl")).len() == count);
        answers(&dir.join("answers.jsonl")).pop().unwrap()
    };
    assert_eq!(answered(1).hits.len(), 2);
    fs::write(dir.join("p.ron"), PIPELINE.replace("top: 5", "tap: 5")).unwrap();
    let told = running.until("not reloaded");
    assert!(told.contains("unknown field `tap`") && told.contains("p.ron:6"), "{told}");
    say(dir, 2);
    assert_eq!(answered(2).hits.len(), 2);
    fs::write(dir.join("p.ron"), PIPELINE.replace("top: 5", "top: 1")).unwrap();
    let told = running.until("reloaded in");
    assert!(told.contains("~ node `hits`: settings"), "{told}");
    say(dir, 3);
    assert_eq!(answered(3).hits.len(), 1);
    // Asked for by a signal, there is nothing to do.
    running.signal("-HUP");
    running.until("nothing to reload");
    running.signal("-INT");
    running.until("3 turns answered");
    assert!(running.child.wait().unwrap().success());
}

/// The model's server takes the passages and never replies.
#[test]
fn an_interrupt_does_not_wait_until_all_is_indexed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", server.local_addr().unwrap());
    let model =
        format!("models: {{ \"far\": OpenAiEmbedder(url: {url:?}, model: \"m\", dimension: 4) }},\n    corpora:");
    let pipeline =
        PIPELINE.replace("corpora:", &model).replace("corpus: \"docs\", top", "corpus: \"docs\", model: \"far\", top");
    fs::create_dir(dir.join("docs")).unwrap();
    fs::write(dir.join("docs/a.md"), "The lamp is lit at dusk every day.").unwrap();
    fs::write(dir.join("p.ron"), pipeline.replace("Bm25", "Dense")).unwrap();
    say(dir, 1);
    let mut running = Running::start(dir, &[]);
    let _asked = server.accept().unwrap();
    running.signal("-INT");
    // No turn runs: the one that waits is read again by a restart.
    running.until("stopping; interrupt again");
    assert!(running.child.wait().unwrap().success());
}
