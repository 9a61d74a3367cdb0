//! Bodies that are packed.

use std::io::Read;

use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

/// Largest window of zstd, as a power of two: the memory that a body asks for.
const WINDOW: u32 = 23;

/// Why a body is not unpacked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The packing is not known.
    Unknown,
    /// It is too large.
    TooLarge,
    /// It is broken.
    Broken(String),
}

/// The names of packings that are known.
pub(super) const KNOWN: &str = "gzip, deflate, zstd, identity";

/// A body that is packed in this way, of at most `limit` bytes.
pub(super) fn unpacked(packing: &str, body: Vec<u8>, limit: usize) -> Result<Vec<u8>, Fault> {
    match packing.trim().to_ascii_lowercase().as_str() {
        "" | "identity" | "none" => Ok(body),
        // Some programs announce that for an empty body.
        _ if body.is_empty() => Ok(body),
        "gzip" | "x-gzip" => read(MultiGzDecoder::new(&body[..]), limit),
        "deflate" | "zlib" => match read(ZlibDecoder::new(&body[..]), limit) {
            Err(Fault::Broken(_)) => read(DeflateDecoder::new(&body[..]), limit),
            done => done,
        },
        "zstd" => {
            let broken = |error: std::io::Error| Fault::Broken(error.to_string());
            let mut decoder = zstd::stream::read::Decoder::new(&body[..]).map_err(broken)?;
            decoder.window_log_max(WINDOW).map_err(broken)?;
            read(decoder, limit)
        }
        _ => Err(Fault::Unknown),
    }
}

fn read(from: impl Read, limit: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    from.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(|error| Fault::Broken(error.to_string()))?;
    if bytes.len() > limit { Err(Fault::TooLarge) } else { Ok(bytes) }
}
