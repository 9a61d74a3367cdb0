//! The operator that has new contents prepared, and lets time pass when they are.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use differential_dataflow::VecCollection;
use parking_lot::Mutex;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::{CorpusShared, RETRY};
use crate::component::{IndexError, Prepare};
use crate::document::Content;
use crate::wake::WakeSlot;

/// Contents prepared by one call.
const CONTENTS_A_CALL: usize = 256;

/// Attempts at preparing contents before their chunks go without.
const PREPARE_ATTEMPTS: u32 = 4;

/// Hands new contents to the preparations, off the worker, and lets time pass when they
/// are done. Gives no records: its frontier is what it says.
pub(super) fn prepare<'s>(
    scope: Scope<'s, u64>,
    contents: VecCollection<'s, u64, Content>,
    shared: &CorpusShared,
) -> StreamVec<'s, u64, ()> {
    let mut builder = OperatorBuilder::new(format!("Prepare {:?}", shared.name), scope);
    let mut input = builder.new_input(contents.inner, Pipeline);
    let (_output, stream) = builder.new_output::<Vec<()>>();
    let address = builder.operator_info().address.to_vec();
    let wake = WakeSlot::default();
    wake.set(scope.worker().sync_activator_for(address));
    let shared = shared.clone();
    builder.build(move |_| {
        let done: Arc<Mutex<Vec<u64>>> = Arc::default();
        let mut running: HashMap<u64, (Capability<u64>, usize)> = HashMap::new();
        move |_| {
            input.for_each_stamp(|time, batches| {
                let mut new: Vec<Content> = batches
                    .flat_map(|batch| batch.drain(..))
                    .filter_map(|(content, _, diff)| (diff > 0).then_some(content))
                    .collect();
                if shared.preparations.is_empty() || new.is_empty() {
                    return;
                }
                let Some(capability) = time.retain_least(0) else { return };
                // Neighbours in length share batches, so calls of neighbours end one after
                // another and not all at the end: progress can be seen.
                new.sort_by_key(|content| (content.chunk.title.len() + content.chunk.text.len(), content.hash));
                shared.progress.prepare.fetch_add(new.len() as u64, Ordering::Relaxed);
                let at = *capability.time();
                let calls = &mut running.entry(at).or_insert((capability, 0)).1;
                while !new.is_empty() {
                    let part = new.split_off(new.len().saturating_sub(CONTENTS_A_CALL));
                    *calls += 1;
                    let (shared, done, wake) = (shared.clone(), done.clone(), wake.clone());
                    shared.handle.clone().spawn(async move {
                        prepare_part(&shared, part).await;
                        done.lock().push(at);
                        wake.wake();
                    });
                }
            });
            for at in done.lock().drain(..) {
                if let Some((_, calls)) = running.get_mut(&at) {
                    *calls -= 1;
                    if *calls == 0 {
                        running.remove(&at);
                    }
                }
            }
        }
    });
    stream
}

async fn prepare_part(shared: &CorpusShared, part: Vec<Content>) {
    for preparation in &shared.preparations {
        let mut delay = RETRY.0;
        for attempt in 1..=PREPARE_ATTEMPTS {
            match preparation.clone().prepare(part.clone()).await {
                Ok(prepared) => {
                    shared.progress.embedded.fetch_add(prepared.embedded as u64, Ordering::Relaxed);
                    break;
                }
                Err(error) if attempt < PREPARE_ATTEMPTS => {
                    tracing::warn!(corpus = %shared.name, %error, attempt, "contents could not be prepared; trying again");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(RETRY.1);
                }
                Err(error) => give_up(shared, preparation, &part, &error).await,
            }
        }
    }
    tracing::debug!(corpus = %shared.name, contents = part.len(), "prepared");
    shared.progress.prepared.fetch_add(part.len() as u64, Ordering::Relaxed);
}

/// One bad content must not keep its neighbours out: each is tried alone, and told of if
/// it fails alone too.
async fn give_up(shared: &CorpusShared, preparation: &Arc<dyn Prepare>, part: &[Content], error: &IndexError) {
    for content in part {
        let alone = preparation.clone().prepare(vec![content.clone()]).await;
        match alone {
            Ok(prepared) => {
                shared.progress.embedded.fetch_add(prepared.embedded as u64, Ordering::Relaxed);
            }
            Err(_) => {
                let reason = format!("could not be prepared for indexing: {error}");
                shared.dead.write(&shared.name, &content.chunk.id, &reason, content.chunk.text.as_bytes());
            }
        }
    }
}
