//! What a process of a cluster answers and does for the others.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::Inner;
use super::build::RuntimeContext;
use super::divided::{serve_settling, serve_sources};
use crate::cluster::{Beginning, Bytes, FollowedEpochs, Order, Peers, Service, Topic};
use crate::dead_letter::{DeadLetter, Forward};

/// How long a checkpoint waits for dead letters that are on their way to the first process.
const LETTERS: Duration = Duration::from_secs(5);

/// Answers the other processes and executes their orders.
pub(super) fn serve_peers(peers: &Arc<Peers>, inner: &Arc<Inner>) {
    let context = &inner.context;
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
        let (peers, handle) = (Arc::downgrade(peers), context.handle.clone());
        dead.forward(Box::new(LettersToFirst { peers, handle, under_way: watch::Sender::default() }));
    }
    // Held until the first process says that no more turns come.
    let waits = AtomicBool::new(!peers.shape.is_first());
    if peers.shape.is_first() {
        serve_sources(peers, inner);
    } else {
        serve_settling(peers, inner);
        context.pool.hold();
    }
    let (of_sources, threads) = (Arc::downgrade(inner), context.handle.clone());
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
        Order::StopSources => {
            let inner = of_sources.clone();
            threads.spawn_blocking(move || inner.upgrade().iter().for_each(|inner| inner.stop_parts()));
        }
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

/// The letters that have not arrived.
#[derive(Default)]
struct UnderWay {
    /// The number of the next letter.
    next: u64,
    letters: BTreeSet<u64>,
    /// The cluster ends, and a letter has not arrived.
    is_lost: bool,
}

/// Sends dead letters to the first process, which writes them. If one is lost, its record is read again.
struct LettersToFirst {
    peers: Weak<Peers>,
    handle: Handle,
    under_way: watch::Sender<UnderWay>,
}

impl Forward for LettersToFirst {
    fn send(&self, letter: &DeadLetter) {
        let (Some(peers), Ok(letter)) = (self.peers.upgrade(), serde_json::to_vec(letter)) else { return };
        let mut number = 0;
        self.under_way.send_modify(|under_way| {
            number = under_way.next;
            under_way.next += 1;
            under_way.letters.insert(number);
        });
        let done = self.under_way.clone();
        self.handle.spawn(async move {
            let arrived = peers.ask(0, Topic::Letters, Bytes(letter)).await;
            let is_lost = arrived.is_err() && peers.is_ending();
            if let Err(error) = arrived
                && !is_lost
            {
                tracing::error!(error, "process 0 cannot take a dead letter: it is lost");
            }
            done.send_modify(|under_way| {
                under_way.letters.remove(&number);
                under_way.is_lost |= is_lost;
            });
        });
    }

    fn settle(&self) -> io::Result<()> {
        let mut under_way = self.under_way.subscribe();
        // Those that come later are not waited for.
        let next = under_way.borrow().next;
        let have_arrived = |under_way: &UnderWay| under_way.letters.first().is_none_or(|first| *first >= next);
        let done = under_way.wait_for(|under_way| under_way.is_lost || have_arrived(under_way));
        let done = self.handle.block_on(async { Some(!tokio::time::timeout(LETTERS, done).await.ok()?.ok()?.is_lost) });
        match done {
            Some(true) => Ok(()),
            Some(false) | None => Err(io::Error::new(io::ErrorKind::TimedOut, "process 0 has not taken them")),
        }
    }
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
