//! Reads the rows of a data file. Texts stay where they are in the file.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use turnflow_engine::document::{Chunk, ContentHash, Place, Readers, Text};
use turnflow_engine::mapped::MappedFile;
use turnflow_engine::metadata::Metadata;
use turnflow_tables::{Page, Places, Values};

use super::invalid;

/// Texts of a smaller file are on the heap (bytes): what changes often should not keep a map.
const MAPPED: usize = if cfg!(test) { 4 << 10 } else { 64 << 10 };

/// What a data file has.
pub(super) struct OfFile {
    pub hash: blake3::Hash,
    pub rows: Vec<Row>,
}

/// A change of the passages.
pub(super) enum Row {
    Added(Arc<Chunk>),
    Removed(Arc<str>),
}

/// A hash of the bytes of a file.
pub(super) fn hash_of(file: &Path) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(fs::File::open(file)?)?;
    Ok(hasher.finalize())
}

/// Reads a data file with the columns of passages.
pub(super) fn file(places: &Places) -> io::Result<OfFile> {
    // Read without the map: an error of the disk would end the process there.
    let bytes = fs::read(&places.file)?;
    let hash = blake3::hash(&bytes);
    let map = if bytes.len() < MAPPED { None } else { Some(MappedFile::open(&places.file)?) };
    let columns = places.columns.iter().map(|pages| Column { bytes: &bytes, pages: pages.iter(), page: None, at: 0 });
    let columns: Result<[Column<'_>; 7], _> = columns.collect::<Vec<_>>().try_into();
    let columns = columns.map_err(|_| invalid("a column is missing"))?;
    let rows = usize::try_from(places.rows).unwrap_or(usize::MAX);
    let mut reader = Reader { columns, map, last: None };
    let mut read = Vec::with_capacity(rows.min(bytes.len()));
    for _ in 0..rows {
        read.push(reader.row().ok_or_else(|| invalid("a row is damaged"))?);
    }
    Ok(OfFile { hash, rows: read })
}

/// The values of a column, one after another.
struct Column<'a> {
    bytes: &'a [u8],
    pages: std::slice::Iter<'a, Page>,
    /// The page, and the number of values that are left.
    page: Option<(&'a Values, u64)>,
    /// Where the next value is in the file.
    at: usize,
}

impl<'a> Column<'a> {
    /// The next value, and where it is in the file.
    fn next(&mut self) -> Option<(&'a [u8], Option<usize>)> {
        while self.page.is_none_or(|(_, left)| left == 0) {
            let page = self.pages.next()?;
            self.page = Some((&page.values, page.rows));
            if let Values::Fixed { offset, .. } | Values::Texts { offset } = &page.values {
                self.at = usize::try_from(*offset).ok()?;
            }
        }
        let (values, left) = self.page.as_mut()?;
        *left -= 1;
        let (start, length) = match values {
            Values::Same(value) => return Some((value, None)),
            Values::Fixed { width, .. } => (self.at, *width),
            Values::Texts { .. } => {
                let length = self.bytes.get(self.at..)?.first_chunk::<4>()?;
                (self.at + 4, u32::from_le_bytes(*length) as usize)
            }
        };
        self.at = start.checked_add(length)?;
        Some((self.bytes.get(start..self.at)?, Some(start)))
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.next()?.0).ok()
    }
}

/// Reads rows. `last`: the passage before, and its metadata as they are written.
struct Reader<'a> {
    columns: [Column<'a>; 7],
    map: Option<MappedFile>,
    last: Option<(Arc<Chunk>, &'a str)>,
}

impl Reader<'_> {
    /// The next row; `None` if it is damaged.
    fn row(&mut self) -> Option<Row> {
        let [id, document, title, text, fields, hash, removed] = &mut self.columns;
        let (id, document, title, fields): (Arc<str>, _, _, _) =
            (id.text()?.into(), document.text()?, title.text()?, fields.text()?);
        let (text, place) = text.next()?;
        let text = std::str::from_utf8(text).ok()?;
        let (hash, removed) = (ContentHash(hash.next()?.0.try_into().ok()?), *removed.next()?.0.first()?);
        if removed & 1 == 1 {
            return Some(Row::Removed(id));
        }
        // Passages that follow each other often have these in common.
        let last = self.last.as_ref();
        let document = match document == &*id {
            true => id.clone(),
            false => shared(last.map(|(last, _)| &last.document), document),
        };
        let title = shared(last.map(|(last, _)| &last.title), title);
        let metadata = match last {
            Some((last, known)) if *known == fields => last.metadata.clone(),
            _ => Metadata::of_stored(fields)?,
        };
        let mapped = place.zip(self.map.as_ref()).and_then(|(start, map)| map.part(start as u64, text.len()));
        let text = match mapped {
            // SAFETY: These are the bytes of `text` in the file, which is not changed after it is written.
            Some(mapped) => unsafe { Text::mapped(mapped) },
            None => Text::from(text),
        };
        let (readers, place) = (Readers::All, Place::default());
        let chunk = Arc::new(Chunk { hash, id, document, title, text, metadata, readers, place });
        self.last = Some((chunk.clone(), fields));
        Some(Row::Added(chunk))
    }
}

/// A text, and the last one if it is the same.
fn shared(last: Option<&Arc<str>>, text: &str) -> Arc<str> {
    last.filter(|last| ***last == *text).cloned().unwrap_or_else(|| text.into())
}
