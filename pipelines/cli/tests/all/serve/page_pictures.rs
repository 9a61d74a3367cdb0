//! The pages of PDF files as pictures, for whom a link of an answer is.

use turnflow_connectors::readers::samples::{pdf_of_objects, stream};

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
    let text = query.split('&').find(|field| field.starts_with("text=")).unwrap();
    let (status, _, bare) = get(&server, &picture.replace(passage, "passage=none").replace(text, "text=0")).await;
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

/// A PDF of one page with this text, and with this drawing as often as told. A shading whose function is long takes its time.
fn page_of(text: &str, shadings: usize) -> Vec<u8> {
    let function = format!("{{ {}pop 0.5 exch 0.2 }}", "sin exch cos ".repeat(3000));
    pdf_of_objects(&[
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R \
         /Resources << /Font << /F1 5 0 R >> /Shading << /S 6 0 R >> >> >>"
            .to_owned(),
        stream("", &format!("BT /F1 12 Tf 50 700 Td ({text}) Tj ET\n{}", "/S sh\n".repeat(shadings))),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned(),
        "<< /ShadingType 1 /ColorSpace /DeviceRGB /Domain [0 1 0 1] /Matrix [612 0 0 792 0 0] /Function 7 0 R >>"
            .to_owned(),
        stream("/FunctionType 4 /Domain [0 1 0 1] /Range [0 1 0 1 0 1]", &function),
    ])
}

#[tokio::test]
async fn who_asks_for_slow_pages_and_leaves_holds_up_nobody() {
    if model("pdfium").is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let docs = directory.path().join("docs");
    std::fs::create_dir(&docs).unwrap();
    std::fs::write(docs.join("slow.pdf"), page_of("The slow refund is paid within thirty days.", 2000)).unwrap();
    std::fs::write(docs.join("good.pdf"), page_of("The good refund is paid within thirty days.", 0)).unwrap();
    let server = Server::start(directory.path(), PIPELINE, &[], &[]);
    let passage = async |word: &str| {
        let url = format!("{}/v1/search?top=1&query={word}", server.url);
        let found = server.client.get(url).send().await.unwrap().json::<Value>().await.unwrap();
        let text = found["hits"][0]["text"].as_str().is_some_and(|text| text.contains(word));
        text.then(|| found["hits"][0]["passage"].as_str().unwrap().replace('#', "%23"))
    };
    until(async || passage("slow").await.is_some() && passage("good").await.is_some()).await;
    let picture =
        async |name: &str, passage: &str| format!("{}/documents/{name}.pdf?picture=1&passage={passage}", server.url);
    let slow = picture("slow", &passage("slow").await.unwrap()).await;
    for n in 0..40 {
        let asked = server.client.get(&slow).timeout(Duration::from_millis(50)).send().await;
        assert!(asked.is_err(), "picture {n} came at once: it is not slow");
    }
    // Another document is read, and another page is drawn.
    std::fs::write(docs.join("new.pdf"), page_of("The fresh refund is paid within thirty days.", 0)).unwrap();
    until(async || passage("fresh").await.is_some()).await;
    let (status, mime, _) = get(&server, &picture("new", &passage("fresh").await.unwrap()).await).await;
    assert_eq!((status, mime.as_str()), (200, "image/png"));
    // The slow page takes too much; that is said, and known when it is asked for again.
    let (status, _, told) = get(&server, &slow).await;
    let told = String::from_utf8(told).unwrap();
    assert!(status == 404 && told.contains("too much time of the processor"), "{told}");
    for _ in 0..20 {
        let asked = server.client.get(&slow).timeout(PATIENCE).send().await.unwrap();
        assert_eq!(asked.text().await.unwrap(), told);
    }
}
