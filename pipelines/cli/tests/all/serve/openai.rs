//! OpenAI's own Python package talks to the server.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{PIPELINE, Server};
use crate::support::{model, root};

const PACKAGE: &str = "openai==3.54.0";

/// A Python with the package, made once for all runs; `None`, with a word on it, if it cannot be made.
fn python() -> Option<PathBuf> {
    let home = root().join("target/python-clients");
    let python = home.join("bin/python");
    let has_it = |python: &Path| {
        let found = Command::new(python).args(["-c", "import openai; print(openai.__version__)"]).output();
        found.is_ok_and(|found| {
            PACKAGE.ends_with(String::from_utf8_lossy(&found.stdout).trim()) && found.status.success()
        })
    };
    if has_it(&python) {
        return Some(python);
    }
    let run = |command: &mut Command| command.output().is_ok_and(|done| done.status.success());
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&home))
        && run(Command::new(&python).args(["-m", "pip", "install", "--quiet", PACKAGE]));
    if made && has_it(&python) {
        return Some(python);
    }
    // Whoever has no network cannot run it.
    println!("skipped: there is no Python with a virtual environment, or its package `openai` cannot be fetched");
    None
}

#[tokio::test]
async fn the_official_client_holds_conversations() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    let minilm = model("minilm-int8");
    let pipeline = match &minilm {
        Some(path) => PIPELINE.replace(
            "corpora:",
            &format!(
                "models: {{ \"minilm\": Onnx(path: {:?}, tokenizer: {:?}, pooling: Mean) }},\n    corpora:",
                path.join("model.onnx"),
                path.join("tokenizer.json")
            ),
        ),
        None => PIPELINE.to_owned(),
    };
    let pipeline = match &minilm {
        Some(_) => pipeline
            .replace("ExtractiveAnswer(input: \"found\")", "ExtractiveAnswer(input: \"found\", model: \"minilm\")"),
        None => pipeline,
    };
    let server = Server::start(directory.path(), &pipeline, &[], &[("TURNFLOW_TOKENS", "web=secret")]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openai_client.py");
    let url = server.url.clone();
    let done = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(python);
        command.arg(script).arg(url).arg("secret");
        if minilm.is_some() {
            command.arg("demo/minilm");
        }
        command.output().unwrap()
    });
    let done = done.await.unwrap();
    let (out, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{out}\n{error}");
    println!("{out}");
}
