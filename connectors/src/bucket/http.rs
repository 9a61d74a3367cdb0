//! The HTTP client of the object stores, with the version of `reqwest` that turnflow has already.

use std::time::Duration;

use async_trait::async_trait;
use futures::TryStreamExt;
use http_body_util::StreamBody;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use reqwest::{Body, Client, Request};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a read may take without any byte.
const READ: Duration = Duration::from_secs(30);

/// Makes the client.
#[derive(Debug)]
pub(super) struct Connector;

#[derive(Debug)]
struct Service(Client);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = Client::builder().connect_timeout(CONNECT).read_timeout(READ).build();
        let client = client
            .map_err(|error| object_store::Error::Generic { store: "the HTTP client", source: Box::new(error) })?;
        Ok(HttpClient::new(Service(client)))
    }
}

fn failed(error: reqwest::Error) -> HttpError {
    let kind = if error.is_timeout() {
        HttpErrorKind::Timeout
    } else if error.is_connect() {
        HttpErrorKind::Connect
    } else if error.is_body() || error.is_request() {
        HttpErrorKind::Interrupted
    } else if error.is_decode() {
        HttpErrorKind::Decode
    } else {
        HttpErrorKind::Unknown
    };
    // A URL may be signed.
    HttpError::new(kind, error.without_url())
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let url = parts.uri.to_string().parse().map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let mut request = Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        *request.body_mut() = Some(match body.as_bytes() {
            Some(bytes) => Body::from(bytes.clone()),
            None => Body::wrap(body),
        });
        let response = self.0.execute(request).await.map_err(failed)?;
        let (parts, body) = http::Response::<Body>::from(response).into_parts();
        let data = http_body_util::BodyDataStream::new(body).map_ok(http_body::Frame::data).map_err(failed);
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(StreamBody::new(data))))
    }
}
