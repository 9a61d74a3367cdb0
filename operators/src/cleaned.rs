//! Cleans a document before another chunker cuts it.
//!
//! ```ron
//! Cleaned(urls: true, headers: true, markup: true, chunk: Whole())
//! ```
//!
//! RAGTUM cleans its noisy corpora before it embeds them (abstract and section 9); the paper does not say what it
//! removes. This chunker removes what the operator `Clean` removes from passages: web addresses, header lines, and
//! HTML and Markdown markup. Passages, indexes and answers then have the cleaned text. Ids are those of the chunker in
//! `chunk`, and an edit that changes only what is removed changes no passage.
//!
//! Cleaning is repeated until it changes nothing, at most 16 times, so cleaning a cleaned document changes nothing. A
//! document of nothing but header lines keeps these lines; one of nothing but addresses or markup keeps its text. So no
//! document disappears. Titles do not change. Cost: time proportional to the length of the document.

use std::sync::Arc;

use turnflow_engine::component::{Check, Chunker, ChunkerConfig, ChunkerKind, config};
use turnflow_engine::document::{Chunk, Document};
use turnflow_engine::inference::Tokenize;

use crate::chunk::headings::HeadingsConfig;
use crate::chunk::sentences::SentencesConfig;
use crate::chunk::tokens::TokensConfig;
use crate::chunk::whole::WholeConfig;
use crate::cleaning::Cleaning;

/// Entry in the chunker table.
pub const KIND: ChunkerKind = ChunkerKind::of::<CleanedConfig>(
    "Cleaned",
    "another chunker's passages of a document without addresses, header lines and markup",
);

/// The chunker that cuts the cleaned document.
#[config]
pub enum Cut {
    /// One passage.
    Whole(WholeConfig),
    /// Passages of a fixed number of tokens.
    Tokens(TokensConfig),
    /// Passages of a fixed number of sentences.
    Sentences(SentencesConfig),
    /// The sections.
    Headings(HeadingsConfig),
}

impl Cut {
    fn config(&self) -> &dyn ChunkerConfig {
        match self {
            Cut::Whole(config) => config,
            Cut::Tokens(config) => config,
            Cut::Sentences(config) => config,
            Cut::Headings(config) => config,
        }
    }
}

/// Fields of `Cleaned`.
#[config]
pub struct CleanedConfig {
    /// Removes web addresses. The text of a Markdown link stays.
    #[field(default = true)]
    pub urls: bool,
    /// Removes Markdown headings, and lines at the start of the document that have no full stop and at most eight words.
    #[field(default = true)]
    pub headers: bool,
    /// Removes headers further down too: lines that repeat the title, and short lines between blank lines, with text below,
    /// that begin with a capital letter or a digit. Needs `headers`.
    #[field(default)]
    pub all_headers: bool,
    /// Removes HTML tags, emphasis marks, table rules and similar markup.
    #[field(default = true)]
    pub markup: bool,
    /// The chunker of the cleaned document: `Whole`, `Tokens`, `Sentences` or `Headings`. `Headings` needs
    /// `headers: false`.
    pub chunk: Cut,
}

impl ChunkerConfig for CleanedConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if !(self.urls || self.headers || self.markup) {
            check.error("wrong-value", "urls", "there is nothing to remove: all options are off");
        }
        if self.all_headers && !self.headers {
            check.error("wrong-value", "all_headers", "`headers` is off, so no header is removed");
        }
        if self.headers && matches!(self.chunk, Cut::Headings(_)) {
            check.error(
                "wrong-value",
                "chunk",
                "`Headings` cuts at headings, which `headers` removes; set it to false",
            );
        }
        check.within("chunk", |check| {
            self.chunk.config().check_ranges(check);
            self.chunk.config().validate(check);
        });
    }

    fn tokenizer(&self) -> Option<Option<&str>> {
        self.chunk.config().tokenizer()
    }

    fn build(&self, tokenizer: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker> {
        let Self { urls, headers, all_headers, markup, .. } = *self;
        let cleaning = Cleaning { urls, headers, all_headers, markup };
        Arc::new(Cleaned { cleaning, chunker: self.chunk.config().build(tokenizer) })
    }
}

struct Cleaned {
    cleaning: Cleaning,
    chunker: Arc<dyn Chunker>,
}

impl Chunker for Cleaned {
    fn chunk(&self, document: &Document) -> Vec<Chunk> {
        let text = cleaned(&document.text, &document.title, self.cleaning);
        self.chunker.chunk(&Document { text: text.into(), ..document.clone() })
    }
}

/// Maximum number of passes of [`cleaned`].
const PASSES: usize = 8;

/// The cleaned text. If nothing would be left, header lines stay, and then everything. A header that stayed may be one
/// beside a line that has more words without its markup, so this is repeated until nothing changes.
fn cleaned(text: &str, title: &str, cleaning: Cleaning) -> String {
    let mut text = cleaned_once(text, title, cleaning);
    for _ in 1..PASSES {
        let next = cleaned_once(&text, title, cleaning);
        if next == text {
            break;
        }
        text = next;
    }
    text
}

fn cleaned_once(text: &str, title: &str, cleaning: Cleaning) -> String {
    let all = cleaning.stable(text, title);
    if !all.is_empty() || text.trim().is_empty() {
        return all;
    }
    let rest = Cleaning { headers: false, all_headers: false, ..cleaning }.stable(text, title);
    if rest.is_empty() { text.to_owned() } else { rest }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use turnflow_engine::document::Markup;

    use super::*;

    const ALL: Cleaning = Cleaning { urls: true, headers: true, all_headers: true, markup: true };

    fn document(text: &str) -> Document {
        Document {
            id: "d".into(),
            title: "Ferry".into(),
            text: text.into(),
            markup: Markup::Plain,
            metadata: Default::default(),
        }
    }

    fn chunker(config: &str) -> Arc<dyn Chunker> {
        turnflow_engine::spec::from_str::<CleanedConfig>(config).unwrap().build(None)
    }

    #[test]
    fn the_cleaned_text_is_cut_and_ids_are_the_inner_chunkers() {
        let text = "Home > Ferry\n\nThe <b>ferry</b> leaves at ten, see https://a.example/t. It takes an hour.";
        let whole = chunker("(chunk: Whole())").chunk(&document(text));
        assert_eq!((&*whole[0].id, &*whole[0].title), ("d", "Ferry"));
        assert_eq!(&*whole[0].text, "The ferry leaves at ten, see . It takes an hour.");
        let sentences = chunker("(chunk: Sentences(size: 1))").chunk(&document(text));
        let ids: Vec<&str> = sentences.iter().map(|chunk| &*chunk.id).collect();
        assert_eq!(ids, ["d#0", "d#1"]);
    }

    /// An edit within what is removed leaves the passages, and thereby the indexes, as they are.
    #[test]
    fn an_edit_of_what_is_removed_changes_no_passage() {
        let chunker = chunker("(chunk: Whole())");
        let of =
            |address: &str| chunker.chunk(&document(&format!("The ferry leaves at ten: https://{address} today.")));
        assert_eq!(of("a.example/one"), of("b.example/two"));
    }

    #[test]
    fn no_document_disappears() {
        for (text, want) in [
            ("Opening hours", "Opening hours"),
            ("# **Opening** hours", "# Opening hours"),
            ("https://a.example/t", "https://a.example/t"),
            ("<br/>", "<br/>"),
            ("See https://a.example for it", "See for it"),
        ] {
            assert_eq!(cleaned(text, "", ALL), want, "{text}");
        }
        assert!(chunker("(chunk: Whole())").chunk(&Document { title: "".into(), ..document(" ") }).is_empty());
    }

    /// Pieces of text, markup and addresses in several scripts.
    fn piece() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z]{1,9}( [a-zA-Z]{1,12}){0,14}[.?!,]? ",
            "[A-Z][a-z]{1,8} ",
            "[一-龥]{1,30}。?",
            "[ก-ฮ][ะ-ู]?[่-๋]?[ก-ฮ]{1,9}",
            "[ء-ي]{1,9}( [ء-ي]{1,9}){0,9}؟?",
            "(👨‍👩‍👧|🇫🇷|é̃̂){1,5}",
            "https?://[a-zé一]{1,9}[.][a-z]{2}[/?&=a-z;.)]{0,9} ",
            "\\[[a-zé]{0,5}\\]\\((https://)?[a-z]{1,5}( \"t\")?\\) ?",
            "</?(b|br|p|a href=[a-z]|x)/?> ?",
            "(&amp;|&lt;|&gt;|amp;|&nbsp;|lt;){1,3}",
            "[*_`~#>|=-]{1,4} ?",
            "\n{1,3}",
            "[ \t\u{3000}]{1,5}",
            "[\u{0}-\u{1f}\u{200b}\u{202e}\u{feff}]{1,3}",
        ]
    }

    /// The second line is longer without its markup, so the first one becomes a header only then.
    #[test]
    fn a_line_that_grows_makes_the_one_before_it_a_header() {
        let cleaning = Cleaning { urls: false, headers: true, all_headers: false, markup: true };
        assert_eq!(cleaned("a\nb <b>c =|d e -|f g h i j", "", cleaning), "b c = d e - f g h i j");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn cleaning_twice_is_cleaning_once(
            pieces in prop::collection::vec(piece(), 0..30),
            (urls, headers, all_headers, markup) in any::<(bool, bool, bool, bool)>(),
        ) {
            let text = pieces.concat();
            let cleaning = Cleaning { urls, headers, all_headers: all_headers && headers, markup };
            let once = cleaned(&text, "ferry", cleaning);
            prop_assert_eq!(&cleaned(&once, "ferry", cleaning), &once);
            prop_assert!(once.is_empty() == text.trim().is_empty() || once.trim().is_empty());
            prop_assert!(once.len() <= text.len());
        }
    }
}
