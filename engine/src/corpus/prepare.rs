//! The operator that has new contents prepared, and lets time pass when they are.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use differential_dataflow::VecCollection;
use parking_lot::{Mutex, RwLock};
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};

use super::{CorpusShared, RETRY};
use crate::component::{IndexError, Prepare};
use crate::dead_letter::DeadLetters;
use crate::document::Content;
use crate::publish::CorpusProgress;
use crate::wake::WakeSlot;

/// Contents prepared by one call.
const CONTENTS_A_CALL: usize = 256;

/// Attempts at preparing contents before their chunks go without.
const PREPARE_ATTEMPTS: u32 = 4;

/// What a corpus's indexes need computed, by their keys; may change while the corpus is read.
pub type Preparations = Arc<RwLock<Vec<(String, Arc<dyn Prepare>)>>>;

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
                let preparations: Vec<Arc<dyn Prepare>> =
                    shared.preparations.read().iter().map(|(_, preparation)| preparation.clone()).collect();
                if preparations.is_empty() || new.is_empty() {
                    return;
                }
                let Some(capability) = time.retain_least(0) else { return };
                in_order(&mut new);
                shared.progress.prepare.fetch_add(new.len() as u64, Ordering::Relaxed);
                let at = *capability.time();
                let calls = &mut running.entry(at).or_insert((capability, 0)).1;
                while !new.is_empty() {
                    let part = new.split_off(new.len().saturating_sub(CONTENTS_A_CALL));
                    *calls += 1;
                    let (preparing, preparations) = (shared.preparing.clone(), preparations.clone());
                    let (done, wake) = (done.clone(), wake.clone());
                    shared.handle.clone().spawn(async move {
                        for preparation in &preparations {
                            preparing.part(preparation, &part).await;
                        }
                        preparing.progress.prepared.fetch_add(part.len() as u64, Ordering::Relaxed);
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

/// Neighbours in length share batches, so calls of neighbours end one after another and not
/// all at the end: progress can be seen.
fn in_order(contents: &mut [Content]) {
    contents.sort_by_key(|content| (content.chunk.title.len() + content.chunk.text.len(), content.hash));
}

/// Has contents prepared, again where that fails, and tells of those that cannot be.
#[derive(Clone)]
pub struct Preparing {
    /// The corpus.
    pub corpus: Arc<str>,
    /// Where contents are told of that cannot be prepared.
    pub dead: DeadLetters,
    /// Counters.
    pub progress: Arc<CorpusProgress>,
}

impl Preparing {
    /// All of these, part by part.
    pub async fn contents(&self, preparation: &Arc<dyn Prepare>, mut contents: Vec<Content>) {
        in_order(&mut contents);
        for part in contents.chunks(CONTENTS_A_CALL) {
            self.part(preparation, part).await;
        }
    }

    async fn part(&self, preparation: &Arc<dyn Prepare>, part: &[Content]) {
        let mut delay = RETRY.0;
        for attempt in 1..=PREPARE_ATTEMPTS {
            match preparation.clone().prepare(part.to_vec()).await {
                Ok(prepared) => {
                    self.progress.embedded.fetch_add(prepared.embedded as u64, Ordering::Relaxed);
                    break;
                }
                Err(error) if attempt < PREPARE_ATTEMPTS => {
                    tracing::warn!(corpus = %self.corpus, %error, attempt, "contents could not be prepared; trying again");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(RETRY.1);
                }
                Err(error) => self.give_up(preparation, part, &error).await,
            }
        }
        tracing::debug!(corpus = %self.corpus, contents = part.len(), "prepared");
    }

    /// One bad content must not keep its neighbours out: each is tried alone, and told of if
    /// it fails alone too.
    async fn give_up(&self, preparation: &Arc<dyn Prepare>, part: &[Content], error: &IndexError) {
        for content in part {
            let alone = preparation.clone().prepare(vec![content.clone()]).await;
            match alone {
                Ok(prepared) => {
                    self.progress.embedded.fetch_add(prepared.embedded as u64, Ordering::Relaxed);
                }
                Err(_) => {
                    let reason = format!("could not be prepared for indexing: {error}");
                    self.dead.write(&self.corpus, &content.chunk.id, &reason, content.chunk.text.as_bytes());
                }
            }
        }
    }
}
