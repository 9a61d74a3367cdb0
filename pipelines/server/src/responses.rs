//! `/v1/responses`: OpenAI's Responses API.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::app::{App, now, unique};
use crate::asking::{Finished, Piece, Writer};
use crate::auth::Principal;
use crate::body::Content;
use crate::chat::{check_tools, first, writer};
use crate::citations::{self, Citation};
use crate::config::Citations;
use crate::conversation::{Conversation, Labels};
use crate::error::ApiError;
use crate::limits::Deadline;
use crate::sse;
use crate::stored::{self, ResponseStore, StoredResponse};
use crate::usage::Counter;

/// A request for a response. Further fields are accepted and have no effect.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ResponseRequest {
    /// The pipeline. Default: the first.
    pub model: Option<String>,
    /// A question, or the conversation as a list of messages; the last one is the user's.
    #[serde(default)]
    pub input: Value,
    /// Instructions, as of a system message.
    pub instructions: Option<String>,
    /// Whether to stream the answer.
    pub stream: Option<bool>,
    /// A stored response, whose conversation the input continues.
    pub previous_response_id: Option<String>,
    /// Whether to store the response. Default: true, unless the server stores none.
    pub store: Option<bool>,
    /// Not supported: conversations are not stored.
    pub conversation: Option<Value>,
    /// Not supported.
    pub background: Option<bool>,
    /// `none` or `auto`.
    pub tool_choice: Option<Value>,
    /// The fields `conversation_id` and `collection` are read.
    pub metadata: Option<Value>,
    /// Identifies the conversation if nothing else does.
    pub user: Option<String>,
    /// The collection to search, for pipelines that search the turn's collection.
    pub collection: Option<String>,
    /// The maximum number of tokens, for prompts that are not questions.
    pub max_output_tokens: Option<usize>,
}

impl ResponseRequest {
    fn check(&self) -> Result<(), ApiError> {
        if self.conversation.as_ref().is_some_and(|conversation| !conversation.is_null()) {
            let problem = "this server stores no conversations: use `previous_response_id`, or send them as `input`";
            return Err(ApiError::unsupported("conversation", problem));
        }
        if self.background == Some(true) {
            return Err(ApiError::unsupported("background", "this server does not answer in the background"));
        }
        check_tools("tool_choice", self.tool_choice.as_ref())
    }

    /// The messages of the input.
    fn messages(&self) -> Result<Vec<Value>, ApiError> {
        let items = match &self.input {
            Value::String(text) => vec![json!({ "role": "user", "content": text })],
            Value::Array(items) => items.clone(),
            _ => return Err(ApiError::bad("`input` must be a text or a list of messages").param("input")),
        };
        let kind = |item: &Value| item.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
        if let Some(at) = items.iter().position(|item| kind(item) == "item_reference") {
            let problem = "this server stores no items: send the messages themselves";
            return Err(ApiError::unsupported(&format!("input[{at}]"), problem));
        }
        // Tool calls, their results, and reasoning are not part of the conversation.
        Ok(items.into_iter().filter(|item| kind(item) == "message").collect())
    }

    /// The conversation of these messages.
    fn conversation(&self, messages: &[Value]) -> Result<Conversation, ApiError> {
        let mut conversation = Conversation::of(messages, "input")?;
        if let Some(instructions) = &self.instructions {
            conversation.instructions.insert(0, instructions.clone());
        }
        Ok(conversation)
    }
}

/// Answers a conversation.
#[utoipa::path(post, path = "/v1/responses", tag = "openai", request_body = ResponseRequest, responses(
    (status = 200, description = "A response, or a stream of its events", content((Value = "application/json"), (String = "text/event-stream"))),
    (status = 400, description = "The request is invalid"),
    (status = 404, description = "The model does not exist"),
    (status = 429, description = "Too many requests"),
    (status = 500, description = "The pipeline failed")
))]
pub async fn create(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Extension(deadline): Extension<Deadline>,
    headers: HeaderMap,
    content: Content,
) -> Result<Response, ApiError> {
    let request: ResponseRequest = content.json()?;
    request.check()?;
    let served = app.pipeline(request.model.as_deref(), &principal)?;
    let mut messages = request.messages()?;
    let id = unique("resp_");
    let mut conversation_id = id.clone();
    if let Some(previous) = &request.previous_response_id {
        let Some((_, stored)) = stored::find(&app, &principal, previous).await? else {
            return Err(ApiError::bad(format!("there is no stored response `{previous}`"))
                .param("previous_response_id")
                .code("previous_response_not_found"));
        };
        messages = [stored.messages, messages].concat();
        conversation_id = stored.conversation_id;
        if Value::from(messages.clone()).to_string().len() > app.config().limits.body_bytes() {
            return Err(ApiError::bad("the conversation is longer than a request may be").param("previous_response_id"));
        }
    }
    let conversation = request.conversation(&messages)?;
    let counter = Counter::of(&served);
    let input_tokens = counter.count_all(conversation.texts()).await;
    let mut writer = writer(&app, &served, &conversation, deadline, || {
        let labels = Labels::of(
            &app,
            &headers,
            request.metadata.as_ref(),
            request.user.as_deref(),
            request.collection.as_deref(),
            &conversation_id,
        );
        conversation_id.clone_from(&labels.conversation);
        (labels, request.max_output_tokens, &*principal)
    })?;
    let reply = Reply {
        id: id.clone(),
        item: unique("msg_"),
        created: now(),
        model: served.name().clone(),
        instructions: request.instructions,
        metadata: request.metadata.unwrap_or_else(|| json!({})),
        counter,
        input_tokens,
        citations: citations::wanted(&headers, app.config().citations),
        previous: request.previous_response_id,
        storing: served.responses().filter(|_| request.store.unwrap_or(true)).map(|store| Storing {
            store,
            caller: principal.name.clone(),
            conversation_id,
            messages,
        }),
    };
    if !request.stream.unwrap_or(false) {
        let finished = writer.finished().await?;
        let (text, annotations) = reply.text_of(&finished);
        let response = reply.completed(&text, &annotations);
        return Ok(Json(reply.kept(response, &text).await).into_response());
    }
    let keep_alive = Duration::from_secs_f64(app.config().keep_alive_s);
    let first = first(&mut writer, keep_alive).await?;
    let stream = ResponseStream { writer, first, reply, number: 0, has_begun: false, text: String::new() };
    Ok(sse::response(stream, keep_alive))
}

/// Where a response is stored, and what is stored with it.
struct Storing {
    store: Arc<ResponseStore>,
    caller: Arc<str>,
    conversation_id: String,
    /// The conversation up to the question.
    messages: Vec<Value>,
}

/// The common parts of a response's events.
struct Reply {
    id: String,
    item: String,
    created: u64,
    model: Arc<str>,
    instructions: Option<String>,
    metadata: Value,
    counter: Counter,
    input_tokens: u64,
    citations: Citations,
    previous: Option<String>,
    storing: Option<Storing>,
}

impl Reply {
    /// The list of sources for the end of the text, if requested.
    fn list(&self, citations: &[Citation]) -> String {
        if self.citations == Citations::Markdown { citations::markdown(citations) } else { String::new() }
    }

    fn annotations(&self, citations: &[Citation], end: usize) -> Vec<Value> {
        match self.citations {
            Citations::None => Vec::new(),
            Citations::Annotations | Citations::Markdown => {
                citations.iter().map(|citation| citation.output_annotation(end)).collect()
            }
        }
    }

    fn text_of(&self, finished: &Finished) -> (String, Vec<Value>) {
        let annotations = self.annotations(&finished.citations, finished.answer.chars().count());
        (format!("{}{}", finished.answer, self.list(&finished.citations)), annotations)
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
            "incomplete_details": null,
            "instructions": self.instructions,
            "metadata": self.metadata,
            "model": self.model,
            "output": output,
            "parallel_tool_calls": false,
            "previous_response_id": self.previous,
            "store": self.storing.is_some(),
            "temperature": null,
            "text": { "format": { "type": "text" } },
            "tool_choice": "auto",
            "tools": [],
            "top_p": null,
            "truncation": "disabled",
            "usage": usage,
        })
    }

    fn completed(&self, text: &str, annotations: &[Value]) -> Value {
        let output_tokens = self.counter.count(text);
        let usage = json!({
            "input_tokens": self.input_tokens,
            "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": output_tokens,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": self.input_tokens + output_tokens,
        });
        let message = self.message("completed", &[Self::part(text, annotations)]);
        self.response("completed", &[message], &usage, &Value::Null)
    }

    /// Stores a completed response, and returns it as it is sent. A failure is logged and shown in `store`: the answer
    /// is there.
    async fn kept(&self, mut response: Value, text: &str) -> Value {
        let Some(Storing { store, caller, conversation_id, messages }) = &self.storing else { return response };
        let mut messages = messages.clone();
        messages.push(json!({ "role": "assistant", "content": text }));
        let stored = StoredResponse::new(caller, conversation_id, messages, response.clone());
        let id = self.id.clone();
        if stored::call(store, move |store| store.put(&id, &stored)).await.is_err() {
            response["store"] = json!(false);
        }
        response
    }
}

struct ResponseStream {
    writer: Writer,
    first: Option<Piece>,
    reply: Reply,
    /// The number of the next event.
    number: u64,
    has_begun: bool,
    text: String,
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
        let end = self.text.chars().count();
        self.say(&self.reply.list(&finished.citations), out);
        let annotations = self.reply.annotations(&finished.citations, end);
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
        let item = self.reply.message("completed", &[part]);
        self.tell("response.output_item.done", json!({ "output_index": 0, "item": item }), out);
        let response = self.reply.completed(&text, &annotations);
        let response = self.reply.kept(response, &text).await;
        self.tell("response.completed", json!({ "response": response }), out);
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
                let told = json!({ "code": error.code.unwrap_or("server_error"), "message": error.message });
                let response = self.reply.response("failed", &[], &Value::Null, &told);
                self.tell("response.failed", json!({ "response": response }), out);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<Conversation, ApiError> {
        let request: ResponseRequest = serde_json::from_value(value).unwrap();
        request.check()?;
        request.conversation(&request.messages()?)
    }

    #[test]
    fn input_is_a_text_or_messages() {
        let conversation = read(json!({ "input": "why?", "instructions": "be brief" })).unwrap();
        assert_eq!((&*conversation.question, conversation.instructions.len()), ("why?", 1));
        let conversation = read(json!({ "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
            {"role": "user", "content": "c"},
        ] }));
        assert_eq!(conversation.unwrap().history.len(), 2);
        for (request, param) in [
            (json!({ "input": "a", "conversation": "conv_1" }), "conversation"),
            (json!({ "input": "a", "background": true }), "background"),
            (json!({ "input": "a", "tool_choice": "required" }), "tool_choice"),
            (json!({ "input": [{"type": "item_reference", "id": "x"}] }), "input[0]"),
            (json!({ "input": 7 }), "input"),
            (json!({}), "input"),
        ] {
            assert_eq!(read(request).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
