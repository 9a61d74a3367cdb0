//! The page, in a browser without a window. `TURNFLOW_GOLDEN=pictures` makes the handbook's pictures of it anew.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::first::{embedder, files};
use super::{PIPELINE as PLAIN, Server, node, python};
use crate::support::root;

const PACKAGE: &str = "selenium==4.51.0";

/// Two retrievers and a fusion, so that there is something to see and to switch.
const PIPELINE: &str = r#"Pipeline(
    name: "demo",
    corpora: {
        "put": Corpus(source: Documents(), chunk: Whole(), fields: {"written": Text}),
        "docs": Corpus(source: Directory(path: "HANDBOOK", pattern: "**/*.md"), chunk: Headings(max_words: 200)),
    },
    nodes: {
        "turns": Stdin(),
        "question": LastTurn(input: "turns"),
        "context": UserTurns(input: "turns", last: 2),
        "words": Bm25(input: "context", corpus: "docs", tokenizer: Whitespace, top: 5),
        "stems": Bm25(input: "question", corpus: "docs", top: 5),
        "fused": Hybrid(inputs: ["words", "stems"], alpha: 0.5, top: 4),
        "answer": ExtractiveAnswer(input: "fused"),
        "final": IdkNormalize(input: "answer"),
        "others": Bm25(input: "question", corpus: "put", top: 1),
    },
)"#;

/// A document that tries to be a part of the page.
const HOSTILE: &str =
    "Reciprocal rank fusion. <img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";

/// Whether a program can drive a browser; says if not.
pub(super) fn has_driver() -> bool {
    let has_driver = Command::new("chromedriver").arg("--version").output().is_ok_and(|done| done.status.success());
    if !has_driver {
        println!("skipped: there is no `chromedriver`; Debian has it in the package `chromium-driver`");
    }
    has_driver
}

/// A Python that drives a browser, if there is one.
pub(super) fn browser() -> Option<PathBuf> {
    has_driver().then(|| python::with(PACKAGE)).flatten()
}

/// The directory of a test's pictures, if the handbook's are made; else an empty text.
fn pictures(directory: &Path) -> String {
    let is_wanted = std::env::var_os("TURNFLOW_GOLDEN").is_some_and(|value| value == "pictures");
    if is_wanted { directory.join("pictures").display().to_string() } else { String::new() }
}

/// What the page has copied as tests are tests: of a helpful answer one that passes, of another one that has to be completed.
fn copied_tests_run(directory: &Path) {
    for (name, passes) in [("good", true), ("bad", false)] {
        std::fs::copy(directory.join(format!("{name}.test.ron")), directory.join("pipeline.test.ron")).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_turnflow"));
        let done = command.current_dir(directory).args(["test", "pipeline.ron"]).output().unwrap();
        let told = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert_eq!(done.status.success(), passes, "{name}: {told}");
        assert!(passes || told.contains("WRITE HERE WHAT IT MUST SAY"), "{told}");
    }
}

/// Puts pictures of a test into the handbook, under other names.
fn keep(pictures: &str, names: &[(&str, &str)]) {
    if pictures.is_empty() {
        return;
    }
    for (name, kept) in names {
        std::fs::copy(Path::new(pictures).join(name), root().join("examples/images").join(kept)).unwrap();
    }
}

#[tokio::test]
async fn an_answer_goes_on_while_the_page_is_loaded_again() {
    let Some(with) = browser() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (url, permits) = embedder();
    let server =
        Server::start(directory.path(), &files(directory.path(), &url), &[], &[("TURNFLOW_TOKENS", "web=secret")]);
    permits.send(()).unwrap();
    permits.send(()).unwrap();
    let file = directory.path().join("reply");
    let awaited = file.clone();
    tokio::spawn(async move {
        while !awaited.exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let _ = permits.send(());
    });
    python::run(with, "page_resume.py", &server, &["secret", &file.display().to_string()]).await;
}

#[tokio::test]
async fn other_pages_embed_the_widget() {
    let Some(with) = browser() else { return };
    let directory = tempfile::tempdir().unwrap();
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (allowed, other) = (free(), free());
    let [allowed, other] = [allowed, other].map(|of| of.local_addr().unwrap().port().to_string());
    let config =
        format!(r#"Serve(tokens: [(name: "shop", token: Env("SHOP"))], cors: ["http://127.0.0.1:{allowed}"])"#);
    std::fs::write(directory.path().join("serve.ron"), config).unwrap();
    let server = Server::start(directory.path(), PLAIN, &["--config", "serve.ron"], &[("SHOP", "secret")]);
    for (id, text) in [
        ("ferry.md", "The ferry to the island leaves at nine. It returns at noon."),
        ("fees.md", "A ticket costs four euros. Children travel free."),
    ] {
        let put = server.client.put(format!("{}/v1/documents/{id}?wait=true", server.url)).bearer_auth("secret");
        assert_eq!(put.json(&json!({ "title": "Island", "text": text })).send().await.unwrap().status().as_u16(), 200);
    }
    let pictures = pictures(directory.path());
    python::run(with, "page_widget.py", &server, &["secret", &allowed, &other, &pictures]).await;
    keep(&pictures, &[("widget-answer.png", "page-widget.png")]);
}

#[tokio::test]
async fn the_page_works_in_chromium() {
    let Some(with) = browser() else { return };
    let directory = tempfile::tempdir().unwrap();
    // A copy, since the script changes the documents.
    let docs = directory.path().join("handbook");
    std::fs::create_dir(&docs).unwrap();
    for page in std::fs::read_dir(root().join("examples/handbook")).unwrap() {
        let page = page.unwrap().path();
        std::fs::copy(&page, docs.join(page.file_name().unwrap())).unwrap();
    }
    let pipeline = PIPELINE.replace("HANDBOOK", &docs.display().to_string());
    let server = Server::start(directory.path(), &pipeline, &[], &[("TURNFLOW_TOKENS", "web=secret,desk=other")]);
    for number in 0..3 {
        let put = server.client.put(format!("{}/v1/documents/note {number}.md", server.url)).bearer_auth("secret");
        let document = json!({"text": HOSTILE, "metadata": {"written": format!("by the editors {HOSTILE}")}});
        let put = put.json(&document).send().await.unwrap();
        assert_eq!(put.status().as_u16(), 200);
    }
    // Without axe-core, the page is checked without it.
    let axe = node::with("axe", &["axe-core@4.14.1"]).map(|home| home.join("node_modules/axe-core/axe.min.js"));
    let axe = axe.map_or(String::new(), |axe| axe.display().to_string());
    let pictures = pictures(directory.path());
    let tests = directory.path().display().to_string();
    python::run(with.clone(), "page_browser.py", &server, &["secret,other", &pictures, &axe, &tests]).await;
    copied_tests_run(directory.path());
    python::run(with, "page_live.py", &server, &["secret", &docs.display().to_string(), &pictures]).await;
    let names = [
        ("talk-light.png", "page-workflow.png"),
        ("graph.png", "page-graph.png"),
        ("narrow.png", "page-narrow.png"),
        ("live.png", "page-live.png"),
    ];
    keep(&pictures, &names);
}
