//! People sign in by OpenID Connect, at a provider for tests.

use super::page::has_driver;
use super::*;

const PACKAGES: [&str; 2] = ["oidc-provider-mock==0.3.4", "selenium==4.51.0"];

/// The provider, which ends with the value.
struct Provider(Child);

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A provider that knows one user.
async fn provider(python: &Path) -> (Provider, String) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut command = Command::new(python.with_file_name("oidc-provider-mock"));
    command.args(["-p", &port, "--user-claims", r#"{"sub": "ann", "groups": ["staff"]}"#]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let client = reqwest::Client::new();
    until(async || client.get(format!("{url}/jwks")).send().await.is_ok()).await;
    (Provider(child), url)
}

fn config(provider: &str) -> String {
    format!(
        r#"Serve(jwt: (
            keys: Url("{provider}/jwks"), issuer: "{provider}", audience: ["turnflow"], documents: Read,
            sign_in: (client: "turnflow", secret: Env("OIDC_SECRET")),
        ))"#
    )
}

#[tokio::test]
async fn people_sign_in_at_their_provider() {
    if !has_driver() {
        return;
    }
    let Some(with) = python::with_all("sign-in", &PACKAGES) else { return };
    let (_provider, url) = provider(&with).await;
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("serve.ron"), config(&url)).unwrap();
    let docs = directory.path().join("docs");
    std::fs::create_dir(&docs).unwrap();
    std::fs::write(docs.join("rrf.md"), "Reciprocal rank fusion scores a passage by the sum of its reciprocal ranks.")
        .unwrap();
    let pipeline = PIPELINE.replace("Documents()", "Directory(path: \"docs\", pattern: \"*.md\")");
    let server = Server::start(directory.path(), &pipeline, &["--config", "serve.ron"], &[("OIDC_SECRET", "a secret")]);
    let told = server.ok("GET", "/v1/sign-in", None).await;
    assert_eq!(told["sign_in"]["client_id"], "turnflow", "{told}");
    assert!(!told.to_string().contains("a secret"), "{told}");
    // A code that the provider has not given.
    let code = json!({ "code": "x", "verifier": "v", "nonce": "n", "redirect_uri": "http://127.0.0.1/" });
    let (status, told) = server.send("POST", "/v1/sign-in", Some(code)).await;
    assert_eq!((status, &told["error"]["code"]), (401, &json!("sign_in_refused")), "{told}");
    assert_eq!(server.send("POST", "/v1/sign-in", Some(json!({ "code": "x" }))).await.0, 400);
    python::run(with, "page_sign_in.py", &server, &["ann"]).await;
}

#[tokio::test]
async fn without_a_provider_nobody_signs_in() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    assert_eq!(server.ok("GET", "/v1/sign-in", None).await, json!({ "sign_in": null }));
    assert_eq!(server.send("POST", "/v1/sign-in", Some(json!({}))).await.0, 404);
    drop(server);
    // A mistake in the configuration is told at the start.
    for (jwt, told) in [
        (r#"audience: ["turnflow"], sign_in: (client: "turnflow")"#, "needs `jwt.issuer`"),
        (
            r#"audience: ["other"], issuer: "https://id.example", sign_in: (client: "turnflow")"#,
            "add \"turnflow\" to `jwt.audience`",
        ),
        (
            r#"audience: ["turnflow"], issuer: "http://id.example", sign_in: (client: "turnflow")"#,
            "must be an address that begins with https://",
        ),
        (
            r#"audience: ["turnflow"], issuer: "https://id.example", sign_in: (client: "turnflow", secret: Env("NO_SUCH"))"#,
            "secret of `jwt.sign_in`",
        ),
    ] {
        let config = format!("Serve(jwt: (keys: Url(\"https://id.example/jwks\"), {jwt}))");
        std::fs::write(directory.path().join("serve.ron"), config).unwrap();
        let arguments =
            ["serve", "pipeline.ron", "--state", "state", "--listen", "127.0.0.1:0", "--config", "serve.ron"];
        let done = Command::new(env!("CARGO_BIN_EXE_turnflow"))
            .current_dir(directory.path())
            .args(arguments)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && error.contains(told), "{error}");
    }
}

/// Callers who send the body of a sign-in byte by byte are cut off, and keep nobody else from signing in.
#[tokio::test]
async fn a_slow_body_is_cut_off_and_holds_up_nobody() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    // Nothing listens there.
    let provider = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let config = config(&format!("http://{provider}")).replacen("Serve(", "Serve(limits: (header_s: 1), ", 1);
    std::fs::write(directory.path().join("serve.ron"), config).unwrap();
    let server = Server::start(directory.path(), PIPELINE, &["--config", "serve.ron"], &[("OIDC_SECRET", "a secret")]);
    let address = server.url.trim_start_matches("http://").to_owned();
    let slow = async || {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let head = "POST /v1/sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut from, mut to) = stream.into_split();
        // The next byte always comes soon; the server says when it is enough.
        let trickle = tokio::spawn(async move {
            while to.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let mut told = Vec::new();
        // The end may be a reset: there is more in the connection than the server reads.
        let ended = tokio::time::timeout(PATIENCE, from.read_to_end(&mut told)).await;
        trickle.abort();
        assert!(ended.is_ok(), "the connection is still open");
        String::from_utf8_lossy(&told).into_owned()
    };
    let all = futures::future::join_all((0..20).map(|_| slow()));
    let others = async {
        let code = json!({ "code": "x", "verifier": "v", "nonce": "n", "redirect_uri": "http://127.0.0.1/" });
        let (status, told) = server.send("POST", "/v1/sign-in", Some(code)).await;
        // The provider is away: the body was read, and the sign-in begun.
        assert_eq!((status, &told["error"]["code"]), (503, &json!("unavailable")), "{told}");
    };
    let (slow, ()) = tokio::join!(all, others);
    for told in slow {
        assert!(told.starts_with("HTTP/1.1 408 ") && told.contains("did not arrive in time"), "{told}");
    }
}
