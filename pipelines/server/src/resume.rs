//! `/v1/turns?stream=true&resume=ID`: a turn that goes on when its client is gone, so that a page that is loaded again gets
//! the whole answer. `GET /v1/turns/ID` reads its events from the beginning, or after a number, and `DELETE` stops it.
//!
//! Its events are kept in memory until nobody has read them for `resume_s` seconds. They count as bytes under way of the
//! caller (`limits.token_mb`). A turn for which there is no room goes on at the pace of those who read it, and cannot be
//! read again.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::{Extension, Json};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value as Json_, json};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::auth::Principal;
use crate::body::{InPath, Params};
use crate::error::ApiError;
use crate::limits::{HeldPlace, Share, shrink};
use crate::sse::{self, Events};

/// Most turns of a caller that can be read again.
const EACH: usize = 32;
/// The lengths of an id.
const LENGTHS: std::ops::RangeInclusive<usize> = 8..=128;

/// The turns that can be read again.
#[derive(Default)]
pub struct Resumable(Mutex<HashMap<Key, Arc<Kept>>>);

/// A caller, and the id that it has chosen.
type Key = (Arc<str>, String);

/// A turn and its events so far.
struct Kept {
    principal: Arc<Principal>,
    log: Mutex<Log>,
    /// Its value changes with the log.
    changed: watch::Sender<u64>,
    /// Cancelled when a client stops the turn.
    stopped: CancellationToken,
}

struct Log {
    /// Numbered from 1, and with the number in it.
    events: VecDeque<(u64, Kind, Bytes)>,
    /// The size of the events, and what is held for them of what the caller may have under way.
    bytes: usize,
    room: Option<OwnedSemaphorePermit>,
    next: u64,
    has_ended: bool,
    /// The number of the last event that each reader has.
    readers: BTreeMap<u64, u64>,
    next_reader: u64,
    /// When the last reader left.
    left: Instant,
}

/// What matters of an event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Delta,
    Answer,
    Revised,
    Other,
}

impl Kind {
    fn of(event: &Bytes) -> Self {
        let name = event.strip_prefix(b"event: ").and_then(|rest| rest.split(|byte| *byte == b'\n').next());
        match name {
            Some(b"delta") => Self::Delta,
            Some(b"answer") => Self::Answer,
            Some(b"revised") => Self::Revised,
            _ => Self::Other,
        }
    }
}

impl Kept {
    fn new(principal: Arc<Principal>) -> Arc<Self> {
        let log = Log {
            events: VecDeque::new(),
            bytes: 0,
            room: None,
            next: 1,
            has_ended: false,
            readers: BTreeMap::new(),
            next_reader: 0,
            left: Instant::now(),
        };
        let (changed, stopped) = (watch::Sender::new(0), CancellationToken::new());
        Arc::new(Self { principal, log: Mutex::new(log), changed, stopped })
    }

    fn change(&self, change: impl FnOnce(&mut Log)) {
        change(&mut self.log.lock());
        self.changed.send_modify(|version| *version += 1);
    }

    /// Adds events; false if the caller has no room for them.
    fn add(&self, events: &mut VecDeque<Bytes>) -> bool {
        let mut has_room = true;
        self.change(|log| {
            for event in events.drain(..) {
                // What a later event contains need not be read again.
                let kind = Kind::of(&event);
                match kind {
                    Kind::Answer => log.leave_out(Kind::Delta),
                    Kind::Revised => log.leave_out(Kind::Revised),
                    Kind::Delta | Kind::Other => {}
                }
                let numbered = Bytes::from([format!("id: {}\n", log.next).as_bytes(), &event].concat());
                log.bytes += numbered.len();
                log.events.push_back((log.next, kind, numbered));
                log.next += 1;
            }
            has_room = log.hold(&self.principal.share);
        });
        has_room
    }

    /// Waits until all who read have all events, and forgets these.
    async fn passed_on(&self) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            {
                let mut log = self.log.lock();
                let last = log.next - 1;
                if log.readers.values().all(|seen| *seen >= last) {
                    (log.bytes, log.room) = (0, None);
                    log.events.clear();
                    return;
                }
            }
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until nobody has read for so long. A server that stops waits for readers only.
    async fn abandoned(&self, patience: Duration, drained: &CancellationToken) {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let (readers, left) = {
                let log = self.log.lock();
                (log.readers.len(), log.left)
            };
            let over = async {
                match readers {
                    0 => tokio::select! {
                        () = sleep_until(left + patience) => {}
                        () = drained.cancelled() => {}
                    },
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                () = over => return,
                _ = changed.changed() => {}
            }
        }
    }
}

impl Log {
    /// Forgets the events of a kind.
    fn leave_out(&mut self, which: Kind) {
        let bytes = &mut self.bytes;
        self.events.retain(|(_, kind, event)| {
            let stays = *kind != which;
            *bytes -= if stays { 0 } else { event.len() };
            stays
        });
    }

    /// Holds as much of a caller's share as the events take; false if there is not so much.
    fn hold(&mut self, share: &Share) -> bool {
        let held = self.room.as_ref().map_or(0, |room| room.num_permits() << 10);
        if self.bytes <= held {
            self.room.iter_mut().for_each(|room| shrink(room, self.bytes));
            return true;
        }
        if self.bytes.div_ceil(1024) > share.most_bytes as usize {
            return false;
        }
        let Ok(more) = share.reserve(self.bytes - held) else { return false };
        match &mut self.room {
            Some(room) => room.merge(more),
            None => self.room = Some(more),
        }
        true
    }
}

impl Resumable {
    /// Adds a turn of a caller.
    fn add(&self, id: &str, kept: &Arc<Kept>) -> Result<(), ApiError> {
        let mut turns = self.0.lock();
        let key = (kept.principal.name.clone(), id.to_owned());
        if turns.contains_key(&key) {
            let problem = "there is a turn with this id already: choose another one, or read it at /v1/turns/ID";
            return Err(ApiError::bad(problem).param("resume").code("turn_exists"));
        }
        let own = turns.iter().filter(|((name, _), _)| *name == key.0);
        let ended = own.clone().filter(|(_, kept)| kept.log.lock().has_ended);
        let oldest = ended.min_by_key(|(_, kept)| kept.log.lock().left).map(|(key, _)| key.clone());
        match (own.count() >= EACH, oldest) {
            (false, _) => {}
            (true, Some(oldest)) => drop(turns.remove(&oldest)),
            (true, None) => return Err(ApiError::overload(format!("this caller has {EACH} running turns"), 1)),
        }
        turns.insert(key, kept.clone());
        Ok(())
    }

    /// A caller's turn, if the caller still has the groups with which it was asked.
    fn find(&self, id: &str, principal: &Principal) -> Result<Arc<Kept>, ApiError> {
        let found = self.0.lock().get(&(principal.name.clone(), id.to_owned())).cloned();
        let has_all = |kept: &Arc<Kept>| kept.principal.extra.as_ref().is_none_or(|before| principal.still_has(before));
        found.filter(has_all).ok_or_else(|| {
            ApiError::not_found(format!("there is no turn `{}` of yours to go on with", id.escape_default()))
                .param("id")
        })
    }

    fn remove(&self, id: &str, kept: &Arc<Kept>) {
        let key = (kept.principal.name.clone(), id.to_owned());
        let mut turns = self.0.lock();
        if turns.get(&key).is_some_and(|known| Arc::ptr_eq(known, kept)) {
            turns.remove(&key);
        }
    }
}

/// Checks the id that a client has chosen.
///
/// # Errors
///
/// 400: it is too short or too long, or has other characters.
pub fn check(id: &str) -> Result<(), ApiError> {
    let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    match is_plain && LENGTHS.contains(&id.len()) {
        true => Ok(()),
        false => Err(ApiError::bad("`resume` must be 8 to 128 letters, digits, `-` and `_`").param("resume")),
    }
}

/// Runs a turn in a task of its own; the response reads its events.
///
/// # Errors
///
/// 400: the caller has a turn with this id. 429: it has too many.
pub fn begin(
    app: &App,
    principal: Arc<Principal>,
    id: String,
    place: HeldPlace,
    mut events: impl Events,
) -> Result<Response, ApiError> {
    let kept = Kept::new(principal);
    app.resumable().add(&id, &kept)?;
    let response = read_on(app, &kept, 0, None);
    let app = app.clone();
    tokio::spawn(async move {
        let patience = Duration::from_secs_f64(app.config().resume_s);
        let mut out = VecDeque::new();
        let mut is_known = true;
        loop {
            let goes_on = tokio::select! {
                () = kept.stopped.cancelled() => false,
                () = kept.abandoned(if is_known { patience } else { Duration::ZERO }, app.drained()) => false,
                goes_on = events.next(&mut out) => goes_on,
            };
            if !kept.add(&mut out) && is_known {
                is_known = false;
                app.resumable().remove(&id, &kept);
            }
            if !is_known {
                tokio::select! {
                    () = kept.stopped.cancelled() => {}
                    () = kept.passed_on() => {}
                }
            }
            if !goes_on {
                break;
            }
        }
        // The turn and its slot end here.
        drop((events, place));
        kept.change(|log| log.has_ended = true);
        if is_known && !kept.stopped.is_cancelled() {
            kept.abandoned(patience, app.drained()).await;
        }
        app.resumable().remove(&id, &kept);
    });
    Ok(response)
}

/// A client that reads a turn.
struct Reading {
    kept: Arc<Kept>,
    changed: watch::Receiver<u64>,
    /// Its number among the readers.
    number: u64,
    _places: Option<[OwnedSemaphorePermit; 2]>,
}

impl Reading {
    /// A reader who has the events up to a number.
    fn of(kept: &Arc<Kept>, seen: u64, places: Option<[OwnedSemaphorePermit; 2]>) -> Self {
        let mut number = 0;
        kept.change(|log| {
            number = log.next_reader;
            log.next_reader += 1;
            log.readers.insert(number, seen);
        });
        Self { kept: kept.clone(), changed: kept.changed.subscribe(), number, _places: places }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.kept.change(|log| {
            log.readers.remove(&self.number);
            log.left = Instant::now();
        });
    }
}

impl Events for Reading {
    async fn next(&mut self, out: &mut VecDeque<Bytes>) -> bool {
        loop {
            self.changed.borrow_and_update();
            let has_ended = {
                let mut log = self.kept.log.lock();
                let (last, seen) = (log.next - 1, log.readers.get(&self.number).copied().unwrap_or_default());
                // The texts are not copied.
                out.extend(log.events.iter().filter(|(number, ..)| *number > seen).map(|(.., event)| event.clone()));
                log.readers.insert(self.number, seen.max(last));
                log.has_ended
            };
            if !out.is_empty() {
                self.kept.changed.send_modify(|version| *version += 1);
            }
            if !out.is_empty() || has_ended {
                return !has_ended;
            }
            if self.changed.changed().await.is_err() {
                return false;
            }
        }
    }
}

fn read_on(app: &App, kept: &Arc<Kept>, seen: u64, places: Option<[OwnedSemaphorePermit; 2]>) -> Response {
    let reading = Reading::of(kept, seen, places);
    sse::response(reading, Duration::from_secs_f64(app.config().keep_alive_s))
}

/// The parameters of the URL.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ResumeParams {
    /// The number of the last event that the client has, as in `Last-Event-ID`. Default: 0, so all events.
    after: Option<u64>,
}

/// Reads the events of a turn that was asked with `resume`, from the beginning or after a number, and goes on with it.
#[utoipa::path(get, path = "/v1/turns/{id}", tag = "turnflow", params(("id" = String, Path, description = "What `resume` was"), ResumeParams),
    responses(
        (status = 200, description = "The events", content((String = "text/event-stream"))),
        (status = 404, description = "There is no such turn of the caller, or nobody has read it for too long")
    ))]
pub async fn read(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    InPath(id): InPath<String>,
    Params(params): Params<ResumeParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let kept = app.resumable().find(&id, &principal)?;
    let seen = headers.get("last-event-id").and_then(|value| value.to_str().ok()).and_then(|id| id.parse().ok());
    let own = principal.share.streams.clone().try_acquire_owned();
    let own = own.map_err(|_| ApiError::overload("too many open answer streams for this token", 5))?;
    let of_all = app.streams().try_acquire_owned();
    let of_all = of_all.map_err(|_| ApiError::overload("too many open answer streams", 5))?;
    Ok(read_on(&app, &kept, seen.or(params.after).unwrap_or(0), Some([own, of_all])))
}

/// Stops a turn that was asked with `resume`.
#[utoipa::path(delete, path = "/v1/turns/{id}", tag = "turnflow", params(("id" = String, Path, description = "What `resume` was")),
    responses(
        (status = 200, description = "The turn is stopped", body = Json_),
        (status = 404, description = "There is no such turn of the caller")
    ))]
pub async fn stop(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    InPath(id): InPath<String>,
) -> Result<Json<Json_>, ApiError> {
    let kept = app.resumable().find(&id, &principal)?;
    kept.stopped.cancel();
    app.resumable().remove(&id, &kept);
    Ok(Json(json!({ "id": id, "stopped": true })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Tokens;
    use crate::config::ServeConfig;

    async fn kept() -> Arc<Kept> {
        let tokens = Tokens::new(&ServeConfig::default(), |_| None).unwrap();
        Kept::new(tokens.principal(&HeaderMap::new()).await.unwrap())
    }

    fn events(names: &[&str]) -> VecDeque<Bytes> {
        names.iter().map(|name| sse::event(name, &json!({}))).collect()
    }

    #[tokio::test]
    async fn a_reader_gets_what_it_does_not_have() {
        let kept = kept().await;
        kept.add(&mut events(&["started", "delta", "delta"]));
        let mut reading = Reading::of(&kept, 1, None);
        let mut out = VecDeque::new();
        assert!(reading.next(&mut out).await);
        assert_eq!(text(&mut out), "id: 2\nevent: delta\ndata: {}\n\nid: 3\nevent: delta\ndata: {}\n\n");
        // Who reads again needs the answer only, and the last revision.
        kept.add(&mut events(&["answer", "revised", "revised"]));
        let left: Vec<u64> = kept.log.lock().events.iter().map(|(number, ..)| *number).collect();
        assert_eq!(left, [1, 4, 6]);
        kept.change(|log| log.has_ended = true);
        assert!(!reading.next(&mut out).await && text(&mut out).matches("event: ").count() == 2);
        drop(reading);
        assert!(kept.log.lock().readers.is_empty());
        kept.abandoned(Duration::ZERO, &CancellationToken::new()).await;
    }

    fn text(out: &mut VecDeque<Bytes>) -> String {
        out.drain(..).map(|part| String::from_utf8(part.to_vec()).unwrap()).collect()
    }

    fn free(kept: &Kept) -> usize {
        kept.principal.share.bytes.available_permits()
    }

    #[tokio::test]
    async fn what_a_later_event_contains_takes_no_room_and_what_has_no_room_waits_for_its_readers() {
        let kept = kept().await;
        let (all, most) = (free(&kept), kept.principal.share.most_bytes as usize);
        let large = |name: &str, kib: usize| VecDeque::from([sse::event(name, &json!("x".repeat((kib << 10) - 40)))]);
        // Many small ones take no more than their bytes.
        for _ in 0..100 {
            assert!(kept.add(&mut events(&["delta"])));
        }
        assert_eq!(all - free(&kept), 3);
        assert!(kept.add(&mut large("delta", most / 2)) && kept.add(&mut events(&["answer"])));
        assert_eq!(all - free(&kept), 1);

        let mut reading = Reading::of(&kept, 0, None);
        assert!(kept.add(&mut large("node", most / 2)));
        assert!(!kept.add(&mut large("node", most / 2 + 1)));
        let passed = kept.passed_on();
        tokio::pin!(passed);
        assert!(futures::poll!(passed.as_mut()).is_pending(), "somebody has not read it");
        let mut out = VecDeque::new();
        assert!(reading.next(&mut out).await && text(&mut out).len() > most << 10);
        passed.await;
        assert_eq!((free(&kept), kept.log.lock().events.len()), (all, 0));
        // Without readers, nothing waits.
        assert!(!kept.add(&mut large("node", most + 1)));
        drop(reading);
        kept.passed_on().await;
    }

    #[tokio::test]
    async fn a_caller_keeps_a_bounded_number_of_turns() {
        let all = Resumable::default();
        let ended = kept().await;
        ended.change(|log| log.has_ended = true);
        all.add("first-one", &ended).unwrap();
        for number in 1..EACH {
            all.add(&format!("running-{number}"), &kept().await).unwrap();
        }
        assert_eq!(all.add("running-1", &kept().await).unwrap_err().code, Some("turn_exists"));
        // The one that has ended makes room once.
        all.add("one-more", &kept().await).unwrap();
        assert_eq!(all.add("too-many", &kept().await).unwrap_err().status.as_u16(), 429);
    }

    #[test]
    fn an_id_is_plain() {
        assert!(check("page-0123_a").is_ok());
        for wrong in ["short", "with space", "a/b/c/d/e/f", &"x".repeat(129)] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
