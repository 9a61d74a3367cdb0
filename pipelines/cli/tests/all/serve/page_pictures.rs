//! The pages of PDF files as pictures, for whom a link of an answer is.

use super::*;
use crate::support::model;

const PIPELINE: &str = r#"Pipeline(
    name: "demo",
    corpora: { "docs": Corpus(source: Directory(path: "docs", ocr: Never), chunk: Sentences(size: 2, overlap: 0)) },
    nodes: {
        "turns": Stdin(),
        "query": UserTurns(input: "turns", last: 1),
        "found": Bm25(input: "query", corpus: "docs", top: 5),
        "answer": ExtractiveAnswer(input: "found"),
    },
)"#;

/// Gets a link of a page. Returns the status, the media type, and the bytes.
async fn get(server: &Server, link: &str) -> (u16, String, Vec<u8>) {
    let response = server.client.get(link.split('#').next().unwrap()).send().await.unwrap();
    let mime = response.headers()["content-type"].to_str().unwrap().to_owned();
    (response.status().as_u16(), mime, response.bytes().await.unwrap().to_vec())
}

#[tokio::test]
async fn the_page_of_a_cited_pdf_is_shown_as_a_picture() {
    if model("pdfium").is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let docs = directory.path().join("docs");
    std::fs::create_dir(&docs).unwrap();
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../connectors/readers/tests/pdf");
    std::fs::copy(files.join("pages.pdf"), docs.join("a \"b\" & c.pdf")).unwrap();
    std::fs::write(docs.join("ferry.md"), "The ferry leaves at nine.").unwrap();
    std::fs::write(
        directory.path().join("serve.ron"),
        r#"Serve(tokens: [(name: "ann", token: Env("ANN"), extra: {"groups": ["board"]})])"#,
    )
    .unwrap();
    let server = Server::start(directory.path(), PIPELINE, &["--config", "serve.ron"], &[("ANN", "ann-secret")]);
    let search = async |query: &str| {
        let url = format!("{}/v1/search?top=1&query={query}", server.url);
        let found = server.client.get(url).bearer_auth("ann-secret").send().await.unwrap();
        found.json::<Value>().await.unwrap()["hits"][0].clone()
    };
    until(async || search("lighthouse").await.is_object() && search("ferry").await.is_object()).await;
    let hit = search("lighthouse%20lamp").await;
    let link = hit["page"].as_str().unwrap();
    let (status, _, html) = get(&server, link).await;
    let html = String::from_utf8(html).unwrap();
    let page = hit["metadata"]["page"].as_u64().unwrap();
    let alt = format!("alt=\"Page {page} of the file, with the passage marked\"");
    assert!(status == 200 && html.contains(&alt), "{html}");
    // The picture's address is beside it, for a browser.
    let query = html.split("<img src=\"").nth(1).unwrap().split('"').next().unwrap().replace("&amp;", "&");
    let document = link.split('?').next().unwrap();
    let picture = format!("{document}{query}");
    let (status, mime, marked) = get(&server, &picture).await;
    assert_eq!((status, mime.as_str()), (200, "image/png"), "{picture}");
    assert!(marked.starts_with(b"\x89PNG\r\n\x1a\n") && marked.len() > 5000, "{} bytes", marked.len());
    let passage = query.split('&').find(|field| field.starts_with("passage=")).unwrap();
    let (status, _, bare) = get(&server, &picture.replace(passage, "passage=none")).await;
    assert!(status == 200 && bare != marked);

    // Nobody else sees it, and there is no other page.
    let key = query.split('&').find(|field| field.starts_with("key=")).unwrap();
    assert_eq!(get(&server, &picture.replace(key, "key=x.y")).await.0, 403);
    let other = |number: &str| picture.replace(&format!("picture={page}"), &format!("picture={number}"));
    for number in ["0", "99", "4294967295"] {
        let (status, _, told) = get(&server, &other(number)).await;
        assert_eq!(status, 404, "{}", String::from_utf8_lossy(&told));
    }
    assert_eq!(get(&server, &other("-1")).await.0, 400);
    // A document that is no PDF has none.
    let hit = search("ferry").await;
    let link = hit["page"].as_str().unwrap().split('#').next().unwrap();
    let (_, _, html) = get(&server, link).await;
    assert!(!String::from_utf8(html).unwrap().contains("<img"));
    assert_eq!(get(&server, &format!("{link}&picture=1")).await.0, 404);
}
