//! `/openapi.json`: the description of all routes.

use axum::Json;
use utoipa::OpenApi;

use crate::{
    answers, chat, documents, embeddings, health, metrics, models, pipelines, reports, responses, search, turns,
};

/// The description of the server.
#[derive(OpenApi)]
#[openapi(
    info(title = "turnflow", description = "Pipelines for conversational retrieval-augmented generation"),
    paths(
        chat::create,
        responses::create,
        embeddings::create,
        models::list,
        models::one,
        turns::create,
        answers::list,
        search::find,
        search::find_by_body,
        documents::list,
        documents::add,
        documents::read,
        documents::write,
        documents::remove,
        pipelines::list,
        pipelines::status,
        pipelines::debug,
        reports::list,
        metrics::text,
        health::alive,
        health::ready,
    )
)]
struct Description;

/// The description as JSON.
pub async fn document() -> Json<utoipa::openapi::OpenApi> {
    Json(Description::openapi())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described() {
        let paths = Description::openapi().paths.paths;
        let paths: Vec<&str> = paths.keys().map(String::as_str).collect();
        for path in ["/v1/chat/completions", "/v1/documents/{id}", "/v1/search", "/v1/turns", "/v1/answers", "/readyz"]
        {
            assert!(paths.contains(&path), "{path} in {paths:?}");
        }
    }
}
