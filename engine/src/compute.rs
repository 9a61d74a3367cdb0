//! Runs long computations of turns on separate threads.
//!
//! A worker serves many conversations; while it computes for one, the others wait. So calls that may
//! take longer than a few milliseconds run elsewhere. An operator estimates how many bytes a call
//! reads (`Operator::weight`); a call that reads more than [`MOST_ON_A_WORKER`] runs here, in
//! steps from one await to the next. It holds a thread only while it computes. At most as many
//! computations run at once as there are cores.

use std::panic::resume_unwind;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// Maximum bytes of text that a call may read on a worker. Text is split into words at about ten
/// megabytes per second, so this takes about three milliseconds.
pub const MOST_ON_A_WORKER: usize = 32 << 10;

/// Limits concurrent computations to the number of cores.
static CORES: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(2, usize::from)));

/// Wakes a waiting computation.
#[derive(Default)]
struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Waits for a core to compute on. The core is free again when the permit is dropped.
pub(crate) async fn core() -> Option<SemaphorePermit<'static>> {
    // The semaphore is never closed.
    CORES.acquire().await.ok()
}

/// Runs a future on the computation threads. Must be awaited in a tokio runtime. Propagates a panic
/// of the future.
pub(crate) async fn apart<F>(future: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    let mut future = Box::pin(future);
    let woken = Arc::<Woken>::default();
    loop {
        let permit = core().await;
        let waker = Waker::from(woken.clone());
        let polled = tokio::task::spawn_blocking(move || {
            let outcome = future.as_mut().poll(&mut Context::from_waker(&waker));
            (future, outcome)
        });
        let (back, outcome) = match polled.await {
            Ok(polled) => polled,
            Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
            // The runtime is shutting down; nothing awaits the result.
            Err(_) => std::future::pending().await,
        };
        drop(permit);
        match outcome {
            Poll::Ready(value) => return value,
            Poll::Pending => future = back,
        }
        // Returns immediately if the future was woken meanwhile.
        woken.0.notified().await;
    }
}

/// Like `apart`, for a future that is awaited within another one that may itself run on the computation threads. It
/// waits for a core in a task of its own: otherwise it could be given the core that the outer future needs to go on.
/// Dropping it ends the task at its next await.
pub async fn apart_within<F>(future: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    struct Ended<T>(tokio::task::JoinHandle<T>);
    impl<T> Drop for Ended<T> {
        fn drop(&mut self) {
            self.0.abort();
        }
    }
    let mut task = Ended(tokio::spawn(apart(future)));
    match (&mut task.0).await {
        Ok(value) => value,
        Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime is shutting down; nothing awaits the result.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use futures::FutureExt;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn a_future_is_run_on_other_threads_from_await_to_await() {
        let here = || std::thread::current().name().map(str::to_owned);
        let caller = here();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let runtime = runtime();
        let future = apart(async move {
            let before = here();
            let got: u32 = receiver.await.unwrap();
            // Woken while it is polled.
            tokio::task::yield_now().await;
            (before, got, here())
        });
        let task = runtime.spawn(future);
        sender.send(7).unwrap();
        let (before, got, after) = runtime.block_on(task).unwrap();
        assert_eq!(got, 7);
        assert!(before != caller && after != caller);
    }

    #[test]
    fn more_than_there_are_cores_end_all_the_same() {
        let runtime = runtime();
        let tasks: Vec<_> = (0..100_u64)
            .map(|n| {
                runtime.spawn(apart(async move {
                    tokio::task::yield_now().await;
                    n * n
                }))
            })
            .collect();
        let sum: u64 = runtime.block_on(futures::future::join_all(tasks)).into_iter().map(Result::unwrap).sum();
        assert_eq!(sum, (0..100).map(|n| n * n).sum::<u64>());
    }

    #[test]
    fn those_within_others_end_all_the_same() {
        let runtime = runtime();
        let tasks: Vec<_> = (0..100_u64)
            .map(|n| {
                runtime.spawn(apart(async move {
                    tokio::task::yield_now().await;
                    apart_within(async move { n }).await + apart_within(async move { n }).await
                }))
            })
            .collect();
        let sum: u64 = runtime.block_on(futures::future::join_all(tasks)).into_iter().map(Result::unwrap).sum();
        assert_eq!(sum, 2 * (0..100).sum::<u64>());
        let caught =
            runtime.block_on(AssertUnwindSafe(apart_within(async { panic!("as a fault would") })).catch_unwind());
        assert!(caught.is_err());
    }

    #[test]
    fn panics_are_passed_on() {
        let runtime = runtime();
        let caught = runtime.block_on(AssertUnwindSafe(apart(async { panic!("as a fault would") })).catch_unwind());
        assert!(caught.is_err());
        assert_eq!(runtime.block_on(apart(async { 1 })), 1, "the permit is released");
    }
}
