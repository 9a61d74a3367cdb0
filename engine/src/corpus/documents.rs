//! The operator that reads a source: it remembers each document and emits changes.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::TryRecvError;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::{CorpusShared, FeedProgress};
use crate::connector::CorpusEvent;
use crate::document::Document;

/// Maximum events processed before the operator yields to the rest of the worker.
const EVENTS_A_STEP: usize = 2_000;

/// Turns upserts and deletes into additions and retractions. Stops reading while the backlog is full,
/// so that the source waits at its channel.
pub(super) fn documents<'s>(
    scope: Scope<'s, u64>,
    shared: &CorpusShared,
    feed: Rc<FeedProgress>,
) -> StreamVec<'s, u64, (Arc<Document>, u64, isize)> {
    let mut builder = OperatorBuilder::new(format!("Documents {:?}", shared.name), scope);
    let (output, stream) = builder.new_output::<Vec<(Arc<Document>, u64, isize)>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    let address = builder.operator_info().address;
    let activator = scope.activator_for(address.clone());
    let events = if scope.index() == 0 { shared.events.lock().take() } else { None };
    let progress = shared.progress.clone();
    let publish_wake = shared.publish_wake.clone();
    if events.is_some() {
        shared.source_wake.set(scope.worker().sync_activator_for(address.to_vec()));
    }
    builder.build(move |mut capabilities| {
        let mut capability = events.as_ref().and(capabilities.pop());
        capabilities.clear();
        let mut documents: HashMap<Arc<str>, Arc<Document>> = HashMap::new();
        move |_| {
            let (Some(events), Some(held)) = (&events, &mut capability) else { return };
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
                        let new = new.map(Arc::new);
                        let old = match &new {
                            Some(new) if documents.get(&id) == Some(new) => continue,
                            Some(new) => documents.insert(id, new.clone()),
                            None => documents.remove(&id),
                        };
                        let bytes = [&old, &new].into_iter().flatten().map(|document| document.text.len()).sum();
                        feed.backlog.borrow_mut().add(bytes);
                        let mut session = output.session(&*held);
                        if let Some(old) = old {
                            session.give((old, now, -1));
                        }
                        if let Some(new) = new {
                            session.give((new, now, 1));
                        }
                        progress.documents.store(documents.len() as u64, Ordering::Relaxed);
                    }
                    CorpusEvent::Commit => {
                        tracing::debug!(commit = now, "read");
                        feed.backlog.borrow_mut().commit(now);
                        held.downgrade(&(now + 1));
                    }
                    CorpusEvent::Ready => {
                        feed.ready_at.set(Some(now));
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
