//! Documents, the chunks cut from them, and content hashes.
//!
//! A chunk has two keys: its id (`document#n`), which answers cite and qrels name, and the hash of
//! its content, which avoids repeated work: two chunks with equal content are embedded once.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// How a document's text is marked up; read by chunkers that follow structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Markup {
    /// Paragraphs only.
    #[default]
    Plain,
    /// CommonMark headings (`#` to `######`) delimit sections.
    Markdown,
}

/// A document of a corpus, as read by a source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Document {
    /// Unique in its corpus: the row's `_id`, or the file's path relative to the directory.
    pub id: Arc<str>,
    /// May be empty.
    pub title: Arc<str>,
    /// The readable text.
    pub text: Arc<str>,
    /// How `text` is marked up.
    pub markup: Markup,
}

/// The BLAKE3 hash of a chunk's title and text: 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ContentHash(pub [u8; 32]);

impl ContentHash {
    /// Hashes a title and a text; the title's length keeps `("ab", "c")` and `("a", "bc")` apart.
    pub fn of(title: &str, text: &str) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(title.len() as u64).to_le_bytes());
        hasher.update(title.as_bytes());
        hasher.update(text.as_bytes());
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentHash({self})")
    }
}

/// A passage: the unit that is indexed, retrieved and cited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Chunk {
    /// `document#n` with n from 0, or the document's id if the chunker never splits documents.
    pub id: Arc<str>,
    /// The id of the document it was cut from.
    pub document: Arc<str>,
    /// The document's title, or the heading path of the section.
    pub title: Arc<str>,
    /// The passage itself.
    pub text: Arc<str>,
    /// Hash of `title` and `text`.
    pub hash: ContentHash,
}

impl Chunk {
    /// Builds a chunk and hashes its content.
    pub fn new(id: Arc<str>, document: Arc<str>, title: Arc<str>, text: Arc<str>) -> Self {
        let hash = ContentHash::of(&title, &text);
        Self { id, document, title, text, hash }
    }

    /// The text that indexes read: title and text joined by a space, as in BEIR's evaluation
    /// (Thakur et al. 2021), or the text alone if the title is empty.
    pub fn indexed_text(&self) -> String {
        if self.title.is_empty() { self.text.to_string() } else { format!("{} {}", self.title, self.text) }
    }
}

/// A content with its hash. Equal hashes mean equal contents, so ordering and equality compare only
/// the hash.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Content {
    /// The hash of the content of `chunk`.
    pub hash: ContentHash,
    /// One of the chunks with this content.
    pub chunk: Arc<Chunk>,
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
    }
}
impl Eq for Content {}
impl PartialOrd for Content {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Content {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.hash.cmp(&other.hash)
    }
}
impl std::hash::Hash for Content {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_and_text_are_kept_apart_in_the_hash() {
        assert_ne!(ContentHash::of("ab", "c"), ContentHash::of("a", "bc"));
        assert_eq!(ContentHash::of("a", "b"), ContentHash::of("a", "b"));
    }
}
