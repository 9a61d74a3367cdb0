//! Limits on rate, concurrency, bytes and time: what each token may have under way ([`Share`]), slots for running
//! requests, a bounded queue for them, and a time limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body::Body as _;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::App;
use crate::auth::Principal;
use crate::body::Held;
use crate::config::LimitsConfig;
use crate::error::ApiError;
use crate::health;

/// A token bucket: `rate` requests per second, and `burst` after a pause.
#[derive(Debug)]
pub struct Bucket {
    rate: f64,
    burst: f64,
    state: Mutex<(f64, Instant)>,
}

impl Bucket {
    /// A full bucket; a rate of 0 means no limit.
    pub fn new(rate: f64, burst: f64) -> Self {
        let burst = burst.max(1.0);
        Self { rate, burst, state: Mutex::new((burst, Instant::now())) }
    }

    /// Takes one token, or returns the time until one is available.
    ///
    /// # Errors
    ///
    /// The bucket is empty.
    pub fn take(&self, now: Instant) -> Result<(), Duration> {
        if self.rate <= 0.0 {
            return Ok(());
        }
        let (left, at) = &mut *self.state.lock();
        let passed = now.saturating_duration_since(*at).as_secs_f64();
        *left = (*left + passed * self.rate).min(self.burst);
        *at = now.max(*at);
        if *left >= 1.0 {
            *left -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64(((1.0 - *left) / self.rate).min(3600.0)))
    }

    /// Takes further tokens for what a request contains. They may be missing: then the next requests wait longer.
    pub fn charge(&self, tokens: usize) {
        self.state.lock().0 -= tokens as f64;
    }
}

/// What the requests of one caller share: its rate, and what it may have under way at once.
#[derive(Debug)]
pub struct Share {
    /// Its requests and turns per second.
    pub bucket: Bucket,
    /// Its running requests.
    pub places: Arc<Semaphore>,
    /// Its open streams of answers.
    pub streams: Arc<Semaphore>,
    /// The bytes of its requests and responses, in KiB.
    pub bytes: Arc<Semaphore>,
    /// The same bound.
    pub most_bytes: u32,
}

impl Share {
    /// The share of a caller without limits of its own.
    pub fn new(limits: &LimitsConfig) -> Self {
        Self::with(limits, limits.rate, limits.burst, limits.token_concurrency)
    }

    /// The share of a caller with this rate, burst and number of running requests.
    pub fn with(limits: &LimitsConfig, rate: f64, burst: f64, running: usize) -> Self {
        let most_bytes = kib((limits.token_mb * 1024.0 * 1024.0) as usize);
        Self {
            bucket: Bucket::new(rate, burst),
            places: Arc::new(Semaphore::new(running)),
            streams: Arc::new(Semaphore::new(limits.token_streams)),
            bytes: Arc::new(Semaphore::new(most_bytes as usize)),
            most_bytes,
        }
    }

    /// Takes so many bytes of what may be under way, before they are read.
    ///
    /// # Errors
    ///
    /// 429: the caller has too much under way.
    pub fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        self.bytes.clone().try_acquire_many_owned(kib(bytes).min(self.most_bytes)).map_err(|_| {
            ApiError::overload("too many bytes of requests and responses under way for this token (`token_mb`)", 1)
        })
    }

    /// Waits until so many bytes may be under way.
    pub async fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.bytes.clone().acquire_many_owned(kib(bytes).min(self.most_bytes)).await.ok()
    }

    /// Takes a request from the rate.
    ///
    /// # Errors
    ///
    /// 429: the caller exceeds its rate.
    pub fn request(&self) -> Result<(), ApiError> {
        self.bucket.take(Instant::now()).map_err(|after| {
            let seconds = after.as_secs_f64().ceil() as u64;
            ApiError::overload("too many requests or turns per second for this token", seconds)
        })
    }
}

/// A number of bytes in KiB, rounded up.
fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

/// Reduces what is held of a room to these bytes.
pub fn shrink(room: &mut OwnedSemaphorePermit, bytes: usize) {
    let rest = room.num_permits().saturating_sub(kib(bytes) as usize);
    drop(room.split(rest));
}

/// The bytes of a request, of what is read from it, and of its response; given back when the last owner drops it.
#[derive(Debug)]
pub struct Load {
    share: Arc<Share>,
    held: Mutex<Vec<OwnedSemaphorePermit>>,
}

impl Load {
    /// Nothing yet, of this share.
    pub fn new(share: Arc<Share>) -> Arc<Self> {
        Arc::new(Self { share, held: Mutex::default() })
    }

    /// Adds bytes.
    ///
    /// # Errors
    ///
    /// 429: the caller has too much under way.
    pub fn add(&self, bytes: usize) -> Result<(), ApiError> {
        let mut held = self.held.lock();
        let before: usize = held.iter().map(OwnedSemaphorePermit::num_permits).sum();
        // What is larger than the bound may be under way alone.
        let most = (self.share.most_bytes as usize).saturating_sub(before);
        held.push(self.share.reserve(bytes.min(most << 10))?);
        Ok(())
    }
}

/// The slots for running requests of all callers.
pub struct Places {
    places: Arc<Semaphore>,
    most: usize,
    waiting: AtomicUsize,
    most_waiting: usize,
}

/// The slots of a request; released when dropped.
pub struct Place {
    _of_all: OwnedSemaphorePermit,
    _of_caller: OwnedSemaphorePermit,
}

/// The slot of a request, which a response that goes on for long gives back early.
#[derive(Clone)]
pub struct HeldPlace(pub Arc<Mutex<Option<Place>>>);

/// Counts a waiting request until dropped.
struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Places {
    /// As many as configured.
    pub fn new(limits: &LimitsConfig) -> Self {
        Self {
            places: Arc::new(Semaphore::new(limits.concurrency)),
            most: limits.concurrency,
            waiting: AtomicUsize::new(0),
            most_waiting: limits.waiting,
        }
    }

    /// Number of running requests.
    pub fn running(&self) -> usize {
        self.most.saturating_sub(self.places.available_permits())
    }

    /// Number of requests waiting for a slot.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Acquire)
    }

    /// Takes a slot for a caller; waits for it unless too many requests wait.
    ///
    /// # Errors
    ///
    /// 429: the caller exceeds its rate or concurrency, or too many requests wait.
    pub async fn take(&self, principal: &Principal) -> Result<Place, ApiError> {
        principal.share.request()?;
        let of_caller = principal.share.places.clone().try_acquire_owned();
        let of_caller = of_caller.map_err(|_| ApiError::overload("too many concurrent requests for this token", 1))?;
        if let Ok(of_all) = self.places.clone().try_acquire_owned() {
            return Ok(Place { _of_all: of_all, _of_caller: of_caller });
        }
        let before = self.waiting.fetch_add(1, Ordering::AcqRel);
        let _waits = Waits(&self.waiting);
        if before >= self.most_waiting {
            return Err(ApiError::overload("too many waiting requests", 1));
        }
        let of_all = self.places.clone().acquire_owned().await;
        let of_all = of_all.map_err(|_| ApiError::unavailable("the server is shutting down"))?;
        Ok(Place { _of_all: of_all, _of_caller: of_caller })
    }
}

/// The deadline of a request.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// The time.
    pub at: Instant,
    /// The limit in seconds.
    pub seconds: f64,
}

impl Deadline {
    /// The deadline of a request that has now begun, which may take this many seconds.
    pub fn after(seconds: f64) -> Self {
        Self { at: Instant::now() + Duration::from_secs_f64(seconds), seconds }
    }

    /// Waits for a future until the deadline.
    ///
    /// # Errors
    ///
    /// 504: the deadline has passed.
    pub async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, ApiError> {
        let done = tokio::time::timeout_at(self.at.into(), future).await;
        done.map_err(|_| ApiError::timed_out(self.seconds))
    }
}

/// Middleware: authenticates the caller; the request has the [`Principal`] as an extension.
pub async fn identify(State(app): State<App>, mut request: Request, next: Next) -> Response {
    match app.tokens().principal(request.headers()).await {
        Ok(principal) => {
            let name = principal.name.clone();
            request.extensions_mut().insert(principal);
            let mut response = next.run(request).await;
            response.extensions_mut().insert(CallerName(name));
            response
        }
        Err(error) => error.into_response(),
    }
}

/// The name of the caller, for the log.
#[derive(Clone)]
pub struct CallerName(pub Arc<str>);

/// Middleware: runs a request when a slot is free. It holds the slot until its response
/// is sent or dropped.
pub async fn admit(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Some(principal) = request.extensions().get::<Arc<Principal>>().cloned() else {
        return ApiError::unauthorized("this server requires a token").into_response();
    };
    let deadline = Deadline::after(app.config().limits.request_s);
    let load = Load::new(principal.share.clone());
    request.extensions_mut().insert(deadline);
    request.extensions_mut().insert(load.clone());
    let place = match deadline.within(app.places().take(&principal)).await {
        Ok(Ok(place)) => HeldPlace(Arc::new(Mutex::new(Some(place)))),
        Ok(Err(error)) | Err(error) => return error.into_response(),
    };
    request.extensions_mut().insert(place.clone());
    let response = deadline.within(next.run(request)).await.unwrap_or_else(IntoResponse::into_response);
    if response.status() == StatusCode::GATEWAY_TIMEOUT && health::loading(&app) > 0 {
        return ApiError::loading().into_response();
    }
    loaded(response, &load).map(|body| Held::around(body, (place, load)))
}

/// Middleware: the caller's limits for a request that needs no slot.
pub async fn meter(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(principal) = request.extensions().get::<Arc<Principal>>().cloned() else {
        return ApiError::unauthorized("this server requires a token").into_response();
    };
    // Programs of this machine, such as `turnflow top`, look at a server without tokens as often as they like.
    let is_rated = !app.tokens().is_empty() || request.uri().path() == "/v1/answers";
    if is_rated && let Err(error) = principal.share.request() {
        return error.into_response();
    }
    let load = Load::new(principal.share.clone());
    loaded(next.run(request).await, &load).map(|body| Held::around(body, load))
}

/// Counts the bytes of a whole response; if there are too many, the response is the error. A stream counts its own.
fn loaded(response: Response, load: &Load) -> Response {
    match response.body().size_hint().exact().map(|size| load.add(usize::try_from(size).unwrap_or(usize::MAX))) {
        Some(Err(error)) => error.into_response(),
        Some(Ok(())) | None => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_up_again() {
        let (bucket, start) = (Bucket::new(2.0, 3.0), Instant::now());
        let at = |ms| bucket.take(start + Duration::from_millis(ms)).is_ok();
        assert_eq!([at(0), at(0), at(0), at(0)], [true, true, true, false]);
        assert_eq!([at(400), at(600), at(700)], [false, true, false]);
        assert!((0..3).all(|_| at(60_000)) && !at(60_000));
        let wait = bucket.take(start + Duration::from_secs(60)).unwrap_err();
        assert!(wait <= Duration::from_millis(501), "{wait:?}");
        let free = Bucket::new(0.0, 1.0);
        assert!((0..1000).all(|_| free.take(start).is_ok()));
    }

    #[tokio::test]
    async fn those_who_wait_are_bounded() {
        let limits = LimitsConfig { concurrency: 1, waiting: 1, token_concurrency: 9, ..LimitsConfig::default() };
        let config = crate::ServeConfig { limits, ..Default::default() };
        let tokens = crate::auth::Tokens::new(&config, |_| None).unwrap();
        let principal = tokens.principal(&Default::default()).await.unwrap();
        let places = Places::new(&limits);
        let first = places.take(&principal).await.unwrap();
        let second = places.take(&principal);
        futures::pin_mut!(second);
        assert!(futures::poll!(second.as_mut()).is_pending());
        assert_eq!((places.running(), places.waiting()), (1, 1));
        assert_eq!(places.take(&principal).await.err().map(|error| error.status.as_u16()), Some(429));
        drop(first);
        assert!(second.await.is_ok());
        assert_eq!(places.waiting(), 0);
    }
}
