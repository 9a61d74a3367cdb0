//! The command line as scripts use it: exit codes, what goes to which stream, and one clear
//! line where something is wrong.

mod alerts;
mod bench;
mod dead_letters;
mod files;
mod gaps;
mod impact;
mod import;
mod init;
mod maintain;
mod map;
mod mapped;
mod models;
mod read;
mod reload;
mod review;
mod runs;
mod scans;
mod tune;
mod usage;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::{model, ocr, pdfium};

/// Retrieval only: needs no model.
const LEXICAL: &str = r#"Pipeline(
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "a<b & \"c\"": Bm25(input: "query", corpus: "docs"),
    },
)"#;

/// From questions to answers in a file.
const ANSWERING: &str = r#"Pipeline(
    models: { "minilm": Onnx(path: "model.onnx", tokenizer: "tokenizer.json") },
    corpora: { "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) },
    nodes: {
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm"),
        "answer": ExtractiveAnswer(input: "dense", model: "minilm"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
    },
)"#;

/// A directory with both pipelines, a corpus, a log with lines that are no turns, and files
/// that are no model.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("lexical.ron", LEXICAL);
    write("answering.ron", ANSWERING);
    write("bad.ron", "Pipeline(\n    nodes: {\n        \"é\": LastTurn(input: \"turns\"),\n    },\n)\n");
    write(
        "docs.jsonl",
        "{\"_id\": \"ferry\", \"text\": \"The ferry leaves the north pier at noon.\"}\n\
         {\"_id\": \"lamp\", \"text\": \"The keeper lights the lamp in the tower at dusk.\"}\n",
    );
    let turn = |conversation: &str, text: &str| {
        format!(
            "{{\"conversation_id\": \"{conversation}\", \"turn\": 1, \"speaker\": \"user\", \"text\": \"{text}\"}}\n"
        )
    };
    let turns = [
        turn("a", "When does the ferry leave?"),
        "this is no turn\n".into(),
        "{\"conversation_id\": \"x\", \"turn\": 0, \"speaker\": \"user\", \"text\": \"?\"}\n".into(),
        turn("b", "Who lights the lamp?"),
    ];
    write("turns.jsonl", &turns.concat());
    write("model.onnx", "this is no model");
    write("tokenizer.json", "{}");
    directory
}

/// `turnflow` in a directory, with nothing of the caller's settings.
fn turnflow(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null());
    command.env_remove("TURNFLOW_LOG").env_remove("ORT_DYLIB_PATH").env_remove("RUST_BACKTRACE");
    command.envs(pdfium()).envs(ocr());
    command
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let Output { status, stdout, stderr } = output;
        let ended = Self {
            code: status.code(),
            out: String::from_utf8(stdout).unwrap(),
            err: String::from_utf8(stderr).unwrap(),
        };
        assert!(!ended.err.contains("panicked"), "{ended:?}");
        assert!(!ended.out.contains('\x1b') && !ended.err.contains('\x1b'), "colours where no terminal is: {ended:?}");
        ended
    }
}

pub(crate) fn run(directory: &Path, arguments: &[&str]) -> Ended {
    turnflow(directory, arguments).output().unwrap().into()
}

impl Ended {
    /// Ended with this code and nothing but one line on standard error, which has all of `words`.
    #[track_caller]
    pub fn one_line(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!((self.out.as_str(), self.err.lines().count()), ("", 1), "{self:?}");
        assert!(self.err.starts_with("error: "), "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in {self:?}");
        }
    }

    #[track_caller]
    pub fn good(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }
}

/// Ends a process that would not end by itself, whatever the test comes to.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The arguments that put a real model in the place of the file that is none.
fn real_model(directory: &Path) -> Option<[String; 4]> {
    let path = model("minilm-int8")?;
    fs::copy(path.join("tokenizer.json"), directory.join("tokenizer.json")).unwrap();
    let file: PathBuf = path.join("model.onnx");
    let set = |what: &str, value: &str| [String::from("--set"), format!("models.minilm.{what}={value}")];
    let [[a, b], [c, d]] = [set("path", &format!("{file:?}")), set("threads", "1")];
    Some([a, b, c, d])
}
