//! What a process of a cluster answers and does for the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use tokio::sync::watch;

use super::build::RuntimeContext;
use crate::cluster::{Beginning, Bytes, FollowedEpochs, Order, Peers, Service, Topic};

/// Answers the other processes and executes their orders.
pub(super) fn serve_peers(peers: &Arc<Peers>, context: &RuntimeContext) {
    let parts = context.parts.clone();
    let service = move |message, _| {
        let parts = parts.clone();
        async move { parts.answer(message).await }.boxed()
    };
    let dead = context.dead.clone();
    if peers.shape.is_first() {
        let service = move |Bytes(letter): Bytes, _| {
            let dead = dead.clone();
            async move {
                dead.take(serde_json::from_slice(&letter).map_err(|error| error.to_string())?);
                Ok(Bytes::default())
            }
            .boxed()
        };
        peers.serve(Topic::Letters, Arc::new(service));
    } else {
        // If this is lost, the document is read again.
        let peers = Arc::downgrade(peers);
        dead.forward(Box::new(move |letter| {
            if let (Some(peers), Ok(letter)) = (peers.upgrade(), serde_json::to_vec(letter)) {
                peers.tell_first(Topic::Letters, Bytes(letter));
            }
        }));
    }
    // Held until the first process says that no more turns come.
    let waits = AtomicBool::new(!peers.shape.is_first());
    if !peers.shape.is_first() {
        context.pool.hold();
    }
    let (pool, of_commander) = (Arc::downgrade(&context.pool), Arc::downgrade(peers));
    let (stop_asked, drains) = (context.stop_asked.clone(), context.drains.clone());
    let drain = move |_, _| {
        let drains = drains.clone();
        async move { drains.drain().await }.boxed()
    };
    peers.serve(Topic::Drain, Arc::new(drain));
    let commander = move |order| match order {
        Order::Finish { stopping } => {
            let Some(pool) = pool.upgrade() else { return };
            if stopping {
                pool.stop();
            }
            if waits.swap(false, Ordering::AcqRel) {
                pool.release();
            }
        }
        Order::Close => of_commander.upgrade().iter().for_each(|peers| peers.close()),
        Order::Stop => stop_asked.store(true, Ordering::Release),
    };
    peers.serve(Topic::Parts, Arc::new(service));
    serve_epochs(peers, context);
    if let Some(models) = &context.models {
        let models = Arc::downgrade(models);
        let service = move |question, parts| {
            let models = models.upgrade();
            async move { models.ok_or("it is ending")?.answer(question, parts).await }.boxed()
        };
        peers.serve(Topic::Models, Arc::new(service));
    }
    peers.command(Arc::new(commander));
}

/// The requests of a program in another process than the first, when the first process ends.
#[derive(Default)]
pub(super) struct Drains {
    /// The first process ends soon.
    pub asked: AtomicBool,
    /// Whether the program has requests.
    pub serves: watch::Sender<bool>,
}

impl Drains {
    async fn drain(&self) -> Result<Bytes, String> {
        self.asked.store(true, Ordering::Release);
        let _ = self.serves.subscribe().wait_for(|serves| !serves).await;
        Ok(Bytes::default())
    }
}

/// Takes what the other processes tell about epochs.
fn serve_epochs(peers: &Arc<Peers>, context: &RuntimeContext) {
    let service = match context.manifests.clone() {
        Some(manifests) => {
            let manifests = Arc::downgrade(&manifests);
            taking(move |note| manifests.upgrade().ok_or("it is ending")?.receive(&note))
        }
        None => {
            let followed = followed(peers, context);
            taking(move |note| followed.receive(&note))
        }
    };
    peers.serve(Topic::Epochs, service);
}

fn taking(receive: impl Fn(Bytes) -> Result<Bytes, String> + Send + Sync + 'static) -> Service {
    Arc::new(move |note, _| {
        let done = receive(note);
        async { done }.boxed()
    })
}

/// The epochs of a process that is not the first.
fn followed(peers: &Arc<Peers>, context: &RuntimeContext) -> FollowedEpochs {
    let (plans, turns, pool) = (context.shared.clone(), context.shared.clone(), Arc::downgrade(&context.pool));
    FollowedEpochs {
        peers: Arc::downgrade(peers),
        parts: context.parts.clone(),
        epochs: context.shared.epochs.clone(),
        aliases_of: Box::new(move |plan| Some(plans.generations.read().get(&plan)?.aliases.clone())),
        begin: Box::new(move |beginning| {
            turns.serving.store(true, Ordering::Release);
            if beginning == Beginning::Sources {
                turns.ready.store(true, Ordering::Release);
                turns.wake_conversations();
            }
            pool.upgrade().iter().for_each(|pool| pool.wake());
        }),
    }
}
