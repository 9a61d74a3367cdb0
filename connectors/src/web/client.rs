//! Requests to a site: one after the other, with a pause between them, and with bounds on what comes back.

use std::time::Duration;

use futures::StreamExt;
use reqwest::header::{
    CONTENT_TYPE, ETAG, HeaderMap, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED, LOCATION, RETRY_AFTER,
};
use reqwest::{Client, StatusCode, Url, redirect};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use turnflow_engine::connector::ConnectorError;

use super::WebConfig;
use crate::remote::lasting;

/// The longest pause that a site can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What a page was when it was last read, for the next request.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Validators {
    etag: Option<String>,
    last_modified: Option<String>,
}

/// What a site has replied.
pub(super) enum Reply {
    /// The content.
    Content(Content),
    /// It is what it was.
    Unchanged,
    /// It does not exist.
    Gone,
    /// Larger than the limit: its beginning.
    TooLarge(Vec<u8>),
    /// It is at another URL.
    Moved(Url),
    /// It cannot be had now: why, and the status, if the site replied.
    Failed(String, Option<StatusCode>),
}

pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    /// The media type in lower case, without parameters; may be empty.
    pub(super) kind: String,
    /// The character set that the site names.
    pub(super) charset: Option<String>,
    pub(super) validators: Validators,
}

/// Makes requests.
pub(super) struct Requests {
    client: Client,
    /// The pause between two requests.
    pub(super) delay: Duration,
    /// When the next request may be made.
    next: Option<Instant>,
}

impl Requests {
    pub(super) fn new(config: &WebConfig) -> Result<Self, ConnectorError> {
        let client = Client::builder()
            .user_agent(config.user_agent.as_str())
            .timeout(Duration::from_secs_f64(config.timeout_s))
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|error| lasting(error.to_string()))?;
        Ok(Self { client, delay: Duration::from_secs_f64(config.delay_s), next: None })
    }

    /// Asks for a URL. Dropping the future is harmless.
    pub(super) async fn get(&mut self, url: &Url, known: &Validators, limit: u64) -> Reply {
        if let Some(next) = self.next {
            tokio::time::sleep_until(next).await;
        }
        self.next = Some(Instant::now() + self.delay);
        let mut request = self.client.get(url.clone());
        if let Some(etag) = &known.etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        if let Some(time) = &known.last_modified {
            request = request.header(IF_MODIFIED_SINCE, time);
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Reply::Failed(reason(&error), None),
        };
        let header =
            |headers: &HeaderMap, name| headers.get(name).and_then(|value| value.to_str().ok().map(str::to_owned));
        match response.status() {
            StatusCode::NOT_MODIFIED => return Reply::Unchanged,
            StatusCode::NOT_FOUND | StatusCode::GONE => return Reply::Gone,
            status if status.is_redirection() => {
                let target = header(response.headers(), LOCATION).and_then(|target| url.join(&target).ok());
                return match target {
                    Some(target) => Reply::Moved(target),
                    None => Reply::Failed(format!("the site replied {status} without an address"), Some(status)),
                };
            }
            status if status.is_success() => {}
            status => {
                let pause = header(response.headers(), RETRY_AFTER).and_then(|value| value.parse().ok());
                if let Some(seconds) = pause {
                    self.next = Some(Instant::now() + Duration::from_secs(seconds).min(LONGEST_PAUSE));
                }
                return Reply::Failed(format!("the site replied {status}"), Some(status));
            }
        }
        let kind = header(response.headers(), CONTENT_TYPE).unwrap_or_default().to_ascii_lowercase();
        let validators = Validators {
            etag: header(response.headers(), ETAG),
            last_modified: header(response.headers(), LAST_MODIFIED),
        };
        let mut bytes = Vec::new();
        let mut body = response.bytes_stream();
        while let Some(part) = body.next().await {
            match part {
                Ok(part) => bytes.extend_from_slice(&part),
                Err(error) => return Reply::Failed(reason(&error), None),
            }
            if bytes.len() as u64 > limit {
                return Reply::TooLarge(bytes);
            }
        }
        let (kind, parameters) = kind.split_once(';').unwrap_or((&kind, ""));
        let charset = parameters.split(';').find_map(|parameter| parameter.trim().strip_prefix("charset="));
        let charset = charset.map(|charset| charset.trim_matches('"').to_owned());
        Reply::Content(Content { bytes, kind: kind.trim().to_owned(), charset, validators })
    }
}

/// An error with its causes: reqwest's own message does not name them.
fn reason(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
