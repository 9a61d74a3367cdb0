//! `/v1/pipelines` and `/debug/state`: the served pipelines and their current state.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::{Extension, Json};
use regex::Regex;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::app::{App, now};
use crate::auth::Principal;
use crate::body::InPath;
use crate::config::DocumentRights;
use crate::error::ApiError;
use crate::openapi::List;
use crate::outline::{Graph, Outline};
use crate::served::Served;

/// A pipeline that the caller may use.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PipelineDescription {
    /// Its name, which is the model's name in OpenAI's API.
    #[schema(value_type = String)]
    name: Arc<str>,
    /// The running plan.
    #[serde(flatten)]
    graph: Graph,
    /// The nodes whose text is streamed as the answer.
    #[schema(value_type = Vec<String>)]
    answering: Vec<Arc<str>>,
    /// Whether a turn must name its `collection`.
    needs_collection: bool,
}

/// The last reload of a pipeline.
#[derive(Clone, Debug, Serialize, utoipa::ToSchema)]
pub struct LastReload {
    /// When it ended, in seconds since the Unix epoch.
    pub at: u64,
    /// Whether the new file is now running.
    pub ok: bool,
    /// The problems, with the source lines, as `turnflow check` prints them; empty after a success.
    pub problems: String,
}

impl LastReload {
    /// A reload that ended now.
    pub fn now(problems: Option<String>) -> Self {
        Self { at: now(), ok: problems.is_none(), problems: problems.unwrap_or_default() }
    }
}

/// The description of a pipeline, as in `/v1/pipelines`.
pub fn describe(name: &Arc<str>, outline: &Outline) -> Value {
    let description = PipelineDescription {
        name: name.clone(),
        graph: outline.graph.clone(),
        answering: outline.answering.iter().cloned().collect(),
        needs_collection: outline.routes,
    };
    serde_json::to_value(description).unwrap_or_default()
}

/// What names a place of this machine or of its network: addresses with a scheme, absolute paths, and hosts with ports;
/// and the values of settings that are such names.
static PLACES: LazyLock<Regex> = LazyLock::new(|| {
    let quoted = r#"(?P<quote>["`'])[/~][^"`']*"#;
    let setting = r"(?P<name>\b(?:hosts?|brokers|servers?|bucket|endpoint|url|address)(?: ?[:=] ?| ))[^,)\]}]+";
    let places = r#"[a-zA-Z][a-zA-Z0-9+.-]*://[^\s"'`,)\]}]+|(?P<before>^|[\s"'`(\[{=:,])[/~][^\s"'`,)\]}]+"#;
    let hosts = r"(?:[a-zA-Z0-9-]+\.)*[a-zA-Z0-9-]+:[0-9]{2,5}\b|\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b";
    // The pattern is fixed, and a test uses it.
    Regex::new(&format!("{quoted}|{setting}|{places}|{hosts}")).unwrap_or_else(|_| unreachable!())
});

/// Hides places in all texts, unless the caller may manage.
fn for_caller(mut value: Value, principal: &Principal) -> Value {
    if principal.documents < DocumentRights::Manage {
        hide_places(&mut value);
    }
    value
}

/// Leaves out the names of documents that cannot be read, and why: the reasons may quote them.
fn without_reasons(status: &mut Value) {
    let corpora = status.get_mut("corpora").and_then(Value::as_array_mut);
    for corpus in corpora.into_iter().flatten().filter_map(Value::as_object_mut) {
        corpus.remove("unreadable_because");
    }
}

fn hide_places(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let Cow::Owned(hidden) = PLACES.replace_all(text, "${quote}${name}${before}…") {
                *text = hidden;
            }
        }
        Value::Array(values) => values.iter_mut().for_each(hide_places),
        Value::Object(fields) => fields.values_mut().for_each(hide_places),
        _ => {}
    }
}

/// Lists the pipelines and their graphs. Paths and addresses are only shown to callers who may manage documents.
#[utoipa::path(get, path = "/v1/pipelines", tag = "turnflow", responses(
    (status = 200, description = "The pipelines that the caller may use", body = List<PipelineDescription>)
))]
pub async fn list(State(app): State<App>, Extension(principal): Extension<Arc<Principal>>) -> Json<Value> {
    let data: Vec<Value> =
        app.pipelines_of(&principal).map(|served| describe(served.name(), &served.outline())).collect();
    Json(for_caller(json!({ "data": data }), &principal))
}

fn status_of(served: &Served) -> Value {
    let mut status = serde_json::to_value(served.engine().status()).unwrap_or_default();
    status["name"] = json!(served.name());
    status["reload"] = json!(served.last_reload());
    status
}

/// Reports a pipeline's status: its epoch, turns, calls by node, corpora, sinks, backup and the last reload.
#[utoipa::path(get, path = "/v1/pipelines/{name}/status", tag = "turnflow", params(("name" = String, Path)), responses(
    (status = 200, description = "The status; durations are counted in the classes of `bounds_s`", body = Value),
    (status = 404, description = "The pipeline does not exist")
))]
pub async fn status(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    InPath(name): InPath<String>,
) -> Result<Json<Value>, ApiError> {
    let mut status = status_of(&*app.pipeline(Some(&name), &principal)?);
    status["bounds_s"] = json!(turnflow_engine::activity::BOUNDS_S);
    if principal.documents < DocumentRights::Manage {
        without_reasons(&mut status);
    }
    Ok(Json(for_caller(status, &principal)))
}

/// Reports the state of the server and of the caller's pipelines. It contains no texts of users or
/// documents.
#[utoipa::path(get, path = "/debug/state", tag = "server", responses(
    (status = 200, description = "The state", body = Value)
))]
pub async fn debug(State(app): State<App>, Extension(principal): Extension<Arc<Principal>>) -> Json<Value> {
    let state_of = |served: &Arc<Served>| {
        let mut status = status_of(served);
        without_reasons(&mut status);
        (served.name().to_string(), status)
    };
    let pipelines: Map<String, Value> = app.pipelines_of(&principal).map(state_of).collect();
    let state = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "started": app.started(),
        "draining": app.is_draining(),
        "requests": { "running": app.places().running(), "waiting": app.places().waiting() },
        "pipelines": pipelines,
    });
    Json(for_caller(state, &principal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_addresses_are_hidden_and_nothing_else() {
        for (text, expected) in [
            ("path: /srv/docs, watch: true", "path: …, watch: true"),
            ("Directory(path: \"/srv/my docs\")", "Directory(path: \"…\")"),
            ("cannot read `/etc/turnflow/x.ron`: denied", "cannot read `…`: denied"),
            ("url: https://user@llm.internal:8080/v1, top: 5", "url: …, top: 5"),
            ("brokers: kafka-1:9092,kafka-2:9092", "brokers: …,…"),
            ("bucket: secret-bucket, prefix: a", "bucket: …, prefix: a"),
            ("connect to 10.0.0.7 failed", "connect to … failed"),
            ("host: db.internal)", "host: …)"),
            ("k1: 1.2, b: 0.75, top: 10", "k1: 1.2, b: 0.75, top: 10"),
            ("docs/a.md and 1/2", "docs/a.md and 1/2"),
            ("tokenizer: Stemmed, and/or", "tokenizer: Stemmed, and/or"),
        ] {
            let mut value = json!({ "a": [text], "n": 1 });
            hide_places(&mut value);
            assert_eq!(value["a"][0], expected);
        }
    }
}
