//! Questions that are nearly one that was asked before, for the answer cache.
//!
//! The vectors of an encoder alone cannot tell such questions: among questions that differ in one number, date or negation,
//! half and more have a cosine of 0.97 and above, as many as among those that say the same in other words. So two questions
//! are compared only if their words are the same in the same order, apart from words that ask politely and little words
//! without a meaning of their own, and the vectors then decide among them.

use std::sync::Arc;
use std::time::Duration;

use crate::inference::{Embedder, Priority, Role};

/// Words that may be in one question and not in the other. None of them denies, counts, compares or names anything.
const LITTLE: &[&str] =
    &["a", "an", "the", "is", "are", "s", "please", "kindly", "hi", "hello", "hey", "thanks", "tell", "me"];
/// Marks between words and around them. All others count as words: `C++` is not `C`, and `5 %` is not `5`.
const MARKS: &[char] = &[
    '.', ',', ';', ':', '!', '?', '"', '\'', '(', ')', '[', ']', '…', '“', '”', '„', '«', '»', '‘', '’', '¿', '¡',
    '。', '、', '，', '？', '！', '-', '–', '—',
];

/// How long an encoder is waited for. A question that takes longer is answered anew.
const PATIENCE: Duration = Duration::from_secs(2);

/// Which questions count as nearly the same.
pub struct Similar {
    /// The least cosine of their vectors.
    pub least: f32,
    /// The encoder.
    pub model: Arc<dyn Embedder>,
}

impl Similar {
    /// The position of the text that is nearest to a question, if one is near enough. `None` also if the encoder fails.
    pub async fn nearest(&self, question: &str, texts: &[Arc<str>]) -> Option<usize> {
        let all = std::iter::once(question).chain(texts.iter().map(|text| &**text)).map(str::to_owned).collect();
        let embedded = self.model.embed(all, Role::Query, Priority::Turn);
        let vectors = match tokio::time::timeout(PATIENCE, embedded).await {
            Ok(Ok(vectors)) => vectors,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the answer cache cannot compare a question");
                return None;
            }
            Err(_) => {
                tracing::debug!(?PATIENCE, "the answer cache does not wait longer for its encoder");
                return None;
            }
        };
        let (question, others) = vectors.split_first()?;
        let cosines = others.iter().map(|other| cosine(question, other));
        let (nearest, best) = cosines.enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
        (best >= self.least).then_some(nearest)
    }
}

/// The cosine of two vectors; 0 if one has no length.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let length = (dot(a, a) * dot(b, b)).sqrt();
    if length > 0.0 { dot(a, b) / length } else { 0.0 }
}

/// The words of a question that count, in order. Two questions with different ones are never taken for one another.
pub fn words(question: &str) -> String {
    let lower = question.to_lowercase();
    let mut out = String::with_capacity(lower.len());
    let mut add = |word: &str| {
        if !word.is_empty() && !LITTLE.contains(&word) {
            out.push_str(word);
            out.push('\n');
        }
    };
    let characters: Vec<(usize, char)> = lower.char_indices().collect();
    let mut from = 0;
    for (at, (start, character)) in characters.iter().enumerate() {
        let next = characters.get(at + 1).map(|(_, next)| *next);
        let before = at.checked_sub(1).map(|at| characters[at].1);
        let is_digit = |character: Option<char>| character.is_some_and(char::is_numeric);
        // A number keeps its point, and its sign.
        let is_of_number = match character {
            '.' | ',' | ':' | '-' | '–' => is_digit(before) && is_digit(next),
            _ => false,
        };
        let is_sign = matches!(character, '-' | '–') && is_digit(next) && before.is_none_or(char::is_whitespace);
        let end = start + character.len_utf8();
        if character.is_whitespace() || (MARKS.contains(character) && !is_of_number && !is_sign) {
            add(&lower[from..*start]);
            from = end;
        }
    }
    add(&lower[from..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_with_the_same_words_are_alike() {
        for (a, b) in [
            ("When is the ferry?", "when is ferry"),
            ("What's the fee?", "What is the fee"),
            ("How do I renew a pass?", "How do I renew the pass?"),
            ("Hi, please tell me: what are the fees?", "What are the fees?"),
            ("Wie hoch ist die Gebühr?", "wie hoch ist die gebühr"),
            ("返金はいつですか？", "返金はいつですか"),
        ] {
            assert_eq!(words(a), words(b));
        }
    }

    #[test]
    fn questions_with_other_words_are_not() {
        for (a, b) in [
            ("Can I return it?", "Can I not return it?"),
            ("Can I return it?", "Can't I return it?"),
            ("Is it a fee of 1.5 percent?", "Is it a fee of 15 percent?"),
            ("Is it below -5 degrees?", "Is it below 5 degrees?"),
            ("from 2019-2021", "from 20192021"),
            ("What is C?", "What is C++?"),
            ("What is 5 %?", "What is 5?"),
            ("a ticket from Oslo to Bergen", "a ticket from Bergen to Oslo"),
            ("What does the employer pay?", "What does the employee pay?"),
            ("Do I pay?", "Do you pay?"),
            ("Do employees work on Sundays?", "Can employees work on Sundays?"),
            ("Does the valve open?", "Is the valve open?"),
            ("Will they come with dogs?", "Will they come without dogs?"),
            ("Was it closed?", "Is it closed?"),
            ("What did it cost?", "What does it cost?"),
            ("Who pays?", "When pays?"),
        ] {
            assert_ne!(words(a), words(b), "{a}");
        }
        assert_eq!(words(" ?! "), "");
    }
}
