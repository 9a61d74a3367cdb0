//! Documents, the chunks cut from them, and content hashes.
//!
//! A chunk has two keys: its id (`document#n`), which answers cite and qrels name, and the hash of
//! its content, which avoids repeated work: two chunks with equal content are embedded once.

mod place;
mod text;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::place::{Corpus, Place};
pub use self::text::Text;
use crate::metadata::{FieldValue, Metadata};

/// How a document's text is marked up; read by chunkers that follow structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Markup {
    /// Paragraphs only.
    #[default]
    Plain,
    /// CommonMark headings (`#` to `######`) delimit sections.
    #[serde(alias = "Markdown")]
    Markdown,
}

/// The field of a document that says where each of its pages begins in its text: offsets in bytes, with a blank between
/// them. Its passages have the field `page` instead.
pub const PAGE_OFFSETS: &str = "page_offsets";

/// The field of a document that says how far the text of each of its pages can be trusted, from 0 to 1, with a blank between
/// them. A document without it has nothing that is in doubt. Its passages do not have it.
pub const PAGE_CONFIDENCE: &str = "page_confidence";

/// The field of a document with text that was read by OCR: how sure the model is of it, from 0 to 1.
pub const OCR_CONFIDENCE: &str = "ocr_confidence";

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
    /// Its fields.
    pub metadata: Metadata,
}

impl Document {
    /// A document without a title, markup and metadata.
    pub fn new(id: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> Self {
        Self {
            id: id.into(),
            title: Arc::default(),
            text: text.into(),
            markup: Markup::Plain,
            metadata: Metadata::default(),
        }
    }

    /// Where each of its pages begins in its text, in bytes; `None` if it does not say so.
    pub fn page_starts(&self) -> Option<Vec<usize>> {
        let Some(FieldValue::Text(starts)) = self.metadata.get(PAGE_OFFSETS) else { return None };
        page_starts(starts)
    }

    /// How far the text of each page can be trusted, from 0 to 1; `None` if nothing is in doubt.
    pub fn page_confidence(&self) -> Option<Vec<f64>> {
        let Some(FieldValue::Text(shares)) = self.metadata.get(PAGE_CONFIDENCE) else { return None };
        by_page(shares)
    }
}

/// Where each page begins, as the field [`PAGE_OFFSETS`] says it; `None` if it is no such list.
pub(crate) fn page_starts(text: &str) -> Option<Vec<usize>> {
    by_page(text).filter(|starts: &Vec<usize>| starts.is_sorted())
}

/// A value for each page.
fn by_page<T: std::str::FromStr>(values: &str) -> Option<Vec<T>> {
    values.split(' ').map(|value| value.parse().ok()).collect()
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

/// A passage: the unit that is indexed, retrieved and cited. Two are equal if all but their places are; their texts are
/// compared by hash.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chunk {
    /// Hash of `title` and `text`.
    pub hash: ContentHash,
    /// `document#n` with n from 0, or the document's id if the chunker never splits documents.
    pub id: Arc<str>,
    /// The id of the document it was cut from.
    pub document: Arc<str>,
    /// The document's title, or the heading path of the section.
    pub title: Arc<str>,
    /// The passage itself.
    pub text: Text,
    /// The document's fields.
    #[serde(default)]
    pub metadata: Metadata,
    /// Who may read it.
    #[serde(default)]
    pub readers: Readers,
    /// Its place in its corpus.
    #[serde(skip)]
    pub place: Place,
}

/// Who may read a passage.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Readers {
    /// Everybody: its corpus has no `access`.
    #[default]
    All,
    /// Turns whose principal is in one of these groups. The group `*` is everybody; no group is nobody.
    Groups(Arc<[Arc<str>]>),
}

/// The group of a document's field that means everybody.
pub const EVERYBODY: &str = "*";

impl Readers {
    /// The readers that a document's field names: a text or a list of texts. Without such a field, nobody.
    pub fn named(metadata: &Metadata, field: &str) -> Self {
        let text = |value: &FieldValue| match value {
            FieldValue::Text(text) => Some(text.clone()),
            _ => None,
        };
        Self::Groups(metadata.values(field).into_iter().filter_map(text).collect())
    }

    /// Whether a principal of these groups is among them.
    pub fn include(&self, groups: &[Arc<str>]) -> bool {
        match self {
            Self::All => true,
            Self::Groups(named) => named.iter().any(|group| **group == *EVERYBODY || groups.contains(group)),
        }
    }
}

impl Chunk {
    /// Its number in its document, from 0.
    pub fn number(&self) -> usize {
        self.id.strip_prefix(&*self.document).and_then(|rest| rest.strip_prefix('#')?.parse().ok()).unwrap_or_default()
    }

    /// By what it differs from the other passages that a turn can find: in corpora of one pipeline, documents may have the same
    /// ids.
    pub fn identity(&self) -> (Option<Corpus>, Arc<str>) {
        (self.place.corpus(), self.id.clone())
    }

    /// What is compared. The text may be on disk. The id comes first: chunks mostly arrive in the order of their ids, and
    /// are next to each other in memory.
    fn value(&self) -> (&Arc<str>, &ContentHash, &Arc<str>, &Metadata, &Readers) {
        (&self.id, &self.hash, &self.document, &self.metadata, &self.readers)
    }
}

impl PartialEq for Chunk {
    fn eq(&self, other: &Self) -> bool {
        self.value() == other.value()
    }
}
impl Eq for Chunk {}
impl PartialOrd for Chunk {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Chunk {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.value().cmp(&other.value())
    }
}
impl std::hash::Hash for Chunk {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.value().hash(state);
    }
}

impl Chunk {
    /// Builds a chunk and hashes its content. The engine adds the document's metadata.
    pub fn new(id: Arc<str>, document: Arc<str>, title: Arc<str>, text: Text) -> Self {
        let hash = ContentHash::of(&title, &text);
        let (metadata, readers, place) = (Metadata::default(), Readers::All, Place::default());
        Self { id, document, title, text, hash, metadata, readers, place }
    }

    /// Another text of the same document, with the same metadata and readers.
    pub fn derived(&self, id: Arc<str>, title: Arc<str>, text: Text) -> Self {
        let (metadata, readers) = (self.metadata.clone(), self.readers.clone());
        let place = self.place.of_derived();
        Self { metadata, readers, place, ..Self::new(id, self.document.clone(), title, text) }
    }

    /// A copy that is in no corpus.
    pub(crate) fn without_place(&self) -> Self {
        Self { place: Place::default(), ..self.clone() }
    }

    /// The text that indexes read: title and text joined by a space, as in BEIR's evaluation
    /// (Thakur et al. 2021), or the text alone if the title is empty.
    pub fn indexed_text(&self) -> String {
        if self.title.is_empty() { self.text.to_string() } else { format!("{} {}", self.title, self.text) }
    }
}

/// A content: a title and a text. Equal hashes mean equal contents, so ordering and equality compare only
/// the hash.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Content {
    /// One of the chunks with this content.
    pub chunk: Arc<Chunk>,
}

impl Content {
    /// The content's hash.
    pub fn hash(&self) -> ContentHash {
        self.chunk.hash
    }
}

impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        self.chunk.hash == other.chunk.hash
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
        self.chunk.hash.cmp(&other.chunk.hash)
    }
}
impl std::hash::Hash for Content {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.chunk.hash.hash(state);
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
