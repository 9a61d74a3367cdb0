//! Errors of requests, in the form of OpenAI's API: `{"error": {"message", "type", "param", "code"}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json, json};
use turnflow_engine::ask::AskError;

use crate::encoding::ACCEPTED;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// The class of the error: `invalid_request_error`, `server_error`.
    pub kind: &'static str,
    /// A machine-readable code.
    pub code: Option<&'static str>,
    /// The invalid field of the request.
    pub param: Option<String>,
    /// The human-readable message.
    pub message: String,
    /// Seconds after which the caller may try again.
    pub retry_after: Option<u64>,
    /// Whether the response says which encodings of bodies are accepted.
    pub accepts: bool,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, param: None, message: message.into(), retry_after: None, accepts: false }
    }

    /// 400: the request is invalid.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400: the request asks for something that this server does not support.
    pub fn unsupported(param: &str, message: impl Into<String>) -> Self {
        Self::bad(message).param(param).code("unsupported_parameter")
    }

    /// 401: the token is missing or wrong.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message).code("invalid_api_key")
    }

    /// 403: the caller may not do this.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "invalid_request_error", message).code("forbidden")
    }

    /// 404: not found.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("not_found")
    }

    /// 404: the model does not exist.
    pub fn no_model(model: &str) -> Self {
        Self::not_found(format!("the model `{model}` does not exist")).param("model").code("model_not_found")
    }

    /// 405: the route has no such method.
    pub fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "this route does not support this method")
            .code("method_not_allowed")
    }

    /// 409: what is asked for cannot be done with this object.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_request_error", message).code("conflict")
    }

    /// 413: the body is too large.
    pub fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            format!("the body is longer than {limit} bytes, the limit of this server"),
        )
        .code("body_too_large")
    }

    /// 415: the route does not accept the type of the body.
    pub fn media_type(expected: &str) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "invalid_request_error",
            format!("this route accepts {expected}: set the header `Content-Type`"),
        )
        .code("unsupported_media_type")
    }

    /// 415: the body is encoded in a way that this server does not decode.
    pub fn content_encoding(name: &str) -> Self {
        let name = name.escape_default();
        let message = format!("`Content-Encoding: {name}` is not decoded here: use one of {ACCEPTED}, or none");
        let mut error = Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message);
        error.accepts = true;
        error.code("unsupported_encoding")
    }

    /// 422: the body is a file that cannot be read.
    pub fn unreadable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request_error", message).code("unreadable_file")
    }

    /// 429: too many requests.
    pub fn overload(message: impl Into<String>, retry_after: u64) -> Self {
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        error.retry_after = Some(retry_after.max(1));
        error.code("rate_limit_exceeded")
    }

    /// 500: the pipeline failed.
    pub fn server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// 500: a back end failed. The reason may contain addresses and paths, so it is only logged.
    pub fn failed(what: &str, reason: &dyn std::fmt::Display) -> Self {
        tracing::error!(%reason, "{what} failed");
        Self::server(format!("{what} failed; see the server's log for the reason"))
    }

    /// 503: the server is not ready, or is shutting down.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        error.retry_after = Some(1);
        error.code("unavailable")
    }

    /// 503: the request waited for a corpus that is not published yet.
    pub fn loading() -> Self {
        let mut error = Self::unavailable("a corpus is still being indexed; /readyz tells when it is done");
        error.retry_after = Some(10);
        error.code("loading")
    }

    /// 408: the body did not arrive in time.
    pub fn slow_body() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            "the body did not arrive in time; send it without long pauses",
        )
        .code("timeout")
    }

    /// 504: the request took too long.
    pub fn timed_out(seconds: f64) -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "server_error",
            format!("the request took longer than {seconds} s, the limit of this server"),
        )
        .code("timeout")
    }

    /// Names the invalid field.
    #[must_use]
    pub fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Sets the code.
    #[must_use]
    pub fn code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The same error with another message.
    #[must_use]
    pub fn saying(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// The error as JSON.
    pub fn body(&self) -> Json {
        json!({ "error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        } })
    }
}

impl From<AskError> for ApiError {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Full { .. } => Self::overload(error.to_string(), 1),
            AskError::Ended => Self::unavailable("the pipeline has stopped"),
            AskError::NoSource => Self::server(error.to_string()),
            AskError::UnknownSource { .. } => Self::bad(error.to_string()).param("source"),
            AskError::Adjustment { .. } => Self::bad(error.to_string()).param("adjust"),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.accepts {
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(ACCEPTED));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_openais_form() {
        let error = ApiError::no_model("x");
        assert_eq!(
            error.body(),
            json!({"error": {"message": "the model `x` does not exist", "type": "invalid_request_error",
                "param": "model", "code": "model_not_found"}})
        );
        let response = ApiError::overload("slow down", 0).into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
