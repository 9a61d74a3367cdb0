//! Work that is divided among the processor's cores.

use std::thread;

/// The most threads for one piece of work.
const MOST: usize = 8;

/// Number of cores that one piece of work may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST)
}

/// Does the work for each share, the first one on this thread. A panic is passed on.
pub(crate) fn each<S: Sync, R: Send>(shares: &[S], work: impl Fn(&S) -> R + Sync) -> Vec<R> {
    let Some((first, others)) = shares.split_first() else { return Vec::new() };
    let work = &work;
    thread::scope(|scope| {
        // Without another thread, this one does the work.
        let start = |share| thread::Builder::new().name("share".into()).spawn_scoped(scope, move || work(share));
        let started: Vec<_> = others.iter().map(|share| (share, start(share))).collect();
        let mut done = vec![work(first)];
        done.extend(started.into_iter().map(|(share, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => work(share),
        }));
        done
    })
}

/// One result for each item, in their order. Fewer items than `worth` are not worth a thread.
pub(crate) fn on_all_cores<T: Sync, R: Send>(items: &[T], worth: usize, compute: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = cores().min(items.len() / worth.max(1));
    if threads <= 1 {
        return items.iter().map(compute).collect();
    }
    let parts: Vec<&[T]> = items.chunks(items.len().div_ceil(threads)).collect();
    let done = each(&parts, |part| part.iter().map(&compute).collect::<Vec<R>>());
    let mut all = Vec::with_capacity(items.len());
    done.into_iter().for_each(|done| all.extend(done));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        for count in [0, 1, 9, 1000] {
            let items: Vec<usize> = (0..count).collect();
            for worth in [0, 1, 10, 5000] {
                assert_eq!(on_all_cores(&items, worth, |item| item * 2), (0..count).map(|n| n * 2).collect::<Vec<_>>());
            }
        }
        assert_eq!(each(&["a", "bc"], |share| share.len()), [1, 2]);
        assert!(std::panic::catch_unwind(|| each(&[1, 0], |share| 1 / share)).is_err());
    }
}
