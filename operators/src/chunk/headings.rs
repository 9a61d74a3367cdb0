//! A chunk a section of Markdown: from one heading to the next, titled by the path of
//! headings above it. Long sections are cut between paragraphs.
//!
//! ```ron
//! Headings(max_words: 200)
//! ```

use std::sync::Arc;

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use serde::Deserialize;
use turnflow_engine::component::{Check, Chunker, ChunkerConfig, ChunkerKind};
use turnflow_engine::document::{Chunk, Document, Markup};
use turnflow_engine::inference::Tokenize;
use turnflow_engine::spec::from_tree;

use super::numbered;

/// The table's entry.
pub const KIND: ChunkerKind = ChunkerKind {
    name: "Headings",
    summary: "a passage for each section of Markdown, titled by its headings",
    parse: |tree, sources| Ok(Box::new(from_tree::<HeadingsConfig>(tree, sources)?)),
};

/// Fields of `Headings`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadingsConfig {
    /// Sections of more words are cut between blocks (paragraphs, lists, code). Default 200.
    #[serde(default = "default_max_words")]
    pub max_words: usize,
}

fn default_max_words() -> usize {
    200
}

impl ChunkerConfig for HeadingsConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.range("max_words", self.max_words, 8, 100_000);
    }

    fn explain(&self) -> String {
        format!("max_words: {}", self.max_words)
    }

    fn build(&self, _: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker> {
        Arc::new(Headings { max_words: self.max_words })
    }
}

struct Headings {
    max_words: usize,
}

/// A top-level block, with the headings that it stands under.
struct Block<'a> {
    path: Arc<str>,
    text: &'a str,
}

impl Chunker for Headings {
    fn chunk(&self, document: &Document) -> Vec<Chunk> {
        let blocks = match document.markup {
            Markup::Markdown => blocks(&document.title, &document.text),
            Markup::Plain => document
                .text
                .split("\n\n")
                .map(|text| Block { path: document.title.clone(), text: text.trim() })
                .filter(|block| !block.text.is_empty())
                .collect(),
        };
        let mut pieces: Vec<(Arc<str>, String)> = Vec::new();
        let mut words = 0;
        for block in blocks {
            let count = block.text.split_whitespace().count();
            match pieces.last_mut() {
                Some((path, text)) if *path == block.path && words + count <= self.max_words => {
                    text.push_str("\n\n");
                    text.push_str(block.text);
                    words += count;
                }
                _ => {
                    words = count;
                    pieces.push((block.path, block.text.to_owned()));
                }
            }
        }
        numbered(document, pieces.into_iter().map(|(path, text)| (path, text.into())))
    }
}

fn blocks<'a>(title: &Arc<str>, text: &'a str) -> Vec<Block<'a>> {
    let mut blocks = Vec::new();
    let mut above: Vec<(HeadingLevel, String)> = Vec::new();
    let mut path = title.clone();
    let mut depth = 0_usize;
    let mut heading: Option<(HeadingLevel, String)> = None;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Heading { level, .. }) if depth == 0 => heading = Some((level, String::new())),
            Event::End(TagEnd::Heading(_)) if heading.is_some() => {
                if let Some((level, name)) = heading.take() {
                    above.retain(|(other, _)| *other < level);
                    above.push((level, name.trim().to_owned()));
                    path = path_of(title, &above);
                }
            }
            Event::Text(words) | Event::Code(words) if heading.is_some() => {
                if let Some((_, name)) = &mut heading {
                    name.push_str(&words);
                }
            }
            _ if heading.is_some() => {}
            Event::Start(_) => {
                if depth == 0 {
                    let text = text[range].trim();
                    if !text.is_empty() {
                        blocks.push(Block { path: path.clone(), text });
                    }
                }
                depth += 1;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    blocks
}

/// The document's title, then the headings, without saying a title twice.
fn path_of(title: &str, above: &[(HeadingLevel, String)]) -> Arc<str> {
    let mut parts: Vec<&str> = Vec::new();
    if !title.is_empty() {
        parts.push(title);
    }
    for (_, name) in above {
        if !name.is_empty() && parts.last() != Some(&name.as_str()) {
            parts.push(name);
        }
    }
    parts.join(" > ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_titled_by_their_path() {
        let text = "# Guide\n\nIntro.\n\n## Set up\n\nDo *this*.\n\n```\n# not a heading\n```\n\n### On Debian\n\nRun it.\n\n## Use\n\n- a\n- b\n";
        let document =
            Document { id: "g.md".into(), title: "Guide".into(), text: text.into(), markup: Markup::Markdown };
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
    fn long_sections_are_cut_between_blocks() {
        let text = format!("# T\n\n{}\n\n{}\n", "a ".repeat(30), "b ".repeat(30));
        let document = Document { id: "t".into(), title: "T".into(), text: text.into(), markup: Markup::Markdown };
        assert_eq!(HeadingsConfig { max_words: 40 }.build(None).chunk(&document).len(), 2);
        assert_eq!(HeadingsConfig { max_words: 60 }.build(None).chunk(&document).len(), 1);
    }
}
