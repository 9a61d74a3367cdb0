//! Streams a text while it is generated.

use std::sync::Mutex;
use std::sync::PoisonError;

use turnflow_engine::language::TextStream;

/// Sends the new part of a text that is final. The caller passes the whole text each time. Parts that may still change
/// are held back: an incomplete character, and the start of a stop string.
pub(crate) struct Streamed {
    stream: TextStream,
    stop: Vec<String>,
    /// Number of bytes that were sent.
    sent: Mutex<usize>,
}

impl Streamed {
    pub fn new(stream: TextStream, stop: &[String]) -> Self {
        Self { stream, stop: stop.to_vec(), sent: Mutex::new(0) }
    }

    /// Takes the text so far, which may contain stop strings and text after them.
    pub fn so_far(&self, text: &str) {
        self.send(&text[..self.certain(text)]);
    }

    /// Takes the complete text of the answer.
    pub fn end(&self, text: &str) {
        self.send(text);
    }

    fn send(&self, text: &str) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        // A tokenizer may decode a longer text differently from the start. The sent part then stays as it is, and the
        // next piece starts where it ended.
        if let Some(piece) = text.get(*sent..) {
            self.stream.send(piece);
            *sent = text.len();
        }
    }

    fn certain(&self, text: &str) -> usize {
        if let Some(end) = self.stop.iter().filter_map(|stop| text.find(stop.as_str())).min() {
            return end;
        }
        let whole = text.trim_end_matches('\u{FFFD}');
        let begins = |stop: &String| {
            let longest = stop.len().saturating_sub(1).min(whole.len());
            (1..=longest).rev().find(|&length| {
                whole.is_char_boundary(whole.len() - length) && stop.starts_with(&whole[whole.len() - length..])
            })
        };
        whole.len() - self.stop.iter().filter_map(begins).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn pieces_are_whole_characters_and_no_part_of_a_stop_string() {
        let pieces: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = pieces.clone();
        let stream = TextStream::new(move |piece| told.lock().unwrap().push(piece.to_owned()));
        let streamed = Streamed::new(stream, &["\nUser:".to_owned(), "END".to_owned()]);
        for text in ["The", "The caf\u{FFFD}", "The café", "The café\n", "The café\nUs", "The café\nUs two. E"] {
            streamed.so_far(text);
        }
        streamed.so_far("The café\nUs two. END of");
        streamed.end("The café\nUs two. ");
        streamed.end("The café\nUs two. ");
        assert_eq!(*pieces.lock().unwrap(), ["The", " caf", "é", "\nUs two. "]);
    }

    #[test]
    fn what_nobody_wants_costs_nothing() {
        let streamed = Streamed::new(TextStream::default(), &[]);
        streamed.so_far("text");
        streamed.end("text");
    }
}
