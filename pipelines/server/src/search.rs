//! `/v1/search`: the hits of a pipeline, without an answer.

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value as Json_, json};
use turnflow_engine::ask::{AskRequest, Event};
use turnflow_engine::filter::Filter;
use turnflow_engine::odd_json;
use turnflow_engine::record::{Hit, HitRecord, Hits, Utterance, Value};
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::asking::{begun, check_collection, reason as why};
use crate::auth::Principal;
use crate::body::{Content, Params};
use crate::citations::{Source, Titles};
use crate::error::ApiError;
use crate::limits::Deadline;
use crate::links::Links;
use crate::outline::Outline;

/// A search.
#[derive(Debug, Default, Deserialize, ToSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SearchRequest {
    /// The question.
    pub query: String,
    /// The previous utterances, as `{"speaker", "text"}`; in the body only.
    #[serde(default)]
    #[param(ignore)]
    pub history: Vec<Json_>,
    /// The collection to search, for pipelines that search the turn's collection.
    pub collection: Option<String>,
    /// A condition on the metadata of passages, in addition to the filters of the pipeline:
    /// `{"and": [{"eq": ["lang", "en"]}, {"ge": ["date", "2026-01-01"]}]}`. In a query string, the same as text.
    #[schema(value_type = Option<Object>)]
    #[param(value_type = Option<String>)]
    pub filter: Option<Json_>,
    /// Number of hits. Default: all that the node outputs.
    pub top: Option<usize>,
    /// The node whose hits to return. Default: the last one that outputs hits.
    pub node: Option<String>,
    /// The pipeline. Default: the first.
    pub pipeline: Option<String>,
}

/// Searches without a history.
#[utoipa::path(get, path = "/v1/search", tag = "turnflow", params(SearchRequest), responses(
    (status = 200, description = "The hits, best first", body = Json_),
    (status = 400, description = "The request is invalid")
))]
pub async fn find(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Extension(deadline): Extension<Deadline>,
    headers: HeaderMap,
    Params(request): Params<SearchRequest>,
) -> Result<Json<Json_>, ApiError> {
    search(&app, &principal, deadline, Some(&headers), request).await
}

/// Searches with a history.
#[utoipa::path(post, path = "/v1/search", tag = "turnflow", request_body = SearchRequest, responses(
    (status = 200, description = "The hits, best first", body = Json_),
    (status = 400, description = "The request is invalid")
))]
pub async fn find_by_body(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Extension(deadline): Extension<Deadline>,
    headers: HeaderMap,
    content: Content,
) -> Result<Json<Json_>, ApiError> {
    search(&app, &principal, deadline, Some(&headers), content.json()?).await
}

/// Searches for a caller.
///
/// # Errors
///
/// The request is invalid, or the pipeline fails.
pub async fn search(
    app: &App,
    principal: &Principal,
    deadline: Deadline,
    headers: Option<&HeaderMap>,
    request: SearchRequest,
) -> Result<Json<Json_>, ApiError> {
    if request.query.trim().is_empty() {
        return Err(ApiError::bad("`query` is empty").param("query"));
    }
    if request.top == Some(0) {
        return Err(ApiError::bad("`top` must be at least 1").param("top"));
    }
    let served = app.pipeline(request.pipeline.as_deref(), principal)?;
    let outline = served.outline();
    check_collection(&outline, request.collection.as_deref())?;
    let known = outline.hits.join(", ");
    let node = match &request.node {
        Some(name) => outline.hits.iter().find(|node| ***node == **name).ok_or_else(|| {
            ApiError::bad(format!("no node `{name}` of this pipeline outputs hits; candidates: {known}")).param("node")
        })?,
        None => outline.hits.last().ok_or_else(|| ApiError::bad("no node of this pipeline outputs hits"))?,
    };
    let filter =
        request.filter.map(|filter| checked(filter, &outline, node, request.collection.as_deref())).transpose()?;
    let history = serde_json::from_value::<Vec<Utterance>>(request.history.into());
    let mut asked = AskRequest::new(request.query);
    asked.history = history.map_err(|error| ApiError::bad(error.to_string()).param("history"))?;
    asked.conversation_id = "search".into();
    asked.collection = request.collection.map(Into::into);
    asked.trace = true;
    asked.counts = false;
    // No language model is called for an answer that nobody reads.
    asked.until = Some(node.clone());
    asked.filter = filter.map(Arc::new);
    if let Some(extra) = &principal.extra {
        asked.extra.insert("principal".to_owned(), extra.clone().into());
    }
    begun(&served).await?;
    let mut events = served.engine().ask(asked);
    let mut epoch = 0;
    let hits = loop {
        match deadline.within(events.next()).await? {
            Some(Event::Started { epoch: of }) => epoch = of,
            Some(Event::Node { node: of, value: Value::Hits(hits), .. }) if of == *node => break hits,
            Some(Event::Node { node: of, value: Value::Failed(failure), .. }) if of == *node => {
                let problem = format!("node `{}`: {}", failure.node, failure.reason);
                return Err(ApiError::server(why(app, &problem)).code("turn_failed"));
            }
            Some(Event::Node { .. } | Event::Delta { .. } | Event::Revised { .. }) => {}
            Some(Event::Answer { .. }) => return Err(ApiError::server(format!("the node `{node}` returned no hits"))),
            Some(Event::Failed { reason }) => return Err(reason.into()),
            None => return Err(ApiError::unavailable("the pipeline has stopped")),
        }
    };
    drop(events);
    let links = Links::of(app, headers, principal, &served);
    Ok(Json(told(&hits, request.top, served.name(), node, epoch, &links)))
}

/// The filter of a request, if it fits the corpora that the node searches.
fn checked(json: Json_, outline: &Outline, node: &str, collection: Option<&str>) -> Result<Filter, ApiError> {
    let wrong = |problem: String| ApiError::bad(problem).param("filter").code("bad_filter");
    let json = match json {
        Json_::String(text) => {
            odd_json::exact(&text).map_err(|error| wrong(format!("`filter` is not JSON: {error}")))?
        }
        json => json,
    };
    let filter = Filter::from_json(&json).map_err(|error| wrong(error.to_string()))?;
    let searched = outline.searched.get(node).cloned().unwrap_or_default();
    let named = |name: &str| outline.corpora.iter().find(|corpus| ***corpus == *name).cloned();
    let routed = collection.filter(|_| searched.from_turn);
    let routed = routed.and_then(|name| named(name).or_else(|| outline.aliases.corpus(name).cloned()));
    for corpus in searched.named.into_iter().chain(routed) {
        if let Some(problem) = outline.schemas.get(&corpus).and_then(|schema| filter.misuse(schema)) {
            return Err(wrong(format!("`filter` does not fit the corpus `{corpus}`: {problem}")));
        }
    }
    Ok(filter)
}

fn told(hits: &Hits, top: Option<usize>, pipeline: &str, node: &str, epoch: u64, links: &Links) -> Json_ {
    let found = hits.hits.iter().take(top.unwrap_or(usize::MAX)).map(|hit: &Hit| {
        let of = HitRecord::from(hit);
        let mut record = serde_json::to_value(&of).unwrap_or_default();
        record["title"] = json!(hit.chunk.title);
        record["page"] = json!(links.passage(&of));
        record["url"] = json!(Source::of(&of, links, &Titles::default()).url);
        record
    });
    json!({
        "pipeline": pipeline,
        "node": node,
        "epoch": epoch,
        "query": hits.query.text,
        "queries": hits.query.parts,
        "hits": found.collect::<Vec<_>>(),
    })
}
