//! Questions of callers that lack an answer are kept by the sink `Gaps`, also without sources.

use serde_json::json;

use super::{PIPELINE, Server, until};
use crate::support::model;

#[tokio::test]
async fn questions_of_callers_that_lack_an_answer_are_kept() {
    let Some(model) = model("minilm-int8") else { return };
    let directory = tempfile::tempdir().unwrap();
    let model = model.display();
    let models =
        format!(r#"models: {{ "m": Onnx(path: "{model}/model.onnx", tokenizer: "{model}/tokenizer.json") }}, corpora"#);
    let sink = r#"IdkNormalize(input: "answer"), "gaps": Gaps(input: "final", model: "m", path: "gaps.jsonl"),"#;
    let pipeline = PIPELINE.replace("corpora", &models).replace(r#"IdkNormalize(input: "answer"),"#, sink);
    let server = Server::start(directory.path(), &pipeline, &[], &[]);
    server.fill().await;
    let turn = |text: &str| json!({"conversation_id": "c", "turn": 1, "speaker": "user", "text": text});
    for _ in 0..2 {
        let lacking = server.ok("POST", "/v1/turns", Some(turn("Xylophones?"))).await;
        assert_eq!(lacking["status"], "idk");
    }
    // A caller who tries other settings does not count.
    let mut tried = turn("Xylophones again?");
    tried["adjust"] = json!({"skip": ["found"]});
    server.ok("POST", "/v1/turns", Some(tried)).await;
    let answered = server.ok("POST", "/v1/turns", Some(turn("When does the ferry leave?"))).await;
    assert_eq!(answered["status"], "answered");
    let journal = || std::fs::read_to_string(directory.path().join("gaps.jsonl")).unwrap_or_default();
    until(async || journal().contains("\"fine\"")).await;
    let journal = journal();
    assert_eq!(journal.matches("{\"asked\"").count(), 2, "{journal}");
    assert_eq!(journal.matches("\"text\":\"Xylophones?\"").count(), 2, "{journal}");
    assert_eq!(journal.matches("\"group\":1,").count(), 2, "{journal}");
}
