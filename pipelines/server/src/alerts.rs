//! `/v1/alerts`: the rules that watch the answers of a pipeline, with their states.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use turnflow_engine::connector::AlertStatus;
use utoipa::{IntoParams, ToSchema};

use crate::app::App;
use crate::auth::Principal;
use crate::body::Params;
use crate::error::ApiError;
use crate::openapi::List;

/// The parameters of the URL.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AlertParams {
    /// The pipeline. Default: the first.
    pipeline: Option<String>,
}

/// A rule that watches the answers.
#[derive(Debug, Serialize, ToSchema)]
pub struct ListedAlert {
    /// The node of the rule.
    node: String,
    rule: String,
    /// `ok`, `pending` (it is beyond its threshold, but not for long enough) or `firing`.
    state: &'static str,
    /// What is measured now; nothing while there are too few answers.
    value: Option<f64>,
    threshold: f64,
    /// Number of answers in the window.
    n: usize,
    /// Since when it is beyond its threshold, in seconds since the Unix epoch.
    since: Option<f64>,
    /// The name of the alert, if it fires.
    alert: Option<String>,
}

impl From<AlertStatus> for ListedAlert {
    fn from(status: AlertStatus) -> Self {
        let AlertStatus { node, rule, state, value, threshold, n, since, alert } = status;
        Self { node: node.to_string(), rule, state, value, threshold, n, since, alert }
    }
}

/// Lists the rules of the nodes `Alerts` of a pipeline: those that fire first.
#[utoipa::path(get, path = "/v1/alerts", tag = "turnflow", params(AlertParams), responses(
    (status = 200, description = "The rules and their states", body = List<ListedAlert>),
    (status = 404, description = "The pipeline does not exist")
))]
pub async fn list(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Params(params): Params<AlertParams>,
) -> Result<Json<List<ListedAlert>>, ApiError> {
    let served = app.pipeline(params.pipeline.as_deref(), &principal)?;
    let mut data: Vec<ListedAlert> = served.engine().alerts().into_iter().map(ListedAlert::from).collect();
    data.sort_by_key(|alert| match alert.state {
        "firing" => 0,
        "pending" => 1,
        _ => 2,
    });
    Ok(Json(List { data }))
}
