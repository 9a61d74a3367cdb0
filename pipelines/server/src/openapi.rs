//! `/openapi.json`: the description of all routes.

use std::sync::LazyLock;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{OpenApi, ToSchema};

use crate::app::App;
use crate::{
    alerts, answers, caller, chat, dead_letters, documents, embeddings, feedback, health, metrics, models, otlp,
    pipelines, reports, responses, resume, review, search, shares, sign_in, stored, turns,
};

/// The description of the server.
#[derive(OpenApi)]
#[openapi(
    info(title = "turnflow", description = "Pipelines for conversational retrieval-augmented generation"),
    paths(
        chat::create,
        responses::create,
        stored::read,
        stored::remove,
        embeddings::create,
        models::list,
        models::one,
        turns::create,
        resume::read,
        resume::stop,
        answers::list,
        otlp::traces,
        otlp::logs,
        search::find,
        search::find_by_body,
        documents::list,
        documents::add,
        documents::read,
        documents::write,
        documents::remove,
        caller::show,
        sign_in::show,
        sign_in::exchange,
        pipelines::list,
        pipelines::status,
        pipelines::debug,
        alerts::list,
        reports::list,
        dead_letters::list,
        dead_letters::retry,
        dead_letters::remove,
        review::list,
        review::judge,
        feedback::create,
        shares::create,
        shares::withdraw,
        metrics::text,
        health::alive,
        health::ready,
    )
)]
struct Description;

/// A list in a response.
#[derive(Serialize, ToSchema)]
pub struct List<T: ToSchema> {
    /// Its members.
    pub data: Vec<T>,
}

/// The errors that any request may get.
const ERRORS: [(&str, &str); 6] = [
    ("401", "The token is missing or wrong"),
    ("403", "The token does not allow this, or the request comes from a web page of another site"),
    ("429", "Too many requests; `Retry-After` says when to try again"),
    ("500", "The pipeline or the server failed"),
    ("503", "The pipeline is not ready, or the server is stopping"),
    ("504", "The request took too long"),
];
/// Those of requests with parameters.
const INPUT: [(&str, &str); 2] =
    [("400", "The request is invalid"), ("404", "The model, pipeline or object does not exist")];
/// Those of requests with a body.
const BODY: [(&str, &str); 3] = [
    ("408", "The body did not arrive in time"),
    ("413", "The body is too large"),
    ("415", "The body has a type that is not accepted"),
];

static DESCRIPTION: LazyLock<Value> = LazyLock::new(|| {
    let mut description = serde_json::to_value(Description::openapi()).unwrap_or_default();
    complete(&mut description);
    describe_bodies(&mut description);
    description
});

/// The description as JSON.
pub async fn document(State(app): State<App>) -> Json<Value> {
    let mut description = DESCRIPTION.clone();
    if !app.tokens().is_empty() {
        description["security"] = json!([{ "token": [] }]);
    }
    Json(description)
}

/// Adds what all routes have in common: errors and tokens.
fn complete(description: &mut Value) {
    let text = |description: &str| json!({ "type": "string", "description": description });
    let optional = |description: &str| json!({ "type": ["string", "null"], "description": description });
    description["components"]["schemas"]["Error"] = json!({
        "type": "object",
        "description": "Why a request failed, in the form of OpenAI's API.",
        "required": ["error"],
        "properties": { "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": text("The message for people."),
                "type": text("The class: `invalid_request_error`, `rate_limit_error` or `server_error`."),
                "param": optional("The invalid field."),
                "code": optional("The code for programs."),
            },
        } },
    });
    description["components"]["securitySchemes"]["token"] = json!({ "type": "http", "scheme": "bearer" });
    let schema = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } });
    let operations = description["paths"].as_object_mut().into_iter().flat_map(|paths| paths.iter_mut());
    for (path, methods) in operations {
        for (method, operation) in methods.as_object_mut().into_iter().flat_map(|methods| methods.iter_mut()) {
            // Programs that are made of the description name their functions by it.
            let words =
                path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty() && *word != "v1");
            operation["operationId"] = json!(words.fold(method.clone(), |id, word| format!("{id}_{word}")));
            let errors = |operation: &Value| -> Vec<(&str, &str)> {
                let (has_body, has_input) = (operation["requestBody"].is_object(), operation["parameters"].is_array());
                let input = INPUT.iter().filter(|_| has_input || has_body);
                ERRORS.iter().chain(input).chain(BODY.iter().filter(|_| has_body)).copied().collect()
            };
            if matches!(path.as_str(), "/healthz" | "/readyz") {
                operation["security"] = json!([]);
                continue;
            }
            if path == "/v1/sign-in" {
                operation["security"] = json!([]);
            }
            // A stream of events; each is described in the handbook.
            if let Some(events) = operation.pointer_mut("/responses/200/content/text~1event-stream") {
                events["schema"] = json!({});
            }
            for (status, what) in errors(operation) {
                let response = &mut operation["responses"][status];
                if response.is_null() {
                    *response = json!({ "description": what });
                }
                response["content"] = schema.clone();
                if status == "429" || status == "503" {
                    let seconds = json!({ "type": "integer", "minimum": 1 });
                    response["headers"]["Retry-After"] = json!({ "description": "Seconds", "schema": seconds });
                }
            }
        }
    }
}

/// Describes the bodies that are read as JSON values.
fn describe_bodies(description: &mut Value) {
    let nullable = |of: &str| json!({ "type": [of, "null"] });
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let one_or_many = |name: &str| json!({ "oneOf": [reference(name), { "type": "array", "minItems": 1, "items": reference(name) }] });
    let part = json!({
        "type": "object",
        "required": ["type", "text"],
        "properties": {
            "type": { "type": "string", "enum": ["text", "input_text", "output_text"] },
            "text": { "type": "string" },
        },
    });
    let content = json!({ "type": ["string", "array", "null"], "items": part });
    let schemas = &mut description["components"]["schemas"];
    schemas["Message"] = json!({
        "type": "object",
        "description": "A message. Results of tools are accepted, and are not part of the conversation.",
        "required": ["role"],
        "properties": {
            "role": { "type": "string", "enum": ["system", "developer", "user", "assistant"] },
            "content": content,
        },
    });
    let messages = json!({ "type": "array", "minItems": 1, "items": reference("Message") });
    schemas["ChatRequest"]["properties"]["messages"] = messages.clone();
    let texts = |items: Value| json!({ "oneOf": [{ "type": "string" }, items] });
    schemas["ResponseRequest"]["properties"]["input"] = texts(messages);
    schemas["ResponseRequest"]["required"] = json!(["input"]);
    schemas["EmbeddingRequest"]["properties"]["input"] =
        texts(json!({ "type": "array", "minItems": 1, "items": { "type": "string" } }));
    let document = |required: &[&str]| {
        json!({
            "type": "object",
            "description": "A document. Further fields are metadata.",
            "required": required,
            "properties": {
                "id": { "type": "string", "minLength": 1, "maxLength": 1024 },
                "title": nullable("string"),
                "text": { "type": "string" },
                "metadata": { "type": ["object", "null"] },
            },
        })
    };
    schemas["Document"] = document(&["id", "text"]);
    schemas["DocumentText"] = document(&["text"]);
    schemas["TurnRecord"] = json!({
        "type": "object",
        "description": "A turn. Further fields are kept and passed through.",
        "required": ["conversation_id", "turn", "speaker", "text"],
        "properties": {
            "conversation_id": { "type": "string" },
            "turn": { "type": "integer", "minimum": 1, "maximum": u32::MAX },
            "speaker": { "type": "string", "enum": ["user", "agent"] },
            "text": { "type": "string" },
            "collection": nullable("string"),
            "timestamp": nullable("number"),
        },
    });
    for (path, method, schema) in [
        ("/v1/documents", "post", one_or_many("Document")),
        ("/v1/documents/{id}", "put", reference("DocumentText")),
        ("/v1/turns", "post", one_or_many("TurnRecord")),
    ] {
        let content = &mut description["paths"][path][method]["requestBody"]["content"];
        content["application/json"]["schema"] = schema;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described() {
        let paths: Vec<&str> = DESCRIPTION["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        for path in ["/v1/chat/completions", "/v1/documents/{id}", "/v1/search", "/v1/turns", "/v1/answers", "/readyz"]
        {
            assert!(paths.contains(&path), "{path} in {paths:?}");
        }
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let paths = DESCRIPTION["paths"].as_object().unwrap();
        let operations = paths.values().flat_map(|methods| methods.as_object().unwrap().values());
        let ids: Vec<&str> = operations.map(|operation| operation["operationId"].as_str().unwrap()).collect();
        assert!(ids.contains(&"get_documents_id") && ids.contains(&"post_chat_completions"), "{ids:?}");
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    }
}
