//! The bytes of a response, within limits.

use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};

/// Maximum size of a response, in bytes.
pub(super) const MOST: usize = 64 << 20;
/// Maximum length of a line of an event stream, in bytes.
const LONGEST_LINE: usize = 1 << 20;
/// What some servers put before a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Why the bytes of a response end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Connection(reqwest::Error),
    #[error("no byte came in time")]
    Silent,
    #[error("{0}")]
    TooLong(String),
}

/// The pieces of a response. Each must come within `silence`, whatever it holds: comments keep a stream alive too.
pub(super) fn pieces_in_time(
    pieces: impl Stream<Item = reqwest::Result<Bytes>> + Unpin,
    silence: Duration,
) -> impl Stream<Item = Result<Bytes, Broken>> {
    let pieces = futures::stream::unfold(Some(pieces), move |pieces| async move {
        let mut pieces = pieces?;
        match tokio::time::timeout(silence, pieces.next()).await {
            Ok(piece) => Some((piece?.map_err(Broken::Connection), Some(pieces))),
            Err(_) => Some((Err(Broken::Silent), None)),
        }
    });
    pieces.fuse()
}

/// The bytes of an event stream, within limits. An empty line follows the last byte, so that an event that was not ended
/// counts.
pub(super) fn bounded(pieces: impl Stream<Item = Result<Bytes, Broken>>) -> impl Stream<Item = Result<Bytes, Broken>> {
    let (mut all, mut line) = (0_usize, 0_usize);
    let pieces = pieces
        .then(|piece| async {
            // The parser takes all pieces that are there in one call: others get their turn, and time limits hold.
            tokio::task::yield_now().await;
            piece
        })
        .map(move |piece| {
            let piece = piece?;
            all += piece.len();
            line = match piece.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')) {
                Some(at) => piece.len() - at - 1,
                None => line + piece.len(),
            };
            if all > MOST {
                return Err(Broken::TooLong(format!("the response is longer than {} MiB", MOST >> 20)));
            }
            if line > LONGEST_LINE {
                let problem = format!("a line of the event stream is longer than {} KiB", LONGEST_LINE >> 10);
                return Err(Broken::TooLong(problem));
            }
            Ok(piece)
        });
    pieces.chain(futures::stream::once(async { Ok(Bytes::from_static(b"\n\n")) }))
}

/// The start of a response.
pub(super) struct Head {
    /// Its first bytes, without a byte order mark and white space.
    pub bytes: Vec<u8>,
    /// Whether it is a stream of events; else it is one JSON value, or no answer at all.
    pub is_events: bool,
}

/// Reads a response until it is clear whether it is a stream of events. Servers and proxies send event streams with any
/// content type or none, and one JSON value as an event stream, so the bytes decide.
pub(super) async fn head(pieces: &mut (impl Stream<Item = Result<Bytes, Broken>> + Unpin)) -> Result<Head, Broken> {
    let (mut bytes, mut read) = (Vec::new(), 0);
    loop {
        if !BYTE_ORDER_MARK.starts_with(&bytes) || bytes.len() == BYTE_ORDER_MARK.len() {
            let from = if bytes.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
            let blank = bytes[from..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            bytes.drain(..from + blank);
            if let Some(is_events) = is_events(&bytes) {
                return Ok(Head { bytes, is_events });
            }
        }
        match pieces.next().await {
            Some(piece) => {
                let piece = piece?;
                read += piece.len();
                if read > MOST {
                    return Err(Broken::TooLong(format!("the response is longer than {} MiB", MOST >> 20)));
                }
                bytes.extend_from_slice(&piece);
            }
            None => return Ok(Head { is_events: false, bytes }),
        }
    }
}

/// Whether these bytes begin a stream of events; `None` if they are too few.
fn is_events(bytes: &[u8]) -> Option<bool> {
    const FIELDS: [&[u8]; 6] = [b":", b"data:", b"event:", b"id:", b"retry:", b"error:"];
    if FIELDS.iter().any(|field| bytes.starts_with(field)) {
        return Some(true);
    }
    (!FIELDS.iter().any(|field| field.starts_with(bytes))).then_some(false)
}
