//! `/v1/turns` with `"live": true`: after the answer, the stream goes on with a `revised` whenever the documents change so
//! that the answer is another one.
//!
//! Such a stream counts as an open stream of its token (`limits.token_streams`, `limits.streams`) and, after the answer, as a
//! running request no longer. It ends when its token does, and when the server stops.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use turnflow_engine::ask::{AnswerStream, Event};
use turnflow_engine::record::AnswerRecord;

use crate::answers::expired;
use crate::app::App;
use crate::auth::Principal;
use crate::error::ApiError;
use crate::limits::HeldPlace;

/// What a stream that goes on after its answer holds.
pub struct Live {
    until: Option<u64>,
    /// Cancelled when the server is about to stop.
    drained: CancellationToken,
    /// The slot of the request, until the answer is sent.
    place: HeldPlace,
    _streams: [OwnedSemaphorePermit; 2],
}

/// The next event of a live answer.
pub enum Next {
    /// The answer is another one.
    Revised(Box<AnswerRecord>),
    /// The stream ends, and why.
    End(Json),
}

impl Live {
    /// Takes a stream of the caller.
    ///
    /// # Errors
    ///
    /// 429: the caller, or the server, has too many open streams.
    pub fn new(app: &App, principal: &Arc<Principal>, place: HeldPlace) -> Result<Self, ApiError> {
        let own = principal.share.streams.clone().try_acquire_owned();
        let own = own.map_err(|_| ApiError::overload("too many open answer streams for this token", 5))?;
        let of_all = app.streams().try_acquire_owned();
        let of_all = of_all.map_err(|_| ApiError::overload("too many open answer streams", 5))?;
        Ok(Self { until: principal.until, drained: app.drained().clone(), place, _streams: [own, of_all] })
    }

    /// The first answer is sent: others may use the slot of the request.
    pub fn is_answered(&self) {
        drop(self.place.0.lock().take());
    }

    /// Waits for the next change of the answer. Cancel-safe.
    pub async fn next(&self, events: &mut AnswerStream) -> Next {
        let ended = |reason: &str| Next::End(json!({ "reason": reason }));
        loop {
            tokio::select! {
                () = self.drained.cancelled() => return ended("the server is stopping"),
                () = expired(self.until) => return ended("the token has expired"),
                event = events.next() => match event {
                    Some(Event::Revised { record }) => return Next::Revised(record),
                    Some(_) => {}
                    None => return ended("the pipeline has stopped"),
                },
            }
        }
    }
}
