//! `/v1/chat/completions`: OpenAI's chat API.

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
use turnflow_engine::inference::tokens::Tokens;
use turnflow_engine::language::Finish;
use utoipa::ToSchema;

use crate::app::{App, now, unique};
use crate::asking::{Asking, Finished, Piece, Writer};
use crate::auth::Principal;
use crate::body::Content;
use crate::citations::{self, Citation, Sources};
use crate::config::Citations;
use crate::conversation::{Conversation, Labels};
use crate::error::ApiError;
use crate::format::Format;
use crate::limits::Deadline;
use crate::links::Links;
use crate::served::Served;
use crate::sse;
use crate::stop::{Stop, Stopping};
use crate::task::TaskRun;
use crate::usage::{Counter, Spent, Usage};

/// A chat request. Further fields are accepted and have no effect.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct ChatRequest {
    /// The pipeline. Default: the first.
    pub model: Option<String>,
    /// The conversation; the last message is the user's.
    pub messages: Vec<Value>,
    /// Whether to stream the answer.
    pub stream: Option<bool>,
    /// Options of a stream.
    pub stream_options: Option<StreamOptions>,
    /// Number of answers: 1.
    pub n: Option<u64>,
    /// Text, or, if the pipeline's model can keep to it, a JSON object (`json_object`) or JSON with a schema (`json_schema`).
    pub response_format: Option<Value>,
    /// Texts that end the answer: one, or a list.
    pub stop: Option<Value>,
    /// A list of tools. It is accepted, and no tool is called.
    pub tools: Option<Value>,
    /// The former name of `tools`.
    pub functions: Option<Value>,
    /// `none` or `auto`.
    pub tool_choice: Option<Value>,
    /// The former name of `tool_choice`.
    pub function_call: Option<Value>,
    /// Not supported.
    pub logprobs: Option<bool>,
    /// The fields `conversation_id` and `collection` are read.
    pub metadata: Option<Value>,
    /// Identifies the conversation if nothing else does.
    pub user: Option<String>,
    /// The collection to search, for pipelines that search the turn's collection.
    pub collection: Option<String>,
    /// The maximum number of tokens, for prompts that are not questions.
    pub max_tokens: Option<usize>,
    /// The same.
    pub max_completion_tokens: Option<usize>,
}

/// Options of a stream.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Whether the last chunk contains the usage.
    pub include_usage: Option<bool>,
}

impl ChatRequest {
    fn check(&self) -> Result<(), ApiError> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(ApiError::unsupported("n", "this server returns one answer: `n` must be 1"));
        }
        if self.logprobs == Some(true) {
            return Err(ApiError::unsupported("logprobs", "this server does not support `logprobs`"));
        }
        check_list("tools", self.tools.as_ref())?;
        check_list("functions", self.functions.as_ref())?;
        check_tools("tool_choice", self.tool_choice.as_ref())?;
        check_tools("function_call", self.function_call.as_ref())?;
        check_metadata(self.metadata.as_ref())
    }
}

/// Refuses tools that are no list of objects: a client with such a mistake would wait for a call in vain.
pub fn check_list(field: &str, tools: Option<&Value>) -> Result<(), ApiError> {
    let Some(tools) = tools.filter(|tools| !tools.is_null()) else { return Ok(()) };
    match tools.as_array().is_some_and(|tools| tools.iter().all(Value::is_object)) {
        true => Ok(()),
        false => Err(ApiError::bad(format!("`{field}` must be a list of objects")).param(field)),
    }
}

/// Refuses metadata that cannot name the conversation.
pub fn check_metadata(metadata: Option<&Value>) -> Result<(), ApiError> {
    match metadata.is_none_or(|metadata| metadata.is_null() || metadata.is_object()) {
        true => Ok(()),
        false => Err(ApiError::bad("`metadata` must be an object").param("metadata")),
    }
}

/// Refuses a choice that forces a call. A client that offers tools (Open WebUI does with each question) takes an answer
/// without a call.
pub fn check_tools(field: &str, choice: Option<&Value>) -> Result<(), ApiError> {
    match choice {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(choice)) if choice == "none" || choice == "auto" => Ok(()),
        Some(choice) if choice.pointer("/allowed_tools/mode").or(choice.get("mode")) == Some(&"auto".into()) => Ok(()),
        Some(_) => Err(ApiError::unsupported(
            field,
            format!(
                "this server answers by itself and calls no tools: `{field}` must be left out, \"none\" or \"auto\""
            ),
        )),
    }
}

/// Answers a conversation.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "openai", request_body = ChatRequest, responses(
    (status = 200, description = "A chat completion, or a stream of its chunks", content((Value = "application/json"), (String = "text/event-stream"))),
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
    let request: ChatRequest = content.json()?;
    request.check()?;
    let format = Format::of_chat(request.response_format.as_ref())?;
    let stop = Stop::of(request.stop.as_ref())?;
    let served = app.pipeline(request.model.as_deref(), &principal)?;
    let conversation = Conversation::of(&request.messages, "messages")?;
    let id = unique("chatcmpl-");
    let counter = Counter::of(&served);
    let prompt_tokens = counter.count_all(conversation.texts()).await;
    let include_usage = request.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false);
    let is_stream = request.stream.unwrap_or(false);
    let links = Links::of(&app, Some(&headers), &principal, &served);
    let writer = writer(&app, &served, &conversation, deadline, is_stream, links, format.as_ref(), || {
        let labels = Labels::of(
            &app,
            &headers,
            request.metadata.as_ref(),
            request.user.as_deref(),
            request.collection.as_deref(),
            &id,
        );
        (labels, request.max_completion_tokens.or(request.max_tokens), &*principal, &*id)
    })
    .await?;
    let mut writer = Stopping::new(writer, stop);
    let reply = Reply {
        id: id.clone(),
        created: now(),
        model: served.name().clone(),
        counter,
        prompt_tokens,
        citations: citations::wanted(&headers, app.config().citations),
    };
    if !is_stream {
        return Ok(Json(reply.whole(&writer.finished().await?)).into_response());
    }
    let keep_alive = Duration::from_secs_f64(app.config().keep_alive_s);
    let first = first(writer.next(), keep_alive).await?;
    let stream = ChatStream { writer, first, reply, include_usage, has_begun: false, text: String::new() };
    Ok(sse::response(stream, keep_alive))
}

/// Answers a conversation: by the pipeline, or by its model alone if the question is a prompt of the client.
#[allow(clippy::too_many_arguments, reason = "each is a part of a request")]
pub async fn writer<'a>(
    app: &App,
    served: &Arc<Served>,
    conversation: &Conversation,
    deadline: Deadline,
    is_stream: bool,
    links: Links,
    format: Option<&Format>,
    labels: impl FnOnce() -> (Labels, Option<usize>, &'a Principal, &'a str),
) -> Result<Writer, ApiError> {
    let (labels, most, principal, id) = labels();
    let node = match format {
        None => None,
        Some(format) => Some(deadline.within(format.check(served)).await??),
    };
    if app.is_task(&conversation.question) {
        return Ok(Writer::Task(Box::new(TaskRun::new(served, conversation, most, deadline, format))));
    }
    let mut request = conversation.request(labels, principal);
    if let (Some(format), Some(node)) = (format, node) {
        format.ask(node, &mut request);
    }
    request.stream = is_stream;
    let asking = Asking::new(app.clone(), served.clone(), request, deadline, links).await?;
    Ok(Writer::Turn(Box::new(asking.formed(format.cloned()).remembered(&principal.name, id))))
}

/// Waits briefly for the first piece, so that a turn that fails immediately is an error of the request, and
/// not of a started stream.
///
/// # Errors
///
/// The turn failed.
pub async fn first(
    next: impl Future<Output = Result<Piece, ApiError>>,
    patience: Duration,
) -> Result<Option<Piece>, ApiError> {
    tokio::time::timeout(patience, next).await.ok().transpose()
}

/// The common parts of all chunks of a reply.
struct Reply {
    id: String,
    created: u64,
    model: Arc<str>,
    counter: Counter,
    prompt_tokens: u64,
    citations: Citations,
}

impl Reply {
    fn usage(&self, text: &str, reported: Tokens) -> Usage {
        Spent::of(reported, self.prompt_tokens, || self.counter.count(text)).into()
    }

    /// The list of sources for the end of the text, if requested. What has a form gets none.
    fn list(&self, sources: &Sources, citations: &[Citation]) -> String {
        if self.citations == Citations::Markdown && !sources.is_formed() {
            citations::markdown(citations)
        } else {
            String::new()
        }
    }

    /// The annotations, if requested.
    fn annotations(&self, citations: &[Citation]) -> Vec<Value> {
        match self.citations {
            Citations::None => Vec::new(),
            Citations::Annotations | Citations::Markdown => citations.iter().map(Citation::annotation).collect(),
        }
    }

    fn whole(&self, finished: &Finished) -> Value {
        let cited = finished.sources.cited(&finished.answer);
        let text = format!("{}{}", finished.answer, self.list(&finished.sources, &cited));
        let annotations = self.annotations(&cited);
        json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": finished.fingerprint,
            "choices": [{
                "index": 0,
                "message": { "role": "assistant", "content": text, "refusal": null, "annotations": annotations },
                "logprobs": null,
                "finish_reason": finished.finish,
            }],
            "usage": self.usage(&text, finished.tokens),
        })
    }

    fn chunk(&self, choices: &Value, usage: Option<&Usage>, include_usage: bool) -> Bytes {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        if include_usage {
            // All chunks but the last have a usage of null.
            chunk["usage"] = json!(usage);
        }
        sse::data(&chunk)
    }
}

struct ChatStream {
    writer: Stopping,
    first: Option<Piece>,
    reply: Reply,
    include_usage: bool,
    has_begun: bool,
    text: String,
}

impl ChatStream {
    fn delta(&self, delta: &Value, finish: Option<Finish>) -> Bytes {
        let choices = json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }]);
        self.reply.chunk(&choices, None, self.include_usage)
    }

    fn say(&mut self, text: &str, out: &mut VecDeque<Bytes>) {
        if !text.is_empty() {
            self.text.push_str(text);
            out.push_back(self.delta(&json!({ "content": text }), None));
        }
    }
}

impl sse::Events for ChatStream {
    async fn next(&mut self, out: &mut VecDeque<Bytes>) -> bool {
        let piece = match self.first.take() {
            Some(piece) => Ok(piece),
            None => self.writer.next().await,
        };
        if !self.has_begun {
            self.has_begun = true;
            out.push_back(self.delta(&json!({ "role": "assistant", "content": "" }), None));
        }
        match piece {
            Ok(Piece::Text(text)) => {
                self.say(&text, out);
                return true;
            }
            Ok(Piece::End(finished)) => {
                self.say(&finished.rest, out);
                let cited = finished.sources.cited(&self.text);
                self.say(&self.reply.list(&finished.sources, &cited), out);
                let annotations = self.reply.annotations(&cited);
                if !annotations.is_empty() {
                    out.push_back(self.delta(&json!({ "annotations": annotations }), None));
                }
                out.push_back(self.delta(&json!({}), Some(finished.finish)));
                if self.include_usage {
                    let usage = self.reply.usage(&self.text, finished.tokens);
                    out.push_back(self.reply.chunk(&json!([]), Some(&usage), true));
                }
            }
            Err(error) => out.push_back(sse::data(&error.body())),
        }
        out.push_back(sse::done());
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_done_is_refused_and_the_rest_accepted() {
        let with = |field: &str, value: Value| {
            serde_json::from_value::<ChatRequest>(json!({ "messages": [], field: value })).unwrap().check()
        };
        for (field, value) in [
            ("n", json!(2)),
            ("logprobs", json!(true)),
            ("tool_choice", json!("required")),
            ("tool_choice", json!({"type": "function", "function": {"name": "f"}})),
            ("function_call", json!({"name": "f"})),
            ("tool_choice", json!({"type": "allowed_tools", "allowed_tools": {"mode": "required"}})),
            ("tools", json!("search")),
            ("tools", json!({"type": "function"})),
            ("tools", json!(["search"])),
            ("functions", json!(1)),
            ("metadata", json!([1])),
            ("metadata", json!("conversation")),
        ] {
            let error = with(field, value).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(field)));
        }
        for (field, value) in [
            ("n", json!(1)),
            ("logprobs", json!(false)),
            ("tool_choice", json!("auto")),
            ("tool_choice", Value::Null),
            ("tool_choice", json!({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}})),
            ("tools", json!([])),
            ("tools", Value::Null),
            ("metadata", Value::Null),
            ("metadata", json!({"chat_id": 7})),
            ("tools", json!([{"type": "function"}])),
            ("functions", json!([{"name": "f"}])),
            ("response_format", json!({"type": "text"})),
            ("something_new", json!({"a": 1})),
            ("stream_options", Value::Null),
        ] {
            assert_eq!(with(field, value), Ok(()), "{field}");
        }
    }
}
