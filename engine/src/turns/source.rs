//! The operator that reads a source's channel while the source's backlog has room.

use std::fs::Metadata;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::{Receiver, TryRecvError};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::backlog::bytes_of;
use super::{Read, SourceHandle, TurnsShared};
use crate::connector::{Arrived, SourcedTurn};
use crate::record::Speaker;

/// Records to read before other operators run.
const AT_ONCE: usize = 256;

/// A timestamp is the number of a batch that one activation reads.
pub(super) fn build<'s>(
    scope: Scope<'s, u64>,
    handle: &Arc<SourceHandle>,
    receiver: Option<Receiver<Arrived>>,
    shared: Arc<TurnsShared>,
) -> StreamVec<'s, u64, Read> {
    let mut builder = OperatorBuilder::new(format!("{} {:?}", handle.kind_name, handle.id), scope);
    let (output, stream) = builder.new_output::<Vec<Read>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(output);
    if receiver.is_some() {
        handle.wake.set(scope.worker().sync_activator_for(builder.operator_info().address.to_vec()));
    }
    let activator = scope.activator_for(builder.operator_info().address);
    let (source, tracker) = (handle.clone(), handle.tracker.clone());
    builder.build(move |mut capabilities| {
        let mut capability = receiver.as_ref().and(capabilities.pop());
        capabilities.clear();
        // Set when the run stops while too much waits for a checkpoint: what comes then is read again by a restart.
        let mut leaves_out = false;
        move |_| {
            let (Some(receiver), Some(held)) = (&receiver, &mut capability) else { return };
            let mut output = output.activate();
            // Load this before reading the channel: the channel then has all records of the start.
            let caught_up = source.caught_up.load(Ordering::Acquire);
            let mut batch = None;
            let mut ended = false;
            let limits = shared.limits.read().clone();
            let mut read = 0;
            while read < AT_ONCE && source.backlog.has_room(&limits) {
                let is_full = !shared.durable.has_room();
                let is_stopping = shared.stopping.load(Ordering::Acquire);
                if is_full && !is_stopping {
                    break;
                }
                leaves_out |= is_full;
                match receiver.try_recv() {
                    Ok(Arrived { turn: SourcedTurn { record, history, position, place }, at }) => {
                        read += 1;
                        if leaves_out && place.is_some() {
                            continue;
                        }
                        let bytes = bytes_of(&record);
                        let asks = record.speaker == Speaker::User;
                        let entered_us = shared.us_of(at);
                        source.backlog.add(bytes, asks && place.is_some(), entered_us);
                        if asks {
                            shared.outstanding.fetch_add(1, Ordering::AcqRel);
                        }
                        // Take the sinks' positions before any answer of the batch can reach them.
                        let batch = *batch.get_or_insert_with(|| tracker.begin(shared.durable.marks()));
                        tracker.read(batch, place.as_ref());
                        let read = Read { record, history, position, entered_us, place, batch, bytes };
                        output.session(&*held).give(read);
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        ended = true;
                        break;
                    }
                }
            }
            if let Some(batch) = batch {
                tracker.close(batch);
            }
            if read == AT_ONCE {
                // Read the rest after other operators have run.
                activator.activate();
            }
            // A source that was stopped has not caught up.
            if (caught_up || ended && source.caught_up.load(Ordering::Acquire)) && receiver.is_empty() && !leaves_out {
                tracker.caught_up();
            }
            if ended {
                capability = None;
            } else if batch.is_some() {
                let next = *held.time() + 1;
                held.downgrade(&next);
            }
        }
    });
    stream
}

impl SourceHandle {
    /// Bytes of the source's file after the last record up to which all are answered; `None` if it reads no file, or one
    /// that cannot be looked at.
    pub fn unanswered_bytes(&self) -> Option<u64> {
        let length = std::fs::metadata(self.file.as_ref()?).ok().filter(Metadata::is_file)?.len();
        let answered = self.tracker.low().and_then(|(offsets, _)| Some(offsets.get("")?.end));
        Some(length.saturating_sub(answered.unwrap_or_default()))
    }
}
