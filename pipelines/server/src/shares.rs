//! `/v1/shares` and `/shared/{id}`: a link that shows one turn, as it was, to whoever has it.
//!
//! A caller can share only what the server has answered it: the record of `/v1/turns` has a `proof`, a signature of the
//! question, the answer and its passages for this caller. The turn is kept in the state directory (`stored.rs`). Its link is
//! signed as those to documents are (`links.rs`): it ends with the caller's rights, after `link_days`, or when the caller
//! withdraws it. A passage is shown as it was, as long as its document can still be read by the caller; the document itself
//! is not. The answer is shown as long as all of its passages are.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use turnflow_engine::record::AnswerRecord;
use utoipa::ToSchema;

use crate::app::{App, now, unique};
use crate::auth::Principal;
use crate::body::{Content, InPath, Params};
use crate::citations::{Sources, Titles};
use crate::cited::{MAKING, document_of};
use crate::error::ApiError;
use crate::links::{LinkKey, Links, is_signed, opened, present};
use crate::page;
use crate::served::Served;
use crate::stored::{ResponseStore, StoredResponse, call};

/// The key of links to shared turns, and of proofs, so that neither passes for a link to a document.
fn key(served: &Served, of: &str) -> LinkKey {
    *blake3::keyed_hash(served.link_key(), of.as_bytes()).as_bytes()
}

pub(crate) fn share_key(served: &Served) -> LinkKey {
    key(served, "shared turns")
}

/// Signs what a caller was answered, in these groups: who has lost one since shares nothing of it.
pub(crate) fn proof(served: &Served, principal: &Principal, question: &str, record: &Value) -> String {
    let mut groups = principal.groups();
    groups.sort_unstable();
    let said = [json!(*principal.name), json!(groups), json!(**served.name()), json!(question), core(record)];
    let mut text = String::new();
    said.iter().for_each(|value| canonical(value, &mut text));
    let hash = blake3::keyed_hash(&key(served, "proofs of answers"), text.as_bytes());
    URL_SAFE_NO_PAD.encode(&hash.as_bytes()[..24])
}

/// What is shared of a record.
fn core(record: &Value) -> Value {
    let hits = record["hits"].as_array().into_iter().flatten();
    let hits = hits.map(|hit| {
        let fields = ["passage", "document", "corpus", "text", "title", "metadata"].into_iter();
        // The corpus is named only where others may have a document of the same id.
        let fields = fields.filter(|field| *field != "corpus" || hit["corpus"].is_string());
        fields.map(|field| (field.to_owned(), hit[field].clone())).collect::<Map<_, _>>()
    });
    json!({
        "conversation_id": record["conversation_id"], "turn": record["turn"], "revision": record["revision"], "status": record["status"],
        "answer": record["answer"], "epoch": record["stamp"]["epoch"], "hits": hits.collect::<Vec<_>>(),
    })
}

/// A text of a value that is the same after it was read and written by a program that has only one type of numbers.
fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Number(number) => out.push_str(&format!("{:?},", number.as_f64())),
        Value::Array(values) => {
            out.push_str(&format!("[{};", values.len()));
            values.iter().for_each(|value| canonical(value, out));
        }
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields.iter().collect();
            out.push_str(&format!("{{{};", fields.len()));
            for (name, value) in fields {
                out.push_str(&format!("{}:{name}", name.len()));
                canonical(value, out);
            }
        }
        Value::String(text) => out.push_str(&format!("{}:{text}", text.len())),
        Value::Null | Value::Bool(_) => out.push_str(&format!("{value},")),
    }
}

/// A turn to share.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ShareRequest {
    /// The pipeline that answered. Default: the first.
    pub pipeline: Option<String>,
    /// The question.
    pub question: String,
    /// The record of the answer, as `/v1/turns` has sent it.
    #[schema(value_type = Object)]
    pub record: Value,
}

fn store(served: &Served) -> Result<Arc<ResponseStore>, ApiError> {
    served.shares().ok_or_else(|| {
        ApiError::not_found("this server shares no turns: `shares.keep` is 0, or it has no state directory")
    })
}

/// Shares a turn: gives a link that shows it to whoever has it.
#[utoipa::path(post, path = "/v1/shares", tag = "turnflow", request_body = ShareRequest, responses(
    (status = 200, description = "The id of what is shared, and its link", body = Value),
    (status = 400, description = "The record is not one that this server has given to the caller")
))]
pub async fn create(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    headers: HeaderMap,
    content: Content,
) -> Result<Json<Value>, ApiError> {
    let ShareRequest { pipeline, question, record } = content.json()?;
    let served = app.pipeline(pipeline.as_deref(), &principal)?;
    let store = store(&served)?;
    let given = record["proof"].as_str().unwrap_or_default();
    let differs =
        |a: &str, b: &str| a.len() != b.len() || a.bytes().zip(b.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) != 0;
    if differs(given, &proof(&served, &principal, &question, &record)) {
        let problem = "this is not a question and a record that this server has answered for you: send the record of /v1/turns with its `proof`";
        return Err(ApiError::bad(problem).param("record").code("not_answered_here"));
    }
    let whole: AnswerRecord = serde_json::from_value(record.clone())
        .map_err(|error| ApiError::bad(format!("`record`: {error}")).param("record"))?;
    let links = Links::of(&app, Some(&headers), &principal, &served);
    let hits = record["hits"].as_array().into_iter().flatten();
    let mut titles = Titles::default();
    for (hit, of) in hits.zip(&whole.hits) {
        titles.add(of.corpus.0.clone(), of.passage.clone(), hit["title"].as_str().unwrap_or_default().into());
    }
    let citations = Sources::of(&whole, &links, &titles).cited(&whole.answer);
    let shown = json!({
        "pipeline": **served.name(), "question": question, "record": core(&record), "citations": citations, "shared": now(),
    });
    let id = unique("");
    let stored = StoredResponse::new(&principal, "", Vec::new(), shown);
    let of = id.clone();
    call(&store, move |store| store.put(&of, &stored)).await?;
    let url = links.shared(&share_key(&served), &id);
    Ok(Json(json!({ "id": id, "url": url, "until": links.until() })))
}

/// Withdraws a shared turn: its link shows nothing any more.
#[utoipa::path(delete, path = "/v1/shares/{id}", tag = "turnflow", params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, description = "It is withdrawn", body = Value),
        (status = 404, description = "It does not exist, or is another caller's")
    ))]
pub async fn withdraw(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    InPath(id): InPath<String>,
) -> Result<Json<Value>, ApiError> {
    let stores: Vec<_> = app.pipelines_of(&principal).filter_map(|served| served.shares()).collect();
    for store in stores {
        let (wanted, caller) = (id.clone(), principal.name.clone());
        if call(&store, move |store| store.remove(&wanted, &caller)).await? {
            return Ok(Json(json!({ "id": id, "deleted": true })));
        }
    }
    Err(ApiError::not_found("there is no shared turn of yours with this id").param("id"))
}

/// The page of a shared turn. Its script reads the turn.
pub async fn show() -> Response {
    page::shared().await
}

/// The parameters of a link.
#[derive(Debug, Default, Deserialize)]
pub struct SharedParams {
    /// The pipeline.
    pipeline: Option<String>,
    /// The signature.
    key: Option<String>,
}

/// A shared turn, for its page.
pub async fn read(
    State(app): State<App>,
    InPath(id): InPath<String>,
    Params(params): Params<SharedParams>,
) -> Result<Response, ApiError> {
    let refused = || {
        ApiError::forbidden(
            "This link has ended, was withdrawn, or is not complete. Ask the person who shared it for a new one.",
        )
    };
    let named = |served: &&Arc<Served>| params.pipeline.as_deref().is_none_or(|name| **served.name() == *name);
    let served = app.pipelines().iter().find(named).ok_or_else(refused)?;
    let (caller, _) = opened(&app, served, &share_key(served), params.key.as_deref(), &id).ok_or_else(refused)?;
    let store = served.shares().ok_or_else(refused)?;
    let of = caller.clone();
    let found = call(&store, move |store| store.get(&id, &of)).await?.ok_or_else(refused)?;
    let groups = present(&app, &caller, found.groups.clone()).ok_or_else(refused)?;
    let still = app.tokens().is_empty()
        || found.groups.iter().all(|group| groups.contains(group)) && app.tokens().callers().may_have(&found.principal);
    if !still {
        return Err(refused());
    }
    let mut shown = found.response;
    without_documents(&mut shown);
    withhold(served, &mut shown, &groups).await?;
    let headers = [
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, no-store")),
    ];
    Ok((headers, Json(shown)).into_response())
}

/// Leaves out the caller's own links to documents: who has the link to the turn sees the passages and not all of their
/// documents, and nothing more when it is withdrawn.
fn without_documents(shown: &mut Value) {
    for citation in shown["citations"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        if citation.get("url").and_then(Value::as_str).is_some_and(is_signed) {
            citation.remove("url");
        }
    }
}

/// Leaves out the texts of passages whose documents are gone, or closed to these groups, and then also the answer, which may
/// say what they say.
async fn withhold(served: &Served, shown: &mut Value, groups: &[Arc<str>]) -> Result<(), ApiError> {
    let mut readable: HashMap<(Option<String>, String), bool> = HashMap::new();
    let mut are_all_readable = true;
    let hits = shown["record"]["hits"].as_array_mut();
    for hit in hits.into_iter().flatten() {
        let text = |field: &str| hit[field].as_str().map(str::to_owned);
        let of = (text("corpus"), text("document").unwrap_or_default());
        let is_readable = match readable.get(&of) {
            Some(known) => *known,
            None => {
                let _one = MAKING.acquire().await;
                let found = document_of(served, &of.1, of.0.as_deref(), |_| 0, 0, groups).await?.is_some();
                readable.insert(of, found);
                found
            }
        };
        if !is_readable {
            hit["text"] = Value::Null;
            hit["metadata"] = Value::Null;
            are_all_readable = false;
        }
    }
    if !are_all_readable {
        shown["record"]["answer"] = Value::Null;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_record_is_the_same_after_a_program_with_one_type_of_numbers() {
        let text = |value: &Value| {
            let mut out = String::new();
            canonical(value, &mut out);
            out
        };
        let (here, there) = (json!({"b": [1.0, 3], "a": "x"}), json!({"a": "x", "b": [1, 3.0]}));
        assert_eq!(text(&here), text(&there));
        // Nothing moves from one text to another.
        assert_ne!(text(&json!(["ab", "c"])), text(&json!(["a", "bc"])));
        assert_ne!(text(&json!([["a"], "b"])), text(&json!([["a", "b"]])));
        assert_ne!(text(&json!("1")), text(&json!(1)));
    }
}
