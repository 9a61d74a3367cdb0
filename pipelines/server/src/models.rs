//! `/v1/models`: the pipelines, which answer, and their embedders as `PIPELINE/MODEL`. The field `type` tells them apart.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::app::App;
use crate::auth::Principal;
use crate::body::InPath;
use crate::error::ApiError;

/// Most names in a message.
const NAMED: usize = 20;

/// A model of a caller.
struct Listed {
    id: String,
    /// The length of its vectors, if it is an embedder.
    dimension: Option<usize>,
}

impl Listed {
    fn answers(&self) -> bool {
        self.dimension.is_none()
    }

    fn described(&self, app: &App) -> Value {
        let kind = if self.answers() { "chat" } else { "embedding" };
        let mut described = json!({
            "id": self.id, "object": "model", "created": app.started(), "owned_by": "turnflow", "type": kind,
        });
        if let Some(dimension) = self.dimension {
            described["dimensions"] = dimension.into();
        }
        described
    }
}

/// All models of a caller: first those that answer, so that a client that takes the first one can ask it.
fn all(app: &App, principal: &Principal) -> Vec<Listed> {
    let pipelines = app.pipelines_of(principal).map(|served| Listed { id: served.name().to_string(), dimension: None });
    let embedders = app.pipelines_of(principal).flat_map(|served| {
        let models = served.engine().models().into_iter().filter_map(|(name, model)| {
            let dimension = Some(model.embedder.as_ref()?.dimension());
            Some(Listed { id: format!("{}/{name}", served.name()), dimension })
        });
        models.collect::<Vec<_>>()
    });
    pipelines.chain(embedders).collect()
}

/// The names of those that answer, or of those for embeddings.
fn named(all: &[Listed], answers: bool) -> String {
    let mut ids = all.iter().filter(|model| model.answers() == answers).map(|model| &*model.id);
    let mut names = ids.by_ref().take(NAMED).collect::<Vec<_>>().join(", ");
    match (names.is_empty(), ids.count()) {
        (true, _) => "none".to_owned(),
        (false, 0) => names,
        (false, more) => {
            names.push_str(&format!(" and {more} more"));
            names
        }
    }
}

/// The error of a request for an answer by a model that gives none. It names those that do.
pub(crate) fn none_that_answers(app: &App, principal: &Principal, name: Option<&str>) -> ApiError {
    let all = all(app, principal);
    let known = named(&all, true);
    let name = name.unwrap_or_default();
    let error = ApiError::no_model(name);
    match all.iter().find(|model| model.id == name) {
        Some(_) => error.saying(format!(
            "`{name}` is a model for embeddings and gives no answers: send it to /v1/embeddings. \
             The models that answer: {known}"
        )),
        None => {
            let problem = format!("{}. The models that answer: {known}", error.message);
            error.saying(problem)
        }
    }
}

/// The error of a request for embeddings by a model that makes none. It names those that do.
pub(crate) fn none_that_embeds(app: &App, principal: &Principal, name: &str) -> ApiError {
    let all = all(app, principal);
    let known = named(&all, false);
    let error = ApiError::no_model(name);
    let problem = match all.iter().any(|model| model.id == name) {
        true => format!("`{name}` is a pipeline without a model for embeddings"),
        false => error.message.clone(),
    };
    error.saying(format!("{problem}. The models for embeddings: {known}"))
}

/// Lists the models. `type` is `chat` for a pipeline, which answers, and `embedding` for a model for embeddings.
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses(
    (status = 200, description = "The pipelines and their embedders", body = Value)
))]
pub async fn list(State(app): State<App>, Extension(principal): Extension<Arc<Principal>>) -> Json<Value> {
    let models: Vec<Value> = all(&app, &principal).iter().map(|model| model.described(&app)).collect();
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
    let found = all(&app, &principal).into_iter().find(|model| model.id == id);
    found.map(|model| Json(model.described(&app))).ok_or_else(|| ApiError::no_model(&id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_up_to_a_number() {
        let listed = |id: String, dimension| Listed { id, dimension };
        let mut all: Vec<Listed> = (0..22).map(|number| listed(format!("p{number}"), None)).collect();
        assert_eq!(named(&all, false), "none");
        assert!(named(&all, true).starts_with("p0, p1, ") && named(&all, true).ends_with("p19 and 2 more"));
        all.push(listed("p0/m".to_owned(), Some(2)));
        assert_eq!(named(&all, false), "p0/m");
    }
}
