//! People sign in at Canaille, an identity provider that others run: its pages, its keys and its tokens.

use super::page::has_driver;
use super::*;

const PACKAGES: [&str; 2] = ["canaille[front,oidc,sqlite]==0.3.6", "selenium==4.51.0"];
const PASSWORD: &str = "correct horse 9";

/// The provider, with its configuration and its database in a directory.
struct Canaille {
    python: PathBuf,
    config: PathBuf,
    url: String,
    running: Option<Child>,
}

impl Drop for Canaille {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            let _ = running.kill();
            let _ = running.wait();
        }
    }
}

impl Canaille {
    /// A provider that knows one user, who is in one group.
    fn new(python: &Path, directory: &Path) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (config, address) = (directory.join("canaille.toml"), format!("127.0.0.1:{port}"));
        std::fs::write(&config, "").unwrap();
        let mut made = Self { python: python.to_owned(), config, url: format!("http://{address}"), running: None };
        let key: Value = serde_json::from_str(&made.does(&["jwk", "create", "rsa"])).unwrap();
        let key: Vec<String> =
            key.as_object().unwrap().iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let database = directory.join("canaille.db").display().to_string();
        let toml = format!(
            "SECRET_KEY = \"of a test\"\nSERVER_NAME = {address:?}\nPREFERRED_URL_SCHEME = \"http\"\n[CANAILLE]\n\
             [CANAILLE_SQL]\nDATABASE_URI = \"sqlite:///{database}\"\n[CANAILLE_OIDC]\nACTIVE_JWKS = [{{{}}}]\n",
            key.join(", ")
        );
        std::fs::write(&made.config, toml).unwrap();
        made.does(&["db", "upgrade"]);
        let names = ["--formatted-name", "Ann Lee", "--given-name", "Ann", "--family-name", "Lee"];
        let user = ["create", "user", "--user-name", "ann", "--emails", "ann@example.org", "--password", PASSWORD];
        made.does(&[&user[..], &names[..]].concat());
        made.does(&["create", "group", "--display-name", "staff", "--members", "ann"]);
        let mut command = made.command("flask");
        command.args(["--app", "canaille:create_app", "run", "--port", &port.to_string()]);
        made.running = Some(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        made
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.python.with_file_name(program));
        command.env("CONFIG", &self.config).env("CANAILLE_CONFIG", &self.config);
        command
    }

    /// Runs a command of the provider's. Returns the last line that it prints.
    fn does(&self, arguments: &[&str]) -> String {
        let done = self.command("canaille").args(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).lines().last().unwrap_or_default().to_owned()
    }

    /// Lets a page ask people to sign in.
    fn admit(&self, page: &str) {
        let back = format!("{page}/");
        let of_client = ["create", "client", "--client-id", "turnflow", "--client-secret", "a secret"];
        let how = ["--grant-types", "authorization_code", "--response-types", "code", "--redirect-uris", &back];
        let scopes = ["--scope", "openid", "--scope", "profile", "--scope", "groups"];
        let token = ["--token-endpoint-auth-method", "client_secret_basic", "--id-token-signed-response-alg", "RS256"];
        let made = self.does(&[&of_client[..], &["--client-name", "turnflow"], &how, &scopes, &token].concat());
        let made: Value = serde_json::from_str(&made).unwrap();
        let id = made["id"].as_str().unwrap();
        self.does(&["set", "client", id, "--audience", id]);
    }
}

#[tokio::test]
async fn people_sign_in_at_a_provider_that_others_run() {
    if !has_driver() {
        return;
    }
    let Some(with) = python::with_all("provider", &PACKAGES) else { return };
    let directory = tempfile::tempdir().unwrap();
    let (python, place) = (with.clone(), directory.path().to_owned());
    let provider = tokio::task::spawn_blocking(move || Canaille::new(&python, &place)).await.unwrap();
    let url = &provider.url;
    let client = reqwest::Client::new();
    until(async || client.get(format!("{url}/oauth/jwks.json")).send().await.is_ok()).await;
    let config = format!(
        r#"Serve(jwt: (
            keys: Url("{url}/oauth/jwks.json"), issuer: "{url}", audience: ["turnflow"], documents: Read,
            sign_in: (client: "turnflow", secret: Env("OIDC_SECRET"), scopes: ["openid", "profile", "groups"]),
        ))"#
    );
    std::fs::write(directory.path().join("serve.ron"), config).unwrap();
    let docs = directory.path().join("docs");
    std::fs::create_dir(&docs).unwrap();
    std::fs::write(docs.join("rrf.md"), "Reciprocal rank fusion scores a passage by the sum of its reciprocal ranks.")
        .unwrap();
    let pipeline = PIPELINE.replace("Documents()", "Directory(path: \"docs\", pattern: \"*.md\")");
    let server = Server::start(directory.path(), &pipeline, &["--config", "serve.ron"], &[("OIDC_SECRET", "a secret")]);
    provider.admit(&server.url);
    python::run(with, "page_provider.py", &server, &["ann", PASSWORD, "staff"]).await;
}
