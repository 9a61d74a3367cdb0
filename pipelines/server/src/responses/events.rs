//! The events and the final form of a response.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use turnflow_engine::inference::tokens::Tokens;
use turnflow_engine::language::Finish;

use crate::asking::{Finished, Piece, Writer};
use crate::auth::Principal;
use crate::citations::{self, Citation, Sources};
use crate::config::Citations;
use crate::sse;
use crate::stored::{self, ResponseStore, StoredResponse};
use crate::usage::{Counter, Spent};

/// The status of a response whose text was cut at the model's limit.
const INCOMPLETE: &str = "incomplete";

/// The status of a response that has ended.
pub(super) fn status_of(finished: &Finished) -> &'static str {
    match finished.finish {
        Finish::Stop => "completed",
        Finish::Length => INCOMPLETE,
    }
}

/// Where a response is stored, and what is stored with it.
pub(super) struct Storing {
    pub(super) store: Arc<ResponseStore>,
    pub(super) caller: Arc<Principal>,
    pub(super) conversation_id: String,
    /// The collection that was searched.
    pub(super) collection: Option<Arc<str>>,
    /// The conversation up to the question.
    pub(super) messages: Vec<Value>,
}

/// The common parts of a response's events.
pub(super) struct Reply {
    pub(super) id: String,
    pub(super) item: String,
    pub(super) created: u64,
    pub(super) model: Arc<str>,
    pub(super) instructions: Option<String>,
    /// The form of the text, as it was asked for.
    pub(super) format: Value,
    pub(super) metadata: Value,
    pub(super) counter: Counter,
    pub(super) input_tokens: u64,
    pub(super) citations: Citations,
    pub(super) previous: Option<String>,
    pub(super) storing: Option<Storing>,
}

impl Reply {
    /// The list of sources for the end of the text, if requested.
    fn list(&self, sources: &Sources, citations: &[Citation]) -> String {
        if self.citations == Citations::Markdown && !sources.is_formed() {
            citations::markdown(citations)
        } else {
            String::new()
        }
    }

    fn annotations(&self, citations: &[Citation]) -> Vec<Value> {
        match self.citations {
            Citations::None => Vec::new(),
            Citations::Annotations | Citations::Markdown => citations.iter().map(Citation::output_annotation).collect(),
        }
    }

    pub(super) fn text_of(&self, finished: &Finished) -> (String, Vec<Value>) {
        let cited = finished.sources.cited(&finished.answer);
        (format!("{}{}", finished.answer, self.list(&finished.sources, &cited)), self.annotations(&cited))
    }

    fn part(text: &str, annotations: &[Value]) -> Value {
        json!({ "type": "output_text", "text": text, "annotations": annotations, "logprobs": [] })
    }

    fn message(&self, status: &str, content: &[Value]) -> Value {
        json!({ "type": "message", "id": self.item, "status": status, "role": "assistant", "content": content })
    }

    fn response(&self, status: &str, output: &[Value], usage: &Value, error: &Value) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": error,
            "incomplete_details": (status == INCOMPLETE).then(|| json!({ "reason": "max_output_tokens" })),
            "instructions": self.instructions,
            "metadata": self.metadata,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": false,
            "previous_response_id": self.previous,
            "store": self.storing.is_some(),
            "temperature": null,
            "text": { "format": self.format },
            "tool_choice": "auto",
            "tools": [],
            "top_p": null,
            "truncation": "disabled",
            "usage": usage,
        })
    }

    /// The response with its whole text.
    pub(super) fn ended(&self, status: &str, text: &str, annotations: &[Value], reported: Tokens) -> Value {
        let Spent { prompt, completion, cached } = Spent::of(reported, self.input_tokens, || self.counter.count(text));
        let usage = json!({
            "input_tokens": prompt,
            "input_tokens_details": { "cached_tokens": cached },
            "output_tokens": completion,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": prompt + completion,
        });
        let message = self.message(status, &[Self::part(text, annotations)]);
        self.response(status, &[message], &usage, &Value::Null)
    }

    /// Stores a response that has ended, and returns it as it is sent. A failure is logged and shown in `store`: the answer
    /// is there.
    pub(super) async fn kept(&self, mut response: Value, text: &str, passages: Vec<Arc<str>>) -> Value {
        let Some(Storing { store, caller, conversation_id, collection, messages }) = &self.storing else {
            return response;
        };
        let mut messages = messages.clone();
        messages.push(json!({ "role": "assistant", "content": text }));
        let stored = StoredResponse::new(caller, conversation_id, messages, response.clone());
        let stored = stored.based_on(passages, collection.clone());
        let id = self.id.clone();
        if stored::call(store, move |store| store.put(&id, &stored)).await.is_err() {
            response["store"] = json!(false);
        }
        response
    }
}

pub(super) struct ResponseStream {
    pub(super) writer: Writer,
    pub(super) first: Option<Piece>,
    pub(super) reply: Reply,
    /// The number of the next event.
    pub(super) number: u64,
    pub(super) has_begun: bool,
    pub(super) text: String,
}

impl ResponseStream {
    /// Adds an event with its name and number.
    fn tell(&mut self, name: &str, mut fields: Value, out: &mut VecDeque<Bytes>) {
        fields["type"] = json!(name);
        fields["sequence_number"] = json!(self.number);
        self.number += 1;
        out.push_back(sse::event(name, &fields));
    }

    /// The fields of an event about the text.
    fn at_text(&self, mut fields: Value) -> Value {
        fields["item_id"] = json!(self.reply.item);
        fields["output_index"] = json!(0);
        fields["content_index"] = json!(0);
        fields
    }

    fn begin(&mut self, out: &mut VecDeque<Bytes>) {
        let response = self.reply.response("in_progress", &[], &Value::Null, &Value::Null);
        self.tell("response.created", json!({ "response": response }), out);
        self.tell("response.in_progress", json!({ "response": response }), out);
        let item = self.reply.message("in_progress", &[]);
        self.tell("response.output_item.added", json!({ "output_index": 0, "item": item }), out);
        let part = self.at_text(json!({ "part": Reply::part("", &[]) }));
        self.tell("response.content_part.added", part, out);
    }

    fn say(&mut self, text: &str, out: &mut VecDeque<Bytes>) {
        if !text.is_empty() {
            self.text.push_str(text);
            let delta = self.at_text(json!({ "delta": text, "logprobs": [] }));
            self.tell("response.output_text.delta", delta, out);
        }
    }

    async fn end(&mut self, finished: &Finished, out: &mut VecDeque<Bytes>) {
        self.say(&finished.rest, out);
        let cited = finished.sources.cited(&self.text);
        self.say(&self.reply.list(&finished.sources, &cited), out);
        let annotations = self.reply.annotations(&cited);
        for (at, annotation) in annotations.iter().enumerate() {
            let added = self.at_text(json!({ "annotation_index": at, "annotation": annotation }));
            self.tell("response.output_text.annotation.added", added, out);
        }
        let text = std::mem::take(&mut self.text);
        let done = self.at_text(json!({ "text": text, "logprobs": [] }));
        self.tell("response.output_text.done", done, out);
        let part = Reply::part(&text, &annotations);
        let done = self.at_text(json!({ "part": part }));
        self.tell("response.content_part.done", done, out);
        let status = status_of(finished);
        let item = self.reply.message(status, &[part]);
        self.tell("response.output_item.done", json!({ "output_index": 0, "item": item }), out);
        let response = self.reply.ended(status, &text, &annotations, finished.tokens);
        let response = self.reply.kept(response, &text, finished.sources.based_on(&text)).await;
        self.tell(&format!("response.{status}"), json!({ "response": response }), out);
    }
}

impl sse::Events for ResponseStream {
    async fn next(&mut self, out: &mut VecDeque<Bytes>) -> bool {
        if !self.has_begun {
            self.has_begun = true;
            self.begin(out);
            return true;
        }
        let piece = match self.first.take() {
            Some(piece) => Ok(piece),
            None => self.writer.next().await,
        };
        match piece {
            Ok(Piece::Text(text)) => {
                self.say(&text, out);
                return true;
            }
            Ok(Piece::End(finished)) => self.end(&finished, out).await,
            Err(error) => {
                let code = error.code.unwrap_or("server_error");
                let told = json!({ "code": code, "message": error.message });
                // OpenAI's packages raise an error for this event, and take the one after it for an answer without text.
                let mut event = error.body();
                event["code"] = json!(code);
                event["message"] = json!(error.message);
                event["param"] = json!(error.param);
                self.tell("error", event, out);
                let response = self.reply.response("failed", &[], &Value::Null, &told);
                self.tell("response.failed", json!({ "response": response }), out);
            }
        }
        false
    }
}
