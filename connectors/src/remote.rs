//! What connectors to servers share: keys of deliveries, waiting for a future or the end of a
//! source, and retrying while a server is away.

use std::fmt::Display;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use turnflow_engine::component::{ComponentContext, ComponentError};
use turnflow_engine::connector::{ConnectorError, Mode, Stop, Stopped};
use turnflow_engine::metrics::Gauge;

/// The first pause after a failure. Each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How often a failure that goes on is logged.
const REPEATED: Duration = Duration::from_secs(60);
/// How long a source that reads the existing records only waits for a server.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for a future on a source's thread, or for the end of the source, whichever comes first. Dropping the future
/// must be harmless.
pub(crate) fn wait<T>(runtime: &Handle, stop: &Stop, future: impl Future<Output = T>) -> Result<T, Stopped> {
    runtime.block_on(async {
        tokio::select! {
            biased;
            () = stop.stopped() => Err(Stopped),
            value = future => Ok(value),
        }
    })
}

/// Retries while a server is away. A source that follows changes waits without end, with a warning a minute; a source
/// that reads the existing records only gives up after 30 seconds. The gauge `turnflow_source_connected` is 1 while the
/// server can be reached.
pub(crate) struct Retry {
    /// The server, as messages name it, without secrets.
    server: String,
    patience: Option<Duration>,
    context: ComponentContext,
    connected: Gauge,
    /// Whether the server was reached once.
    has_worked: bool,
    failing: Option<Failing>,
}

struct Failing {
    since: Instant,
    told: Instant,
    pause: Duration,
}

impl Retry {
    /// `server` is how messages name the server: no secret may be part of it.
    pub(crate) fn new(server: impl Into<String>, mode: Mode, context: &ComponentContext) -> Self {
        let help = "1 while the server of a source can be reached, else 0";
        let connected = context.gauge("source_connected", help);
        connected.set(0);
        let patience = (mode == Mode::Once).then_some(PATIENCE);
        Self { server: server.into(), patience, context: context.clone(), connected, has_worked: false, failing: None }
    }

    /// The same, giving up after this time in any mode.
    #[cfg(test)]
    pub(crate) fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// The server was reached. Call this after each success.
    pub(crate) fn worked(&mut self) {
        self.connected.set(1);
        self.has_worked = true;
        if let Some(failing) = self.failing.take() {
            let seconds = failing.since.elapsed().as_secs();
            self.context.set_away(None);
            tracing::info!(server = self.server, seconds, "the server can be read again");
        }
    }

    /// Something failed. Returns after a pause, when the source may try again.
    ///
    /// # Errors
    ///
    /// The source must end, or it has failed for too long. Or the server refuses the credentials and has never accepted them:
    /// then they are wrong. Later they may have been replaced, and are read again.
    pub(crate) fn failed(&mut self, error: &ConnectorError, stop: &Stop) -> Result<(), ConnectorError> {
        match is_refusal(error) && !self.has_worked {
            true => Err(lasting(format!("{}: {error}", self.server))),
            false => self.away(error, stop),
        }
    }

    /// The server could not be reached. Returns after a pause, when the source may try again.
    ///
    /// # Errors
    ///
    /// The source must end, or it has failed for too long.
    pub(crate) fn away(&mut self, error: &dyn Display, stop: &Stop) -> Result<(), ConnectorError> {
        self.connected.set(0);
        let now = Instant::now();
        let Self { server, failing, patience, .. } = self;
        self.context.set_away(Some(format!("cannot reach {server}: {error}")));
        let is_new = failing.is_none();
        let failing = failing.get_or_insert(Failing { since: now, told: now, pause: PAUSE });
        let seconds = failing.since.elapsed();
        if patience.is_some_and(|patience| seconds >= patience) {
            let seconds = seconds.as_secs();
            return Err(ComponentError::new(format!("cannot reach {server} for {seconds} s: {error}")).into());
        }
        if is_new || failing.told.elapsed() >= REPEATED {
            failing.told = now;
            tracing::warn!(server = server.as_str(), seconds = seconds.as_secs(), %error, "cannot read from the server; will retry");
        }
        let pause = failing.pause;
        failing.pause = (pause * 2).min(LONGEST_PAUSE);
        if stop.wait(pause) { Err(Stopped.into()) } else { Ok(()) }
    }
}

impl Drop for Retry {
    fn drop(&mut self) {
        // A source that has ended waits for nothing. A reload may have replaced it already.
        if self.failing.is_some() {
            self.context.set_away(None);
        }
    }
}

/// A delivery key as a header can hold it: a key with other characters is replaced by its hash.
pub(crate) fn header_key(key: String) -> String {
    let fits = !key.is_empty() && key.len() <= 256 && key.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { key } else { blake3::hash(key.as_bytes()).to_hex().to_string() }
}

/// An error of a server that may pass.
pub(crate) fn passing(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ConnectorError {
    ComponentError::transient(error).into()
}

/// An error that will not pass without a change of the pipeline file or of the server.
pub(crate) fn lasting(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ConnectorError {
    ComponentError::new(error).into()
}

/// The server refuses the credentials, now.
#[derive(Debug, thiserror::Error)]
#[error("the server refuses the credentials: {told}")]
struct Refused {
    told: String,
    // The first error of a chain is not in it.
    #[source]
    mark: Refusal,
}

/// What such an error is recognised by.
#[derive(Debug, thiserror::Error)]
#[error("refused credentials")]
struct Refusal;

/// An error of a server that refuses the credentials. It may pass, because they may be replaced.
pub(crate) fn refused(error: impl Display) -> ConnectorError {
    passing(Refused { told: error.to_string(), mark: Refusal })
}

/// Whether a server refuses the credentials.
fn is_refusal(error: &ConnectorError) -> bool {
    std::iter::successors(std::error::Error::source(error), |error| error.source()).any(|error| error.is::<Refusal>())
}

/// Whether the same call may succeed later.
pub(crate) fn may_pass(error: &ConnectorError) -> bool {
    matches!(error, ConnectorError::Component(error) if error.is_transient())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_retries_until_it_has_waited_for_too_long_or_must_stop() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let context = ComponentContext::alone("turns", runtime.handle().clone());
        let (handle, stop) = Stop::new();
        let mut retry = Retry::new("nats://localhost", Mode::Follow, &context).patience(Duration::from_millis(150));
        retry.away(&"refused", &stop).unwrap();
        retry.worked();
        retry.away(&"refused", &stop).unwrap();
        retry.away(&"refused", &stop).unwrap();
        let error = retry.away(&"refused", &stop).unwrap_err().to_string();
        assert_eq!(error, "cannot reach nats://localhost for 0 s: refused");
        drop(handle);
        let mut retry = Retry::new("nats://localhost", Mode::Follow, &context);
        assert!(matches!(retry.away(&"refused", &stop), Err(ConnectorError::Stopped(_))));
    }

    #[test]
    fn credentials_that_were_never_accepted_are_an_error() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let context = ComponentContext::alone("turns", runtime.handle().clone());
        let (_handle, stop) = Stop::new();
        let mut retry = Retry::new("redis://localhost", Mode::Follow, &context);
        retry.failed(&passing("connection refused"), &stop).unwrap();
        let error = retry.failed(&refused("WRONGPASS"), &stop).unwrap_err();
        assert!(!may_pass(&error));
        assert!(
            error.to_string().contains("redis://localhost: the server refuses the credentials: WRONGPASS"),
            "{error}"
        );
        retry.worked();
        retry.failed(&refused("WRONGPASS"), &stop).unwrap();
    }

    #[test]
    fn it_waits_for_a_future_or_the_end() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let (handle, stop) = Stop::new();
        assert_eq!(wait(runtime.handle(), &stop, async { 7 }).unwrap(), 7);
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            drop(handle);
        });
        assert!(wait(runtime.handle(), &stop, std::future::pending::<()>()).is_err());
        ends.join().unwrap();
    }
}
