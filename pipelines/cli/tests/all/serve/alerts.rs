//! Alerts on the answers to callers: the route, the metrics, `top`, and a restart.

use serde_json::json;

use super::{PIPELINE, Server, until};

#[tokio::test]
async fn an_alert_on_answers_to_callers_is_shown_and_outlives_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let sink = r#"IdkNormalize(input: "answer"),
        "alerts": Alerts(input: "final", path: "alerts.jsonl", rules: {
            "declined": (of: Declined, fire: Above(0.5), at_least: 3),
            "pending": (of: Declined, fire: Above(0.5), at_least: 1, for_s: 100000),
            "slow": (of: Latency(0.95), fire: Above(500), at_least: 3),
        }),"#;
    let pipeline = PIPELINE.replace(r#"IdkNormalize(input: "answer"),"#, sink);
    let server = Server::start(directory.path(), &pipeline, &[], &[]);
    server.fill().await;
    let rules = async |server: &Server| {
        let list = server.ok("GET", "/v1/alerts", None).await;
        let rules = list["data"].as_array().unwrap().clone();
        rules.into_iter().map(|rule| (rule["rule"].as_str().unwrap().to_owned(), rule)).collect::<Vec<_>>()
    };
    let before = rules(&server).await;
    let names: Vec<&str> = before.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["declined", "pending", "slow"]);
    assert_eq!(
        (&before[0].1["state"], &before[0].1["value"], &before[0].1["n"]),
        (&json!("ok"), &json!(null), &json!(0))
    );
    for number in 0..3 {
        let turn =
            json!({"conversation_id": format!("c{number}"), "turn": 1, "speaker": "user", "text": "Xylophones?"});
        assert_eq!(server.ok("POST", "/v1/turns", Some(turn)).await["status"], "idk");
    }
    until(async || rules(&server).await[0].1["state"] == "firing").await;
    let after = rules(&server).await;
    assert_eq!((&after[0].1["value"], &after[0].1["alert"]), (&json!(1.0), &json!("alerts/1")));
    assert_eq!(after[1].1["state"], "pending");
    let metrics = server.ok("GET", "/metrics", None).await;
    let labels = "{pipeline=\"demo\",component=\"alerts\",rule=\"declined\"}";
    for name in ["firing", "value"] {
        let line = format!("turnflow_alert_{name}{labels} 1");
        assert!(metrics.as_str().unwrap().lines().any(|found| found.starts_with(&line)), "{line}: {metrics}");
    }
    let top = std::process::Command::new(env!("CARGO_BIN_EXE_turnflow")).args(["top", &server.url]).output().unwrap();
    let top = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(top.contains("alert: declined  firing for ") && !top.contains("alert: slow"), "{top}");

    // Killed, and started again.
    drop(server);
    let server = Server::start(directory.path(), &pipeline, &[], &[]);
    let again = rules(&server).await;
    assert_eq!((&again[0].1["state"], &again[0].1["since"]), (&json!("firing"), &after[0].1["since"]));
    assert_eq!((&again[1].1["state"], &again[1].1["since"]), (&json!("pending"), &after[1].1["since"]));
    let told = std::fs::read_to_string(directory.path().join("alerts.jsonl")).unwrap();
    assert_eq!(told.lines().count(), 1, "{told}");
}
