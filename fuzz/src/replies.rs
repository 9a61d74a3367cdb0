//! Replies of model servers: any events give a text or an error, and what was streamed is the beginning of the text.
//!
//! `super::stream` is `operators/src/models/open_ai/stream.rs`, both in the operators' tests and in the fuzz target.

use turnflow_engine::language::thoughts::{Splitter, split, split_streamed};

use super::stream::{Gathered, said, unread};

/// Events as lines `event: …` and `data: …`, or one whole response.
pub fn replies(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    drop((said(&text), unread(&text), Gathered::whole(&text)));
    let (mut gathered, mut name, mut streamed) = (Gathered::default(), "", String::new());
    for line in text.lines() {
        if let Some(event) = line.strip_prefix("event:") {
            name = event.trim();
            continue;
        }
        let Some(data) = line.strip_prefix("data:") else { continue };
        match gathered.event(name, data) {
            Ok(is_over) => {
                assert!(gathered.text().starts_with(&streamed), "{streamed:?} {:?}", gathered.text());
                streamed = gathered.text().to_owned();
                if is_over {
                    break;
                }
            }
            Err(error) => return drop(error.to_string()),
        }
        name = "";
    }
    if let Ok(generation) = gathered.end() {
        assert!(generation.text.starts_with(&streamed), "{streamed:?} {:?}", generation.text);
    }
    thoughts(&text);
}

/// Thoughts are separated in the same way whatever the pieces are, and nothing is lost but tags and blanks.
fn thoughts(text: &str) {
    let (whole, last) = (split_streamed(text), split(text));
    assert!(whole.text.len() + whole.thoughts.len() <= text.len());
    assert!(last.text.len() + last.thoughts.len() <= text.len());
    assert!(last.closes_again || last == whole, "{text:?}");
    let mut splitter = Splitter::new(usize::MAX);
    let letters: Vec<char> = text.chars().collect();
    let mut pieces: String = letters.chunks(3).map(|piece| splitter.push(&piece.iter().collect::<String>())).collect();
    pieces.push_str(&splitter.end());
    assert_eq!(pieces, whole.text, "{text:?}");
}
