//! Limits on rate, concurrency and time: a bucket for each token, slots for running requests, a
//! bounded queue for them, and a time limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
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
        if let Err(after) = principal.bucket.take(Instant::now()) {
            let seconds = after.as_secs_f64().ceil() as u64;
            return Err(ApiError::overload("too many requests per second for this token", seconds));
        }
        let of_caller = principal.places.clone().try_acquire_owned();
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
    request.extensions_mut().insert(deadline);
    let place = match deadline.within(app.places().take(&principal)).await {
        Ok(Ok(place)) => place,
        Ok(Err(error)) | Err(error) => return error.into_response(),
    };
    let response = deadline.within(next.run(request)).await.unwrap_or_else(IntoResponse::into_response);
    if response.status() == StatusCode::GATEWAY_TIMEOUT && health::loading(&app) > 0 {
        return ApiError::loading().into_response();
    }
    response.map(|body| Held::around(body, place))
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
