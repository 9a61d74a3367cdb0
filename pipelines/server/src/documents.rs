//! `/v1/documents`: the documents that callers add to a corpus.

mod change;
mod file;
mod input;

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use turnflow_engine::connector::{ConnectorError, DocumentStore, StoredDocument};
use turnflow_engine::document::Readers;
use turnflow_engine::metadata::{FieldValue, Metadata};
use turnflow_engine::publish::CorpusProgress;
use utoipa::IntoParams;

use self::change::change;
use self::file::file;
use crate::app::App;
use crate::auth::Principal;
use crate::body::{Content, InPath, Params};
use crate::config::DocumentRights;
use crate::error::ApiError;
use crate::limits::Deadline;
use crate::served::Served;

/// Maximum bytes of texts in a list of several corpora.
const LIST_BYTES: usize = 8 << 20;

/// The parameters of the URL.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DocumentParams {
    /// The pipeline, if several accept documents.
    pipeline: Option<String>,
    /// The corpus, if several accept documents.
    corpus: Option<String>,
    /// Whether to wait until an epoch with the change is published.
    #[serde(default)]
    wait: bool,
    /// For a document that is not sent as JSON: its metadata, as a JSON object.
    metadata: Option<String>,
    /// For a list: the id of the document after which it starts.
    after: Option<String>,
    /// For a list: number of documents. Default: 100.
    limit: Option<usize>,
}

/// A corpus that callers can write.
struct Writable {
    served: Arc<Served>,
    corpus: Arc<str>,
    store: Arc<dyn DocumentStore>,
    /// The field that names the readers of a document.
    readers: Option<Arc<str>>,
    /// The same, unless the caller may read every document.
    access: Option<Arc<str>>,
}

impl Writable {
    /// Whether a caller may read a document.
    fn shows(&self, document: &StoredDocument, groups: &[Arc<str>]) -> bool {
        shows(self.access.as_deref(), document, groups)
    }

    /// What has become of its documents: how many are read, have no text, are missing because they cannot be read or cut, and
    /// have passages in the newest epoch; and the number of these passages.
    fn indexed(&self) -> Value {
        let engine = self.served.engine();
        let view = engine.epochs().current();
        let (documents, passages) = view.corpora.get(&self.corpus).map_or((0, 0), |view| (view.documents, view.chunks));
        let corpora = engine.corpora();
        let Some((_, progress, _)) = corpora.into_iter().find(|(name, ..)| *name == self.corpus) else {
            return Value::Null;
        };
        let (read, empty) = (CorpusProgress::get(&progress.documents), CorpusProgress::get(&progress.empty));
        json!({
            "read": read, "empty": empty, "unreadable": progress.unreadable(), "documents": documents,
            "passages": passages,
        })
    }

    /// A page of the documents that a caller may read; the others cost nothing.
    fn list(
        &self,
        groups: &[Arc<str>],
    ) -> impl Fn(&dyn DocumentStore, Option<&str>, usize) -> Listed + Send + 'static + use<> {
        let (access, groups) = (self.access.clone(), groups.to_vec());
        move |store, after, limit| match &access {
            Some(field) => store.list_for(field, &groups, after, limit),
            None => store.list(after, limit),
        }
    }

    /// A call that puts documents, if the caller may put all of them ([`permit`]).
    fn putting(
        &self,
        principal: &Principal,
        documents: Vec<StoredDocument>,
    ) -> impl FnOnce(&dyn DocumentStore) -> Result<Result<u64, ApiError>, ConnectorError> + Send + 'static {
        let (access, groups) = (self.access.clone(), principal.groups());
        let readers = self.readers.clone();
        move |store| {
            if let Some(error) = readers.and_then(|field| documents.iter().find_map(|one| misnamed(&field, one))) {
                return Ok(Err(error));
            }
            // Nobody changes a document between the check and the change.
            let _one = access.as_ref().map(|_| CHANGING.lock());
            for document in &documents {
                if let Some(field) = &access
                    && let Err(error) = permit(field, &groups, document, store.get(&document.id)?.as_ref())
                {
                    return Ok(Err(error));
                }
            }
            store.put(documents).map(Ok)
        }
    }

    /// A call that deletes a document, if the caller may read it; otherwise it is as if it did not exist.
    fn deleting(
        &self,
        principal: &Principal,
        id: String,
    ) -> impl FnOnce(&dyn DocumentStore) -> Result<Result<u64, ApiError>, ConnectorError> + Send + 'static {
        let (access, groups) = (self.access.clone(), principal.groups());
        move |store| {
            let _one = access.as_ref().map(|_| CHANGING.lock());
            let missing = || Ok(Err(ApiError::not_found("no such document")));
            if access.is_some() && store.get(&id)?.is_some_and(|known| !shows(access.as_deref(), &known, &groups)) {
                return missing();
            }
            let deleted = store.delete(&[id])?;
            if deleted.documents > 0 { Ok(Ok(deleted.change)) } else { missing() }
        }
    }
}

/// A page of a store.
type Listed = Result<Vec<StoredDocument>, ConnectorError>;

/// One change at a time, in corpora with `access`.
static CHANGING: Mutex<()> = Mutex::new(());

/// Checks a document that a caller puts into a corpus with `access`, in whatever form it came. `known` is the document
/// that it replaces. The field `access` must name one of the caller's groups. Every group that it names must be the
/// caller's or one that the replaced document names, so nobody writes for the readers of another group.
fn permit(
    field: &str,
    groups: &[Arc<str>],
    document: &StoredDocument,
    known: Option<&StoredDocument>,
) -> Result<(), ApiError> {
    if known.is_some_and(|known| !shows(Some(field), known, groups)) {
        return Err(ApiError::forbidden("this token may not change a document that it may not read"));
    }
    let named = named_groups(field, document);
    let known = known.map(|known| named_groups(field, known)).unwrap_or_default();
    let foreign = named.iter().find(|group| !groups.contains(group) && !known.contains(group));
    let problem = match foreign {
        Some(group) => format!("this token may not write for the group `{}`", group.escape_default()),
        None if !shows(Some(field), document, groups) => "this token could not read the document".to_owned(),
        None => return Ok(()),
    };
    Err(ApiError::bad(format!(
        "{problem}: the field `{field}` must name one or more of its groups and no other, as in \
         `{{\"{field}\": [\"staff\"]}}`; a document that is not JSON has its metadata in the URL"
    ))
    .param("metadata"))
}

/// Why the field `access` of a document cannot name its readers. Nobody would read such a document.
fn misnamed(field: &str, document: &StoredDocument) -> Option<ApiError> {
    let metadata = Metadata::of(&document.metadata).0;
    let is_text = |value: &&FieldValue| matches!(value, FieldValue::Text(_));
    let is_object = matches!(metadata.get(field), Some(FieldValue::Object(_)));
    if !is_object && metadata.values(field).iter().all(is_text) {
        return None;
    }
    let problem = format!(
        "the field `{field}` of a document names the groups that may read it: a text or a list of texts, as in \
         `{{\"{field}\": [\"staff\"]}}`"
    );
    Some(ApiError::bad(problem).param("metadata"))
}

/// The groups that the field `access` of a document names.
fn named_groups(field: &str, document: &StoredDocument) -> Vec<Arc<str>> {
    match Readers::named(&Metadata::of(&document.metadata).0, field) {
        Readers::Groups(groups) => groups.to_vec(),
        Readers::All => Vec::new(),
    }
}

/// Whether the field `access` of a document names one of the groups.
fn shows(access: Option<&str>, document: &StoredDocument, groups: &[Arc<str>]) -> bool {
    access.is_none_or(|field| Readers::named(&Metadata::of(&document.metadata).0, field).include(groups))
}

/// The corpora that a request may mean.
fn writable(app: &App, principal: &Principal, params: &DocumentParams) -> Result<Vec<Writable>, ApiError> {
    let named = params.pipeline.as_deref();
    if named.is_some() {
        app.pipeline(named, principal)?;
    }
    let mut found = Vec::new();
    let mut is_known = params.corpus.is_none();
    for served in app.pipelines_of(principal).filter(|served| named.is_none_or(|name| **served.name() == *name)) {
        for (corpus, ..) in served.engine().corpora() {
            if params.corpus.as_deref().is_some_and(|name| *name != *corpus) {
                continue;
            }
            is_known = true;
            if let Some(store) = served.engine().documents(&corpus) {
                let manages = principal.documents >= DocumentRights::Manage;
                let readers = served.outline().access.get(&corpus).cloned();
                let access = readers.clone().filter(|_| !manages);
                found.push(Writable { served: served.clone(), corpus, store, readers, access });
            }
        }
    }
    match (found.is_empty(), &params.corpus) {
        (false, _) => Ok(found),
        (true, Some(corpus)) if !is_known => {
            Err(ApiError::not_found(format!("unknown corpus `{corpus}`")).param("corpus"))
        }
        (true, Some(corpus)) => Err(ApiError::not_found(format!(
            "the documents of the corpus `{corpus}` come from its own source and cannot be read or written here"
        ))
        .param("corpus")),
        (true, None) => Err(ApiError::not_found(
            "the documents of this server come from the corpora's own sources and cannot be read or written here",
        )),
    }
}

/// The corpus of a request.
fn only(app: &App, principal: &Principal, params: &DocumentParams) -> Result<Writable, ApiError> {
    let mut found = writable(app, principal, params)?;
    let names: Vec<String> = found.iter().map(|one| format!("{}/{}", one.served.name(), one.corpus)).collect();
    match (found.pop(), found.is_empty()) {
        (Some(one), true) => Ok(one),
        _ => Err(ApiError::bad(format!(
            "several corpora accept documents ({}): choose one with `?pipeline=` and `?corpus=`",
            names.join(", ")
        ))
        .param("corpus")),
    }
}

fn may(principal: &Principal, wanted: DocumentRights) -> Result<(), ApiError> {
    match principal.documents >= wanted {
        true => Ok(()),
        false if wanted == DocumentRights::Write => Err(ApiError::forbidden("this token may not write documents")),
        false => Err(ApiError::forbidden("this token may not read documents")),
    }
}

/// Runs a blocking call of a store on a separate thread.
async fn blocking<T: Send + 'static>(
    store: &Arc<dyn DocumentStore>,
    call: impl FnOnce(&dyn DocumentStore) -> Result<T, ConnectorError> + Send + 'static,
) -> Result<T, ApiError> {
    let store = store.clone();
    let done = tokio::task::spawn_blocking(move || call(&*store)).await;
    let done = done.map_err(|_| ApiError::server("the document store failed"))?;
    done.map_err(|error| match error {
        ConnectorError::Refused { reason } => ApiError::bad(reason),
        ConnectorError::Unreadable { reason } => ApiError::unreadable(reason),
        ConnectorError::Stopped(_) => ApiError::unavailable("the pipeline is stopping"),
        error => ApiError::failed("the document store", &error),
    })
}

fn told(document: &StoredDocument, of: &Writable) -> Value {
    json!({
        "id": document.id,
        "title": document.title,
        "text": document.text,
        "markup": document.markup,
        "metadata": document.metadata,
        "modified_ms": document.modified_ms,
        "corpus": of.corpus,
        "pipeline": of.served.name(),
    })
}

/// The documents of all corpora that the caller may read, in the order of pipelines, corpora and ids:
/// at most `limit` after the one named by pipeline, corpus and id, and at most a few megabytes. Also whether there
/// may be more.
///
/// # Errors
///
/// A store cannot be read.
pub async fn page(
    app: &App,
    principal: &Principal,
    after: Option<[String; 3]>,
    limit: usize,
) -> Result<(Vec<Value>, bool), ApiError> {
    let mut found = Vec::new();
    if may(principal, DocumentRights::Read).is_err() {
        return Ok((found, false));
    }
    let Ok(corpora) = writable(app, principal, &DocumentParams::default()) else { return Ok((found, false)) };
    let groups = principal.groups();
    let _room = principal.share.reserve(LIST_BYTES)?;
    let mut after = after;
    let mut bytes = 0;
    for of in corpora {
        let mut from = match &after {
            Some([pipeline, corpus, _]) if **pipeline != **of.served.name() || **corpus != *of.corpus => continue,
            _ => after.take().map(|[.., id]| id),
        };
        // A store may return fewer than requested, but none only at its end.
        loop {
            if found.len() >= limit || bytes >= LIST_BYTES {
                return Ok((found, true));
            }
            let (next, room) = (from.take(), limit - found.len());
            let list = of.list(&groups);
            let documents = blocking(&of.store, move |store| list(store, next.as_deref(), room)).await?;
            let Some(last) = documents.last() else { break };
            from = Some(last.id.clone());
            let shown = documents.iter().filter(|document| of.shows(document, &groups));
            bytes += shown.clone().map(|document| document.text.len()).sum::<usize>();
            found.extend(shown.map(|document| told(document, &of)));
        }
    }
    Ok((found, false))
}

/// A document; `None` if it does not exist or the caller may not read it.
///
/// # Errors
///
/// The store cannot be read.
pub async fn one(
    app: &App,
    principal: &Principal,
    pipeline: &str,
    corpus: &str,
    id: String,
) -> Result<Option<Value>, ApiError> {
    may(principal, DocumentRights::Read)?;
    let params = DocumentParams {
        pipeline: Some(pipeline.to_owned()),
        corpus: Some(corpus.to_owned()),
        ..DocumentParams::default()
    };
    let Ok(of) = only(app, principal, &params) else { return Ok(None) };
    let document = blocking(&of.store, move |store| store.get(&id)).await?;
    let document = document.filter(|document| of.shows(document, &principal.groups()));
    Ok(document.map(|document| told(&document, &of)))
}

/// Lists documents in the order of their ids. Returns fewer than `limit` if they are long: `has_more` tells
/// whether more exist.
#[utoipa::path(get, path = "/v1/documents", tag = "documents", params(DocumentParams), responses(
    (status = 200, description = "The documents, and the id to continue after", body = Value)
))]
pub async fn list(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Params(params): Params<DocumentParams>,
) -> Result<Json<Value>, ApiError> {
    may(&principal, DocumentRights::Read)?;
    let of = only(&app, &principal, &params)?;
    let limit = params.limit.unwrap_or(100);
    if !(1..=1000).contains(&limit) {
        return Err(ApiError::bad("`limit` must be 1 to 1000").param("limit"));
    }
    let (after, groups, access) = (params.after.clone(), principal.groups(), of.access.clone());
    let list = of.list(&groups);
    let read = move |store: &dyn DocumentStore| {
        // One more than wanted tells whether there are more. A store may return fewer than requested, but none only at
        // its end.
        let (mut found, mut after) = (Vec::new(), after);
        while found.len() <= limit {
            let page = list(store, after.as_deref(), limit + 1)?;
            let Some(last) = page.last() else { break };
            after = Some(last.id.clone());
            found.extend(page.into_iter().filter(|document| shows(access.as_deref(), document, &groups)));
            if found.iter().map(|document| document.text.len()).sum::<usize>() >= LIST_BYTES {
                break;
            }
        }
        let has_more = found.len() > limit || after.is_some() && !list(store, after.as_deref(), 1)?.is_empty();
        found.truncate(limit);
        Ok((store.count()?, found, has_more))
    };
    // Before they are read.
    let _room = principal.share.reserve(LIST_BYTES)?;
    let (count, documents, has_more) = blocking(&of.store, read).await?;
    let next = documents.last().filter(|_| has_more).map(|last| last.id.clone());
    let documents: Vec<Value> = documents.iter().map(|document| told(document, &of)).collect();
    // The number of documents that the caller may not read is not told.
    let count = of.access.is_none().then_some(count);
    let indexed = of.access.is_none().then(|| of.indexed());
    Ok(Json(json!({
        "object": "list", "data": documents, "has_more": has_more, "next": next, "count": count, "indexed": indexed,
        "corpus": of.corpus, "pipeline": of.served.name(),
    })))
}

/// Adds or replaces documents, all or none.
#[utoipa::path(post, path = "/v1/documents", tag = "documents", params(DocumentParams), request_body(content((Value = "application/json"), (Value = "application/x-ndjson"))), responses(
    (status = 200, description = "The documents are stored", body = Value),
    (status = 202, description = "The documents are stored, but not yet published", body = Value),
    (status = 400, description = "A document is invalid")
))]
pub async fn add(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Extension(deadline): Extension<Deadline>,
    Params(params): Params<DocumentParams>,
    content: Content,
) -> Result<axum::response::Response, ApiError> {
    may(&principal, DocumentRights::Write)?;
    let of = only(&app, &principal, &params)?;
    if params.metadata.is_some() {
        return Err(ApiError::bad("a document in JSON has its metadata in the body").param("metadata"));
    }
    let (values, _) = content.values(app.config().limits.batch)?;
    let documents = input::documents(values)?;
    let ids: Vec<String> = documents.iter().map(|document| document.id.clone()).collect();
    let told = json!({ "stored": ids.len(), "ids": ids });
    change(&of, params.wait, deadline, told, of.putting(&principal, documents)).await
}

/// Reads a document.
#[utoipa::path(get, path = "/v1/documents/{id}", tag = "documents",
    params(("id" = String, Path, description = "The document's id; may contain slashes"), DocumentParams), responses(
        (status = 200, description = "The document", body = Value),
        (status = 404, description = "The document does not exist")
    ))]
pub async fn read(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    InPath(id): InPath<String>,
    Params(params): Params<DocumentParams>,
) -> Result<Json<Value>, ApiError> {
    may(&principal, DocumentRights::Read)?;
    input::check_id(&id)?;
    for of in writable(&app, &principal, &params)? {
        let wanted = id.clone();
        let document = blocking(&of.store, move |store| store.get(&wanted)).await?;
        if let Some(document) = document.filter(|document| of.shows(document, &principal.groups())) {
            return Ok(Json(told(&document, &of)));
        }
    }
    Err(ApiError::not_found(format!("unknown document `{id}`")))
}

/// Adds or replaces a document. A file, such as a PDF or a text of Word, becomes a document with its text.
#[utoipa::path(put, path = "/v1/documents/{id}", tag = "documents",
    request_body(content((Value = "application/json"), (Value = "text/plain"), (Value = "text/markdown"), (Value = "text/html"), (Value = "application/pdf"), (Value = "application/octet-stream"))),
    params(("id" = String, Path, description = "The document's id; may contain slashes"), DocumentParams), responses(
        (status = 200, description = "The document is stored", body = Value),
        (status = 202, description = "The document is stored, but not yet published", body = Value),
        (status = 422, description = "The file is broken, or its reader has met a limit")
    ))]
pub async fn write(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Extension(deadline): Extension<Deadline>,
    InPath(id): InPath<String>,
    Params(params): Params<DocumentParams>,
    content: Content,
) -> Result<axum::response::Response, ApiError> {
    may(&principal, DocumentRights::Write)?;
    let document = input::document(id.clone(), &content)?;
    let of = only(&app, &principal, &params)?;
    let is_json = content.is_json();
    let mut document = match document {
        Some(document) => document,
        None => file(&of, id.clone(), content).await?,
    };
    match &params.metadata {
        Some(_) if is_json => {
            let message = "a document in JSON has its metadata in the body";
            return Err(ApiError::bad(message).param("metadata"));
        }
        Some(given) => input::add_metadata(&mut document, given)?,
        None => {}
    }
    let told = json!({ "stored": 1, "id": document.id });
    change(&of, params.wait, deadline, told, of.putting(&principal, vec![document])).await
}

/// Deletes a document.
#[utoipa::path(delete, path = "/v1/documents/{id}", tag = "documents",
    params(("id" = String, Path, description = "The document's id; may contain slashes"), DocumentParams), responses(
        (status = 200, description = "The document is deleted", body = Value),
        (status = 404, description = "The document does not exist")
    ))]
pub async fn remove(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Extension(deadline): Extension<Deadline>,
    InPath(id): InPath<String>,
    Params(params): Params<DocumentParams>,
) -> Result<axum::response::Response, ApiError> {
    may(&principal, DocumentRights::Write)?;
    input::check_id(&id)?;
    let of = only(&app, &principal, &params)?;
    let told = json!({ "deleted": 1, "id": id });
    let call = of.deleting(&principal, id);
    change(&of, params.wait, deadline, told, call).await
}
