//! `/documents/{id}`: a page that shows a document as its passages, with the cited one marked.
//!
//! It is for people who open a link of an answer, so it works for the documents of every source: it reads the published
//! passages and not the source. On a server with tokens, the link's signature says who may read it (`links.rs`).

use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::sync::Semaphore;
use turnflow_engine::document::Chunk;
use turnflow_engine::record::text_mark;

use crate::app::App;
use crate::body::{InPath, Params};
use crate::error::ApiError;
use crate::links::{address, groups, opens};
use crate::page::POLICY;
use crate::served::Served;

/// Most passages on a page, and most bytes of their texts.
const PASSAGES: usize = 200;
const BYTES: usize = 1 << 20;
/// Passages before the cited one on a page of a longer document.
const BEFORE: usize = 50;
/// Pages that are made at once: each looks at every passage of its corpora.
pub(crate) static MAKING: Semaphore = Semaphore::const_new(2);
/// Pictures that are drawn at once. The others of the readers' places are for documents.
static DRAWING: Semaphore = Semaphore::const_new(1);

/// The parameters of the URL.
#[derive(Debug, Default, Deserialize)]
pub struct CitedParams {
    /// The pipeline. Default: the first.
    pipeline: Option<String>,
    /// The document's corpus, or the first one with its source, if several may have a document of this id.
    corpus: Option<String>,
    /// The cited passage.
    passage: Option<String>,
    /// Tells the text of the cited passage from others, in hexadecimal digits: after an edit, another one may have its id.
    text: Option<String>,
    /// The signature of the link.
    key: Option<String>,
    /// The passage to begin with, from 0. Default: some before the cited one.
    from: Option<usize>,
    /// The page to show as a picture, from 1, instead of the document's text.
    picture: Option<u32>,
}

/// The media type of PDF files.
const PDF: &str = "application/pdf";

/// Shows a document.
pub async fn show(State(app): State<App>, InPath(id): InPath<String>, Params(params): Params<CitedParams>) -> Response {
    if let Some(page) = params.picture {
        return picture(&app, &id, page, &params).await.unwrap_or_else(IntoResponse::into_response);
    }
    match page(&app, &id, &params).await {
        Ok(html) => respond(StatusCode::OK, html),
        Err(error) => {
            let title = "The document cannot be shown";
            let body = format!("<h1>{title}</h1>\n<p>{}</p>\n", escaped(&error.message));
            respond(error.status, whole(title, &body))
        }
    }
}

/// What a link opens: the corpus of the document, and its passages.
async fn opened<'a>(
    app: &'a App,
    id: &str,
    params: &CitedParams,
) -> Result<(&'a Served, Arc<str>, Vec<Arc<Chunk>>), ApiError> {
    let name = params.pipeline.as_deref();
    let served = match name {
        Some(name) => app.pipelines().iter().find(|served| **served.name() == *name),
        None => app.pipelines().first(),
    };
    let refused = || {
        ApiError::forbidden("This link has expired, or it is not complete. Ask the question again to get a new one.")
    };
    let unknown = || ApiError::not_found("There is no such document. It may have been deleted since the answer.");
    let corpus = params.corpus.as_deref();
    let served = served.ok_or_else(|| if app.tokens().is_empty() { unknown() } else { refused() })?;
    let groups = groups(app, served, params.key.as_deref(), &opens(id, corpus)).ok_or_else(refused)?;
    let has = |passages: &[Arc<Chunk>]| cited(passages, params).map_or(0, |(_, is_it)| if is_it { 2 } else { 1 });
    let (corpus, passages) = document_of(served, id, corpus, has, 2, &groups).await?.ok_or_else(unknown)?;
    Ok((served, corpus, passages))
}

async fn page(app: &App, id: &str, params: &CitedParams) -> Result<String, ApiError> {
    let _one = MAKING.acquire().await;
    let (served, corpus, passages) = opened(app, id, params).await?;
    let cited = cited(&passages, params);
    let is_pdf = passages[0].metadata.values("mime").first().is_some_and(|mime| mime.to_string() == PDF);
    let has_pictures = is_pdf && served.engine().page_views(&corpus).is_some();
    Ok(shown(id, &passages, cited, params, has_pictures))
}

/// A page of the document's file as it looks now, with the cited passage marked.
async fn picture(app: &App, id: &str, page: u32, params: &CitedParams) -> Result<Response, ApiError> {
    let (served, corpus, passages) = {
        let _one = MAKING.acquire().await;
        opened(app, id, params).await?
    };
    let none = || ApiError::not_found("There is no picture of this page.");
    let views = served.engine().page_views(&corpus).ok_or_else(none)?;
    let text = cited(&passages, params).map(|(at, _)| passages[at].text.clone()).unwrap_or_default();
    let id = id.to_owned();
    drop(passages);
    let place = DRAWING.acquire().await;
    let drawn = tokio::task::spawn_blocking(move || {
        // Who leaves does not give the place back: the drawing goes on.
        let _place = place;
        views.picture(&id, page, &text)
    });
    let drawn = drawn.await;
    let drawn = drawn.map_err(|error| ApiError::server(error.to_string()))?;
    let png = drawn.map_err(|error| ApiError::not_found(format!("There is no picture of this page: {error}")))?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("image/png")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, no-store")),
    ];
    Ok((headers, png.ok_or_else(none)?).into_response())
}

/// The corpora that may be meant by a name under which a record has a corpus: itself, and those with its source. None, if it
/// is gone; all, if the record names none.
pub(crate) fn meant(served: &Served, told_apart: Option<&str>) -> Vec<Arc<str>> {
    let mut corpora: Vec<Arc<str>> = served.engine().corpora().into_iter().map(|(corpus, ..)| corpus).collect();
    let Some(name) = told_apart else { return corpora };
    if corpora.iter().all(|corpus| **corpus != *name) {
        return Vec::new();
    }
    let aliases = served.engine().epochs().current().aliases.clone();
    // Without another source, all have the same documents.
    corpora.retain(|corpus| aliases.told_apart(corpus) == aliases.told_apart(name));
    corpora
}

/// The passages of a document that these groups may read, and their corpus: the first of those for which `has` is greatest,
/// which is at most `most`; `None` if there are none. `told_apart` is the name under which a record has the corpus, if it names one.
pub(crate) async fn document_of(
    served: &Served,
    id: &str,
    told_apart: Option<&str>,
    has: impl Fn(&[Arc<Chunk>]) -> usize,
    most: usize,
    groups: &[Arc<str>],
) -> Result<Option<(Arc<str>, Vec<Arc<Chunk>>)>, ApiError> {
    let mut found: Option<(usize, Arc<str>, Vec<Arc<Chunk>>)> = None;
    for corpus in meant(served, told_apart) {
        let passages = served.engine().passages(&corpus, id, groups).await;
        let passages = passages.map_err(|error| ApiError::server(format!("The corpus cannot be read: {error}")))?;
        let fits = has(&passages);
        if !passages.is_empty() && found.as_ref().is_none_or(|(best, ..)| *best < fits) {
            found = Some((fits, corpus, passages));
        }
        if found.is_some() && fits >= most {
            break;
        }
    }
    Ok(found.map(|(_, corpus, passages)| (corpus, passages)))
}

/// Which passage is cited, and whether it has the text that was cited. After an edit, the text may be in another place, and
/// another text in its place.
fn cited(passages: &[Arc<Chunk>], params: &CitedParams) -> Option<(usize, bool)> {
    let id = params.passage.as_deref()?;
    let here = passages.iter().position(|chunk| *chunk.id == *id);
    let Some(mark) = params.text.as_deref().and_then(|mark| u32::from_str_radix(mark, 16).ok()) else {
        return here.map(|at| (at, true));
    };
    let is_it = |at: &usize| text_mark(&passages[*at].text) == mark;
    // Of several with the text, the nearest.
    let near = here.or_else(|| id.rsplit_once('#')?.1.parse().ok()).unwrap_or_default();
    let moved = || (0..passages.len()).filter(is_it).min_by_key(|at| at.abs_diff(near));
    match here.filter(is_it).or_else(moved) {
        Some(at) => Some((at, true)),
        None => here.map(|at| (at, false)),
    }
}

/// The page of a document.
fn shown(
    id: &str,
    passages: &[Arc<Chunk>],
    cited: Option<(usize, bool)>,
    params: &CitedParams,
    has_pictures: bool,
) -> String {
    let is_changed = cited.is_some_and(|(_, is_it)| !is_it);
    let cited = cited.map(|(at, _)| at);
    let from = match params.from {
        Some(from) => from.min(passages.len().saturating_sub(1)),
        None if passages.len() <= PASSAGES => 0,
        None => cited.unwrap_or_default().saturating_sub(BEFORE),
    };
    let (mut to, mut bytes) = (from, 0);
    while to < passages.len() && to - from < PASSAGES && (to == from || bytes < BYTES) {
        bytes += passages[to].text.len();
        to += 1;
    }
    let mut body = format!("<h1><bdi>{}</bdi></h1>\n", escaped(id));
    if let Some(url) = link(&passages[0]) {
        let (href, url) = (attribute(&url), escaped(&url));
        let _ = writeln!(body, "<p><a href=\"{href}\" rel=\"noopener noreferrer\">{url}</a></p>");
    }
    // A hit may be a whole document.
    if params.passage.as_deref().is_some_and(|passage| passage != id) && cited.is_none() {
        body.push_str("<p class=\"note\">The document has changed since the answer: the cited passage is gone.</p>\n");
    }
    if is_changed {
        body.push_str(
            "<p class=\"note\">The document has changed since the answer. The text that was cited is gone; what is marked \
             stands in its place now.</p>\n",
        );
    }
    let query_with = |name: &str, value: &str| {
        let field = |name: &str, value: &Option<String>| match value {
            Some(value) => format!("{name}={}&", percent_encoding::utf8_percent_encode(value, crate::links::IN_QUERY)),
            None => String::new(),
        };
        let query = [
            field("pipeline", &params.pipeline),
            field("corpus", &params.corpus),
            field("passage", &params.passage),
            field("text", &params.text),
            field("key", &params.key),
        ];
        attribute(&format!("?{}{name}={value}", query.concat()))
    };
    let move_to = |from: usize, words: &str| {
        format!("<p><a href=\"{}\">{words}</a></p>\n", query_with("from", &from.to_string()))
    };
    if to - from < passages.len() {
        let _ = writeln!(body, "<p class=\"note\">Passages {} to {to} of {}.</p>", from + 1, passages.len());
    }
    if from > 0 {
        body.push_str(&move_to(from.saturating_sub(PASSAGES), "Earlier passages"));
    }
    let (mut title, mut at_page) = (String::new(), None);
    for (at, chunk) in passages.iter().enumerate().take(to).skip(from) {
        if *chunk.title != *title && *chunk.title != *id {
            let _ = writeln!(body, "<h2><bdi>{}</bdi></h2>", escaped(&chunk.title));
        }
        title = chunk.title.to_string();
        let page = chunk.metadata.values("page").first().map(ToString::to_string);
        if page != at_page {
            if let Some(page) = &page {
                let words = format!("Page {}", escaped(page));
                let _ = match page.parse::<u32>().ok().filter(|_| has_pictures) {
                    Some(page) => {
                        let picture = query_with("picture", &page.to_string());
                        writeln!(body, "<p class=\"page\"><a href=\"{picture}\">{words}</a></p>")
                    }
                    None => writeln!(body, "<p class=\"page\">{words}</p>"),
                };
            }
            at_page = page;
        }
        let marked =
            if cited == Some(at) { " id=\"passage\" class=\"cited\" aria-label=\"The cited passage\"" } else { "" };
        let _ = writeln!(body, "<section{marked}><p dir=\"auto\">{}</p></section>", escaped(chunk.text.trim()));
        let page = at_page.as_ref().and_then(|page| page.parse::<u32>().ok());
        if let Some(page) = page.filter(|_| has_pictures && cited == Some(at)) {
            let picture = query_with("picture", &page.to_string());
            let alt = format!("Page {page} of the file, with the passage marked");
            let _ = writeln!(body, "<figure><a href=\"{picture}\"><img src=\"{picture}\" alt=\"{alt}\"></a></figure>");
        }
    }
    if to < passages.len() {
        body.push_str(&move_to(to, "Later passages"));
    }
    whole(id, &body)
}

/// The address of the document elsewhere, if its metadata has one.
fn link(chunk: &Chunk) -> Option<String> {
    address(&chunk.metadata.values("url").first()?.to_string())
}

fn whole(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"robots\" content=\"noindex\">\n\
         <title>{}</title>\n<link rel=\"icon\" href=\"data:,\">\n<link rel=\"stylesheet\" href=\"/page/document.css\">\n</head>\n\
         <body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escaped(title)
    )
}

/// Text for HTML, without control characters and without the power to turn its surroundings around. Quotation marks stay:
/// what is in an attribute is [`attribute`].
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\n' | '\t' => out.push(c),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Text for an attribute of HTML.
fn attribute(text: &str) -> String {
    escaped(text).replace('"', "&quot;").replace('\'', "&#39;")
}

fn respond(status: StatusCode, html: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        // The link opens the document for whoever has it.
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, no-store")),
    ];
    (status, headers, html).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passages(texts: &[&str]) -> Vec<Arc<Chunk>> {
        let chunk = |(n, text): (usize, &&str)| {
            Arc::new(Chunk::new(format!("d#{n}").into(), "d".into(), "T".into(), (*text).into()))
        };
        texts.iter().enumerate().map(chunk).collect()
    }

    #[test]
    fn the_cited_passage_is_marked_and_nothing_is_markup() {
        let html = shown(
            "<d>",
            &passages(&["a", "<script>alert('x')</script> \u{202e}&"]),
            Some((1, true)),
            &CitedParams::default(),
            false,
        );
        let marked = "<section id=\"passage\" class=\"cited\" aria-label=\"The cited passage\"><p dir=\"auto\">\
                      &lt;script&gt;alert('x')&lt;/script&gt; \u{fffd}&amp;</p>";
        assert!(html.contains(marked) && html.contains("<bdi>&lt;d&gt;</bdi>") && !html.contains("<script"), "{html}");
        assert_eq!(html.matches("<h2>").count(), 1);
    }

    #[test]
    fn a_long_document_is_shown_around_the_passage() {
        let texts = vec!["x"; 1000];
        let params = CitedParams { passage: Some("d#500".into()), key: Some("a\"b".into()), ..CitedParams::default() };
        let html = shown("d", &passages(&texts), Some((500, true)), &params, false);
        assert!(html.contains("Passages 451 to 650 of 1000.") && html.contains("id=\"passage\""));
        assert!(html.contains("passage=d%23500&amp;key=a%22b&amp;from=250\">Earlier"), "{html}");
        let gone = shown("d", &passages(&texts), None, &params, false);
        assert!(gone.contains("the cited passage is gone"));
    }

    #[test]
    fn the_cited_text_is_looked_for_before_its_place() {
        let of = |texts: &[&str], id: &str, text: Option<&str>| {
            let text = text.map(|text| format!("{:08x}", text_mark(text)));
            cited(&passages(texts), &CitedParams { passage: Some(id.into()), text, ..CitedParams::default() })
        };
        assert_eq!(of(&["a", "b", "c"], "d#1", Some("b")), Some((1, true)));
        assert_eq!(of(&["new", "a", "b"], "d#1", Some("b")), Some((2, true)), "it has moved");
        assert_eq!(of(&["b", "x", "x", "b", "x"], "d#2", Some("b")), Some((3, true)), "the nearest");
        assert_eq!(of(&["b"], "d#9", Some("b")), Some((0, true)), "the document is shorter");
        assert_eq!(of(&["a", "x"], "d#1", Some("b")), Some((1, false)), "it is gone");
        assert_eq!(of(&["a"], "d#1", Some("b")), None);
        assert_eq!(of(&["a", "x"], "d#1", None), Some((1, true)), "the link does not say what was cited");
        assert_eq!(cited(&passages(&["a"]), &CitedParams::default()), None);
        let odd = CitedParams { passage: Some("d#0".into()), text: Some("zz".into()), ..CitedParams::default() };
        assert_eq!(cited(&passages(&["a"]), &odd), Some((0, true)));
    }
}
