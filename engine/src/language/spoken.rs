//! What a model says, without its thoughts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value as Json;

use super::gathered::Gathered;
use super::thoughts::{self, Reply, Splitter};
use super::{Finish, Generation, Generator, Prompt, Sampling, TextStream};
use crate::inference::InferenceError;

/// Bytes of a stream that are held back while it is not known whether the model's thoughts have an opening tag.
const HELD: usize = 4096;

/// A doubt about a text that was sent before the second closing tag came.
const DRAFTS: &str =
    "its thoughts are closed twice, so the text may begin with a draft; later replies are not streamed";

/// A generator whose texts are free of thoughts. A reply without a text is an error, which says why.
pub struct Spoken {
    inner: Arc<dyn Generator>,
    habit: Arc<AtomicU8>,
}

/// How the model's replies begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Habit {
    /// Not seen yet.
    Unknown = 0,
    /// With the text, or with an opening tag.
    Marked = 1,
    /// With thoughts that have no opening tag.
    Unmarked = 2,
    /// With thoughts that are closed twice: only the whole reply tells what is text.
    Drafts = 3,
}

impl Spoken {
    /// A generator without the thoughts of `inner`.
    pub fn new(inner: Arc<dyn Generator>) -> Self {
        let habit = match inner.unmarked_thoughts() {
            None => Habit::Unknown,
            Some(true) => Habit::Unmarked,
            Some(false) => Habit::Marked,
        };
        Self { inner, habit: Arc::new(AtomicU8::new(habit as u8)) }
    }
}

/// The number of bytes to hold back of a stream from a model with this habit.
fn held(habit: u8) -> usize {
    match habit {
        habit if habit == Habit::Marked as u8 => 0,
        habit if habit == Habit::Unmarked as u8 => usize::MAX,
        _ => HELD,
    }
}

/// The text of a generation, without its thoughts.
fn spoken(generation: Generation, reply: Reply, most: usize, habit: &AtomicU8) -> Result<Generation, InferenceError> {
    match (reply.closes_again, reply.lacks_opening) {
        (true, _) => habit.store(Habit::Drafts as u8, Ordering::Relaxed),
        (false, true) => _ = habit.fetch_max(Habit::Unmarked as u8, Ordering::Relaxed),
        (false, false) => _ = habit.fetch_max(Habit::Marked as u8, Ordering::Relaxed),
    }
    let thoughts = [generation.thoughts.as_str(), &reply.thoughts].concat();
    if !reply.text.trim().is_empty() {
        return Ok(Generation { text: reply.text, thoughts, ..generation });
    }
    let (thinks, is_cut) = (!thoughts.trim().is_empty(), generation.finish == Finish::Length);
    Err(InferenceError::NoText(match (thinks, is_cut) {
        (true, true) => format!("it used all {most} tokens of `max_tokens` for its thoughts; allow more"),
        (true, false) => "its reply has thoughts and nothing else".to_owned(),
        (false, true) => format!("none of the {most} tokens of `max_tokens` was text"),
        (false, false) => "its reply is empty".to_owned(),
    }))
}

impl Generator for Spoken {
    fn sampling(&self) -> &Sampling {
        self.inner.sampling()
    }

    fn generate_streamed(
        &self,
        prompt: Prompt,
        sampling: Sampling,
        stream: TextStream,
    ) -> BoxFuture<'static, Result<Generation, InferenceError>> {
        let (inner, habit, most) = (self.inner.clone(), self.habit.clone(), sampling.max_tokens);
        async move {
            if !stream.is_wanted() || habit.load(Ordering::Relaxed) == Habit::Drafts as u8 {
                let generation = inner.generate_streamed(prompt, sampling, TextStream::default()).await?;
                let reply = thoughts::split(&generation.text);
                let generation = spoken(generation, reply, most, &habit)?;
                stream.send(&generation.text);
                return Ok(generation);
            }
            let begin = {
                let habit = habit.clone();
                move || Splitter::new(held(habit.load(Ordering::Relaxed)))
            };
            let splitter = Arc::new(Mutex::new(begin()));
            let said = Arc::new(Gathered::new(stream));
            let pieces = {
                let (taken, taken_again) = (splitter.clone(), splitter.clone());
                let (said, said_again) = (said.clone(), said.clone());
                let send = move |piece: &str| {
                    let text = taken.lock().push(piece);
                    said.send(&text);
                };
                let restart = move || {
                    *taken_again.lock() = begin();
                    said_again.restart();
                };
                TextStream::restartable(send, restart)
            };
            let generation = inner.generate_streamed(prompt, sampling, pieces).await?;
            let rest = splitter.lock().end();
            said.send(&rest);
            said.end();
            // The text is what was sent.
            let reply = thoughts::split_streamed(&generation.text);
            let drafts = reply.closes_again.then(|| DRAFTS.to_owned());
            let generation = spoken(generation, reply, most, &habit)?;
            Ok(Generation { doubt: generation.doubt.or(drafts), ..generation })
        }
        .boxed()
    }

    fn count(&self, text: &str) -> usize {
        self.inner.count(text)
    }

    fn check_form(&self, form: &Json) -> Result<(), InferenceError> {
        self.inner.check_form(form)
    }

    fn unmarked_thoughts(&self) -> Option<bool> {
        self.inner.unmarked_thoughts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Says(&'static [&'static str], Finish, Sampling);

    impl Generator for Says {
        fn sampling(&self) -> &Sampling {
            &self.2
        }

        fn generate_streamed(
            &self,
            _: Prompt,
            _: Sampling,
            stream: TextStream,
        ) -> BoxFuture<'static, Result<Generation, InferenceError>> {
            self.0.iter().for_each(|piece| stream.send(piece));
            let generation = Generation { text: self.0.concat(), finish: self.1, ..Generation::default() };
            async move { Ok(generation) }.boxed()
        }

        fn count(&self, _: &str) -> usize {
            0
        }

        fn unmarked_thoughts(&self) -> Option<bool> {
            None
        }
    }

    fn say(spoken: &Spoken) -> (Result<Generation, InferenceError>, Vec<String>) {
        let pieces: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = pieces.clone();
        let stream = TextStream::new(move |piece| told.lock().push(piece.to_owned()));
        let sampling = Sampling { max_tokens: 7, ..Sampling::default() };
        let result = futures::executor::block_on(spoken.generate_streamed(Prompt::default(), sampling, stream));
        (result, std::mem::take(&mut pieces.lock()))
    }

    fn model(pieces: &'static [&'static str], finish: Finish) -> Spoken {
        Spoken::new(Arc::new(Says(pieces, finish, Sampling::default())))
    }

    #[test]
    fn what_is_streamed_is_the_text_and_a_habit_is_learned() {
        let closed = model(&["The user", " asks.\n</think>\n\n", "At ", "ten."], Finish::Stop);
        for _ in 0..2 {
            let (generation, pieces) = say(&closed);
            assert_eq!(generation.unwrap().text, "At ten.");
            assert_eq!(pieces.concat(), "At ten.");
        }
        let plain = model(&["At ", "ten."], Finish::Stop);
        assert_eq!(say(&plain).1, ["At ten."], "the first reply is held back");
        assert_eq!(say(&plain).1, ["At ", "ten."]);
        let (generation, pieces) = say(&model(&["<th", "ink>hm</think>", "At ", "ten."], Finish::Stop));
        assert_eq!((pieces, generation.unwrap().thoughts.as_str()), (vec!["At ".into(), "ten.".to_owned()], "hm"));
    }

    #[test]
    fn a_draft_between_two_closing_tags_is_no_text() {
        let twice = model(&["<think>a</think>", "A draft", ".</think>", "At ten."], Finish::Stop);
        let sampling = Sampling { max_tokens: 7, ..Sampling::default() };
        let whole = || futures::executor::block_on(twice.generate(Prompt::default(), sampling.clone())).unwrap();
        // What was sent cannot be taken back, but the next reply is held back.
        let (generation, pieces) = say(&twice);
        let generation = generation.unwrap();
        assert_eq!((generation.text.as_str(), pieces.concat()), ("A draft.</think>At ten.", generation.text.clone()));
        assert!(generation.doubt.is_some());
        let (generation, pieces) = say(&twice);
        assert_eq!((generation.unwrap().text.as_str(), pieces), ("At ten.", vec!["At ten.".to_owned()]));
        assert_eq!((whole().text.as_str(), whole().thoughts.as_str(), whole().doubt), ("At ten.", "aA draft.", None));
    }

    #[test]
    fn a_reply_without_a_text_is_an_error_that_says_why() {
        for (pieces, finish, why) in [
            (&["<think>hm"][..], Finish::Length, "all 7 tokens of `max_tokens` for its thoughts"),
            (&["<think>hm</think>\n"], Finish::Stop, "thoughts and nothing else"),
            (&[" \n"], Finish::Stop, "its reply is empty"),
            (&[""], Finish::Length, "none of the 7 tokens"),
        ] {
            let (result, said) = say(&model(pieces, finish));
            let error = result.unwrap_err();
            assert!(error.to_string().contains(why) && !error.is_transient(), "{error}");
            assert!(said.concat().trim().is_empty());
        }
    }
}
