//! Faults around a running server: what it waits for, and what is taken away from it.

use super::*;

/// A change may be published with the group of an earlier one.
#[tokio::test]
async fn a_change_that_went_with_an_earlier_group_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    server.fill().await;
    for round in 0..6 {
        let documents: Vec<Value> = (0..600)
            .map(|n| json!({ "id": format!("d{n}"), "text": format!("round {round}. {}", "word ".repeat(300)) }))
            .collect();
        server.ok("POST", "/v1/documents", Some(json!(documents))).await;
        let body = json!({ "text": format!("the last of round {round}") });
        let put = server.ok("PUT", "/v1/documents/d599?wait=true", Some(body)).await;
        assert_eq!(put["published"], true, "{put}");
    }
}

/// As a cleaner of old files may do.
#[tokio::test]
async fn a_server_whose_status_socket_is_gone_ends_when_it_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(directory.path(), PIPELINE, &[], &[]);
    std::fs::remove_file(directory.path().join("state/status.sock")).unwrap();
    server.signal(libc::SIGTERM);
    let status = server.ended().await;
    assert!(status.success(), "{status}");
}
