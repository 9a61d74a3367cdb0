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

/// Maximum size of a reply that is read as a whole, in bytes: a page of a listing, and an error.
const MOST_OF_A_LISTING: u64 = 64 << 20;
const MOST_OF_AN_ERROR: u64 = 1 << 20;

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
        let is_listing = request.url().query().is_some_and(|query| query.contains("list"));
        let response = self.0.execute(request).await.map_err(failed)?;
        let (parts, body) = http::Response::<Body>::from(response).into_parts();
        let mut left = match (parts.status.is_success(), is_listing) {
            (false, _) => MOST_OF_AN_ERROR,
            (true, true) => MOST_OF_A_LISTING,
            // Whoever asks for an object counts its bytes.
            (true, false) => u64::MAX,
        };
        let data = http_body_util::BodyDataStream::new(body).map_err(failed).and_then(move |part| {
            let rest = left.checked_sub(part.len() as u64);
            left = rest.unwrap_or_default();
            let too_large = || HttpError::new(HttpErrorKind::Decode, std::io::Error::other("the reply is too large"));
            std::future::ready(rest.map(|_| http_body::Frame::data(part)).ok_or_else(too_large))
        });
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(StreamBody::new(data))))
    }
}
