//! Tests of failures and retries.

use std::any::Any;

use super::*;
use crate::component::Delta;
use crate::corpus::chunks::chunk;
use crate::publish::PlanSwitch;

/// An index that fails while the flag is set.
struct Full(Arc<std::sync::atomic::AtomicBool>);

impl Index for Full {
    fn apply<'a>(
        &'a mut self,
        _: &'a Delta,
    ) -> futures::future::BoxFuture<'a, Result<Arc<dyn Any + Send + Sync>, IndexError>> {
        let full = self.0.load(Ordering::Acquire);
        Box::pin(async move { if full { Err(IndexError::Feed) } else { Ok(Arc::new(()) as _) } })
    }
}

/// A failed publication is retried and does not block other jobs, since a reload may fix it.
#[test]
fn what_fails_keeps_nobody_waiting() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let full = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let epochs = Arc::new(Epochs::open(None).unwrap());
        let dead = crate::dead_letter::DeadLetters::counted();
        let preparing = Preparing::new("docs".into(), dead, None);
        let index = || Box::new(Full(full.clone())) as Box<dyn Index>;
        let indexes = vec![("a".to_owned(), index()), ("b".to_owned(), index())];
        let keeper = IndexWriter::new("docs".into(), 1, indexes, epochs.clone(), Parts::Whole, preparing);
        let (jobs, todo) = mpsc::unbounded_channel();
        tokio::spawn(keeper.run(todo));
        let (state, mut told) = watch::channel(CorpusState::Loading);
        let report = Report { feed: 1, state: Arc::new(state), wake: WakeSlot::default() };
        let barrier = async || {
            let (reply, done) = oneshot::channel();
            jobs.send(Job::Barrier(reply)).unwrap();
            done.await.unwrap();
        };
        jobs.send(Job::Changes(report.clone(), vec![(chunk("a", "1"), 1)], 1)).unwrap();
        barrier().await;
        assert_eq!(*told.borrow_and_update(), CorpusState::Ready { commits: 1, epoch: 1 });

        // The retry succeeds in the end.
        full.store(true, Ordering::Release);
        jobs.send(Job::Changes(report.clone(), vec![(chunk("b", "1"), 1)], 2)).unwrap();
        barrier().await;
        assert_eq!(epochs.current().epoch, 1);
        full.store(false, Ordering::Release);
        told.changed().await.unwrap();
        assert_eq!(*told.borrow_and_update(), CorpusState::Ready { commits: 2, epoch: 2 });

        // A successful switch publishes the changes that failed before.
        full.store(true, Ordering::Release);
        jobs.send(Job::Changes(report, vec![(chunk("c", "1"), 1)], 3)).unwrap();
        barrier().await;
        full.store(false, Ordering::Release);
        let (reply, view) = oneshot::channel();
        let (published, switched) = oneshot::channel();
        jobs.send(Job::Switch { feed: None, added: Vec::new(), reply, published: switched, version: None }).unwrap();
        let view = view.await.unwrap().unwrap();
        assert_eq!((view.0.chunks, view.0.indexes.len()), (3, 2));
        let switch = PlanSwitch { plan: 2, family: 2, aliases: Arc::default(), changes: None };
        epochs.switch(switch, vec![("docs".into(), view.0)], |_| true).unwrap();
        published.send(true).unwrap();
        barrier().await;
        assert_eq!(*told.borrow_and_update(), CorpusState::Ready { commits: 3, epoch: 3 });

        // The chunks of the active feed are never dropped.
        jobs.send(Job::Forget(1)).unwrap();
        let (reply, chunks) = oneshot::channel();
        jobs.send(Job::Chunks(reply)).unwrap();
        assert_eq!(chunks.await.unwrap().len(), 3);

        // A removed index is dropped from the current epoch.
        jobs.send(Job::Keep(BTreeSet::from(["b".to_owned()]))).unwrap();
        barrier().await;
        let current = epochs.current();
        assert_eq!(current.epoch, 3);
        assert_eq!(current.corpora["docs"].indexes.keys().collect::<Vec<_>>(), ["b"]);
    });
}
