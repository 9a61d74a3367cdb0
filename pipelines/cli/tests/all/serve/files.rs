//! Files that are put over HTTP.

use serde_json::{Value, json};

use super::{PIPELINE, Server};
use crate::support::model;

#[tokio::test]
async fn files_are_put_as_they_are() {
    if model("pdfium").is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    let put = async |id: &str, mime: Option<&str>, bytes: &[u8]| {
        let request = server
            .client
            .put(format!("{}/v1/documents/{id}{}wait=true", server.url, if id.contains('?') { "&" } else { "?" }))
            .body(bytes.to_vec());
        let request = match mime {
            Some(mime) => request.header("Content-Type", mime),
            None => request,
        };
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/pdf");
    let pdf = std::fs::read(seeds.join("simple.pdf")).unwrap();
    let page = b"<title>Island</title><h1>Ferry</h1><p>The <b>ferry</b> leaves at nine.";
    for (id, mime, bytes) in [
        ("page", Some("text/html; charset=utf-8"), &page[..]),
        ("simple.pdf", Some("application/pdf"), &pdf),
        ("typed", Some("application/pdf"), &pdf),
        ("prices.csv", None, b"item,price\nticket,four coins\n"),
        ("named.html", Some("application/octet-stream"), page),
        ("old", Some("text/html; charset=\"ISO-8859-1\""), b"<p>F\xe4hre"),
    ] {
        let (status, body) = put(id, mime, bytes).await;
        assert_eq!((status, &body["published"]), (200, &json!(true)), "{id}: {body}");
    }
    let document = server.ok("GET", "/v1/documents/page", None).await;
    assert_eq!((&document["title"], &document["metadata"]["mime"]), (&json!("Island"), &json!("text/html")));
    assert!(document["text"].as_str().unwrap().contains("# Ferry"), "{document}");
    // What was read comes back as it is.
    assert_eq!(document["markup"], "markdown");
    server.ok("PUT", "/v1/documents/page?wait=true", Some(document.clone())).await;
    let again = server.ok("GET", "/v1/documents/page", None).await;
    assert_eq!((&again["text"], &again["markup"]), (&document["text"], &document["markup"]));
    let old = server.ok("GET", "/v1/documents/old", None).await["text"].clone();
    assert!(old.as_str().unwrap().contains("F\u{e4}hre"), "{old}");
    assert_eq!(put("old.txt", Some("text/plain; charset=iso-8859-1"), b"F\xe4hre").await.0, 200);
    assert_eq!(server.ok("GET", "/v1/documents/old.txt", None).await["text"], "F\u{e4}hre");
    let given = "metadata=%7B%22lang%22%3A%20%22en%22%7D";
    assert_eq!(put(&format!("notes.txt?{given}"), Some("text/plain"), b"A note.").await.0, 200);
    let note = server.ok("GET", "/v1/documents/notes.txt", None).await;
    assert_eq!(note["metadata"]["lang"], "en");
    for (query, mime) in [("metadata=7", "text/plain"), (given, "application/json")] {
        let (status, body) = put(&format!("a.txt?{query}"), Some(mime), b"{\"text\": \"x\"}").await;
        assert_eq!((status, &body["error"]["param"]), (400, &json!("metadata")), "{body}");
    }
    let found = server.ok("GET", "/v1/search?query=ticket&top=1", None).await;
    assert_eq!(found["hits"][0]["document"], "prices.csv", "{found}");
    let text = server.ok("GET", "/v1/documents/simple.pdf", None).await["text"].clone();
    assert!(!text.as_str().unwrap().trim().is_empty() && !text.as_str().unwrap().contains("endobj"), "{text}");
    assert_eq!(server.ok("GET", "/v1/documents/typed", None).await["text"], text);
    for (id, mime, status, told) in [
        ("a.exe", None, 400, "no reader"),
        ("a", Some("application/octet-stream"), 400, "no reader"),
        ("a", Some("image/gif"), 415, "application/pdf"),
        ("a.jsonl", Some("application/jsonl"), 415, "application/pdf"),
        ("a.pdf", Some("application/pdf"), 422, "broken PDF"),
        ("../a", Some("text/html"), 404, ""),
    ] {
        let (got, body) = put(id, mime, b"no such file").await;
        let message = body["error"]["message"].as_str().unwrap_or_default();
        assert!(got == status && message.contains(told), "{id} {mime:?}: {got} {body}");
    }
}

/// A corpus with permissions, and a writer of one group.
#[tokio::test]
async fn who_puts_a_file_must_be_able_to_read_it() {
    let directory = tempfile::tempdir().unwrap();
    let pipeline = r#"Pipeline(
        corpora: { "docs": Corpus(source: Documents(), chunk: Whole(), access: "groups") },
        nodes: {
            "turns": Stdin(),
            "query": LastTurn(input: "turns"),
            "found": Bm25(input: "query", corpus: "docs"),
            "answer": ExtractiveAnswer(input: "found"),
        },
    )"#;
    let config = r#"Serve(tokens: [
        (name: "staff", token: Env("STAFF"), extra: {"groups": ["staff"]}),
        (name: "web", token: Env("WEB"), extra: {"groups": ["web"]}),
        (name: "reader", token: Env("READER"), documents: Read, extra: {"groups": ["staff"]}),
    ])"#;
    std::fs::write(directory.path().join("serve.ron"), config).unwrap();
    let variables = [("STAFF", "staff-token"), ("WEB", "web-token"), ("READER", "reader-token")];
    let server = Server::start(directory.path(), pipeline, &["--config", "serve.ron"], &variables);
    let put = async |token: &str, query: &str| {
        let request = server.client.put(format!("{}/v1/documents/a.html?wait=true{query}", server.url));
        let request = request.bearer_auth(token).header("Content-Type", "text/html").body("<p>The ferry.");
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let of_staff = "&metadata=%7B%22groups%22%3A%5B%22staff%22%5D%7D";
    let (status, body) = put("staff-token", "").await;
    assert!(status == 400 && body["error"]["message"].as_str().unwrap().contains("`groups`"), "{body}");
    assert_eq!(put("web-token", of_staff).await.0, 400, "it could not read it");
    assert_eq!(put("reader-token", of_staff).await.0, 403, "it may not write");
    assert_eq!(put("staff-token", of_staff).await.0, 200);
    assert_eq!(put("staff-token", of_staff).await.0, 200, "again");
    let of_web = "&metadata=%7B%22groups%22%3A%22web%22%7D";
    assert_eq!(put("web-token", of_web).await.0, 403, "it may not replace what it may not read");
}
