//! Documents of several corpora with the same id: each is found, cited, opened and shared as itself. And a cited passage after
//! edits of its document.

use super::groups::send;
use super::*;

const TWO: &str = r#"Pipeline(
    name: "demo",
    corpora: {
        "docs": Corpus(source: Documents(), chunk: Sentences(size: 1, overlap: 0), access: "groups"),
        "other": Corpus(source: Documents(), chunk: Sentences(size: 1, overlap: 0), access: "groups"),
    },
    nodes: {
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "in docs": Bm25(input: "query", corpus: "docs", top: 5),
        "in other": Bm25(input: "query", corpus: "other", top: 5),
        "found": Rrf(inputs: ["in docs", "in other"]),
        "answer": ExtractiveAnswer(input: "found"),
    },
)"#;

const CONFIG: &str = r#"Serve(tokens: [
    (name: "admin", token: Env("ADMIN"), documents: Manage),
    (name: "ann", token: Env("ANN"), extra: {"groups": ["staff"]}),
])"#;

fn start(directory: &Path) -> Server {
    start_with(directory, TWO)
}

fn start_with(directory: &Path, pipeline: &str) -> Server {
    std::fs::write(directory.join("serve.ron"), CONFIG).unwrap();
    let secrets = [("ADMIN", "admin-secret"), ("ANN", "ann-secret")];
    Server::start(directory, pipeline, &["--config", "serve.ron"], &secrets)
}

async fn put(server: &Server, corpus: &str, text: &str, groups: &str) {
    let path = format!("/v1/documents/README.md?corpus={corpus}&wait=true");
    let document = json!({ "title": format!("All of {corpus}"), "text": text, "groups": [groups] });
    let (status, told) = send(server, "admin", "PUT", &path, Some(document)).await;
    assert_eq!(status, 200, "{told}");
}

/// The page of a link, and what is marked on it.
async fn opened(server: &Server, link: &str) -> (u16, String, String) {
    let path = link.split_once("/documents/").unwrap().1;
    let page = server.client.get(format!("{}/documents/{path}", server.url)).send().await.unwrap();
    let (status, html) = (page.status().as_u16(), page.text().await.unwrap());
    let marked = html.split_once("id=\"passage\"").map(|(_, rest)| rest.split("<p dir=\"auto\">").nth(1).unwrap());
    let marked = marked.and_then(|rest| rest.split_once("</p>")).map_or(String::new(), |(text, _)| text.to_owned());
    (status, html, marked)
}

async fn search(server: &Server, query: &str) -> Vec<Value> {
    let (status, found) = send(server, "ann", "GET", &format!("/v1/search?query={query}"), None).await;
    assert_eq!(status, 200, "{found}");
    found["hits"].as_array().unwrap().clone()
}

async fn ask(server: &Server, question: &str) -> Value {
    let turn = json!({ "conversation_id": question, "turn": 1, "speaker": "user", "text": question });
    send(server, "ann", "POST", "/v1/turns", Some(turn)).await.1
}

/// Why it exists: passages of two corpora with one id were merged by `Rrf`, and links opened the document of the first corpus.
#[tokio::test]
async fn documents_of_two_corpora_may_have_one_id() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path());
    put(&server, "docs", "Giraffe tickets cost five crowns.", "staff").await;
    put(&server, "other", "Penguin tickets cost nine crowns.", "*").await;
    let found = search(&server, "penguin%20tickets").await;
    let mut texts: Vec<_> =
        found.iter().map(|hit| (hit["corpus"].as_str().unwrap(), hit["text"].as_str().unwrap())).collect();
    texts.sort_unstable();
    assert_eq!(texts, [("docs", "Giraffe tickets cost five crowns."), ("other", "Penguin tickets cost nine crowns.")]);
    for hit in &found {
        for link in [&hit["page"], &hit["url"]] {
            let (status, html, marked) = opened(&server, link.as_str().unwrap()).await;
            assert_eq!((status, &json!(marked)), (200, &hit["text"]), "{html}");
        }
    }
    // A link opens the document of its corpus only.
    let link = found.iter().find(|hit| hit["corpus"] == "other").unwrap()["page"].as_str().unwrap();
    assert_eq!(opened(&server, &link.replace("corpus=other", "corpus=docs")).await.0, 403);
    assert_eq!(opened(&server, &link.replace("&corpus=other", "")).await.0, 403);

    let record = ask(&server, "What do giraffe tickets cost?").await;
    assert_eq!(record["hits"][0]["corpus"], "docs", "{record}");
    let (_, _, marked) = opened(&server, record["citations"][0]["url"].as_str().unwrap()).await;
    assert_eq!(marked, "Giraffe tickets cost five crowns.");
    let asked = json!({ "messages": [{ "role": "user", "content": "Which tickets cost crowns?" }] });
    let (_, told) = send(&server, "ann", "POST", "/v1/chat/completions", Some(asked)).await;
    let cited = told["choices"][0]["message"]["annotations"].as_array().unwrap().clone();
    assert!(!cited.is_empty(), "{told}");
    for cited in cited.iter().map(|cited| &cited["url_citation"]) {
        let corpus = if cited["url"].as_str().unwrap().contains("corpus=docs") { "docs" } else { "other" };
        assert_eq!(cited["title"], format!("All of {corpus}"), "{told}");
    }

    // What is shared ends with its own document.
    let request = json!({ "question": "What do giraffe tickets cost?", "record": record });
    let (status, shared) = send(&server, "ann", "POST", "/v1/shares", Some(request)).await;
    assert_eq!(status, 200, "{shared}");
    let link = shared["url"].as_str().unwrap().split_once("/shared/").unwrap().1.to_owned();
    let (id, query) = link.split_once('?').unwrap();
    let turn = format!("/shared/{id}/turn?{query}");
    assert!(server.send("GET", &turn, None).await.1.to_string().contains("five crowns"));
    put(&server, "docs", "Giraffe tickets cost five crowns.", "board").await;
    let shown = server.send("GET", &turn, None).await.1;
    assert!(!shown.to_string().contains("five crowns"), "{shown}");
    assert_eq!(shown["question"], "What do giraffe tickets cost?");
    put(&server, "docs", "Giraffe tickets cost five crowns.", "staff").await;
    assert!(server.send("GET", &turn, None).await.1.to_string().contains("five crowns"));
    drop(server);

    // Also when its corpus is gone, and the only one that is left has a document of the same id.
    let one = TWO.lines().filter(|line| !line.contains("\"docs\"")).collect::<Vec<_>>().join("\n");
    let server = start_with(directory.path(), &one.replace("[\"in docs\", \"in other\"]", "[\"in other\"]"));
    until(async || !search(&server, "penguin%20tickets").await.is_empty()).await;
    let shown = server.send("GET", &turn, None).await.1;
    assert!(
        shown["question"] == "What do giraffe tickets cost?" && !shown.to_string().contains("five crowns"),
        "{shown}"
    );
}

/// Why it exists: the link of a passage opened the passage of another corpus of the same documents, and said that the text was
/// gone.
#[tokio::test]
async fn a_link_opens_the_passage_that_was_cited_among_several_cuts_of_one_document() {
    let directory = tempfile::tempdir().unwrap();
    let text = "The bus leaves at ten. The ferry is blue. Dogs ride free. The tram leaves at six.";
    let row = json!({ "_id": "x", "text": text }).to_string();
    std::fs::write(directory.path().join("docs.jsonl"), row + "\n").unwrap();
    let corpus = |size: u32| {
        format!(r#"Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Sentences(size: {size}, overlap: 0))"#)
    };
    let pipeline = format!(
        r#"Pipeline(
            corpora: {{ "one": {}, "two": {} }},
            nodes: {{
                "turns": Stdin(),
                "query": LastTurn(input: "turns"),
                "found": Bm25(input: "query", corpus: "two", top: 5),
                "ones": Bm25(input: "query", corpus: "one", top: 5),
                "documents": GroupByDocument(input: "ones"),
                "answer": ExtractiveAnswer(input: "found"),
            }},
        )"#,
        corpus(1),
        corpus(2)
    );
    let server = Server::start(directory.path(), &pipeline, &[], &[]);
    let search = async |node: &str| {
        let found = server.send("GET", &format!("/v1/search?query=dogs&node={node}"), None).await.1;
        found["hits"][0].clone()
    };
    until(async || search("found").await.is_object()).await;
    let hit = search("found").await;
    assert_eq!((&hit["passage"], hit.get("corpus")), (&json!("x#1"), None), "one source");
    let (_, html, marked) = opened(&server, hit["page"].as_str().unwrap()).await;
    assert!(marked == "Dogs ride free. The tram leaves at six." && !html.contains("has changed"), "{html}");
    // A hit may be a whole document.
    let (_, html, _) = opened(&server, search("documents").await["page"].as_str().unwrap()).await;
    assert!(html.contains("Dogs ride free.") && !html.contains("has changed"), "{html}");
}

/// Why it exists: after an edit, the link of an answer marked whatever stood in the passage's place.
#[tokio::test]
async fn a_cited_passage_is_found_after_an_edit_or_said_to_be_gone() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path());
    put(&server, "docs", "The okapi house opens at nine. It closes at five.", "staff").await;
    let record = ask(&server, "When does the okapi house open?").await;
    let link = record["citations"][0]["url"].as_str().unwrap();
    let note = "The text that was cited is gone";
    let (_, html, marked) = opened(&server, link).await;
    assert!(marked == "The okapi house opens at nine." && !html.contains(note), "{html}");
    put(&server, "docs", "News first. Hours have changed. The okapi house opens at nine. It closes at five.", "staff")
        .await;
    let (_, html, marked) = opened(&server, link).await;
    assert!(marked == "The okapi house opens at nine." && !html.contains(note), "{html}");
    put(&server, "docs", "Unicorns are not admitted. Nor are dragons.", "staff").await;
    let (_, html, marked) = opened(&server, link).await;
    assert!(marked == "Unicorns are not admitted." && html.contains(note), "{html}");
}
