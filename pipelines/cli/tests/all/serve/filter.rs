//! The filter of a search request.

use serde_json::{Value, json};

use super::Server;

/// A retriever of each kind that needs no model, with and without its own filter, behind a fusion.
const PIPELINE: &str = r#"Pipeline(
    corpora: {
        "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole(), access: "groups",
                       fields: {"lang": Text, "year": Integer}),
        "notes": Corpus(source: JsonLines(path: "notes.jsonl"), chunk: Whole()),
    },
    nodes: {
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "bm25": Bm25(input: "query", corpus: "docs", top: 2),
        "recent": Bm25(input: "query", corpus: "docs", filter: Ge("year", 2025)),
        "named": References(input: "query", corpus: "docs"),
        "notes": Bm25(input: "query", corpus: "notes"),
        "fused": Rrf(inputs: ["bm25", "recent", "named"]),
        "answer": ExtractiveAnswer(input: "fused"),
    },
)"#;

fn documents(directory: &std::path::Path) {
    let row = |id: &str, lang: &str, year: i64, groups: &str| {
        json!({"_id": id, "text": format!("The ferry {id}."), "lang": lang, "year": year, "groups": groups}).to_string()
    };
    let rows = [
        row("en25", "en", 2025, "*"),
        row("en26", "en", 2026, "*"),
        row("de25", "de", 2025, "*"),
        row("de24", "de", 2024, "*"),
        row("staff", "de", 2026, "staff"),
    ];
    std::fs::write(directory.join("docs.jsonl"), rows.join("\n") + "\n").unwrap();
    let note = json!({"_id": "note", "text": "The ferry note.", "kind": "memo"}).to_string();
    std::fs::write(directory.join("notes.jsonl"), note + "\n").unwrap();
}

async fn search(server: &Server, token: &str, mut body: Value) -> (u16, Value) {
    body["query"] = "ferry".into();
    let request = server.client.post(format!("{}/v1/search", server.url)).bearer_auth(token).json(&body);
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn found(server: &Server, token: &str, body: Value) -> Vec<String> {
    let (status, found) = search(server, token, body).await;
    assert_eq!(status, 200, "{found}");
    let hits = found["hits"].as_array().unwrap().iter();
    let mut found: Vec<String> = hits.map(|hit| hit["document"].as_str().unwrap().to_owned()).collect();
    found.sort_unstable();
    found
}

#[tokio::test]
async fn a_search_is_narrowed_by_its_filter_and_never_widened() {
    let directory = tempfile::tempdir().unwrap();
    documents(directory.path());
    let tokens = r#"Serve(tokens: [(name: "staff", token: Env("STAFF"), extra: {"groups": ["staff"]}), (name: "web", token: Env("WEB"))])"#;
    std::fs::write(directory.path().join("serve.ron"), tokens).unwrap();
    let variables = [("STAFF", "staff-token"), ("WEB", "web-token")];
    let server = Server::start(directory.path(), PIPELINE, &["--config", "serve.ron"], &variables);
    let german = json!({"eq": ["lang", "de"]});
    for (token, node, filter, expected) in [
        // The best two among those that meet it, and not those of the best two that meet it.
        ("web-token", "bm25", german.clone(), &["de24", "de25"][..]),
        ("web-token", "recent", german.clone(), &["de25"]),
        ("staff-token", "recent", german.clone(), &["de25", "staff"]),
        ("web-token", "fused", german.clone(), &["de24", "de25"]),
        ("web-token", "fused", json!({"not": german}), &["en25", "en26"]),
        ("web-token", "fused", json!({"and": [{"in": ["lang", ["de", "fr"]]}, {"lt": ["year", 2025]}]}), &["de24"]),
        // What the pipeline or the permissions leave out stays out.
        ("web-token", "recent", json!({"or": [{"and": []}, {"lt": ["year", 2025]}]}), &["de25", "en25", "en26"]),
        ("web-token", "fused", json!({"eq": ["groups", "staff"]}), &[]),
        ("staff-token", "fused", json!({"eq": ["groups", "staff"]}), &["staff"]),
        ("web-token", "notes", json!({"prefix": ["kind", "me"]}), &["note"]),
        ("web-token", "notes", json!({"exists": "other"}), &[]),
    ] {
        let body = json!({"node": node, "filter": filter});
        assert_eq!(found(&server, token, body).await, expected, "{node} {filter}");
    }
    // In a query string, it is text.
    let asked = [("query", "ferry"), ("node", "recent"), ("filter", r#"{"eq": ["lang", "de"]}"#)];
    let request = server.client.get(format!("{}/v1/search", server.url)).query(&asked).bearer_auth("web-token");
    let found: Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(found["hits"][0]["document"], "de25", "{found}");

    for (node, filter, told) in [
        (
            "bm25",
            json!({"eq": ["author", "x"]}),
            "`filter` does not fit the corpus `docs`: the field `author` is not declared",
        ),
        ("fused", json!({"eq": ["year", "2025"]}), "the field `year` is a whole number, and cannot be compared with"),
        ("bm25", json!({"like": ["lang", "d"]}), "`filter.like` is not a condition"),
        ("bm25", json!("{"), "`filter` is not JSON"),
        ("bm25", json!([1]), "`filter` must be an object"),
    ] {
        let (status, error) = search(&server, "web-token", json!({"node": node, "filter": filter})).await;
        let message = error["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(told), "{status} {error}");
        assert_eq!((&error["error"]["param"], &error["error"]["code"]), (&json!("filter"), &json!("bad_filter")));
    }
}
