//! `/v1/traces` and `/v1/logs`: what instrumented programs send with OpenTelemetry's protocol. The pipeline's source `Otlp`
//! takes it, and its answers go to the pipeline's sinks.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use turnflow_engine::connector::{SentReply, SentRequest};

use crate::app::App;
use crate::auth::Principal;
use crate::body::{Content, Params};
use crate::error::ApiError;

/// The parameters of the URL.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct OtlpParams {
    /// The pipeline. Default: the first that has a source `Otlp`.
    pipeline: Option<String>,
}

/// Takes spans.
///
/// # Errors
///
/// The pipeline has no source `Otlp`.
#[utoipa::path(post, path = "/v1/traces", tag = "turnflow", params(OtlpParams), request_body(content((String = "application/x-protobuf"), (String = "application/json"))), responses(
    (status = 200, description = "The spans are stored, but for those that the reply names", content((String = "application/x-protobuf"), (String = "application/json"))),
    (status = 400, description = "The body is no request of OTLP"),
    (status = 404, description = "No pipeline has a source `Otlp`")
))]
pub async fn traces(
    app: State<App>,
    principal: Extension<Arc<Principal>>,
    params: Params<OtlpParams>,
    uri: Uri,
    content: Content,
) -> Result<Response, ApiError> {
    take(app, principal, params, uri, content).await
}

/// Takes log records.
///
/// # Errors
///
/// The pipeline has no source `Otlp`.
#[utoipa::path(post, path = "/v1/logs", tag = "turnflow", params(OtlpParams), request_body(content((String = "application/x-protobuf"), (String = "application/json"))), responses(
    (status = 200, description = "The log records are stored, but for those that the reply names", content((String = "application/x-protobuf"), (String = "application/json"))),
    (status = 400, description = "The body is no request of OTLP"),
    (status = 404, description = "No pipeline has a source `Otlp`")
))]
pub async fn logs(
    app: State<App>,
    principal: Extension<Arc<Principal>>,
    params: Params<OtlpParams>,
    uri: Uri,
    content: Content,
) -> Result<Response, ApiError> {
    take(app, principal, params, uri, content).await
}

async fn take(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Params(params): Params<OtlpParams>,
    uri: Uri,
    content: Content,
) -> Result<Response, ApiError> {
    let named = params.pipeline.map(|name| app.pipeline(Some(&name), &principal)).transpose()?;
    let mut pipelines = match &named {
        Some(served) => vec![served],
        None => app.pipelines_of(&principal).collect(),
    }
    .into_iter();
    let found = pipelines.find_map(|served| Some((served, served.engine().requests(None)?)));
    let Some((served, source)) = found else {
        return Err(ApiError::not_found("no pipeline has a source `Otlp`, which takes spans and log records"));
    };
    if served.engine().sinks().is_empty() {
        let problem = format!("the pipeline `{}` has no sink: the answers would go nowhere", served.name());
        return Err(ApiError::bad(problem));
    }
    let Content { mime, bytes, load, .. } = content;
    let path = uri.path().to_owned();
    let request = SentRequest { path, content_type: mime, body: bytes.into(), principal: principal.extra.clone() };
    let SentReply { status, content_type, retry_after_s, body } = source.take(request).await;
    drop(load);
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, [(header::CONTENT_TYPE, HeaderValue::from_static(content_type))], body).into_response();
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    Ok(response)
}
