//! The operator that reads a source. It remembers a hash of each document, and passes on those that are new, changed or
//! deleted.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::TryRecvError;
use serde::{Deserialize, Serialize};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::empty::Empty;
use super::{CorpusShared, FeedProgress};
use crate::connector::CorpusEvent;
use crate::document::Document;
use crate::keyed::secret_key;

/// Maximum events processed before the operator yields to the rest of the worker.
const EVENTS_A_STEP: usize = 2_000;

/// A document that is new or changed, or deleted (`None`).
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct DocumentChange {
    pub id: Arc<str>,
    pub new: Option<Arc<Document>>,
    /// The number of the source's commit.
    pub time: u64,
}

/// The beginnings of BLAKE3 hashes with a secret key: of ids, and of documents with equal ids.
type Known = HashMap<[u8; 12], [u8; 8]>;

fn beginning<const LENGTH: usize>(hasher: &blake3::Hasher) -> [u8; LENGTH] {
    let mut beginning = [0; LENGTH];
    hasher.finalize_xof().fill(&mut beginning);
    beginning
}

fn hash_of_id(key: &[u8; 32], id: &str) -> [u8; 12] {
    beginning(blake3::Hasher::new_keyed(key).update(id.as_bytes()))
}

fn hash_of(key: &[u8; 32], document: &Document) -> [u8; 8] {
    let Document { id: _, title, text, markup, metadata } = document;
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&[*markup as u8]);
    hasher.update(&(title.len() as u64).to_le_bytes()).update(title.as_bytes());
    hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    if !metadata.is_empty() {
        hasher.update(serde_json::Value::Object(metadata.to_json()).to_string().as_bytes());
    }
    beginning(&hasher)
}

/// Passes on changes. Stops reading while the backlog is full, so that the source waits at its channel.
pub(super) fn documents<'s>(
    scope: Scope<'s, u64>,
    shared: &CorpusShared,
    feed: Rc<FeedProgress>,
) -> StreamVec<'s, u64, DocumentChange> {
    let mut builder = OperatorBuilder::new(format!("Documents {:?}", shared.name), scope);
    let (output, stream) = builder.new_output::<Vec<DocumentChange>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let address = builder.operator_info().address;
    let activator = scope.activator_for(address.clone());
    // The first worker of the cluster.
    let events = if scope.index() == 0 { shared.events.lock().take() } else { None };
    let progress = shared.progress.clone();
    let (publish_wake, name) = (shared.publish_wake.clone(), shared.name.clone());
    let stored = shared.stored.clone();
    if events.is_some() {
        shared.source_wake.set(scope.worker().sync_activator_for(address.to_vec()));
    }
    builder.build(move |mut capabilities| {
        let mut capability = events.as_ref().and(capabilities.pop());
        capabilities.clear();
        let (mut known, secret) = (Known::new(), secret_key());
        let mut empty = Empty::new(name.clone(), progress.clone());
        move |_| {
            let (Some(events), Some(held)) = (&events, &mut capability) else { return };
            if stored.waits() {
                return;
            }
            let mut output = output.activate();
            let mut ended = false;
            for count in 0.. {
                if count == EVENTS_A_STEP {
                    activator.activate();
                    break;
                }
                // The publishing operator wakes this one when there is room.
                if feed.backlog.borrow().is_full() {
                    break;
                }
                let event = match events.try_recv() {
                    Ok(event) => event,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        ended = true;
                        break;
                    }
                };
                let now = *held.time();
                match event {
                    CorpusEvent::Change(id, new) => {
                        let key = hash_of_id(&secret, &id);
                        empty.note(key, &id, new.as_ref());
                        let is_change = match &new {
                            Some(new) => {
                                let hash = hash_of(&secret, new);
                                known.insert(key, hash) != Some(hash)
                            }
                            None => known.remove(&key).is_some(),
                        };
                        if !is_change {
                            continue;
                        }
                        feed.backlog.borrow_mut().add(new.as_ref().map_or(0, |new| new.text.len()));
                        // The chunks of a document are found by this id.
                        let new = new.map(|new| Arc::new(Document { id: id.clone(), ..new }));
                        output.session(&*held).give(DocumentChange { id, new, time: now });
                        progress.documents.store(known.len() as u64, Ordering::Relaxed);
                    }
                    CorpusEvent::Commit => {
                        tracing::debug!(commit = now, "read");
                        feed.backlog.borrow_mut().commit(now);
                        held.downgrade(&(now + 1));
                    }
                    CorpusEvent::Ready => {
                        feed.ready_at.set(Some(now));
                        empty.tell();
                        // The previous commit may be complete already, and this event advances no
                        // time, so nothing else would wake the publishing operator.
                        publish_wake.wake();
                    }
                    CorpusEvent::End => ended = true,
                }
            }
            if ended {
                capability = None;
            }
        }
    });
    stream
}
