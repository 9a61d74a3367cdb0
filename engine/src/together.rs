//! Batches computations that are ready at the same time.
//!
//! Some computations of turns read much data, and read the same data for every turn: a scan over all vectors of a
//! corpus. While all cores compute, further computations wait, and those that wait are then run in one call: one pass
//! over the data serves them all. While a core is free, a computation starts immediately and alone, so nothing waits in
//! order to be gathered.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::compute::core;
use crate::panics::{Panicked, caught};

/// Computes several items: one result for each, in their order.
type Work<T, R> = dyn Fn(Vec<T>) -> Vec<R> + Send + Sync;

/// Gathers computations of one kind.
///
/// ```
/// # use turnflow_engine::together::Together;
/// let squares = Together::new(32, |numbers: Vec<u64>| numbers.into_iter().map(|n| n * n).collect());
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// assert_eq!(squares.run(7).await, 49);
/// # });
/// ```
pub struct Together<T, R> {
    shared: Arc<Shared<T, R>>,
}

struct Shared<T, R> {
    work: Box<Work<T, R>>,
    most: usize,
    waiting: Mutex<VecDeque<Waiting<T, R>>>,
}

struct Waiting<T, R> {
    item: T,
    reply: oneshot::Sender<Result<R, Panicked>>,
}

impl<T: Clone + Send + 'static, R: Send + 'static> Together<T, R> {
    /// `work` computes up to `most` items in one call, and returns one result for each, in their order. It runs on a
    /// thread on which it may compute for long.
    pub fn new(most: usize, work: impl Fn(Vec<T>) -> Vec<R> + Send + Sync + 'static) -> Self {
        let waiting = Mutex::default();
        Self { shared: Arc::new(Shared { work: Box::new(work), most: most.max(1), waiting }) }
    }

    /// The result for an item. If the caller drops this future before the computation begins, the item is skipped.
    /// Must be awaited in a tokio runtime.
    ///
    /// # Panics
    ///
    /// The computation of this item panicked.
    pub async fn run(&self, item: T) -> R {
        let (reply, result) = oneshot::channel();
        self.shared.waiting.lock().push_back(Waiting { item, reply });
        // One task for each item, so that none is missed. A task that finds nothing to do ends.
        tokio::spawn(self.shared.clone().step());
        match result.await {
            Ok(Ok(result)) => result,
            Ok(Err(panicked)) => resume_unwind(Box::new(panicked.message().to_owned())),
            // The runtime is shutting down; nothing awaits the result.
            Err(_) => std::future::pending().await,
        }
    }
}

impl<T: Clone + Send + 'static, R: Send + 'static> Shared<T, R> {
    /// Waits for a core, then computes the waiting items.
    async fn step(self: Arc<Self>) {
        let core = core().await;
        if self.waiting.lock().is_empty() {
            return;
        }
        let computed = tokio::task::spawn_blocking(move || {
            let (items, replies) = self.take();
            for (reply, result) in replies.into_iter().zip(self.compute(items)) {
                // Its caller may have dropped it.
                let _ = reply.send(result);
            }
        });
        // Panics of the computation are caught inside.
        let _ = computed.await;
        drop(core);
    }

    fn take(&self) -> (Vec<T>, Vec<oneshot::Sender<Result<R, Panicked>>>) {
        let mut waiting = self.waiting.lock();
        let (mut items, mut replies) = (Vec::new(), Vec::new());
        while items.len() < self.most {
            let Some(Waiting { item, reply }) = waiting.pop_front() else { break };
            if !reply.is_closed() {
                items.push(item);
                replies.push(reply);
            }
        }
        (items, replies)
    }

    /// One result for each item. After a panic, each item is computed alone, so that only the one which causes it fails.
    fn compute(&self, items: Vec<T>) -> Vec<Result<R, Panicked>> {
        let count = items.len();
        if count == 0 {
            return Vec::new();
        }
        let alone = if count > 1 { items.clone() } else { Vec::new() };
        let computed = caught(|| {
            let results = (self.work)(items);
            assert!(results.len() == count, "{} results for {count} items", results.len());
            results
        });
        match computed {
            Ok(results) => results.into_iter().map(Ok).collect(),
            Err(panicked) if alone.is_empty() => vec![Err(panicked)],
            Err(_) => alone.into_iter().flat_map(|item| self.compute(vec![item])).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;
    use futures::future::join_all;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap()
    }

    #[test]
    fn those_that_wait_for_a_core_are_computed_in_one_call() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let together = Together::new(16, move |numbers: Vec<u64>| {
            assert!(numbers.len() <= 16);
            counted.fetch_add(1, Ordering::SeqCst);
            numbers.into_iter().map(|n| n + 1).collect()
        });
        runtime().block_on(async {
            let cores = std::thread::available_parallelism().map_or(2, usize::from);
            let busy = join_all((0..cores).map(|_| core())).await;
            let all = join_all((0..100).map(|n| together.run(n)));
            let free = async {
                while together.shared.waiting.lock().len() < 100 {
                    tokio::task::yield_now().await;
                }
                drop(busy);
            };
            let (results, ()) = futures::future::join(all, free).await;
            assert_eq!(results, (1..=100).collect::<Vec<u64>>());
        });
        assert_eq!(calls.load(Ordering::SeqCst), 7);
    }

    #[test]
    fn only_the_item_that_panics_fails() {
        let together = Together::new(16, |numbers: Vec<u64>| {
            assert!(!numbers.contains(&13), "as a fault would");
            numbers
        });
        runtime().block_on(async {
            let all = (0..50).map(|n| AssertUnwindSafe(together.run(n)).catch_unwind());
            for (n, result) in join_all(all).await.into_iter().enumerate() {
                match result {
                    Ok(result) => assert_eq!(result, n as u64),
                    Err(payload) => {
                        let told = payload.downcast_ref::<String>().map(String::as_str);
                        assert_eq!((n, told), (13, Some("as a fault would")));
                    }
                }
            }
        });
    }

    #[test]
    fn who_has_left_is_not_computed() {
        let computed = Arc::new(Mutex::new(Vec::<u64>::new()));
        let seen = computed.clone();
        let together = Together::new(16, move |numbers: Vec<u64>| {
            seen.lock().extend(&numbers);
            numbers
        });
        runtime().block_on(async {
            let cores = std::thread::available_parallelism().map_or(2, usize::from);
            let busy = join_all((0..cores).map(|_| core())).await;
            assert!(together.run(1).now_or_never().is_none());
            let stays = together.run(2);
            let (stays, ()) = futures::future::join(stays, async { drop(busy) }).await;
            assert_eq!(stays, 2);
        });
        assert_eq!(*computed.lock(), [2]);
    }
}
