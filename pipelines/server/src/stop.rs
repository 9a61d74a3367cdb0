//! Words at which the text of an answer ends: `stop` of a chat completion.
//!
//! The language model does not get them: its answer is cut, whoever has written it. The turn goes on to its end, because
//! only then are its sources known.

use serde_json::Value;
use turnflow_engine::language::Finish;

use crate::asking::{Finished, Piece, Writer};
use crate::error::ApiError;

/// Number of words in a request.
const MOST: usize = 16;

/// The words of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stop(Vec<String>);

impl Stop {
    /// The words of the field.
    ///
    /// # Errors
    ///
    /// 400: it is no text and no list of texts, or one is empty.
    pub fn of(field: Option<&Value>) -> Result<Self, ApiError> {
        let wrong = || {
            let problem = format!("`stop` must be a text or a list of at most {MOST} texts, none of them empty");
            ApiError::bad(problem).param("stop")
        };
        let words: Vec<&Value> = match field {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(words)) if words.len() <= MOST => words.iter().collect(),
            Some(Value::Array(_)) => return Err(wrong()),
            Some(word) => vec![word],
        };
        let word = |word: &Value| word.as_str().filter(|word| !word.is_empty()).map(str::to_owned).ok_or_else(wrong);
        words.into_iter().map(word).collect::<Result<_, _>>().map(Self)
    }

    /// Where the text ends, if one of the words is in it.
    fn end(&self, text: &str) -> Option<usize> {
        self.0.iter().filter_map(|word| text.find(word.as_str())).min()
    }

    /// How much of a text that goes on is certain: its end may be the beginning of a word.
    fn certain(&self, text: &str) -> usize {
        let begins = |word: &String| {
            let least = (text.len() + 1).saturating_sub(word.len());
            (least..text.len()).find(|at| text.is_char_boundary(*at) && word.starts_with(&text[*at..]))
        };
        self.0.iter().filter_map(begins).min().unwrap_or(text.len())
    }
}

/// A writer whose text ends at one of the words.
pub struct Stopping {
    writer: Writer,
    stop: Stop,
    /// The text that may be the beginning of a word.
    held: String,
    /// Whether a word was in the text.
    has_stopped: bool,
}

impl Stopping {
    /// Ends the text of a writer at these words.
    pub fn new(writer: Writer, stop: Stop) -> Self {
        Self { writer, stop, held: String::new(), has_stopped: false }
    }

    /// The next piece, as [`Writer::next`]. Cancel-safe too.
    ///
    /// # Errors
    ///
    /// The turn failed.
    pub async fn next(&mut self) -> Result<Piece, ApiError> {
        loop {
            match self.writer.next().await? {
                Piece::Text(piece) => {
                    let certain = self.take(&piece, false);
                    if !certain.is_empty() {
                        return Ok(Piece::Text(certain.into()));
                    }
                }
                Piece::End(mut finished) => {
                    finished.rest = self.take(&finished.rest, true);
                    if let Some(end) = self.stop.end(&finished.answer) {
                        finished.answer.truncate(end);
                        finished.finish = Finish::Stop;
                    }
                    return Ok(Piece::End(finished));
                }
            }
        }
    }

    /// Waits for the complete answer.
    ///
    /// # Errors
    ///
    /// The turn failed.
    pub async fn finished(mut self) -> Result<Finished, ApiError> {
        loop {
            if let Piece::End(finished) = self.next().await? {
                return Ok(*finished);
            }
        }
    }

    /// Adds a piece; returns what may be passed on.
    fn take(&mut self, piece: &str, is_last: bool) -> String {
        if self.has_stopped {
            return String::new();
        }
        self.held.push_str(piece);
        let end = self.stop.end(&self.held);
        self.has_stopped = end.is_some();
        let end = end.unwrap_or_else(|| if is_last { self.held.len() } else { self.stop.certain(&self.held) });
        self.held.drain(..end).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stop(words: &[&str]) -> Stop {
        Stop(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn the_words_are_a_text_or_a_list() {
        assert_eq!(Stop::of(None), Ok(Stop::default()));
        for (field, words) in
            [(json!(null), &[][..]), (json!("a"), &["a"]), (json!([]), &[]), (json!(["a", "b"]), &["a", "b"])]
        {
            assert_eq!(Stop::of(Some(&field)), Ok(stop(words)), "{field}");
        }
        for wrong in [json!(""), json!(7), json!(["a", ""]), json!([1]), json!(vec!["a"; 17]), json!({})] {
            assert_eq!(Stop::of(Some(&wrong)).unwrap_err().param.as_deref(), Some("stop"), "{wrong}");
        }
    }

    #[test]
    fn the_first_word_ends_the_text_and_its_beginning_is_held_back() {
        let of = stop(&["END", "éé"]);
        assert_eq!((of.end("a éé END"), of.end("an E")), (Some(2), None));
        for (text, certain) in [("a", 1), ("a E", 2), ("a EN", 2), ("a é", 2), ("a EX", 4), ("EEN", 1), ("", 0)] {
            assert_eq!(of.certain(text), certain, "{text}");
        }
    }
}
