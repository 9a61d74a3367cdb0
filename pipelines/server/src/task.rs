//! Prompts of chat clients that are not questions: titles, tags and follow-ups. The pipeline's language
//! model answers them without retrieval; without a model, the answer is built from the conversation.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::sync::mpsc;
use turnflow_engine::inference::InferenceError;
use turnflow_engine::inference::tokens::{ByModel, Tokens, counted};
use turnflow_engine::language::{Finish, Generation, TextStream};
use turnflow_engine::record::Speaker;
use turnflow_engine::run::Engine;

use crate::asking::{Finished, Piece, rest_of};
use crate::citations::Sources;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::format::Format;
use crate::limits::Deadline;
use crate::served::Served;
use crate::usage::generator;

/// Number of words of a title.
const WORDS: usize = 6;
/// Maximum number of tokens that a request may ask for.
const MOST_TOKENS: usize = 4096;

/// A prompt being answered.
pub struct TaskRun {
    state: State,
    sent: String,
    deadline: Deadline,
    engine: Arc<Engine>,
}

/// A text, and what it cost.
type Written = (Result<Generation, InferenceError>, ByModel);

enum State {
    /// A model writes.
    Runs { text: BoxFuture<'static, Written>, pieces: mpsc::UnboundedReceiver<Arc<str>> },
    /// The text is known.
    Known(String),
}

impl TaskRun {
    /// Answers a prompt, in a form that the model can keep to.
    pub fn new(
        served: &Served,
        conversation: &Conversation,
        most: Option<usize>,
        deadline: Deadline,
        format: Option<&Format>,
    ) -> Self {
        let state = match generator(served) {
            Some(generator) => {
                let (sender, pieces) = mpsc::unbounded_channel();
                let stream = TextStream::new(move |text| {
                    let _ = sender.send(text.into());
                });
                let mut sampling = generator.sampling().clone();
                if let Some(most) = most {
                    // A caller may ask for less than the pipeline allows, but not for more.
                    sampling.max_tokens = most.clamp(1, MOST_TOKENS).min(sampling.max_tokens);
                }
                sampling.format = format.map(|format| format.form().clone());
                let text = generator.generate_streamed(conversation.prompt(), sampling, stream);
                State::Runs { text: counted(text).boxed(), pieces }
            }
            None => State::Known(plain(conversation)),
        };
        Self { state, sent: String::new(), deadline, engine: served.engine().clone() }
    }

    /// Waits for the next piece.
    ///
    /// # Errors
    ///
    /// The model failed, or it took too long.
    pub async fn next(&mut self) -> Result<Piece, ApiError> {
        let (answer, finish, tokens) = match &mut self.state {
            State::Known(text) => (std::mem::take(text), Finish::Stop, Tokens::default()),
            State::Runs { text, pieces } => {
                let step = async {
                    tokio::select! {
                        biased;
                        Some(piece) = pieces.recv() => Ok(piece),
                        done = text => Err(done),
                    }
                };
                match self.deadline.within(step).await? {
                    Ok(piece) => {
                        self.sent.push_str(&piece);
                        return Ok(Piece::Text(piece));
                    }
                    Err(done) => {
                        let (done, spent) = done;
                        self.engine.spent(&spent);
                        let generation = done.map_err(|error| ApiError::failed("the model", &error))?;
                        let mut tokens = Tokens::default();
                        spent.values().for_each(|of| tokens += *of);
                        (generation.text, generation.finish, tokens)
                    }
                }
            }
        };
        let rest = rest_of(&answer, &self.sent).to_owned();
        Ok(Piece::End(Box::new(Finished {
            answer,
            rest,
            finish,
            sources: Sources::default(),
            fingerprint: None,
            tokens,
        })))
    }
}

/// An answer without a model: the first words of the conversation for a title, and nothing for tasks
/// that need a model, each in the format that the prompt asks for.
fn plain(conversation: &Conversation) -> String {
    let prompt = &*conversation.question;
    let asks = |field: &str| prompt.contains(&format!("\"{field}\""));
    if asks("title") {
        json!({ "title": title(conversation) }).to_string()
    } else if let Some(list) = ["tags", "follow_ups", "queries"].into_iter().find(|list| asks(list)) {
        json!({ list: [] }).to_string()
    } else {
        title(conversation)
    }
}

/// The first words of the user's first message: in the conversation that the prompt quotes, or in
/// the conversation that contains the prompt.
fn title(conversation: &Conversation) -> String {
    let quoted = conversation.question.split_once("<chat_history>").map_or("", |(_, rest)| rest);
    let quoted = quoted.lines().find_map(|line| line.trim().strip_prefix("USER:"));
    let said = conversation.history.iter().find(|utterance| utterance.speaker == Speaker::User);
    let text = quoted.or(said.map(|utterance| &*utterance.text)).unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().take(WORDS).collect();
    if words.is_empty() { "Conversation".to_owned() } else { words.join(" ").chars().take(100).collect() }
}

#[cfg(test)]
mod tests {
    use turnflow_engine::record::Utterance;

    use super::*;

    fn asked(question: &str, said: &[&str]) -> String {
        let history = said.iter().map(|text| Utterance { speaker: Speaker::User, text: (*text).into() }).collect();
        plain(&Conversation { question: question.into(), history, ..Default::default() })
    }

    #[test]
    fn a_title_is_made_of_the_first_words() {
        let quoted = "### Task:\nGive JSON: { \"title\": \"…\" }\n<chat_history>\nUSER: when does the ferry leave on \
                      Sundays?\nASSISTANT: at 9\n</chat_history>";
        assert_eq!(asked(quoted, &[]), r#"{"title":"when does the ferry leave on"}"#);
        assert_eq!(asked("### Task:\nName it.", &["hello there"]), "hello there");
        assert_eq!(asked("### Task:\nName it.", &[]), "Conversation");
        assert_eq!(asked("### Task:\n{ \"tags\": [\"a\"] }", &[]), r#"{"tags":[]}"#);
    }
}
