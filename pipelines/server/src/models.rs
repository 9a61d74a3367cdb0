//! `/v1/models`: the pipelines, and their embedders as `PIPELINE/MODEL`.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::Principal;
use crate::body::InPath;
use crate::error::ApiError;

/// The names of all models of a caller.
fn names(app: &App, principal: &Principal) -> Vec<String> {
    let pipelines = app.pipelines_of(principal).map(|served| served.name().to_string());
    let embedders = app.pipelines_of(principal).flat_map(|served| {
        let models = served.engine().models();
        let embedders = models.into_iter().filter(|(_, model)| model.embedder.is_some());
        embedders.map(|(name, _)| format!("{}/{name}", served.name())).collect::<Vec<_>>()
    });
    pipelines.chain(embedders).collect()
}

fn model(app: &App, name: &str) -> Value {
    json!({ "id": name, "object": "model", "created": app.started(), "owned_by": "turnflow" })
}

/// Lists the models.
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses(
    (status = 200, description = "The pipelines and their embedders", body = Value)
))]
pub async fn list(State(app): State<App>, Extension(principal): Extension<Arc<Principal>>) -> Json<Value> {
    let models: Vec<Value> = names(&app, &principal).iter().map(|name| model(&app, name)).collect();
    Json(json!({ "object": "list", "data": models }))
}

/// Describes a model.
#[utoipa::path(get, path = "/v1/models/{id}", tag = "openai", params(("id" = String, Path, description = "Its name")),
    responses(
        (status = 200, description = "The model", body = Value),
        (status = 404, description = "The model does not exist")
    ))]
pub async fn one(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    InPath(id): InPath<String>,
) -> Result<Json<Value>, ApiError> {
    match names(&app, &principal).contains(&id) {
        true => Ok(Json(model(&app, &id))),
        false => Err(ApiError::no_model(&id)),
    }
}
