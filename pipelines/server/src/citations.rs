//! The sources of an answer, as annotations and as Markdown.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use axum::http::HeaderMap;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value as Json, json};
use turnflow_engine::record::HitRecord;

use crate::config::Citations;

/// The request header that selects the format of sources.
const HEADER: &str = "x-turnflow-citations";

/// The characters to encode in the path of a document: all that need it, except slashes.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// A source of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Citation {
    /// Its URL.
    pub url: String,
    /// Its title.
    pub title: String,
}

impl Citation {
    /// The source of a hit; `titles` contains the titles of passages.
    pub fn of(hit: &HitRecord, pipeline: &str, titles: &HashMap<Arc<str>, Arc<str>>) -> Self {
        let record = serde_json::to_value(hit).unwrap_or_default();
        let field = |name: &str| record.get("metadata")?.get(name)?.as_str().filter(|text| !text.trim().is_empty());
        let is_link = |url: &&str| ["https://", "http://"].iter().any(|scheme| url.starts_with(scheme));
        let url = field("url").filter(is_link).map_or_else(|| path(&hit.document, pipeline), str::to_owned);
        let known = titles.get(&hit.passage).map(|title| &**title).filter(|title| !title.is_empty());
        let title = known.or(field("title")).unwrap_or(&hit.document).to_owned();
        let is_pdf = field("mime") == Some("application/pdf") || hit.document.to_ascii_lowercase().ends_with(".pdf");
        let page = record.get("metadata").and_then(|fields| fields.get("page")).and_then(Json::as_u64);
        match page.filter(|_| is_pdf && !url.contains('#')) {
            // Programs that show PDF files go to the page.
            Some(page) => Self { url: format!("{url}#page={page}"), title: format!("{title}, p. {page}") },
            None => Self { url, title },
        }
    }

    /// As an annotation of a chat message that ends at this character.
    pub fn annotation(&self, end: usize) -> Json {
        json!({ "type": "url_citation", "url_citation": {
            "url": self.url, "title": self.title, "start_index": end, "end_index": end,
        } })
    }

    /// As an annotation of the Responses API.
    pub fn output_annotation(&self, end: usize) -> Json {
        json!({
            "type": "url_citation", "url": self.url, "title": self.title, "start_index": end, "end_index": end,
        })
    }
}

/// The server's URL of a document.
pub fn path(document: &str, pipeline: &str) -> String {
    let (document, pipeline) = (utf8_percent_encode(document, IN_PATH), utf8_percent_encode(pipeline, IN_PATH));
    format!("/v1/documents/{document}?pipeline={pipeline}")
}

/// The format of a request's sources: from its header, or else as configured.
pub fn wanted(headers: &HeaderMap, configured: Citations) -> Citations {
    match headers.get(HEADER).and_then(|value| value.to_str().ok()).map(str::to_ascii_lowercase).as_deref() {
        Some("markdown") => Citations::Markdown,
        Some("annotations") => Citations::Annotations,
        Some("none") => Citations::None,
        _ => configured,
    }
}

/// A list of the distinct sources, to append to an answer; empty if there are none.
pub fn markdown(citations: &[Citation]) -> String {
    let mut seen = BTreeSet::new();
    let mut list = String::new();
    for citation in citations.iter().filter(|citation| seen.insert(citation.url.as_str())) {
        let title = citation.title.split_whitespace().collect::<Vec<_>>().join(" ");
        let title: String =
            title.chars().flat_map(|c| c.is_ascii_punctuation().then_some('\\').into_iter().chain([c])).collect();
        let url: String = citation.url.chars().filter(|c| !c.is_whitespace() && !"<>".contains(*c)).collect();
        list.push_str(&format!("- [{title}](<{url}>)\n"));
    }
    if list.is_empty() { list } else { format!("\n\n**Sources**\n\n{}", list.trim_end()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(document: &str) -> HitRecord {
        HitRecord {
            passage: format!("{document}#0").into(),
            document: document.into(),
            score: 1.0,
            text: "t".into(),
            metadata: Default::default(),
        }
    }

    #[test]
    fn a_source_has_a_path_and_a_title() {
        let titles = HashMap::from([("a b/ü.md#0".into(), "Title".into())]);
        let citation = Citation::of(&hit("a b/ü.md"), "p q", &titles);
        assert_eq!(citation.url, "/v1/documents/a%20b/%C3%BC.md?pipeline=p%20q");
        assert_eq!(citation.title, "Title");
        assert_eq!(Citation::of(&hit("x"), "p", &titles).title, "x");
    }

    #[test]
    fn a_source_in_a_pdf_file_has_its_page() {
        let metadata = |value: Json| turnflow_engine::metadata::Metadata::of(value.as_object().unwrap()).0;
        let of = |document: &str, fields: Json| {
            Citation::of(&HitRecord { metadata: metadata(fields), ..hit(document) }, "p", &HashMap::new())
        };
        let citation = of("a.PDF", json!({"page": 12}));
        assert_eq!(
            (citation.url.as_str(), citation.title.as_str()),
            ("/v1/documents/a.PDF?pipeline=p#page=12", "a.PDF, p. 12")
        );
        let elsewhere = of("x", json!({"page": 2, "mime": "application/pdf", "url": "https://x.org/a"}));
        assert_eq!(elsewhere.url, "https://x.org/a#page=2");
        for fields in [json!({"page": 2}), json!({"page": "two", "mime": "application/pdf"})] {
            assert_eq!(of("a.md", fields).url, "/v1/documents/a.md?pipeline=p");
        }
    }

    #[test]
    fn a_list_has_each_source_once() {
        let one = Citation { url: "/v1/x".into(), title: "A [b]\nc".into() };
        assert_eq!(markdown(&[one.clone(), one]), "\n\n**Sources**\n\n- [A \\[b\\] c](</v1/x>)");
        let hostile = Citation { url: "/v1/x".into(), title: "![a](http://x) <b> `c`".into() };
        assert_eq!(
            markdown(&[hostile]),
            "\n\n**Sources**\n\n- [\\!\\[a\\]\\(http\\:\\/\\/x\\) \\<b\\> \\`c\\`](</v1/x>)"
        );
        assert_eq!(markdown(&[]), "");
    }

    #[test]
    fn a_header_chooses() {
        let headers =
            HeaderMap::from_iter([(axum::http::HeaderName::from_static(HEADER), "Markdown".parse().unwrap())]);
        assert_eq!(wanted(&headers, Citations::None), Citations::Markdown);
        assert_eq!(wanted(&HeaderMap::new(), Citations::None), Citations::None);
    }
}
