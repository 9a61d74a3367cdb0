//! TLS: the certificate, and what a wrong one gives.

use super::*;

#[tokio::test]
async fn a_server_with_a_certificate_is_called_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::write(directory.path().join("server.pem"), made.cert.pem()).unwrap();
    std::fs::write(directory.path().join("server.key"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(directory.path().join("serve.ron"), "Serve(tls: (cert: \"server.pem\", key: \"server.key\"))")
        .unwrap();
    let mut server = Server::start(directory.path(), PIPELINE, &["--config", "serve.ron"], &[]);
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);
    let refused = server.client.get(format!("{}/healthz", server.url)).send().await;
    assert!(refused.is_err(), "a client that does not know the certificate refuses it");
    // A client that speaks no TLS gets no answer, and holds up nobody.
    let plain = server.url.replace("https://", "http://");
    assert!(server.client.get(format!("{plain}/healthz")).send().await.is_err());

    let certificate = reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).unwrap();
    server.client = reqwest::Client::builder().add_root_certificate(certificate).https_only(true).build().unwrap();
    server.fill().await;
    let answer = server.chat("When does the ferry leave?").await;
    assert!(text(&answer).contains("leaves at nine"), "{answer}");
    server.signal(libc::SIGTERM);
    assert!(server.ended().await.success());
}

#[test]
fn a_certificate_that_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("pipeline.ron"), PIPELINE).unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let other = rcgen::KeyPair::generate().unwrap();
    for (certificate, key, wrong) in [
        (None, Some(made.signing_key.serialize_pem()), "server.pem"),
        (Some("not a certificate".to_owned()), Some(made.signing_key.serialize_pem()), "server.pem"),
        (Some(made.cert.pem()), None, "server.key"),
        (Some(made.cert.pem()), Some("not a key".to_owned()), "server.key"),
        (Some(made.cert.pem()), Some(other.serialize_pem()), "server.pem"),
    ] {
        for (name, text) in [("server.pem", certificate), ("server.key", key)] {
            let path = directory.path().join(name);
            match text {
                Some(text) => std::fs::write(path, text).unwrap(),
                None => drop(std::fs::remove_file(path)),
            }
        }
        let config = "Serve(tls: (cert: \"server.pem\", key: \"server.key\"))";
        std::fs::write(directory.path().join("serve.ron"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_turnflow"));
        command.current_dir(directory.path()).args(["serve", "pipeline.ron", "--config", "serve.ron"]);
        let done = command.args(["--state", "state", "--listen", "127.0.0.1:0"]).output().unwrap();
        let told = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.code() == Some(1) && told.contains(&format!("cannot use `{wrong}")), "{told}");
    }
}
