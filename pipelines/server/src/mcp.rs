//! `/mcp`: the Model Context Protocol over streamable HTTP. Its tools are `search` and `ask`; the
//! documents that callers have added to corpora are its resources. It is stateless.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::request::Parts;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, JsonObject,
    ListResourcesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
    ReadResourceResult, Resource, ResourceContents, ServerCapabilities, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use serde_json::{Value, json};
use turnflow_engine::ask::AskRequest;
use turnflow_engine::record::Utterance;

use crate::app::App;
use crate::asking::{Asking, Finished, Writer};
use crate::auth::Principal;
use crate::citations;
use crate::config::Citations;
use crate::documents;
use crate::error::ApiError;
use crate::limits::Deadline;
use crate::links::Links;
use crate::search::{SearchRequest, search};

/// The scheme of the documents' addresses: `turnflow://PIPELINE/CORPUS/ID`.
const SCHEME: &str = "turnflow://";
/// The characters to encode in an address.
const IN_URI: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Number of documents per page of a list.
const PAGE: usize = 100;

/// The service of the route.
pub type Service = StreamableHttpService<Mcp, NeverSessionManager>;

/// The service. Authentication and limits are applied before it.
pub fn service(app: &App) -> Service {
    let keep_alive = std::time::Duration::from_secs_f64(app.config().keep_alive_s);
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_sse_keep_alive(Some(keep_alive))
        .with_max_request_body_bytes(app.config().limits.body_bytes())
        .disable_allowed_hosts();
    let app = app.clone();
    StreamableHttpService::new(move || Ok(Mcp { app: app.clone() }), Arc::new(NeverSessionManager::default()), config)
}

/// The protocol's requests, for one call.
#[derive(Clone)]
pub struct Mcp {
    app: App,
}

/// The arguments of `ask`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskArguments {
    question: String,
    #[serde(default)]
    history: Vec<Utterance>,
    collection: Option<String>,
    pipeline: Option<String>,
}

fn object(schema: Value) -> JsonObject {
    match schema {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    }
}

fn tools() -> Vec<Tool> {
    let text = |description: &str| json!({ "type": "string", "description": description });
    let history = json!({
        "type": "array",
        "description": "What was said before, the oldest first",
        "items": {
            "type": "object",
            "properties": { "speaker": { "enum": ["user", "agent"] }, "text": { "type": "string" } },
            "required": ["speaker", "text"],
        },
    });
    let pipeline = text("The pipeline. Default: the first that you may use");
    let collection = text("The collection to search, for pipelines that search the turn's collection");
    let search = json!({
        "type": "object",
        "properties": {
            "query": text("The question, or what is looked for"),
            "top": { "type": "integer", "minimum": 1, "description": "Number of passages" },
            "history": history,
            "collection": collection,
            "pipeline": pipeline,
            "filter": json!({
                "type": "object",
                "description": "A condition on the metadata of the documents, as in \
                    {\"and\": [{\"eq\": [\"lang\", \"en\"]}, {\"ge\": [\"date\", \"2026-01-01\"]}]}; \
                    conditions: eq, in, lt, le, gt, ge, prefix, exists, and, or, not",
            }),
            "node": text("The node whose passages are wanted. Default: the last one that gives passages"),
        },
        "required": ["query"],
        "additionalProperties": false,
    });
    let ask = json!({
        "type": "object",
        "properties": {
            "question": text("The question"),
            "history": history,
            "collection": collection,
            "pipeline": pipeline,
        },
        "required": ["question"],
        "additionalProperties": false,
    });
    let reads = || ToolAnnotations::default().read_only(true).open_world(false);
    vec![
        Tool::new("search", "Find passages of the documents, best first, without an answer", object(search))
            .annotate(reads()),
        Tool::new("ask", "Answer a question from the documents, with the sources of the answer", object(ask))
            .annotate(reads()),
    ]
}

/// The caller, the deadline, and the headers of the request.
type Caller = (Arc<Principal>, Deadline, HeaderMap);

/// The caller of a request, set by the layers before the service.
fn caller(context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
    let parts = context.extensions.get::<Parts>();
    let found = parts.and_then(|parts| {
        let (principal, deadline) = (parts.extensions.get::<Arc<Principal>>()?, parts.extensions.get::<Deadline>()?);
        Some((principal.clone(), *deadline, parts.headers.clone()))
    });
    found.ok_or_else(|| ErrorData::internal_error("the request has no caller", None))
}

/// The error of a request that is not a tool call.
fn protocol_error(error: ApiError) -> ErrorData {
    match error.status.as_u16() {
        404 => ErrorData::resource_not_found(error.message, None),
        400..500 => ErrorData::invalid_params(error.message, None),
        _ => ErrorData::internal_error(error.message, None),
    }
}

impl Mcp {
    /// The result of a tool, and the text that stands for it where nothing structured is shown.
    async fn call(&self, name: &str, arguments: Value, caller: Caller) -> Result<(Value, Option<String>), ApiError> {
        let (principal, deadline, headers) = caller;
        let wrong = |error: serde_json::Error| ApiError::bad(format!("invalid arguments of `{name}`: {error}"));
        match name {
            "search" => {
                let request: SearchRequest = serde_json::from_value(arguments).map_err(wrong)?;
                Ok((search(&self.app, &principal, deadline, Some(&headers), request).await?.0, None))
            }
            "ask" => {
                let arguments: AskArguments = serde_json::from_value(arguments).map_err(wrong)?;
                if arguments.question.trim().is_empty() {
                    return Err(ApiError::bad("`question` is empty"));
                }
                let served = self.app.pipeline(arguments.pipeline.as_deref(), &principal)?;
                let mut request = AskRequest::new(arguments.question);
                request.history = arguments.history;
                request.conversation_id = "mcp".into();
                request.collection = arguments.collection.map(Into::into);
                (request.trace, request.stream) = (true, false);
                if let Some(extra) = &principal.extra {
                    request.extra.insert("principal".to_owned(), extra.clone().into());
                }
                let links = Links::of(&self.app, Some(&headers), &principal, &served);
                let asking = Asking::new(self.app.clone(), served, request, deadline, links).await?;
                let Finished { answer, sources, .. } = Writer::Turn(Box::new(asking)).finished().await?;
                let sources = sources.cited(&answer);
                let list = match citations::wanted(&headers, self.app.config().citations) {
                    Citations::None => String::new(),
                    Citations::Annotations | Citations::Markdown => citations::markdown(&sources),
                };
                let text = format!("{answer}{list}");
                Ok((json!({ "answer": answer, "sources": sources }), Some(text)))
            }
            _ => Err(ApiError::not_found(format!("unknown tool `{name}`; available: `search`, `ask`"))),
        }
    }
}

/// The address of a document.
fn uri(document: &Value) -> String {
    let part = |name: &str| utf8_percent_encode(document[name].as_str().unwrap_or_default(), IN_URI).to_string();
    format!("{SCHEME}{}/{}/{}", part("pipeline"), part("corpus"), part("id"))
}

/// The pipeline, the corpus and the id in an address.
fn parse(uri: &str) -> Option<[String; 3]> {
    let mut parts = uri.strip_prefix(SCHEME)?.split('/').map(|part| {
        let part = percent_decode_str(part).decode_utf8().ok()?;
        Some(part.into_owned()).filter(|part| !part.is_empty())
    });
    let found = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(found)
}

impl ServerHandler for Mcp {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("turnflow", env!("CARGO_PKG_VERSION")))
            .with_instructions(
                "`ask` answers a question from the documents of this server, with its sources; `search` finds the \
                 passages only. Give the earlier utterances as `history`, so that follow-up questions are understood.",
            )
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let (caller, cancelled) = (caller(&context)?, context.ct.clone());
        let arguments = Value::Object(request.arguments.unwrap_or_default());
        let call = self.call(&request.name, arguments, caller);
        let result = match cancelled.run_until_cancelled(call).await {
            Some(Ok((value, text))) => {
                let mut result = CallToolResult::structured(value);
                if let Some(text) = text {
                    result.content = vec![ContentBlock::text(text)];
                }
                result
            }
            Some(Err(error)) => CallToolResult::error(vec![ContentBlock::text(error.message)]),
            None => CallToolResult::error(vec![ContentBlock::text("the call was cancelled")]),
        };
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let (principal, ..) = caller(&context)?;
        let after = match request.and_then(|request| request.cursor) {
            Some(cursor) => Some(parse(&cursor).ok_or_else(|| ErrorData::invalid_params("no such cursor", None))?),
            None => None,
        };
        let (found, has_more) = documents::page(&self.app, &principal, after, PAGE).await.map_err(protocol_error)?;
        let next = found.last().filter(|_| has_more).map(uri);
        let resource = |document: &Value| {
            let text = |name: &str| document[name].as_str().map(str::to_owned);
            let mut resource = Resource::new(uri(document), text("id").unwrap_or_default());
            (resource.title, resource.mime_type) = (text("title"), Some("text/plain".to_owned()));
            resource
        };
        let mut result = ListResourcesResult::with_all_items(found.iter().map(resource).collect());
        result.next_cursor = next;
        Ok(result)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let (principal, ..) = caller(&context)?;
        let none = || ErrorData::resource_not_found(format!("unknown document `{}`", request.uri), None);
        let [pipeline, corpus, id] = parse(&request.uri).ok_or_else(none)?;
        let document = documents::one(&self.app, &principal, &pipeline, &corpus, id).await.map_err(protocol_error)?;
        let document = document.ok_or_else(none)?;
        let text = document["text"].as_str().unwrap_or_default();
        Ok(ReadResourceResult::new(vec![ResourceContents::text(text, request.uri.clone())]).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_any_id() {
        for id in ["a", "a/b c.md", "ü?#%2F", "../x", "日本"] {
            let document = json!({ "pipeline": "p q", "corpus": "docs", "id": id });
            assert_eq!(parse(&uri(&document)), Some(["p q".to_owned(), "docs".to_owned(), id.to_owned()]));
        }
        for wrong in
            ["", "turnflow://", "turnflow://a/b", "turnflow://a/b/", "turnflow://a/b/c/d", "file:///etc/passwd"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
