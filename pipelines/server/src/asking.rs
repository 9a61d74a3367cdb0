//! A turn in progress: pieces of text, then the complete answer.
//!
//! Dropping it cancels the turn, including its running and waiting model calls. The engine's channel
//! of events is unbounded; for a client that reads slowly, it holds at most one
//! answer and the values of its nodes, and the connection is closed if the client does not read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use turnflow_engine::ask::{AnswerStream, AskRequest, Event};
use turnflow_engine::inference::tokens::Tokens;
use turnflow_engine::language::Finish;
use turnflow_engine::record::{AnswerRecord, Status, Value};

use crate::answered::{Answered, Asked};
use crate::app::App;
use crate::citations::{Sources, Titles};
use crate::error::ApiError;
use crate::format::Format;
use crate::limits::Deadline;
use crate::links::Links;
use crate::numbered::Numbered;
use crate::outline::Outline;
use crate::served::Served;
use crate::task::TaskRun;

/// A request waits this long for the first epoch: a small corpus is there at once.
const FIRST_EPOCH: Duration = Duration::from_secs(2);
/// The interval between looks.
const LOOK: Duration = Duration::from_millis(20);

/// Waits a moment until a pipeline answers callers.
///
/// # Errors
///
/// 503: a corpus is still being indexed for the first time.
pub async fn begun(served: &Served) -> Result<(), ApiError> {
    let asked = Instant::now();
    while served.engine().is_loading() && !served.engine().has_ended() {
        if asked.elapsed() >= FIRST_EPOCH {
            return Err(ApiError::loading());
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// The next part of an answer.
#[derive(Debug)]
pub enum Piece {
    /// A piece of its text.
    Text(Arc<str>),
    /// The complete answer.
    End(Box<Finished>),
}

/// A complete answer.
#[derive(Debug)]
pub struct Finished {
    /// The whole text.
    pub answer: String,
    /// The text that remains to be sent after the pieces.
    pub rest: String,
    /// Why the model stopped writing.
    pub finish: Finish,
    /// The hits that it is based on.
    pub sources: Sources,
    /// The fingerprint of the pipeline that answered.
    pub fingerprint: Option<String>,
    /// The tokens that language models report.
    pub tokens: Tokens,
}

/// The writer of an answer.
pub enum Writer {
    /// A pipeline.
    Turn(Box<Asking>),
    /// A language model, or no model.
    Task(Box<TaskRun>),
}

impl Writer {
    /// Waits for the next piece. Cancel-safe: nothing is lost if it is dropped and called again.
    ///
    /// # Errors
    ///
    /// The turn failed.
    pub async fn next(&mut self) -> Result<Piece, ApiError> {
        match self {
            Self::Turn(asking) => asking.next().await,
            Self::Task(task) => task.next().await,
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
}

/// A turn in progress.
pub struct Asking {
    events: AnswerStream,
    app: App,
    served: Arc<Served>,
    outline: Arc<Outline>,
    deadline: Deadline,
    asked: Instant,
    /// The node whose text is streamed.
    node: Option<Arc<str>>,
    /// What this node has written.
    written: String,
    sent: String,
    titles: Titles,
    links: Links,
    /// Number of passages that the writers of the answer may cite.
    passages: usize,
    numbered: Numbered,
    /// What is asked.
    question: Asked,
    /// The caller and the answer's id, under which it is remembered.
    names: Option<(Arc<str>, String)>,
    /// The form that the answer must have.
    form: Option<Format>,
    /// Why the language model cannot give that form.
    refused: Option<Arc<str>>,
}

impl Asking {
    /// Asks a pipeline.
    ///
    /// # Errors
    ///
    /// 400: the collection does not exist. 503: a corpus is still being indexed for the first time.
    pub async fn new(
        app: App,
        served: Arc<Served>,
        request: AskRequest,
        deadline: Deadline,
        links: Links,
    ) -> Result<Self, ApiError> {
        let outline = served.outline();
        check_collection(&outline, request.collection.as_deref())?;
        begun(&served).await?;
        let question = Asked::of(&request);
        let events = served.engine().ask(request);
        Ok(Self {
            events,
            app,
            served,
            outline,
            deadline,
            asked: Instant::now(),
            node: None,
            written: String::new(),
            sent: String::new(),
            titles: Titles::default(),
            links,
            passages: 0,
            numbered: Numbered::default(),
            question,
            names: None,
            form: None,
            refused: None,
        })
    }

    /// The same for an answer that is remembered for its caller, under this id.
    #[must_use]
    pub fn remembered(self, caller: &Arc<str>, id: &str) -> Self {
        Self { names: Some((caller.clone(), id.to_owned())), ..self }
    }

    /// The same for an answer of a form, which the request asks for.
    #[must_use]
    pub fn formed(self, form: Option<Format>) -> Self {
        Self { form, ..self }
    }

    async fn next(&mut self) -> Result<Piece, ApiError> {
        loop {
            match self.deadline.within(self.events.next()).await? {
                Some(Event::Started { .. } | Event::Revised { .. }) => {}
                Some(Event::Node { value: Value::Answer(answer), .. }) => {
                    self.titles.extend(&answer.hits);
                }
                Some(Event::Node { value: Value::Hits(hits), .. }) => {
                    self.passages = self.passages.max(hits.hits.len())
                }
                Some(Event::Node { value: Value::Failed(failure), .. }) if failure.of_form => {
                    self.refused = Some(failure.reason);
                }
                Some(Event::Node { .. }) => {}
                Some(Event::Delta { node, text }) => {
                    // Drafts, and the text of other nodes, are not the answer.
                    if !self.outline.answering.contains(&node) || *self.node.get_or_insert(node.clone()) != node {
                        continue;
                    }
                    self.written.push_str(&text);
                    // Nodes behind this one may change the text.
                    let certain = self.outline.effects.certain(&node, &self.written);
                    let certain = match self.form {
                        Some(_) => certain,
                        None => self.numbered.certain(&certain, self.passages),
                    };
                    let piece = match certain.trim_end().strip_prefix(self.sent.as_str()) {
                        Some(piece) if !piece.is_empty() => Arc::<str>::from(piece),
                        _ => continue,
                    };
                    if self.sent.is_empty() {
                        self.app.metrics().first_token(self.served.name(), self.asked.elapsed());
                    }
                    self.sent.push_str(&piece);
                    return Ok(Piece::Text(piece));
                }
                Some(Event::Answer { record }) => return self.finish(*record).map(|done| Piece::End(Box::new(done))),
                Some(Event::Failed { reason }) => return Err(reason.into()),
                None => return Err(ApiError::unavailable("the pipeline has stopped")),
            }
        }
    }

    fn finish(&mut self, record: AnswerRecord) -> Result<Finished, ApiError> {
        if let (Status::Failed, Some(form), Some(reason)) = (record.status, &self.form, &self.refused) {
            return Err(form.refused(reason));
        }
        if record.status == Status::Failed {
            return Err(failed(&self.app, &record));
        }
        if self.sent.is_empty() {
            self.app.metrics().first_token(self.served.name(), self.asked.elapsed());
        }
        let is_whole = finish_of(&record) == Finish::Stop;
        if self.form.is_some() && is_whole && serde_json::from_str::<serde_json::Value>(&record.answer).is_err() {
            let problem = "the answer is no JSON, because another node than the language model has given it";
            return Err(ApiError::server(problem).code("not_in_the_form"));
        }
        // What is in brackets in JSON is no citation.
        let answer = match self.form {
            Some(_) => record.answer.to_string(),
            None => self.numbered.text(&record.answer, record.hits.len()),
        };
        let sources = Sources::of(&record, &self.links, &self.titles);
        let sources = sources.in_order(&self.numbered).formed(self.form.is_some());
        if let Some((caller, id)) = self.names.take() {
            let (asked, passages) = (std::mem::take(&mut self.question), sources.based_on(&answer));
            self.served.recent().add(&caller, Some(id), Answered { asked, answer: answer.clone(), passages });
        }
        Ok(Finished {
            rest: rest_of(&answer, &self.sent),
            finish: finish_of(&record),
            answer,
            sources,
            fingerprint: record.stamp.pipeline.get(..16).map(|hash| format!("fp_{hash}")),
            tokens: record.tokens,
        })
    }
}

/// Why the text of an answer ended. An answer that replaced the model's text is complete.
fn finish_of(record: &AnswerRecord) -> Finish {
    let is_cut = record.status == Status::Answered && record.checks.get("finish").is_some_and(|why| why == "length");
    if is_cut { Finish::Length } else { Finish::Stop }
}

/// The error of a turn that failed.
pub fn failed(app: &App, record: &AnswerRecord) -> ApiError {
    ApiError::server(reason(app, record.error.as_deref().unwrap_or("the turn failed"))).code("turn_failed")
}

/// Why a turn failed, as its caller may read it. Callers with tokens do not read addresses and paths: they get the
/// name of the node, and the log gets the rest.
pub fn reason(app: &App, reason: &str) -> String {
    if app.tokens().is_empty() {
        return reason.to_owned();
    }
    tracing::warn!(reason, "a turn failed");
    hidden(reason)
}

/// The part of a reason that names no addresses and paths.
pub fn hidden(reason: &str) -> String {
    let node = reason.split_once(": ").map(|(node, _)| node).filter(|node| node.starts_with("node "));
    format!("{} failed; see the server's log for the reason", node.unwrap_or("the turn"))
}

/// What remains to be sent of an answer. Only text that nothing changes later is sent in pieces, so the answer continues
/// them. If it does not, because the model was asked again or another node has answered after a failure, the answer
/// follows in a paragraph of its own. Citations that were removed change nothing.
pub fn rest_of(answer: &str, sent: &str) -> String {
    match answer.strip_prefix(sent) {
        Some(rest) => rest.to_owned(),
        None if words(answer) == words(sent) => String::new(),
        None => format!("\n\n{answer}"),
    }
}

/// A text without citations such as `[2]`, and without white space.
fn words(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        out.push_str(before);
        match after.split_once(']') {
            Some((inside, end)) if inside.bytes().all(|byte| byte.is_ascii_digit() || b", ".contains(&byte)) => {
                rest = end
            }
            _ => {
                out.push('[');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out.retain(|letter| !letter.is_whitespace());
    out
}

/// Checks the collection of a turn before it is asked: a wrong one is the caller's error.
///
/// # Errors
///
/// 400: the pipeline searches the turn's collection, but no such corpus exists.
pub fn check_collection(outline: &Outline, collection: Option<&str>) -> Result<(), ApiError> {
    let is_known =
        |name: &str| outline.corpora.iter().any(|corpus| **corpus == *name) || outline.aliases.corpus(name).is_some();
    if !outline.routes || collection.is_some_and(is_known) {
        return Ok(());
    }
    let known = outline.corpora.join(", ");
    let problem = match collection {
        Some(name) => format!("unknown collection `{name}`; available: {known}"),
        None => format!("this pipeline needs the turn's `collection`; available: {known}"),
    };
    Err(ApiError::bad(problem).param("collection"))
}

#[cfg(test)]
mod tests {
    use turnflow_engine::component::{Alias, Aliases};

    use super::*;

    #[test]
    fn only_what_continues_is_sent() {
        assert_eq!(rest_of("abc", ""), "abc");
        assert_eq!(rest_of("abc", "ab"), "c");
        assert_eq!(rest_of("abc", "abc"), "");
        assert_eq!(rest_of("a b [1].", "a b [1, 9][2]."), "");
        assert_eq!(rest_of("I do not know.", "The ferry"), "\n\nI do not know.");
        assert_eq!(rest_of("a [x]", "a [y]"), "\n\na [x]");
    }

    #[test]
    fn a_collection_is_checked_where_it_counts() {
        let outline = Outline { routes: true, corpora: vec!["a".into(), "b".into()], ..Outline::default() };
        assert!(check_collection(&outline, Some("b")).is_ok());
        assert!(check_collection(&outline, Some("c")).unwrap_err().message.ends_with("available: a, b"));
        assert!(check_collection(&outline, None).is_err());
        let aliases = Aliases::new([(Alias::parse("mt-a-*").unwrap(), "a".into())]);
        assert!(check_collection(&Outline { aliases, ..outline.clone() }, Some("mt-a-2024")).is_ok());
        assert!(check_collection(&Outline { routes: false, ..outline }, Some("c")).is_ok());
    }
}
