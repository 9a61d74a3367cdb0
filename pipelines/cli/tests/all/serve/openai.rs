//! OpenAI's own Python package talks to the server.

use super::{PIPELINE, Server, python};
use crate::support::model;

pub(super) const PACKAGE: &str = "openai==3.57.0";

#[tokio::test]
async fn the_official_client_holds_conversations() {
    let Some(with) = python::with(PACKAGE) else { return };
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
    let arguments: &[&str] = if minilm.is_some() { &["secret", "demo/minilm"] } else { &["secret"] };
    python::run(with, "openai_client.py", &server, arguments).await;
}
