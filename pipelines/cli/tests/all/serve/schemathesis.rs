//! Requests made from `/openapi.json` by schemathesis: none may break the server, and every response must be as
//! described.

use super::durable::pipeline;
use super::*;

const PACKAGE: &str = "schemathesis==4.32.5";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_made_from_the_description_get_what_it_says() {
    let Some(python) = python::with(PACKAGE) else { return };
    for tokens in [&[][..], &[("TURNFLOW_TOKENS", "web=secret")]] {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("serve.ron"), "Serve(limits: (rate: 0.0), keep_alive_s: 0.5)").unwrap();
        let server = Server::start(directory.path(), &pipeline("Once"), &["--config", "serve.ron"], tokens);
        let mut command = Command::new(python.with_file_name("st"));
        command.current_dir(directory.path()).args(["run", &format!("{}/openapi.json", server.url), "--seed", "7"]);
        command.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "20", "--continue-on-failure"]);
        // A stream of answers does not end by itself.
        command.args(["--request-timeout", "30", "--exclude-path", "/v1/answers", "--warnings", "off"]);
        // No description can say which names and texts are valid, and a wrong one is refused.
        command.args(["--exclude-checks", "positive_data_acceptance"]);
        if !tokens.is_empty() {
            command.args(["--header", "Authorization: Bearer secret"]);
        }
        let done = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let out = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success(), "{out}\n{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(server.send("GET", "/healthz", None).await.0, 200);
    }
}
