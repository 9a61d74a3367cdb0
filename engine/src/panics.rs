//! Turns panics of components into errors. A bug in a chunker, an index, a source or a model must
//! neither end the calling thread nor go unreported.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures::FutureExt;

/// A component panicked, because of a bug or of unexpected input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("panicked: {0}")]
pub struct Panicked(String);

impl Panicked {
    /// The error for a panic's payload.
    pub fn of(payload: &(dyn Any + Send)) -> Self {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        Self(text.unwrap_or_else(|| "without a message".to_owned()))
    }

    /// The panic's message.
    pub fn message(&self) -> &str {
        &self.0
    }
}

/// Calls a component and catches its panic. After a panic, the caller must drop any state that the
/// call may have left inconsistent.
///
/// ```
/// use turnflow_engine::panics::caught;
///
/// assert_eq!(caught(|| 7), Ok(7));
/// let panicked = caught(|| -> u8 { panic!("no seven") });
/// assert_eq!(panicked.unwrap_err().message(), "no seven");
/// ```
pub fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| Panicked::of(&*payload))
}

/// Like [`caught`], for an async call. `call` must create the component's future itself, so that a
/// panic while creating it is caught too.
pub async fn caught_async<F: Future>(call: impl FnOnce() -> F) -> Result<F::Output, Panicked> {
    let called = AssertUnwindSafe(async move { call().await }).catch_unwind().await;
    called.map_err(|payload| Panicked::of(&*payload))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_message() {
        let number = 7;
        let failed = caught(|| -> u8 { panic!("at {number}") });
        assert_eq!(failed.unwrap_err().to_string(), "panicked: at 7");
        assert_eq!(caught(|| 3), Ok(3));
        let failed = caught(|| std::panic::panic_any(3_u8));
        assert_eq!(failed.unwrap_err().to_string(), "panicked: without a message");
    }

    #[test]
    fn a_panic_before_the_first_await_is_caught_too() {
        fn before() -> std::future::Ready<()> {
            panic!("early")
        }
        let failed = caught_async(before).now_or_never().unwrap();
        assert_eq!(failed.unwrap_err().to_string(), "panicked: early");
        let failed = caught_async(|| async { panic!("late") }).now_or_never().unwrap();
        assert_eq!(failed.unwrap_err().to_string(), "panicked: late");
    }
}
