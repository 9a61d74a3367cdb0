//! What the programs of a cluster's processes ask each other, for example to serve requests on any process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::sync::mpsc;

use super::Engine;
use crate::cluster::{AnswerParts, Bytes, Topic};
use crate::plan::Plan;

/// How long the end of answers is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers what another process asks, in parts. The stream is dropped when nobody waits any more.
pub type Answerer = Arc<dyn Fn(Vec<u8>) -> BoxStream<'static, Vec<u8>> + Send + Sync>;

impl Engine {
    /// Sets what answers the other processes' [`Engine::ask_first`]. For the first process of a cluster; without a
    /// cluster, this does nothing.
    pub fn answer_others(&self, answerer: Answerer) {
        let Some(peers) = &self.peers else { return };
        let service = move |Bytes(question), parts: AnswerParts| {
            let answerer = answerer.clone();
            async move {
                let mut answer = answerer(question);
                while let Some(part) = answer.next().await {
                    parts.send_within(Bytes(part)).await;
                }
                Ok(Bytes::default())
            }
            .boxed()
        };
        peers.serve(Topic::Program, Arc::new(service));
    }

    /// Answers the other processes no more, and drops the answerer. The last parts of answers are sent before; blocks
    /// until then, for at most a second.
    pub fn end_answers(&self) {
        self.peers.iter().for_each(|peers| peers.retire(Topic::Program, PATIENCE));
    }

    /// Tells the other processes that this one ends soon, so that their programs accept no more requests
    /// ([`Engine::is_draining`]), and waits until they have answered those that run. For the first process of a
    /// cluster; otherwise, this does nothing.
    pub fn drain_others(&self) -> impl Future<Output = ()> + Send + use<> {
        let peers = self.peers.clone().filter(|peers| peers.shape.is_first() && !peers.is_closing());
        async move {
            if let Some(peers) = peers {
                let _ = peers.ask_all(Topic::Drain, &Bytes::default()).await;
            }
        }
    }

    /// Whether the first process of the cluster ends soon.
    pub fn is_draining(&self) -> bool {
        self.inner.context.drains.asked.load(Ordering::Acquire)
    }

    /// Sets whether the program answers requests, which the end of the first process waits for.
    pub fn set_serves(&self, serves: bool) {
        self.inner.context.drains.serves.send_replace(serves);
    }

    /// The plan that the first process has last reloaded, if this is another process and has not taken it yet.
    pub fn take_followed(&self) -> Option<Plan> {
        self.inner.followed.lock().take()
    }

    /// Asks the first process of the cluster; yields the parts of its answer in order. An error is the last item.
    /// Dropping the stream tells the first process that nobody waits.
    pub fn ask_first(&self, question: Vec<u8>) -> BoxStream<'static, Result<Vec<u8>, String>> {
        let Some(peers) = self.peers.as_ref().filter(|_| !self.shape().is_first()) else {
            let failed = Err("this is not one of several processes".to_owned());
            return futures::stream::once(async { failed }).boxed();
        };
        let (sender, parts) = mpsc::unbounded_channel();
        let waiting = peers.begin(0, Topic::Program, Bytes(question), sender);
        let state = (parts, Some(waiting));
        futures::stream::unfold(state, |(mut parts, waiting)| async move {
            let waiting = waiting?;
            if let Some(Bytes(part)) = parts.recv().await {
                waiting.takes();
                return Some((Ok(part), (parts, Some(waiting))));
            }
            // The parts end with the answer.
            let failed = waiting.answer().await.err()?;
            Some((Err(failed), (parts, None)))
        })
        .boxed()
    }
}
