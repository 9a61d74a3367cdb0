//! turnflow's own Python client.

use super::{PIPELINE, Server, python};

#[tokio::test]
async fn our_own_client_asks_streams_searches_and_changes_documents() {
    let has_python = std::process::Command::new("python3").arg("--version").output().is_ok();
    if !has_python {
        println!("skipped: there is no `python3`");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[("TURNFLOW_TOKENS", "web=secret")]);
    python::run("python3".into(), "own_client.py", &server, &["secret"]).await;
}
