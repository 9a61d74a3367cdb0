//! The pages of a source's PDF files as pictures.
//!
//! A picture may take seconds, and whoever opens a link again asks for it again, so the last ones are kept, and also that
//! a page could not be drawn.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;
use turnflow_engine::connector::ConnectorError;

use crate::readers::{Format, ReadOptions, page_png};

/// Maximum size of the pictures that are kept, in bytes.
const KEPT: usize = 32 << 20;
/// What is kept counts for its file at least so many bytes, so that the number of refusals is bounded too.
const LEAST: usize = 4 << 10;
/// How long a refusal holds. It may have come from a machine with too much to do.
const REFUSED: Duration = Duration::from_secs(300);

/// Draws a page of a document's file, if it is a PDF; `content` reads the file, and returns `None` if it is gone.
pub(crate) fn draw(
    document: &str,
    (page, passage): (u32, &str),
    reading: &ReadOptions,
    content: impl FnOnce() -> Result<Option<Vec<u8>>, ConnectorError>,
) -> Result<Option<Vec<u8>>, ConnectorError> {
    static DRAWN: Mutex<Drawn> = Mutex::new(Drawn { pictures: None, bytes: 0 });
    if Format::of(Path::new(document)) != Some(Format::Pdf) {
        return Ok(None);
    }
    let Some(bytes) = content()? else { return Ok(None) };
    let key = key(&bytes, page, passage, reading);
    let known = DRAWN.lock().get(&key, Instant::now());
    let drawn = known.unwrap_or_else(|| {
        let drawn =
            page_png(&bytes, page, passage, reading).map(Arc::from).map_err(|error| Arc::from(error.to_string()));
        DRAWN.lock().keep(key, drawn.clone(), Instant::now());
        drawn
    });
    let refused = |reason: Arc<str>| ConnectorError::Unreadable { reason: reason.to_string() };
    drawn.map(|png| Some(png.to_vec())).map_err(refused)
}

/// A PNG file, or why there is none.
type Picture = Result<Arc<[u8]>, Arc<str>>;

/// What a picture depends on, as a hash.
fn key(bytes: &[u8], page: u32, passage: &str, reading: &ReadOptions) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in [bytes, &page.to_le_bytes(), passage.as_bytes()]
        .into_iter()
        .chain(reading.passwords.iter().map(String::as_bytes))
    {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    *hasher.finalize().as_bytes()
}

/// The last pictures.
struct Drawn {
    /// By key, with the time when they were drawn. Made when it is first needed.
    pictures: Option<LruCache<[u8; 32], (Picture, Instant)>>,
    bytes: usize,
}

impl Drawn {
    fn get(&mut self, key: &[u8; 32], now: Instant) -> Option<Picture> {
        let (picture, drawn) = self.pictures.as_mut()?.get(key)?;
        (picture.is_ok() || now.duration_since(*drawn) < REFUSED).then(|| picture.clone())
    }

    fn keep(&mut self, key: [u8; 32], picture: Picture, now: Instant) {
        let size = |picture: &Picture| LEAST + picture.as_ref().map_or_else(|reason| reason.len(), |png| png.len());
        let pictures = self.pictures.get_or_insert_with(LruCache::unbounded);
        self.bytes += size(&picture);
        if let Some((replaced, _)) = pictures.put(key, (picture, now)) {
            self.bytes -= size(&replaced);
        }
        while self.bytes > KEPT {
            let Some((_, (oldest, _))) = pictures.pop_lru() else { break };
            self.bytes -= size(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_kept_and_refusals_for_a_while() {
        let mut drawn = Drawn { pictures: None, bytes: 0 };
        let now = Instant::now();
        let key = |n: u8| [n; 32];
        drawn.keep(key(1), Ok(Arc::from([7; 9])), now);
        drawn.keep(key(2), Err("slow".into()), now);
        let later = now + REFUSED;
        assert_eq!(drawn.get(&key(2), now), Some(Err("slow".into())));
        assert_eq!(drawn.get(&key(2), later), None);
        assert!(drawn.get(&key(1), later).is_some() && drawn.get(&key(3), now).is_none());
        // The one that was asked for last stays.
        let large: Picture = Ok(vec![0; KEPT - 3 * LEAST].into());
        drawn.keep(key(3), large.clone(), now);
        assert!(drawn.get(&key(1), now).is_some() && drawn.get(&key(2), now).is_none(), "{} bytes", drawn.bytes);
        // Again, which counts once; one that is larger than all room is not kept.
        drawn.keep(key(3), large, now);
        assert!(drawn.get(&key(1), now).is_some());
        drawn.keep(key(4), Ok(vec![0; KEPT].into()), now);
        assert!((1..=4).all(|n| drawn.get(&key(n), now).is_none()));
        assert_eq!(drawn.bytes, 0);
    }

    #[test]
    fn a_picture_depends_on_the_file_the_page_the_passage_and_the_passwords() {
        let reading = |passwords: &[&str]| ReadOptions {
            passwords: passwords.iter().map(|word| (*word).to_owned()).collect(),
            ..ReadOptions::default()
        };
        let keys = [
            key(b"a", 1, "b", &reading(&[])),
            key(b"ab", 1, "", &reading(&[])),
            key(b"a", 2, "b", &reading(&[])),
            key(b"a", 1, "", &reading(&["b"])),
            key(b"a", 1, "b", &reading(&["b"])),
            key(b"a", 1, "b", &reading(&["b", ""])),
        ];
        assert_eq!(keys.iter().collect::<std::collections::HashSet<_>>().len(), keys.len());
    }
}
