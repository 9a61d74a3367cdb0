//! The interface to language models: prompts, sampling and generated text.
//!
//! A prompt consists of parts. If it is longer than the model's limit, some parts may be cut.
//! Fixed parts (the instruction, the question) are never cut: if they alone are too long, the call
//! fails.

mod gathered;
mod sampling;
mod spoken;
pub mod thoughts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

pub use self::sampling::{Sampling, SamplingFields};
pub use self::spoken::Spoken;
use crate::inference::{InferenceError, Priority};

/// The role of a speaker in a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChatRole {
    /// Gives instructions.
    System,
    /// Asks.
    User,
    /// Answers.
    Assistant,
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Part {
    /// Its text, line breaks included.
    pub text: String,
    /// Whether it may be shortened or omitted.
    pub may_be_cut: bool,
}

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: ChatRole,
    /// The parts of the text, in order.
    pub parts: Vec<Part>,
}

impl Message {
    /// A message that must not be cut.
    pub fn fixed(role: ChatRole, text: impl Into<String>) -> Self {
        Self { role, parts: vec![Part { text: text.into(), may_be_cut: false }] }
    }

    /// The whole text.
    pub fn text(&self) -> String {
        self.parts.iter().map(|part| part.text.as_str()).collect()
    }
}

/// The input of a language model. Models without a chat format get the texts of the messages,
/// separated by empty lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Prompt {
    /// The chat, oldest message first.
    pub messages: Vec<Message>,
}

impl Prompt {
    /// The texts of all messages, separated by empty lines.
    pub fn plain(&self) -> String {
        self.messages.iter().map(Message::text).collect::<Vec<_>>().join("\n\n")
    }

    /// The number of parts that are omitted completely.
    pub fn left_out(&self) -> usize {
        let parts = self.messages.iter().flat_map(|message| &message.parts);
        parts.filter(|part| part.may_be_cut && part.text.is_empty()).count()
    }

    /// Shortens the parts that may be cut, from the last to the first, until the whole prompt has at
    /// most `limit` tokens, counted by `tokens` as the model sees them. Returns the prompt and the
    /// number of parts that were shortened or omitted.
    ///
    /// Parts are cut at the end of a word. A part that does not fit at all is omitted.
    ///
    /// # Errors
    ///
    /// [`InferenceError::TooLong`] if the fixed parts are longer than `limit`, and any error of
    /// `tokens`.
    pub fn fit(
        mut self,
        limit: usize,
        tokens: impl Fn(&Prompt) -> Result<usize, InferenceError>,
    ) -> Result<(Prompt, usize), InferenceError> {
        if tokens(&self)? <= limit {
            return Ok((self, 0));
        }
        let places: Vec<(usize, usize)> = self
            .messages
            .iter()
            .enumerate()
            .flat_map(|(at, message)| (0..message.parts.len()).map(move |part| (at, part)))
            .filter(|&(at, part)| self.messages[at].parts[part].may_be_cut)
            .collect();
        for (gone, (at, part)) in places.into_iter().rev().enumerate() {
            let whole = std::mem::take(&mut self.messages[at].parts[part].text);
            if tokens(&self)? > limit {
                continue;
            }
            // Binary search for the longest prefix of whole words that fits.
            let ends: Vec<usize> = whole.match_indices(char::is_whitespace).map(|(end, _)| end).collect();
            let (mut fits, mut low, mut high) = (0, 0, ends.len());
            while low < high {
                let middle = low.midpoint(high);
                self.messages[at].parts[part].text = cut(&whole, ends[middle]);
                if tokens(&self)? <= limit {
                    (fits, low) = (ends[middle], middle + 1);
                } else {
                    high = middle;
                }
            }
            self.messages[at].parts[part].text = cut(&whole, fits);
            return Ok((self, gone + 1));
        }
        Err(InferenceError::TooLong { tokens: tokens(&self)?, limit })
    }
}

/// The prefix up to `end`, with the final line break of `whole` if it has one.
fn cut(whole: &str, end: usize) -> String {
    let kept = whole[..end].trim_end();
    match (kept.is_empty(), whole.ends_with('\n')) {
        (true, _) => String::new(),
        (false, true) => format!("{kept}\n"),
        (false, false) => kept.to_owned(),
    }
}

/// Whether a text has the form of a control token of a language model: `<|im_end|>`, `</s>`,
/// `<start_of_turn>`, `[INST]`, `<<SYS>>`.
pub fn is_control(text: &str) -> bool {
    let inner = |open, close| text.strip_prefix(open).and_then(|rest: &str| rest.strip_suffix(close));
    let is_name = |name: &str, letter: fn(char) -> bool| {
        let name = name.trim_matches('/');
        !name.is_empty() && name.chars().all(|c| letter(c) || c == '_')
    };
    inner("<|", "|>")
        .is_some_and(|name| !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || "<|>".contains(c)))
        || inner("<<", ">>").is_some_and(|name| is_name(name, |c| c.is_ascii_uppercase()))
        || inner("<", ">").is_some_and(|name| is_name(name, |c| c.is_ascii_alphanumeric()))
        || inner("[", "]").is_some_and(|name| is_name(name, |c| c.is_ascii_uppercase()))
}

/// Maximum length of a control token, in bytes.
const CONTROL: usize = 48;

/// The ranges of all substrings that have the form of a control token.
pub fn controls(text: &str) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    text.match_indices(['<', '[']).filter_map(|(start, open)| {
        let close = if open == "<" { ">" } else { "]" };
        let rest = &text[start..text.floor_char_boundary(start + CONTROL)];
        let end = start + rest.find(close)? + 1;
        // "<<SYS>>" ends with two brackets.
        let end = if text[start..].starts_with("<<") && text[end..].starts_with('>') { end + 1 } else { end };
        is_control(&text[start..end]).then_some(start..end)
    })
}

/// Those of [`controls`] that common model families use and that documents and code do not contain.
pub fn known_controls(text: &str) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    const NAMES: [&str; 13] = [
        "<s>",
        "</s>",
        "<bos>",
        "<eos>",
        "<pad>",
        "<unk>",
        "<start_of_turn>",
        "<end_of_turn>",
        "[INST]",
        "[/INST]",
        "[TOOL_CALLS]",
        "[AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
    ];
    controls(text).filter(|range| {
        let control = &text[range.clone()];
        control.starts_with("<|") || control.starts_with("<<") || NAMES.contains(&control)
    })
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    /// The model ended its text or reached a stop string.
    #[default]
    Stop,
    /// `max_tokens` were generated.
    Length,
}

/// The result of a generation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    /// The text, without stop strings.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Number of tokens in the prompt; 0 if the model does not report it.
    pub prompt_tokens: u64,
    /// Number of generated tokens; 0 if the model does not report it.
    pub tokens: u64,
    /// Number of prompt parts that were shortened or omitted.
    #[serde(default)]
    pub cut: usize,
    /// Number of these parts that were omitted completely.
    #[serde(default)]
    pub left_out: usize,
    /// What the model thought before it wrote the text; empty if it says nothing about that.
    #[serde(default)]
    pub thoughts: String,
    /// Why the text may be wrong or cut: its server ended it for a reason of its own, or it may begin with a draft. A text
    /// that its server ended is not cached.
    #[serde(default)]
    pub doubt: Option<String>,
    /// The probability of each of `Sampling::labels`, which sum to 1; empty if none were asked for, or if the model does
    /// not compute them.
    #[serde(default)]
    pub labels: Vec<f32>,
}

impl Generation {
    /// The mean of these values of the labels, weighted by their probabilities; `None` without probabilities.
    pub fn expected(&self, values: impl IntoIterator<Item = f64>) -> Option<f64> {
        let weighted = self.labels.iter().zip(values).map(|(probability, value)| f64::from(*probability) * value);
        (!self.labels.is_empty()).then(|| weighted.sum())
    }
}

/// An optional listener that receives a text piece by piece while it is generated. Cheap to clone.
#[derive(Clone, Default)]
pub struct TextStream(Option<Arc<Listener>>);

struct Listener {
    send: Box<dyn Fn(&str) + Send + Sync>,
    restart: Option<Box<dyn Fn() + Send + Sync>>,
    has_sent: AtomicBool,
    muted: AtomicBool,
}

impl TextStream {
    /// A stream that passes each piece to a function, which must return quickly.
    pub fn new(send: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self::with(Box::new(send), None)
    }

    /// A stream that is told too when the text starts again from its beginning, and then gets all of its
    /// pieces again.
    pub fn restartable(
        send: impl Fn(&str) + Send + Sync + 'static,
        restart: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self::with(Box::new(send), Some(Box::new(restart)))
    }

    fn with(send: Box<dyn Fn(&str) + Send + Sync>, restart: Option<Box<dyn Fn() + Send + Sync>>) -> Self {
        Self(Some(Arc::new(Listener { send, restart, has_sent: false.into(), muted: false.into() })))
    }

    /// Whether a listener wants further pieces.
    pub fn is_wanted(&self) -> bool {
        self.0.as_ref().is_some_and(|listener| !listener.muted.load(Ordering::Acquire))
    }

    /// Sends a piece of the text.
    pub fn send(&self, piece: &str) {
        if let Some(listener) = self.0.as_ref().filter(|_| self.is_wanted() && !piece.is_empty()) {
            listener.has_sent.store(true, Ordering::Release);
            (listener.send)(piece);
        }
    }

    /// Restarts the text after a failure. Pieces that were sent cannot be retracted, so if there are
    /// any and the listener cannot restart, no more are sent; the answer has the whole text.
    pub fn restart(&self) {
        let Some(listener) = &self.0 else { return };
        match &listener.restart {
            Some(restart) => restart(),
            None => listener.muted.store(listener.has_sent.load(Ordering::Acquire), Ordering::Release),
        }
    }
}

/// Generates texts from prompts.
pub trait Generator: Send + Sync {
    /// The model's default sampling; an operator's fields override it.
    fn sampling(&self) -> &Sampling;
    /// Generates one text. At temperature 0, the same prompt gives the same text.
    fn generate(&self, prompt: Prompt, sampling: Sampling) -> BoxFuture<'static, Result<Generation, InferenceError>> {
        self.generate_streamed(prompt, sampling, TextStream::default())
    }
    /// Like [`Generator::generate`], and sends the text to `stream` while it is generated; in one piece
    /// if the model does not stream.
    fn generate_streamed(
        &self,
        prompt: Prompt,
        sampling: Sampling,
        stream: TextStream,
    ) -> BoxFuture<'static, Result<Generation, InferenceError>>;
    /// Number of tokens of a text in the model's tokenization; estimated if its tokenizer is not available.
    fn count(&self, text: &str) -> usize;
    /// Checks that a reply can have a form ([`Sampling::format`]), as far as that is known without a prompt. Blocks while it
    /// computes.
    ///
    /// # Errors
    ///
    /// [`InferenceError::Form`]: no reply can have it.
    fn check_form(&self, _: &Json) -> Result<(), InferenceError> {
        Ok(())
    }
    /// Whether a text begins with thoughts without an opening tag, because a server's chat template
    /// writes that tag; `None` if only the texts tell.
    fn unmarked_thoughts(&self) -> Option<bool> {
        Some(false)
    }
}

/// Scores the likelihood of texts (query likelihood: Ponte and Croft 1998; with a language model,
/// Sachan et al. 2022).
pub trait Likelihood: Send + Sync {
    /// For each context, the mean log probability (natural logarithm) of the tokens of `text`, each
    /// given the context and the tokens before it.
    fn log_likelihood(
        &self,
        contexts: Vec<String>,
        text: String,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<f32>, InferenceError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_tokens_have_forms() {
        let found = |text: &'static str| controls(text).map(|range| &text[range]).collect::<Vec<_>>();
        let all = "<|im_end|></s>[INST]<<SYS>> [/INST]<</SYS>> <start_of_turn><|a_b|>";
        let want = ["<|im_end|>", "</s>", "[INST]", "<<SYS>>", "[/INST]", "<</SYS>>", "<start_of_turn>", "<|a_b|>"];
        assert_eq!(found(all).into_iter().filter(|one| *one != "<SYS>" && *one != "</SYS>").collect::<Vec<_>>(), want);
        assert_eq!(known_controls("<b>x</b> [TODO] </s><|x|><<SYS>>").count(), 3);
        assert_eq!(found("a < b > c [1] [note] <a href=x> x[0] <|a b|> <|> <> [] <<<<"), Vec::<&str>::new());
    }

    fn prompt() -> Prompt {
        let part = |text: &str, may_be_cut| Part { text: text.to_owned(), may_be_cut };
        let parts = vec![part("one two three\n", true), part("four five six\n", true), part("why now?", false)];
        Prompt { messages: vec![Message::fixed(ChatRole::System, "be brief"), Message { role: ChatRole::User, parts }] }
    }

    fn words(prompt: &Prompt) -> Result<usize, InferenceError> {
        Ok(prompt.plain().split_whitespace().count())
    }

    #[test]
    fn passages_are_cut_from_the_last_and_the_question_never() {
        let text = |limit| prompt().fit(limit, words).map(|(prompt, _)| prompt.messages[1].text());
        assert_eq!([10, 9, 7, 4].map(|limit| prompt().fit(limit, words).unwrap().1), [0, 1, 1, 2]);
        assert_eq!([10, 9, 7, 4].map(|limit| prompt().fit(limit, words).unwrap().0.left_out()), [0, 0, 1, 2]);
        assert_eq!(text(10).unwrap(), "one two three\nfour five six\nwhy now?");
        assert_eq!(text(9).unwrap(), "one two three\nfour five\nwhy now?");
        assert_eq!(text(7).unwrap(), "one two three\nwhy now?");
        assert_eq!(text(5).unwrap(), "one\nwhy now?");
        assert_eq!(text(4).unwrap(), "why now?");
        assert!(matches!(text(3), Err(InferenceError::TooLong { tokens: 4, limit: 3 })));
    }
}
