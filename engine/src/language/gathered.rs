//! Gathers the pieces of a long text. Who gets a piece looks at the whole text again, so the number of pieces must grow
//! more slowly than the text.

use parking_lot::Mutex;

use super::TextStream;

/// A piece is sent when it is this part of what was sent before: of a text up to so many bytes, and of a longer one. A
/// token of a text of 1 kB is.
const PARTS: [(usize, usize); 3] = [(4 << 10, 256), (32 << 10, 64), (usize::MAX, 16)];

fn part(sent: usize) -> usize {
    PARTS.iter().find(|(most, _)| sent <= *most).map_or(0, |(_, part)| sent / part)
}

/// A stream whose pieces get longer with the text.
pub(super) struct Gathered {
    stream: TextStream,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: String,
    sent: usize,
}

impl Gathered {
    pub fn new(stream: TextStream) -> Self {
        Self { stream, state: Mutex::default() }
    }

    pub fn send(&self, piece: &str) {
        let mut state = self.state.lock();
        state.waiting.push_str(piece);
        if state.waiting.len() >= part(state.sent) {
            self.flush(&mut state);
        }
    }

    /// Sends what waits.
    pub fn end(&self) {
        self.flush(&mut self.state.lock());
    }

    /// The text begins again.
    pub fn restart(&self) {
        *self.state.lock() = State::default();
        self.stream.restart();
    }

    fn flush(&self, state: &mut State) {
        state.sent += state.waiting.len();
        self.stream.send(&std::mem::take(&mut state.waiting));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_long_text_has_few_pieces_and_a_short_one_has_all() {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let sent = told.clone();
        let gathered = Gathered::new(TextStream::new(move |piece| sent.lock().push(piece.to_owned())));
        (0..100).for_each(|_| gathered.send("word "));
        assert_eq!(told.lock().len(), 100);
        (0..300_000).for_each(|_| gathered.send("word "));
        gathered.end();
        assert!(told.lock().len() < 1000, "{}", told.lock().len());
        assert_eq!(told.lock().concat(), "word ".repeat(300_100));
    }
}
