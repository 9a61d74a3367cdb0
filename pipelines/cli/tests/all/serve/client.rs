//! turnflow's own Python client.

use super::durable::pipeline;
use super::{Server, python};

#[tokio::test]
async fn our_own_client_asks_queues_streams_searches_and_changes_documents() {
    let has_python = std::process::Command::new("python3").arg("--version").output().is_ok();
    if !has_python {
        println!("skipped: there is no `python3`");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), &pipeline("Once"), &[], &[("TURNFLOW_TOKENS", "web=secret")]);
    python::run("python3".into(), "own_client.py", &server, &["secret"]).await;
}
