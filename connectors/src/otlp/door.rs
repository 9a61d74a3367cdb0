//! Requests on their way to the source, and what is said to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use prost::Message as _;
use tokio::sync::oneshot;
use turnflow_engine::connector::{SentReply, SentRequest, TakesRequests};

use super::records::{Form, Signal, records};
use super::wire::{Delay, Detail, Partial, Response, RetryInfo, Status};

/// Requests that wait for the source.
const WAITING: usize = 256;
/// When a program should try again, in seconds.
pub(super) const AGAIN_S: u64 = 5;
/// Size of a body from which on it is read on another thread, in bytes.
const LARGE: usize = 32 << 10;
/// The codes of gRPC.
const INVALID: i32 = 3;
const UNIMPLEMENTED: i32 = 12;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;

/// The records of a request.
pub(super) struct Batch {
    pub records: Vec<Vec<u8>>,
    pub reply: oneshot::Sender<Outcome>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is stored, without so many records, and why the first one of these is not.
    Taken { rejected: u64, reason: String },
    /// There is no room now.
    Busy(String),
    /// The source ends.
    Ending,
    /// It has another form.
    Wrong(String),
    /// Nothing is at the path.
    Unknown(String),
    /// It has another type.
    Type(String),
    /// It broke something.
    Failed(String),
}

impl Outcome {
    /// The code of gRPC, the status of HTTP, and what is said.
    pub fn told(&self) -> (i32, u16, &str) {
        match self {
            Self::Taken { reason, .. } => (0, 200, reason),
            Self::Busy(reason) => (UNAVAILABLE, 429, reason),
            Self::Ending => (UNAVAILABLE, 503, "the server is stopping"),
            Self::Wrong(reason) => (INVALID, 400, reason),
            Self::Unknown(reason) => (UNIMPLEMENTED, 404, reason),
            Self::Type(reason) => (INVALID, 415, reason),
            Self::Failed(reason) => (INTERNAL, 500, reason),
        }
    }

    /// Whether the program should send the request again.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::Ending)
    }

    /// The message of a reply: a response, or why there is none.
    pub fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Taken { rejected: 0, .. } => Response::default().encode_to_vec(),
            Self::Taken { rejected, reason } => {
                let rejected = i64::try_from(*rejected).unwrap_or(i64::MAX);
                Response { partial: Some(Partial { rejected, message: reason.clone() }) }.encode_to_vec()
            }
            other => other.status().encode_to_vec(),
        }
    }

    fn status(&self) -> Status {
        let (code, _, message) = self.told();
        let retry = RetryInfo { delay: Some(Delay { seconds: AGAIN_S.cast_signed() }) }.encode_to_vec();
        let retry = Detail { type_url: "type.googleapis.com/google.rpc.RetryInfo".to_owned(), value: retry };
        Status { code, message: message.to_owned(), details: self.may_pass().then_some(retry).into_iter().collect() }
    }

    /// The reply to a request of HTTP.
    pub fn reply(&self, signal: Signal, form: Form) -> SentReply {
        let body = match (form, self) {
            (Form::Protobuf, _) => self.encoded(),
            (Form::Json, Self::Taken { rejected: 0, .. }) => b"{}".to_vec(),
            (Form::Json, Self::Taken { rejected, reason }) => {
                let partial = serde_json::json!({ signal.rejected(): rejected.to_string(), "errorMessage": reason });
                serde_json::json!({ "partialSuccess": partial }).to_string().into_bytes()
            }
            (Form::Json, other) => serde_json::to_vec(&other.status()).unwrap_or_default(),
        };
        let retry_after_s = self.may_pass().then_some(AGAIN_S);
        SentReply { status: self.told().1, content_type: form.content_type(), retry_after_s, body }
    }
}

/// Where requests come in.
#[derive(Clone)]
pub(super) struct Door {
    batches: Sender<Batch>,
    /// Number of requests that had another form.
    wrong: Arc<AtomicU64>,
}

impl Door {
    /// The door, and the other side of it.
    pub fn new() -> (Self, Receiver<Batch>) {
        let (sender, receiver) = bounded(WAITING);
        (Self { batches: sender, wrong: Arc::default() }, receiver)
    }

    /// Says that a program sends what cannot be read: the first time, the second, the fourth and so on.
    fn tell(&self, reason: &str) {
        let requests = self.wrong.fetch_add(1, Ordering::AcqRel) + 1;
        if requests.is_power_of_two() {
            tracing::warn!(reason, requests, "a request of OTLP was refused");
        }
    }

    /// Puts records without a wait for them.
    #[cfg(test)]
    pub fn put(&self, records: Vec<Vec<u8>>) {
        self.batches.send(Batch { records, reply: oneshot::channel().0 }).unwrap();
    }

    /// Takes a body; what it brings is stored when this ends.
    pub async fn receive(&self, signal: Signal, form: Form, body: Vec<u8>, principal: Option<String>) -> Outcome {
        let is_large = body.len() >= LARGE;
        let read = move || records(signal, form, body, principal.as_deref());
        let read = match is_large {
            true => tokio::task::spawn_blocking(read).await,
            false => Ok(read()),
        };
        let (records, wrong) = match read {
            Ok(Ok(read)) => read,
            Ok(Err(reason)) => {
                self.tell(&reason);
                return Outcome::Wrong(reason);
            }
            Err(_) => return Outcome::Failed("the body cannot be read".to_owned()),
        };
        let reason = if wrong > 0 { "it is no object".to_owned() } else { String::new() };
        if records.is_empty() {
            return Outcome::Taken { rejected: wrong, reason };
        }
        let (reply, replied) = oneshot::channel();
        match self.batches.try_send(Batch { records, reply }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Outcome::Busy("too many requests wait".to_owned()),
            Err(TrySendError::Disconnected(_)) => return Outcome::Ending,
        }
        match replied.await {
            Ok(Outcome::Taken { rejected, reason: first }) => {
                let reason = if first.is_empty() { reason } else { first };
                Outcome::Taken { rejected: rejected + wrong, reason }
            }
            Ok(other) => other,
            Err(_) => Outcome::Ending,
        }
    }
}

impl TakesRequests for Door {
    fn take(&self, request: SentRequest) -> BoxFuture<'static, SentReply> {
        let door = self.clone();
        async move {
            let SentRequest { path, content_type, body, principal } = request;
            let form = Form::of(&content_type);
            let of_reply = form.unwrap_or(Form::Json);
            let Some(signal) = Signal::of(&path) else {
                let reason = format!("turnflow takes traces and logs, and nothing at `{path}`");
                return Outcome::Unknown(reason).reply(Signal::Traces, of_reply);
            };
            let Some(form) = form else {
                let reason = format!(
                    "the type of the body is `{content_type}`, and neither `application/x-protobuf` nor `application/json`"
                );
                return Outcome::Type(reason).reply(signal, of_reply);
            };
            let principal = principal.and_then(|principal| serde_json::to_string(&principal).ok());
            door.receive(signal, form, body, principal).await.reply(signal, form)
        }
        .boxed()
    }
}
