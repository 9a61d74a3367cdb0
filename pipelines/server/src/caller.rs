//! `/v1/caller`: who the caller is, as the server knows it from the token.

use std::sync::Arc;

use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::auth::Principal;
use crate::config::DocumentRights;

/// Tells a caller who it is. `name` is null on a server without tokens.
#[utoipa::path(get, path = "/v1/caller", tag = "server", responses(
    (status = 200, description = "The caller's name, its groups and its rights to documents, and when its token expires", body = Value)
))]
pub async fn show(Extension(principal): Extension<Arc<Principal>>) -> Json<Value> {
    let documents = match principal.documents {
        DocumentRights::None => "None",
        DocumentRights::Read => "Read",
        DocumentRights::Write => "Write",
        DocumentRights::Manage => "Manage",
    };
    let name = principal.extra.as_ref().map(|_| &principal.name);
    Json(json!({ "name": name, "groups": principal.groups(), "documents": documents, "until": principal.until }))
}
