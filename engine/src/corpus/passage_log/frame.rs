//! The frames of a log of passages.
//!
//! A frame begins with 32 bytes: the length of its content, the number of its entries, its kind, four zeros, and the first
//! 16 bytes of a BLAKE3 hash of these, of the file's number, of its place and of its content.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bincode::Options as _;
use memmap2::{Mmap, MmapOptions};
use serde::{Deserialize, Serialize};

use super::invalid;
use crate::document::{Chunk, ContentHash, Place as Number, Readers, Text};
use crate::mapped::MappedBytes;
use crate::metadata::Metadata;

/// Length of what a frame begins with.
pub(super) const HEADER: usize = 32;
/// A frame ends when its content has this many bytes.
const FULL: usize = if cfg!(test) { 2 << 10 } else { 4 << 20 };
/// Frames that follow each other are mapped together up to this many bytes: a process may have some 65,000 maps.
const MAP: usize = if cfg!(test) { 8 << 10 } else { 64 << 20 };
/// Texts of a frame with less content are on the heap: what changes often should not keep a map.
const MAPPED: usize = if cfg!(test) { 1 << 10 } else { 64 << 10 };

const ADDED: u32 = 1;
const REMOVED: u32 = 2;

/// An entry of a frame of added passages, as it is written.
#[derive(Serialize)]
struct Written<'a> {
    id: &'a str,
    /// `None`: the id.
    document: Option<&'a str>,
    title: &'a str,
    text: &'a str,
    hash: ContentHash,
    metadata: &'a Metadata,
    readers: &'a Readers,
}

impl<'a> Written<'a> {
    fn of(chunk: &'a Chunk) -> Self {
        let Chunk { id, document, title, text, hash, metadata, readers, place: _ } = chunk;
        let document = (document != id).then_some(&**document);
        Self { id, document, title, text, hash: *hash, metadata, readers }
    }
}

/// The same as it is read. A text is written like bytes.
#[derive(Deserialize)]
struct Entry<'a> {
    id: &'a str,
    document: Option<&'a str>,
    title: &'a str,
    text: &'a [u8],
    hash: ContentHash,
    metadata: Metadata,
    readers: Readers,
}

fn format() -> impl bincode::Options {
    bincode::DefaultOptions::new()
}

fn damaged(_: impl std::error::Error) -> io::Error {
    invalid("a frame is damaged")
}

/// Bytes of a passage in a log.
pub(super) fn bytes(chunk: &Chunk) -> u64 {
    format().serialized_size(&Written::of(chunk)).unwrap_or(0)
}

/// The number of frames of so many bytes.
pub(super) fn needed(bytes: u64) -> usize {
    (bytes / FULL as u64) as usize
}

/// What remains to be written.
#[derive(Clone, Copy)]
pub(super) enum Passages<'a> {
    Added(&'a [Arc<Chunk>]),
    Removed(&'a [Arc<Chunk>]),
}

impl Passages<'_> {
    pub fn is_empty(self) -> bool {
        match self {
            Self::Added(chunks) | Self::Removed(chunks) => chunks.is_empty(),
        }
    }

    /// Writes a frame of the file with this number, at this place; returns the rest.
    pub fn write_frame(self, number: u64, place: u64, buffer: &mut Vec<u8>) -> io::Result<Self> {
        let (Self::Added(chunks) | Self::Removed(chunks)) = self;
        let failed = |error: bincode::Error| io::Error::other(error.to_string());
        buffer.resize(HEADER, 0);
        let mut count = 0;
        while let Some(chunk) = chunks.get(count).filter(|_| buffer.len() < FULL) {
            match self {
                Self::Added(_) => format().serialize_into(&mut *buffer, &Written::of(chunk)).map_err(failed)?,
                Self::Removed(_) => format().serialize_into(&mut *buffer, &*chunk.id).map_err(failed)?,
            }
            count += 1;
        }
        let kind = if matches!(self, Self::Added(_)) { ADDED } else { REMOVED };
        let length = u32::try_from(buffer.len() - HEADER).map_err(|_| io::Error::other("a passage is too long"))?;
        for (field, value) in buffer.chunks_exact_mut(4).zip([length, count as u32, kind]) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        let hash = hash(number, place, &buffer[..16], &buffer[HEADER..]);
        buffer[16..HEADER].copy_from_slice(&hash);
        let rest = &chunks[count..];
        Ok(if kind == ADDED { Passages::Added(rest) } else { Passages::Removed(rest) })
    }
}

fn hash(number: u64, place: u64, fields: &[u8], content: &[u8]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&number.to_le_bytes()).update(&place.to_le_bytes()).update(fields).update(content);
    let mut hash = [0; 16];
    hasher.finalize_xof().fill(&mut hash);
    hash
}

/// Where a frame is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    at: usize,
    header: [u8; HEADER],
}

impl Place {
    /// The places of all frames of a file between two places.
    pub fn all(file: &File, from: usize, end: usize) -> io::Result<Vec<Self>> {
        let (mut at, mut all) = (from, Vec::new());
        while at < end {
            let mut place = Self { at, header: [0; HEADER] };
            read_at(file, &mut place.header, at)?;
            at += HEADER + place.length();
            all.push(place);
        }
        if at == end { Ok(all) } else { Err(invalid("a frame is cut off")) }
    }

    fn field(&self, field: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.header[4 * field..4 * field + 4]);
        u32::from_le_bytes(bytes)
    }

    fn length(&self) -> usize {
        self.field(0) as usize
    }

    /// The number of entries, at most one for each byte.
    fn count(&self) -> usize {
        (self.field(1) as usize).min(self.length())
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        (HEADER + self.length()) as u64
    }

    /// Reads the frame. `map`: the bytes of the file from a place on, for its texts.
    fn read(&self, file: &File, number: u64, map: &Arc<Mmap>, from: usize) -> io::Result<Frame> {
        // Read without the map: an error of the disk would end the process there.
        let mut bytes = vec![0; self.length()];
        read_at(file, &mut bytes, self.at + HEADER)?;
        if hash(number, self.at as u64, &self.header[..16], &bytes) != self.header[16..] {
            return Err(invalid("a hash does not match"));
        }
        let map = map.get(self.at + HEADER - from..).filter(|_| self.length() >= MAPPED).map(|content| (map, content));
        let content = Content { bytes: &bytes, map };
        match self.field(2) {
            ADDED => content.added(self.count()).map(Frame::Added),
            REMOVED => content.removed(self.count()).map(Frame::Removed),
            _ => Err(invalid("a frame is of an unknown kind")),
        }
    }
}

/// The content of a frame.
struct Content<'a> {
    bytes: &'a [u8],
    /// The map in which it is, and the bytes from it on, if texts stay there.
    map: Option<(&'a Arc<Mmap>, &'a [u8])>,
}

impl Content<'_> {
    fn removed(&self, count: usize) -> io::Result<Vec<Arc<str>>> {
        let mut reader = bincode::Deserializer::from_slice(self.bytes, format());
        let id = |_| <&str>::deserialize(&mut reader).map(Arc::from).map_err(damaged);
        (0..count).map(id).collect()
    }

    fn added(&self, count: usize) -> io::Result<Vec<Arc<Chunk>>> {
        let mut reader = bincode::Deserializer::from_slice(self.bytes, format());
        let mut chunks: Vec<Arc<Chunk>> = Vec::with_capacity(count);
        for _ in 0..count {
            let Entry { id, document, title, text, hash, metadata, readers } =
                Entry::deserialize(&mut reader).map_err(damaged)?;
            let id: Arc<str> = id.into();
            // Passages that follow each other often have these in common.
            let last = chunks.last();
            let document = match document {
                None => id.clone(),
                Some(document) => shared(last.map(|last| &last.document), document),
            };
            let title = shared(last.map(|last| &last.title), title);
            let metadata =
                last.map(|last| &last.metadata).filter(|last| **last == metadata).cloned().unwrap_or(metadata);
            let readers = last.map(|last| &last.readers).filter(|last| **last == readers).cloned().unwrap_or(readers);
            let text = self.text(text)?;
            let place = Number::default();
            chunks.push(Arc::new(Chunk { hash, id, document, title, text, metadata, readers, place }));
        }
        Ok(chunks)
    }

    fn text(&self, text: &[u8]) -> io::Result<Text> {
        match self.map {
            None => Ok(Text::from(std::str::from_utf8(text).map_err(damaged)?)),
            Some((map, content)) => {
                let start = text.as_ptr() as usize - self.bytes.as_ptr() as usize;
                let mapped = content.get(start..start + text.len()).ok_or_else(|| invalid("a text is cut off"))?;
                Text::mapped(MappedBytes::of(map, mapped)).map_err(damaged)
            }
        }
    }
}

/// A text, and the last one if it is the same.
fn shared(last: Option<&Arc<str>>, text: &str) -> Arc<str> {
    last.filter(|last| ***last == *text).cloned().unwrap_or_else(|| text.into())
}

/// What a frame has.
pub(super) enum Frame {
    Added(Vec<Arc<Chunk>>),
    Removed(Vec<Arc<str>>),
}

impl Frame {
    /// The number of passages that it adds.
    pub fn added(&self) -> usize {
        match self {
            Self::Added(chunks) => chunks.len(),
            Self::Removed(_) => 0,
        }
    }
}

/// Reads the frames of the file with this number on all cores; returns them in their order.
pub(super) fn read_all(file: &File, number: u64, places: &[Place]) -> io::Result<Vec<Frame>> {
    let read = |places: &[Place]| -> io::Result<Vec<Frame>> {
        let mut frames = Vec::with_capacity(places.len());
        let mut rest = places;
        while let Some(first) = rest.first() {
            // Neighbours share a map. It is small enough for the places in it, and has at least one frame.
            let fits = |place: &&Place| place.at - first.at + HEADER + place.length() <= MAP;
            let (those, others) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            let length: usize = those.iter().map(|place| HEADER + place.length()).sum();
            // SAFETY: Only this process writes to the file, since it has locked the state directory, and it changes nothing
            // that is written: it appends, and gives another file the name. The same holds for the files of tantivy.
            let map = unsafe { MmapOptions::new().offset(first.at as u64).len(length).map(file)? };
            let map = Arc::new(map);
            for place in those {
                frames.push(place.read(file, number, &map, first.at)?);
            }
            rest = others;
        }
        Ok(frames)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let parts = places.chunks(places.len().div_ceil(threads).max(1));
    let parts: Vec<io::Result<Vec<Frame>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || read(part))).collect();
        let panicked = |_| Err(invalid("reading it panics"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let mut all = Vec::with_capacity(places.len());
    for part in parts {
        all.extend(part?);
    }
    Ok(all)
}

/// Reads as many bytes as there is room for.
pub(super) fn read_at(file: &File, bytes: &mut [u8], at: usize) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, bytes, at as u64);
    #[cfg(not(unix))]
    {
        let _ = (file, bytes, at);
        Err(io::ErrorKind::Unsupported.into())
    }
}
