//! One chunk for each section of Markdown, from one heading to the next, titled by the path of headings above it. Long
//! sections are cut between paragraphs.
//!
//! ```ron
//! Headings(max_words: 200)
//! ```
//!
//! A path has at most 480 characters, and each heading in it at most 160. A longer path is shortened in the middle: the
//! innermost heading always stays, and the nearest headings above it are kept first. A heading that is too long for the
//! path is also part of its section's text. Every word of a document is in a passage or its title: what CommonMark reads
//! as the definition of a link (`[Deadline]: Friday`) is text, and so is a tag in a heading (`Vec<T>`). In text without
//! markup, a line of blanks ends a paragraph. In text without blanks, 32 bytes count as a word, and a block of more than
//! 32 bytes for each of `max_words` is cut after a line, a blank or a letter.

use std::collections::HashSet;
use std::sync::Arc;

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use turnflow_engine::component::{Chunker, ChunkerConfig, ChunkerKind, config};
use turnflow_engine::document::{Chunk, Document, Markup};
use turnflow_engine::inference::Tokenize;

use super::cut::cut;
use super::{TITLE, beginning, numbered, shortened, title};

/// Entry in the chunker table.
pub const KIND: ChunkerKind =
    ChunkerKind::of::<HeadingsConfig>("Headings", "one passage for each Markdown section, titled by its headings");

/// Fields of `Headings`.
#[config]
pub struct HeadingsConfig {
    /// Maximum number of words in a passage. Longer sections are cut between blocks (paragraphs, lists, code). A block of
    /// more than 32 bytes for each of these words is itself cut.
    #[field(default = 200, range = 8..=100_000)]
    pub max_words: usize,
}

impl ChunkerConfig for HeadingsConfig {
    fn build(&self, _: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker> {
        Arc::new(Headings { max_words: self.max_words })
    }
}

/// Number of bytes that count as a word in text without blanks.
const WORD: usize = 32;

/// Maximum number of characters of a heading in a path.
const HEADING: usize = 160;

/// A text with more lines and marks is read without its markup. The parser keeps about 100 bytes for each of them.
const MOST_MARKS: usize = 3_000_000;

/// Number of line ends and of characters that may be marks.
fn marks(text: &str) -> usize {
    text.bytes().filter(|byte| b"\n*_`[]<>!&\\|".contains(byte)).count()
}

struct Headings {
    max_words: usize,
}

/// A top-level block and the path of the headings above it.
struct Block<'a> {
    path: Arc<str>,
    text: &'a str,
}

impl Chunker for Headings {
    fn chunk(&self, document: &Document) -> Vec<Chunk> {
        let title = title(document);
        let blocks = match document.markup {
            Markup::Markdown if marks(&document.text) <= MOST_MARKS => blocks(&title, &document.text),
            Markup::Markdown | Markup::Plain => {
                paragraphs(&document.text).map(|text| Block { path: title.clone(), text }).collect()
            }
        };
        let longest = self.max_words * WORD;
        let parts = blocks.iter().flat_map(|block| {
            let parts = cut(block.text, longest);
            parts.into_iter().map(|(start, end)| (&block.path, &block.text[start..end]))
        });
        let mut pieces: Vec<(Arc<str>, String)> = Vec::new();
        let mut words = 0;
        for (path, part) in parts {
            let count = part.split_whitespace().count();
            match pieces.last_mut() {
                Some((last, text))
                    if *last == *path && words + count <= self.max_words && text.len() + 2 + part.len() <= longest =>
                {
                    text.push_str("\n\n");
                    text.push_str(part);
                    words += count;
                }
                _ => {
                    words = count;
                    pieces.push((path.clone(), part.to_owned()));
                }
            }
        }
        numbered(document, pieces.into_iter().map(|(path, text)| (path, text.into())))
    }
}

/// A heading with blocks under it.
struct Heading<'a> {
    level: HeadingLevel,
    /// Its words, cut to the length allowed in a path.
    name: String,
    /// The whole heading as written, if `name` is shorter.
    whole: Option<&'a str>,
}

fn blocks<'a>(title: &Arc<str>, text: &'a str) -> Vec<Block<'a>> {
    let mut blocks = Vec::new();
    let mut above: Vec<Heading<'a>> = Vec::new();
    let mut path = title.clone();
    let mut depth = 0_usize;
    let mut heading: Option<(HeadingLevel, Name)> = None;
    // The end of the last top-level block. What lies between two of them is the definition of a link.
    let mut covered = 0;
    // The last heading, while nothing follows it. Its section is the heading alone.
    let mut bare: Option<(HeadingLevel, Block<'a>)> = None;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        if depth == 0 && heading.is_none() {
            let between = text.get(covered..range.start).unwrap_or_default().trim();
            if !between.is_empty() {
                bare = None;
                blocks.push(Block { path: path.clone(), text: between });
            }
            covered = covered.max(range.end);
        }
        match event {
            Event::Start(Tag::Heading { level, .. }) if depth == 0 => heading = Some((level, Name::default())),
            Event::End(TagEnd::Heading(_)) if heading.is_some() => {
                if let Some((level, name)) = heading.take() {
                    // Blocks below a deeper heading have this one in their path.
                    blocks.extend(bare.take().filter(|(other, _)| level <= *other).map(|(_, block)| block));
                    above.retain(|other| other.level < level);
                    let name = name.written();
                    let name = name.trim();
                    let kept = shortened(name, HEADING);
                    let written = text[range].trim();
                    let whole = (beginning(name, HEADING).len() < name.len()).then_some(written);
                    above.push(Heading { level, name: kept.to_string(), whole });
                    path = path_of(title, &above);
                    let block = |text: &'a str| Block { path: path.clone(), text };
                    match above.last() {
                        Some(Heading { whole: Some(whole), .. }) => blocks.push(block(whole)),
                        Some(last) if !last.name.is_empty() => bare = Some((level, block(written))),
                        _ => {}
                    }
                }
            }
            Event::Text(words) | Event::Code(words) if heading.is_some() => {
                if let Some((_, name)) = &mut heading {
                    name.0.push((words.into_string(), false));
                }
            }
            Event::InlineHtml(tag) if heading.is_some() => {
                if let Some((_, name)) = &mut heading {
                    name.0.push((tag.into_string(), true));
                }
            }
            Event::SoftBreak | Event::HardBreak if heading.is_some() => {
                if let Some((_, name)) = &mut heading {
                    name.0.push((" ".to_owned(), false));
                }
            }
            _ if heading.is_some() => {}
            Event::Start(_) => {
                if depth == 0 {
                    let text = text[range].trim();
                    if !text.is_empty() {
                        bare = None;
                        blocks.push(Block { path: path.clone(), text });
                    }
                }
                depth += 1;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    let rest = text.get(covered..).unwrap_or_default().trim();
    if !rest.is_empty() {
        bare = None;
        blocks.push(Block { path: path.clone(), text: rest });
    }
    blocks.extend(bare.map(|(_, block)| block));
    blocks
}

/// The words of a heading, each with whether it is a tag of HTML.
#[derive(Default)]
struct Name(Vec<(String, bool)>);

impl Name {
    /// The words, with those tags that mark nothing up: `<script>` in "The <script> tag", `<T>` in "Vec<T>".
    fn written(&self) -> String {
        let tags = |is_closing: bool| {
            let closing = self.0.iter().filter(move |(word, is_tag)| *is_tag && word.starts_with("</") == is_closing);
            closing.map(|(word, _)| tag(word)).collect::<HashSet<_>>()
        };
        let (opened, closed) = (tags(false), tags(true));
        let marks_up = |word: &str| {
            let name = tag(word);
            let is_paired = opened.contains(name) && closed.contains(name);
            is_paired || word.starts_with("<!") || word.contains('=') || name.eq_ignore_ascii_case("br")
        };
        self.0.iter().filter(|(word, is_tag)| !(*is_tag && marks_up(word))).map(|(word, _)| word.as_str()).collect()
    }
}

/// The name of a tag.
fn tag(word: &str) -> &str {
    let word = word.trim_start_matches(['<', '/']);
    &word[..word.find(|c: char| !c.is_alphanumeric() && c != '-').unwrap_or(word.len())]
}

/// The paragraphs of a text without markup: lines up to one that is blank, or up to a page break.
fn paragraphs(text: &str) -> impl Iterator<Item = &str> {
    let is_end = |c: char| matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let is_blank = |line: &str| line.chars().all(char::is_whitespace);
    let mut rest = text;
    std::iter::from_fn(move || {
        let mut start = None;
        let (whole, mut at) = (rest, 0);
        while at < whole.len() {
            let line = &whole[at..];
            let length = line.find(is_end).unwrap_or(line.len());
            let end = line[length..].chars().next();
            let next = match line[length..].starts_with("\r\n") {
                true => at + length + 2,
                false => at + length + end.map_or(0, char::len_utf8),
            };
            let breaks = matches!(end, Some('\u{c}' | '\u{2029}'));
            match (is_blank(&line[..length]), start) {
                (true, Some(start)) => {
                    rest = &whole[next..];
                    return Some(whole[start..at].trim());
                }
                (true, None) => {}
                (false, before) => {
                    let start = *start.get_or_insert(before.unwrap_or(at));
                    if breaks {
                        rest = &whole[next..];
                        return Some(whole[start..at + length].trim());
                    }
                }
            }
            at = next;
        }
        rest = "";
        start.map(|start| whole[start..].trim())
    })
}

/// The document's title, then the headings, without repeating a title. In a path that is too long, "…" replaces the
/// title and the outermost headings.
fn path_of(title: &str, above: &[Heading<'_>]) -> Arc<str> {
    const BETWEEN: &str = " > ";
    let mut parts: Vec<&str> = Vec::new();
    if !title.is_empty() {
        parts.push(title);
    }
    for heading in above {
        if !heading.name.is_empty() && parts.last() != Some(&heading.name.as_str()) {
            parts.push(&heading.name);
        }
    }
    let length = |part: &&str| part.chars().count();
    if parts.iter().map(|part| length(part) + BETWEEN.len()).sum::<usize>() <= TITLE + BETWEEN.len() {
        return parts.join(BETWEEN).into();
    }
    // Leaves room for "…" and the separator after it.
    let mut left = TITLE - 1;
    let mut kept = 0;
    for part in parts.iter().rev() {
        match left.checked_sub(length(part) + BETWEEN.len()) {
            Some(less) => left = less,
            None => break,
        }
        kept += 1;
    }
    let inner = &parts[parts.len() - kept..];
    if inner.is_empty() { shortened(title, TITLE) } else { format!("…{BETWEEN}{}", inner.join(BETWEEN)).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_titled_by_their_path() {
        let text = "# Guide\n\nIntro.\n\n## Set up\n\nDo *this*.\n\n```\n# not a heading\n```\n\n### On Debian\n\nRun it.\n\n## Use\n\n- a\n- b\n";
        let document = Document {
            id: "g.md".into(),
            title: "Guide".into(),
            text: text.into(),
            markup: Markup::Markdown,
            metadata: Default::default(),
        };
        let chunks = HeadingsConfig { max_words: 200 }.build(None).chunk(&document);
        let got: Vec<_> = chunks.iter().map(|chunk| (&*chunk.title, &*chunk.text)).collect();
        assert_eq!(
            got,
            [
                ("Guide", "Intro."),
                ("Guide > Set up", "Do *this*.\n\n```\n# not a heading\n```"),
                ("Guide > Set up > On Debian", "Run it."),
                ("Guide > Use", "- a\n- b"),
            ]
        );
    }

    #[test]
    fn every_word_is_in_a_passage_or_its_title() {
        let text = "[Password]: hunter2\n\n# Minutes\n\nWe met.\n\n[Owner]: Barbara \"of the team\"\n\n## The <script> tag\n\nIt \
                    runs.\n\n## Vec<Zebra> and <b>bold</b> `<kbd>` <a id=\"x\"></a>![Diagram](w.png)\n\n[^1]: https://x.org/note\n\n---\n\nEnd.\n\n[Last]: word\n";
        let got: Vec<(String, String)> =
            chunks(text).iter().map(|chunk| (chunk.title.to_string(), chunk.text.to_string())).collect();
        let expected = [
            ("T", "[Password]: hunter2"),
            ("T > Minutes", "We met.\n\n[Owner]: Barbara \"of the team\""),
            ("T > Minutes > The <script> tag", "It runs."),
            ("T > Minutes > Vec<Zebra> and bold <kbd> Diagram", "[^1]: https://x.org/note\n\nEnd.\n\n[Last]: word"),
        ];
        assert_eq!(got, expected.map(|(title, text)| (title.to_owned(), text.to_owned())));
    }

    #[test]
    fn a_line_of_blanks_ends_a_paragraph() {
        for blank in ["\n\n", "\n  \n", "\n\t\n", "\n\u{a0}\n", "\r\n\r\n", "\r\r", "\u{85}\u{85}", "\u{c}", "\u{2029}"]
        {
            let text = format!("{blank}one\ntwo{blank}{blank}three{blank}");
            assert_eq!(paragraphs(&text).collect::<Vec<_>>(), ["one\ntwo", "three"], "{blank:?}");
        }
        assert_eq!(paragraphs("").count() + paragraphs(" \n ").count(), 0);
        assert_eq!(paragraphs(&"\n".repeat(300_000)).count(), 0);
    }

    /// Regression: a page of headings had no passages.
    #[test]
    fn a_heading_with_nothing_below_it_is_its_section() {
        let text = "# News\n\n## The ferry leaves at ten\n\n## Opening\n### Winter\n\nNine.\n\n### Summer\n\n\
                    The wombat\nleaves early\n---\n";
        let got: Vec<(String, String)> =
            chunks(text).iter().map(|chunk| (chunk.title.to_string(), chunk.text.to_string())).collect();
        let expected = [
            ("T > News > The ferry leaves at ten", "## The ferry leaves at ten"),
            ("T > News > Opening > Winter", "Nine."),
            ("T > News > Opening > Summer", "### Summer"),
            ("T > News > The wombat leaves early", "The wombat\nleaves early\n---"),
        ];
        assert_eq!(got, expected.map(|(title, text)| (title.to_owned(), text.to_owned())));
    }

    fn chunks(text: &str) -> Vec<Chunk> {
        let document = Document {
            id: "t".into(),
            title: "T".into(),
            text: text.into(),
            markup: Markup::Markdown,
            metadata: Default::default(),
        };
        HeadingsConfig { max_words: 200 }.build(None).chunk(&document)
    }

    #[test]
    fn a_long_path_keeps_what_is_innermost() {
        let long = "word ".repeat(100);
        let outer: String = (1..=5).map(|level| format!("{} {level} {long}\n\n", "#".repeat(level))).collect();
        let chunks = chunks(&format!("{outer}###### Innermost\n\nText.\n"));
        let last = chunks.last().unwrap();
        assert_eq!(&*last.text, "Text.");
        assert!(last.title.starts_with("… > 4 word") && last.title.ends_with("… > Innermost"), "{}", last.title);
        assert!(chunks.iter().all(|chunk| chunk.title.chars().count() <= TITLE));
        // The part of a heading that the path omits is in its section's text.
        assert_eq!(chunks.iter().map(|chunk| chunk.text.matches("word").count()).sum::<usize>(), 500);
    }

    /// A long heading above many short sections: 289 kB that an earlier version turned into 2.8 GB.
    #[test]
    fn paths_are_not_copied_without_end() {
        let sections: String = (0..14_000).map(|n| format!("## {n}\n\nt\n")).collect();
        let text = format!("# {}\n\n{sections}", "h".repeat(150_000));
        let chunks = chunks(&text);
        let bytes: usize = chunks.iter().map(|chunk| chunk.title.len() + chunk.text.len()).sum();
        assert!(bytes < 16 * text.len(), "{bytes} bytes of {}", text.len());
        assert!(chunks.iter().any(|chunk| chunk.title.ends_with(" > 13999")));
    }

    #[test]
    fn blocks_without_blanks_are_cut() {
        let chunks = chunks(&format!("# 山\n\n{}\n", "山の中に川がある。".repeat(1000)));
        assert!(chunks.len() > 3 && chunks.iter().all(|chunk| chunk.text.len() <= 200 * WORD));
        assert_eq!(chunks.iter().map(|chunk| chunk.text.len()).sum::<usize>(), 27_000);
    }

    #[test]
    fn long_sections_are_cut_between_blocks() {
        let text = format!("# T\n\n{}\n\n{}\n", "a ".repeat(30), "b ".repeat(30));
        let document = Document {
            id: "t".into(),
            title: "T".into(),
            text: text.into(),
            markup: Markup::Markdown,
            metadata: Default::default(),
        };
        assert_eq!(HeadingsConfig { max_words: 40 }.build(None).chunk(&document).len(), 2);
        assert_eq!(HeadingsConfig { max_words: 60 }.build(None).chunk(&document).len(), 1);
    }
}
