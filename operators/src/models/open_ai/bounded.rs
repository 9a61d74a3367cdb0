//! Bounds on what a server sends.

use bytes::Bytes;
use futures::{Stream, StreamExt};

/// Maximum size of a response, in bytes.
pub(super) const MOST: usize = 64 << 20;
/// Maximum length of a line of an event stream, in bytes.
const LONGEST_LINE: usize = 1 << 20;
/// What some servers put before a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Why the bytes of an event stream end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Connection(reqwest::Error),
    #[error("{0}")]
    TooLong(String),
}

/// The bytes of an event stream, within limits and without a byte order mark, which the parser does not accept.
pub(super) fn bounded(pieces: impl Stream<Item = reqwest::Result<Bytes>>) -> impl Stream<Item = Result<Bytes, Broken>> {
    let (mut all, mut line, mut start) = (0_usize, 0_usize, Some(Vec::new()));
    pieces
        .then(|piece| async {
            // The parser takes all pieces that are there in one call: others get their turn, and time limits hold.
            tokio::task::yield_now().await;
            piece
        })
        .map(move |piece| {
            let mut piece = piece.map_err(Broken::Connection)?;
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
            if let Some(mut first) = start.take() {
                first.extend_from_slice(&piece);
                match BYTE_ORDER_MARK.starts_with(&first) && first.len() < BYTE_ORDER_MARK.len() {
                    // Not known yet.
                    true => {
                        start = Some(first);
                        piece = Bytes::new();
                    }
                    false => {
                        let from = if first.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
                        piece = Bytes::from(first).slice(from..);
                    }
                }
            }
            Ok(piece)
        })
}
