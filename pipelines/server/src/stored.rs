//! Stored responses of `/v1/responses`: a caller continues a conversation after one (`previous_response_id`), reads it
//! or deletes it. The oldest are removed when there are too many.

use std::path::Path;
use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use redb::{ReadableDatabase, ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json_, json};
use turnflow_engine::database::{DatabaseError, Tables};

use crate::app::App;
use crate::auth::Principal;
use crate::body::InPath;
use crate::config::ResponsesConfig;
use crate::error::ApiError;
use crate::served::Served;

/// Responses as JSON, by id.
const RESPONSES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("responses");
/// Ids in the order in which they were stored.
const ORDER: TableDefinition<'_, u64, &str> = TableDefinition::new("order");
/// The number of the next response under `next`, and the size of all of them in bytes under `bytes`.
const COUNTS: TableDefinition<'_, &str, u64> = TableDefinition::new("counts");

/// A stored response, with the conversation up to it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct StoredResponse {
    /// The name of the caller whose response it is.
    pub caller: String,
    /// The groups that the caller had: without one of them, the response cannot be read or continued.
    #[serde(default)]
    pub groups: Vec<Arc<str>>,
    /// All fields of the caller's `principal`, which holds for them too.
    #[serde(default)]
    pub principal: Map<String, Json_>,
    /// The conversation's id, which the next response continues.
    pub conversation_id: String,
    /// The messages of the conversation, the answer included.
    pub messages: Vec<Json_>,
    /// The response as it was sent.
    pub response: Json_,
    /// The ids of the passages that the answer is based on.
    #[serde(default)]
    pub passages: Vec<Arc<str>>,
    /// The collection that was searched.
    #[serde(default)]
    pub collection: Option<Arc<str>>,
    /// Its place in the order.
    #[serde(default)]
    number: u64,
}

impl StoredResponse {
    /// A response that is not stored yet.
    pub fn new(caller: &Principal, conversation_id: &str, messages: Vec<Json_>, response: Json_) -> Self {
        let (name, conversation_id) = (caller.name.to_string(), conversation_id.to_owned());
        let (groups, principal) = (caller.groups(), caller.extra.clone().unwrap_or_default());
        let (passages, collection) = (Vec::new(), None);
        Self { caller: name, groups, principal, conversation_id, messages, response, passages, collection, number: 0 }
    }
    /// The same, with the passages on which the answer is based, and the collection that was searched.
    #[must_use]
    pub fn based_on(self, passages: Vec<Arc<str>>, collection: Option<Arc<str>>) -> Self {
        Self { passages, collection, ..self }
    }
}

/// The stored responses of a pipeline. All calls block.
pub struct ResponseStore {
    tables: Tables,
    bounds: ResponsesConfig,
}

impl ResponseStore {
    /// Opens the store of a state directory. A damaged file is moved away and replaced by an empty one.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or created.
    pub fn open(state: &Path, bounds: ResponsesConfig) -> Result<Self, DatabaseError> {
        Self::at(&state.join("responses.redb"), "stored responses", bounds)
    }

    /// The same for shared turns (`shares.rs`), whose form is that of a response.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or created.
    pub fn shares(state: &Path, bounds: ResponsesConfig) -> Result<Self, DatabaseError> {
        Self::at(&state.join("shares.redb"), "shared turns", bounds)
    }

    fn at(path: &Path, what: &'static str, bounds: ResponsesConfig) -> Result<Self, DatabaseError> {
        let tables = Tables::open(path, what)?;
        tables.change(|database| {
            let transaction = database.begin_write()?;
            transaction.open_table(RESPONSES)?;
            transaction.open_table(ORDER)?;
            transaction.open_table(COUNTS)?;
            Ok(transaction.commit()?)
        })?;
        Ok(Self { tables, bounds })
    }

    /// Stores a response, and removes the oldest ones beyond the bounds; on disk when it returns.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn put(&self, id: &str, response: &StoredResponse) -> Result<(), DatabaseError> {
        let (keep, most) = (self.bounds.keep, self.bounds.mb << 20);
        let mut response = response.clone();
        self.tables.change(|database| {
            let transaction = database.begin_write()?;
            {
                let mut responses = transaction.open_table(RESPONSES)?;
                let mut order = transaction.open_table(ORDER)?;
                let mut counts = transaction.open_table(COUNTS)?;
                let number = counts.get("next")?.map_or(0, |next| next.value());
                let mut bytes = counts.get("bytes")?.map_or(0, |bytes| bytes.value());
                response.number = number;
                let json = serde_json::to_vec(&response).map_err(std::io::Error::from)?;
                responses.insert(id, &*json)?;
                order.insert(number, id)?;
                bytes += json.len() as u64;
                let mut count = redb::ReadableTableMetadata::len(&order)?;
                while count > keep || bytes > most {
                    let Some((_, oldest)) = order.pop_first()? else { break };
                    let oldest = oldest.value().to_owned();
                    count -= 1;
                    if let Some(removed) = responses.remove(&*oldest)? {
                        bytes = bytes.saturating_sub(removed.value().len() as u64);
                    }
                }
                counts.insert("next", number + 1)?;
                counts.insert("bytes", bytes)?;
            }
            Ok(transaction.commit()?)
        })
    }

    /// A response; `None` if it does not exist, or its caller is another one.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn get(&self, id: &str, caller: &str) -> Result<Option<StoredResponse>, DatabaseError> {
        let json = self.tables.read(|database| {
            let responses = database.begin_read()?.open_table(RESPONSES)?;
            Ok(responses.get(id)?.map(|json| json.value().to_vec()))
        })?;
        let Some(json) = json else { return Ok(None) };
        let damaged =
            |source| DatabaseError::Value { path: self.tables.path().to_owned(), what: id.to_owned(), source };
        let response: StoredResponse = serde_json::from_slice(&json).map_err(damaged)?;
        Ok(Some(response).filter(|response| response.caller == caller))
    }

    /// Removes a response, if it is this caller's; false if there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub fn remove(&self, id: &str, caller: &str) -> Result<bool, DatabaseError> {
        let Some(response) = self.get(id, caller)? else { return Ok(false) };
        self.tables.change(|database| {
            let transaction = database.begin_write()?;
            let is_removed = {
                let removed = transaction.open_table(RESPONSES)?.remove(id)?.map(|json| json.value().len() as u64);
                transaction.open_table(ORDER)?.remove(response.number)?;
                let mut counts = transaction.open_table(COUNTS)?;
                let bytes = counts.get("bytes")?.map_or(0, |bytes| bytes.value());
                counts.insert("bytes", bytes.saturating_sub(removed.unwrap_or_default()))?;
                removed.is_some()
            };
            transaction.commit()?;
            Ok(is_removed)
        })
    }
}

/// Runs a call of a store off the threads of requests.
///
/// # Errors
///
/// 500: the store cannot be read or written.
pub async fn call<T: Send + 'static>(
    store: &Arc<ResponseStore>,
    call: impl FnOnce(&ResponseStore) -> Result<T, DatabaseError> + Send + 'static,
) -> Result<T, ApiError> {
    let store = store.clone();
    let done = tokio::task::spawn_blocking(move || call(&store)).await;
    let done = done.map_err(|_| ApiError::server("the store of responses failed"))?;
    done.map_err(|error| ApiError::failed("the store of responses", &error))
}

/// Finds a caller's response in the pipelines that the caller may use.
///
/// # Errors
///
/// 500: a store cannot be read.
pub async fn find(
    app: &App,
    principal: &Principal,
    id: &str,
) -> Result<Option<(Arc<ResponseStore>, StoredResponse)>, ApiError> {
    let all: Vec<_> = app.pipelines_of(principal).cloned().collect();
    for served in all {
        if let (Some(store), Some(found)) = (served.responses(), of(&served, principal, id).await?) {
            return Ok(Some((store, found)));
        }
    }
    Ok(None)
}

/// A caller's response in a pipeline, if the caller may still read it.
///
/// # Errors
///
/// 500: the store cannot be read.
pub async fn of(served: &Served, principal: &Principal, id: &str) -> Result<Option<StoredResponse>, ApiError> {
    let Some(store) = served.responses() else { return Ok(None) };
    let (wanted, caller) = (id.to_owned(), principal.name.clone());
    let found = call(&store, move |store| store.get(&wanted, &caller)).await?;
    let groups = principal.groups();
    let may_read = |found: &StoredResponse| {
        found.groups.iter().all(|group| groups.contains(group)) && principal.still_has(&found.principal)
    };
    Ok(found.filter(may_read))
}

/// Reads a stored response.
#[utoipa::path(get, path = "/v1/responses/{id}", tag = "openai", params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, description = "The response", body = Json_),
        (status = 404, description = "It does not exist, or is another caller's")
    ))]
pub async fn read(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    InPath(id): InPath<String>,
) -> Result<Json<Json_>, ApiError> {
    match find(&app, &principal, &id).await? {
        Some((_, stored)) => Ok(Json(stored.response)),
        None => Err(missing(&id)),
    }
}

/// Deletes a stored response.
#[utoipa::path(delete, path = "/v1/responses/{id}", tag = "openai", params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, description = "The response is deleted", body = Json_),
        (status = 404, description = "It does not exist, or is another caller's")
    ))]
pub async fn remove(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    InPath(id): InPath<String>,
) -> Result<Json<Json_>, ApiError> {
    let Some((store, _)) = find(&app, &principal, &id).await? else { return Err(missing(&id)) };
    // Feedback must not bring it back.
    app.pipelines_of(&principal).for_each(|served| served.recent().forget(&principal.name, &id));
    let (wanted, caller) = (id.clone(), principal.name.clone());
    match call(&store, move |store| store.remove(&wanted, &caller)).await? {
        true => Ok(Json(json!({ "id": id, "object": "response", "deleted": true }))),
        false => Err(missing(&id)),
    }
}

fn missing(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no stored response `{id}`")).param("id")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(caller: &str, text: &str) -> StoredResponse {
        let (messages, response) = (vec![json!({ "role": "user", "content": text })], json!({ "id": "x" }));
        StoredResponse {
            caller: caller.to_owned(),
            groups: Vec::new(),
            principal: Map::new(),
            conversation_id: "c".to_owned(),
            messages,
            response,
            passages: Vec::new(),
            collection: None,
            number: 0,
        }
    }

    #[test]
    fn the_newest_responses_are_kept_and_belong_to_their_callers() {
        let directory = tempfile::tempdir().unwrap();
        let open = || ResponseStore::open(directory.path(), ResponsesConfig { keep: 3, mb: 1 }).unwrap();
        let store = open();
        for number in 0..5 {
            store.put(&format!("r{number}"), &response("ada", "a text")).unwrap();
        }
        let has = |store: &ResponseStore, id: &str, caller: &str| store.get(id, caller).unwrap().is_some();
        assert_eq!(
            (0..5).map(|n| has(&store, &format!("r{n}"), "ada")).collect::<Vec<_>>(),
            [false, false, true, true, true]
        );
        assert!(!has(&store, "r4", "bob") && !store.remove("r4", "bob").unwrap());
        assert!(store.remove("r3", "ada").unwrap() && !store.remove("r3", "ada").unwrap());
        drop(store);
        let store = open();
        assert!(has(&store, "r2", "ada") && !has(&store, "r3", "ada"));
        // The bound of bytes holds too, and one response that is above it is not kept.
        store.put("large", &response("ada", &"long ".repeat(300_000))).unwrap();
        assert!(!has(&store, "large", "ada"));
        store.put("small", &response("ada", "a text")).unwrap();
        assert!(has(&store, "small", "ada"));
    }
}
