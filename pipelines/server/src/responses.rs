//! `/v1/responses`: OpenAI's Responses API.

mod events;
mod items;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::app::{App, now, unique};
use crate::auth::Principal;
use crate::body::Content;
use crate::chat::{check_list, check_metadata, check_tools, first, writer};
use crate::citations;
use crate::conversation::{Conversation, Labels};
use crate::error::ApiError;
use crate::format::Format;
use crate::limits::Deadline;
use crate::links::Links;
use crate::sse;
use crate::stored;
use crate::usage::Counter;

use self::events::{Reply, ResponseStream, Storing, status_of};

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
    /// The form of the text: `{"format": {"type": "text"}}`, or `json_object` or `json_schema` if the pipeline's model can keep
    /// to it.
    pub text: Option<Value>,
    /// A list of tools. It is accepted, and no tool is called.
    pub tools: Option<Value>,
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
        if self.text.as_ref().is_some_and(|text| !text.is_null() && !text.is_object()) {
            return Err(
                ApiError::bad("`text` must be an object, such as `{\"format\": {\"type\": \"text\"}}`").param("text")
            );
        }
        check_list("tools", self.tools.as_ref())?;
        check_tools("tool_choice", self.tool_choice.as_ref())?;
        check_metadata(self.metadata.as_ref())
    }

    /// The items of the input.
    fn items(&self) -> Result<Vec<Value>, ApiError> {
        match &self.input {
            Value::String(text) => Ok(vec![json!({ "role": "user", "content": text })]),
            Value::Array(items) => Ok(items.clone()),
            _ => Err(ApiError::bad("`input` must be a text or a list of messages").param("input")),
        }
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

/// The messages among items. Tool calls, their results, and reasoning are not part of the conversation.
fn messages_of(mut items: Vec<Value>) -> Vec<Value> {
    items.retain(|item| items::kind(item) == "message");
    items
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
    let format = Format::of_response(request.text.as_ref())?;
    let served = app.pipeline(request.model.as_deref(), &principal)?;
    let mut messages = messages_of(items::resolved(&app, &principal, request.items()?).await?);
    let id = unique("resp_");
    let (mut conversation_id, mut collection) = (id.clone(), None);
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
    let is_stream = request.stream.unwrap_or(false);
    let links = Links::of(&app, Some(&headers), &principal, &served);
    let mut writer = writer(&app, &served, &conversation, deadline, is_stream, links, format.as_ref(), || {
        let labels = Labels::of(
            &app,
            &headers,
            request.metadata.as_ref(),
            request.user.as_deref(),
            request.collection.as_deref(),
            &conversation_id,
        );
        conversation_id.clone_from(&labels.conversation);
        collection.clone_from(&labels.collection);
        (labels, request.max_output_tokens, &*principal, &*id)
    })
    .await?;
    let reply = Reply {
        id: id.clone(),
        item: items::message_of(&id),
        created: now(),
        model: served.name().clone(),
        instructions: request.instructions,
        format: format.as_ref().map_or_else(|| json!({ "type": "text" }), Format::of_text),
        metadata: request.metadata.unwrap_or_else(|| json!({})),
        counter,
        input_tokens,
        citations: citations::wanted(&headers, app.config().citations),
        previous: request.previous_response_id,
        storing: served.responses().filter(|_| request.store.unwrap_or(true)).map(|store| Storing {
            store,
            caller: principal.clone(),
            conversation_id,
            collection: collection.map(Into::into),
            messages,
        }),
    };
    if !is_stream {
        let finished = writer.finished().await?;
        let (text, annotations) = reply.text_of(&finished);
        let response = reply.ended(status_of(&finished), &text, &annotations, finished.tokens);
        return Ok(Json(reply.kept(response, &text, finished.sources.based_on(&text)).await).into_response());
    }
    let keep_alive = Duration::from_secs_f64(app.config().keep_alive_s);
    let first = first(writer.next(), keep_alive).await?;
    let stream = ResponseStream { writer, first, reply, number: 0, has_begun: false, text: String::new() };
    Ok(sse::response(stream, keep_alive))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> Result<Conversation, ApiError> {
        let request: ResponseRequest = serde_json::from_value(value).unwrap();
        request.check()?;
        request.conversation(&messages_of(request.items()?))
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
            (json!({ "input": "a", "tools": "search" }), "tools"),
            (json!({ "input": "a", "text": 5 }), "text"),
            (json!({ "input": "a", "metadata": [1] }), "metadata"),
            (json!({ "input": 7 }), "input"),
            (json!({}), "input"),
        ] {
            assert_eq!(read(request).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
