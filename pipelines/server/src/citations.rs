//! The sources of an answer, as annotations and as Markdown.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::http::HeaderMap;
use serde::Serialize;
use serde_json::{Value as Json, json};
use turnflow_engine::document::Corpus;
use turnflow_engine::record::{AnswerRecord, Hit, HitRecord, Status};
use turnflow_operators::citations::marks;

use crate::config::Citations;
use crate::links::{Links, address};
use crate::numbered::Numbered;

/// The request header that selects the format of sources.
const HEADER: &str = "x-turnflow-citations";

/// A passage that an answer is based on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Its id.
    pub passage: Arc<str>,
    /// The URL of a page that shows it.
    pub url: String,
    /// The title of its document.
    pub title: String,
}

/// The titles of passages, by the names of their corpora, where records have them, and by their ids.
#[derive(Debug, Default)]
pub struct Titles(HashMap<InCorpus, Arc<str>>);

/// The name of a corpus, where records have it, and the id of a passage.
type InCorpus = (Option<Arc<str>>, Arc<str>);

impl Titles {
    /// Adds those of an answer's passages.
    pub fn extend(&mut self, hits: &[Hit]) {
        for Hit { chunk, .. } in hits {
            self.add(chunk.place.corpus().map(Corpus::name), chunk.id.clone(), chunk.title.clone());
        }
    }

    /// Adds a title, if there is one.
    pub fn add(&mut self, corpus: Option<Arc<str>>, passage: Arc<str>, title: Arc<str>) {
        if !title.is_empty() {
            self.0.insert((corpus, passage), title);
        }
    }

    /// The title of a record's passage.
    pub fn of(&self, hit: &HitRecord) -> Option<&Arc<str>> {
        self.0.get(&(hit.corpus.0.clone(), hit.passage.clone()))
    }
}

impl Source {
    /// The source of a hit; `titles` contains the titles of passages.
    pub fn of(hit: &HitRecord, links: &Links, titles: &Titles) -> Self {
        let metadata = serde_json::to_value(&hit.metadata).unwrap_or_default();
        let field = |name: &str| metadata.get(name)?.as_str().filter(|text| !text.trim().is_empty());
        let known = titles.of(hit).map(|title| &**title);
        let title = known.or(field("title")).unwrap_or(&hit.document).to_owned();
        let is_pdf = field("mime") == Some("application/pdf") || hit.document.to_ascii_lowercase().ends_with(".pdf");
        let page = metadata.get("page").and_then(Json::as_u64).filter(|_| is_pdf);
        let url = match (field("url").and_then(address), page) {
            // Programs that show PDF files go to the page.
            (Some(url), Some(page)) if !url.contains('#') => format!("{url}#page={page}"),
            (Some(url), _) => url,
            (None, _) => links.passage(hit),
        };
        let title = page.map_or(title.clone(), |page| format!("{title}, p. {page}"));
        Self { passage: hit.passage.clone(), url, title }
    }
}

/// A place in an answer, and what it cites.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Citation {
    /// The number of the passage among the answer's hits, from 1, as it stands in the text.
    pub number: usize,
    /// The passage's id.
    pub passage: Arc<str>,
    /// The URL of a page that shows it.
    pub url: String,
    /// The title of its document.
    pub title: String,
    /// Where the mark begins in the text, in characters. Without marks: the end of the text.
    pub start_index: usize,
    /// Where it ends.
    pub end_index: usize,
}

impl Citation {
    /// As an annotation of a chat message.
    pub fn annotation(&self) -> Json {
        let Self { url, title, start_index, end_index, .. } = self;
        let citation = json!({ "url": url, "title": title, "start_index": start_index, "end_index": end_index });
        json!({ "type": "url_citation", "url_citation": citation })
    }

    /// As an annotation of the Responses API.
    pub fn output_annotation(&self) -> Json {
        let Self { url, title, start_index, end_index, .. } = self;
        json!({
            "type": "url_citation", "url": url, "title": title, "start_index": start_index, "end_index": end_index,
        })
    }
}

/// The passages that an answer is based on, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    all: Vec<Source>,
    /// Whether the answer is one, and no refusal.
    answers: bool,
    /// Whether the answer has the form that its caller asked for: nothing in it is a citation.
    formed: bool,
}

impl Sources {
    /// The sources of an answer.
    pub fn of(record: &AnswerRecord, links: &Links, titles: &Titles) -> Self {
        let all = record.hits.iter().map(|hit| Source::of(hit, links, titles)).collect();
        Self { all, answers: record.status == Status::Answered, formed: false }
    }

    /// The same for an answer of the form that its caller asked for.
    pub fn formed(self, formed: bool) -> Self {
        Self { formed, ..self }
    }

    /// Whether the answer has such a form.
    pub fn is_formed(&self) -> bool {
        self.formed
    }

    /// The sources with new numbers. Each has a title of its own, because clients take those with one title for one.
    #[must_use]
    pub fn in_order(mut self, numbered: &Numbered) -> Self {
        let mut all: Vec<Option<Source>> = self.all.into_iter().map(Some).collect();
        // A number of no passage was in the text before that was known.
        let order = numbered.order(all.len()).into_iter();
        self.all = order.map(|number| all.get_mut(number - 1).and_then(Option::take).unwrap_or_default()).collect();
        let mut titles: HashMap<String, usize> = HashMap::new();
        for source in &mut self.all {
            let known = titles.entry(source.title.clone()).or_default();
            *known += 1;
            if *known > 1 {
                source.title = format!("{} ({known})", source.title);
            }
        }
        self
    }

    /// The ids of the passages that a text cites, in the order of its marks; without marks, the first one if the text answers
    /// the question.
    pub fn based_on(&self, text: &str) -> Vec<Arc<str>> {
        let marks = if self.formed { Vec::new() } else { marks(text, self.all.len()) };
        let mut found: Vec<Arc<str>> = Vec::new();
        for number in marks.iter().flat_map(|mark| &mark.passages) {
            let source = number.checked_sub(1).and_then(|at| self.all.get(at));
            found
                .extend(source.map(|source| source.passage.clone()).filter(|id| !id.is_empty() && !found.contains(id)));
        }
        if found.is_empty() && self.answers {
            found.extend(self.all.first().map(|source| source.passage.clone()).filter(|id| !id.is_empty()));
        }
        found
    }

    /// What a text cites, in the order of its marks. A text without marks that answers the question cites every passage at
    /// its end: the passages are all that is known.
    pub fn cited(&self, text: &str) -> Vec<Citation> {
        let marks = if self.formed { Vec::new() } else { marks(text, self.all.len()) };
        let mut at = Characters::of(text);
        let cite = |number: usize, start_index: usize, end_index: usize| {
            let source = self.all.get(number.checked_sub(1)?).filter(|source| !source.url.is_empty());
            let Source { passage, url, title } = source?.clone();
            Some(Citation { number, passage, url, title, start_index, end_index })
        };
        if marks.is_empty() {
            let end = at.to(text.len());
            let all = if self.answers { self.all.len() } else { 0 };
            return (1..=all).filter_map(|number| cite(number, end, end)).collect();
        }
        let mut found = Vec::new();
        for mark in marks {
            let (start, end) = (at.to(mark.bytes.start), at.to(mark.bytes.end));
            found.extend(mark.passages.iter().filter_map(|number| cite(*number, start, end)));
        }
        found
    }
}

/// Counts the characters of a text up to places that come in order.
struct Characters<'t> {
    text: &'t str,
    bytes: usize,
    characters: usize,
}

impl<'t> Characters<'t> {
    fn of(text: &'t str) -> Self {
        Self { text, bytes: 0, characters: 0 }
    }

    fn to(&mut self, bytes: usize) -> usize {
        self.characters += self.text.get(self.bytes..bytes).map_or(0, |between| between.chars().count());
        self.bytes = bytes;
        self.characters
    }
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

/// What stands between an answer and the list of its sources.
const SOURCES: &str = "\n\n**Sources**\n\n";

/// A list of the cited passages with their numbers, to append to an answer; empty if there are none.
pub fn markdown(citations: &[Citation]) -> String {
    let by_number: BTreeMap<usize, &Citation> = citations.iter().map(|citation| (citation.number, citation)).collect();
    let mut list = String::new();
    for (number, citation) in by_number {
        let title = citation.title.split_whitespace().collect::<Vec<_>>().join(" ");
        let title: String =
            title.chars().flat_map(|c| c.is_ascii_punctuation().then_some('\\').into_iter().chain([c])).collect();
        let url: String = citation.url.chars().filter(|c| !c.is_whitespace() && !"<>".contains(*c)).collect();
        list.push_str(&format!("- \\[{number}\\] [{title}](<{url}>)\n"));
    }
    if list.is_empty() { list } else { format!("{SOURCES}{}", list.trim_end()) }
}

/// An answer without the lists that [`markdown`] has appended. Clients send it back as what was said; its links open
/// documents, and are not for a model.
pub fn without_list(answer: &str) -> Cow<'_, str> {
    if !answer.contains(SOURCES.trim()) {
        return answer.into();
    }
    let is_source = |line: &str| line.starts_with("- \\[") && line.ends_with(">)");
    let lines: Vec<&str> = answer.lines().collect();
    let (mut kept, mut at): (Vec<&str>, usize) = (Vec::new(), 0);
    while at < lines.len() {
        let begins = lines[at].trim() == SOURCES.trim();
        let list = lines[at + 1..].iter().position(|line| !line.trim().is_empty()).filter(|_| begins);
        let first = list.map(|blank| at + 1 + blank).filter(|first| is_source(lines[*first].trim()));
        match first {
            Some(first) => {
                let listed = lines[first..].iter().take_while(|line| is_source(line.trim())).count();
                while kept.last().is_some_and(|line| line.trim().is_empty()) {
                    kept.pop();
                }
                at = first + listed;
            }
            None => {
                kept.push(lines[at]);
                at += 1;
            }
        }
    }
    match kept.len() == lines.len() {
        true => answer.into(),
        false => kept.join("\n").trim_end().to_owned().into(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A passage of this document.
    pub(crate) fn hit(document: &str) -> HitRecord {
        HitRecord {
            passage: format!("{document}#0").into(),
            document: document.into(),
            score: 1.0,
            text: "t".into(),
            metadata: Default::default(),
            corpus: Default::default(),
            found: Default::default(),
        }
    }

    fn source(document: &str, fields: &Json) -> (String, String) {
        let metadata = turnflow_engine::metadata::Metadata::of(fields.as_object().unwrap()).0;
        let source = Source::of(&HitRecord { metadata, ..hit(document) }, &Links::relative("p q"), &Titles::default());
        (source.url, source.title)
    }

    #[test]
    fn a_source_has_a_link_and_a_title() {
        let mut titles = Titles::default();
        titles.add(None, "a b/ü.md#0".into(), "Title".into());
        let found = Source::of(&hit("a b/ü.md"), &Links::relative("p q"), &titles);
        assert_eq!(found.url, "/documents/a%20b/%C3%BC.md?pipeline=p%20q&passage=a%20b%2F%C3%BC.md%230#passage");
        assert_eq!(found.title, "Title");
        assert_eq!(source("x", &json!({})).1, "x");
    }

    #[test]
    fn a_source_in_a_pdf_file_has_its_page() {
        assert_eq!(source("a.PDF", &json!({"page": 12})).1, "a.PDF, p. 12");
        let elsewhere = source("x", &json!({"page": 2, "mime": "application/pdf", "url": "https://x.org/a"}));
        assert_eq!(elsewhere, ("https://x.org/a#page=2".to_owned(), "x, p. 2".to_owned()));
        for fields in [json!({"page": 2}), json!({"page": "two", "mime": "application/pdf"})] {
            assert_eq!(source("a.md", &fields).1, "a.md");
        }
        for other in ["javascript:alert(1)", " \tjavascript:https://x.org", "//x.org", "file:///a", "https:/x"] {
            assert!(source("a.md", &json!({ "url": other })).0.starts_with("/documents/a.md?"), "{other}");
        }
    }

    #[test]
    fn an_address_elsewhere_is_whole_where_it_is_written() {
        for (field, address) in [
            ("https://x.org/wiki/Käse?q=a%20b&c=(1)#d", "https://x.org/wiki/Käse?q=a%20b&c=(1)#d"),
            (" HTTPS://x.org/my file.pdf\n", "HTTPS://x.org/my%20file.pdf"),
            ("https://x.org/a\"><b>\u{a0}", "https://x.org/a%22%3E%3Cb%3E"),
            ("http://x.org/a\nhttps://y.org", "http://x.org/a%0Ahttps://y.org"),
        ] {
            assert_eq!(source("a.md", &json!({ "url": field })).0, address);
        }
    }

    #[test]
    fn the_list_of_sources_is_no_part_of_what_was_said() {
        let citation = |number: usize, title: &str| Citation {
            number,
            passage: "a#0".into(),
            url: format!("https://x.org/documents/a?key={number}#passage"),
            title: title.into(),
            start_index: 0,
            end_index: 3,
        };
        let list = markdown(&[citation(1, "A [b]"), citation(2, "C > d)")]);
        assert_eq!(without_list(&format!("It is **so**. [1]{list}")), "It is **so**. [1]");
        assert_eq!(without_list(&format!("It is.{list}\n")), "It is.");
        assert_eq!(without_list(&format!("It is.{list}").replace('\n', "\r\n")), "It is.");
        assert_eq!(without_list(&format!("It is.{list}\n\nMore.{list}")), "It is.\n\nMore.");
        assert_eq!(without_list(list.trim()), "");
        for other in ["", "It is.", "It is.\n\n**Sources**\n\n- a book", "A\n\n**Sources**\n\nMore.", "**Sources**"] {
            assert_eq!(without_list(other), other);
        }
    }

    fn sources(names: &[&str], answers: bool) -> Sources {
        let one = |name: &&str| Source { passage: (*name).into(), url: format!("/{name}"), title: (*name).to_owned() };
        Sources { all: names.iter().map(one).collect(), answers, formed: false }
    }

    #[test]
    fn only_what_the_text_cites_is_cited_where_it_does() {
        let of = sources(&["a", "b", "c"], true);
        let shown = |text: &str| -> Vec<(usize, usize, usize)> {
            of.cited(text).iter().map(|citation| (citation.number, citation.start_index, citation.end_index)).collect()
        };
        assert_eq!(shown("Ä [3], b [1, 3]."), [(3, 2, 5), (1, 9, 15), (3, 9, 15)]);
        assert_eq!(shown("ab"), [(1, 2, 2), (2, 2, 2), (3, 2, 2)]);
        assert_eq!(sources(&["a"], false).cited("I do not know."), []);
    }

    #[test]
    fn sources_follow_the_numbers_of_the_text() {
        let mut numbered = Numbered::default();
        let text = numbered.text("x [3] y [1][3]", 3);
        let of = sources(&["a", "b", "b"], true).in_order(&numbered);
        let found: Vec<(usize, String, String)> =
            of.cited(&text).into_iter().map(|cited| (cited.number, cited.url, cited.title)).collect();
        let expected = [(1, "/b", "b"), (2, "/a", "a"), (1, "/b", "b")];
        assert_eq!(found, expected.map(|(number, url, title)| (number, url.to_owned(), title.to_owned())));
        let titles: Vec<&str> = of.all.iter().map(|source| source.title.as_str()).collect();
        assert_eq!(titles, ["b", "a", "b (2)"]);
        // A number of no passage.
        numbered.text("[7]", 9);
        assert_eq!(sources(&["a"], true).in_order(&numbered).cited("[1] [2] [3]").len(), 1);
    }

    #[test]
    fn a_list_has_each_source_once_with_the_number_of_the_text() {
        let of = sources(&["A [b]\nc", "![a](http://x) <b> `c`"], true);
        let list = markdown(&of.cited("x [2] y [2][1]"));
        assert_eq!(
            list,
            "\n\n**Sources**\n\n- \\[1\\] [A \\[b\\] c](</A[b]c>)\n\
             - \\[2\\] [\\!\\[a\\]\\(http\\:\\/\\/x\\) \\<b\\> \\`c\\`](</![a](http://x)b`c`>)"
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
