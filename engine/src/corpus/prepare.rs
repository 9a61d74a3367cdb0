//! The operator that prepares new contents and holds back time until they are prepared.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use differential_dataflow::{Hashable, VecCollection};
use parking_lot::{Mutex, RwLock};
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, StreamVec};
use tokio::sync::{Semaphore, mpsc};

use super::index_writer::Job;
use super::waiting::{Commit, Failures, Waiting};
use super::{CorpusShared, RETRY};
use crate::component::{IndexError, Prepare, Prepared};
use crate::dead_letter::DeadLetters;
use crate::document::{Content, ContentHash};
use crate::inference::{InferenceError, patience};
use crate::mapped::MappedFiles;
use crate::panics::caught_async;
use crate::publish::CorpusProgress;
use crate::wake::WakeSlot;

/// Maximum number of contents in one call.
const CONTENTS_A_CALL: usize = 256;
/// Of fewer contents, a call has a part, but not less than this: so that progress is visible.
const LEAST_A_CALL: usize = 32;
/// Calls for a small corpus.
const CALLS: usize = 16;
/// Maximum bytes of text in one call; a single longer content is allowed.
const BYTES_A_CALL: usize = 1 << 20;
/// Maximum number of contents of one corpus in preparation at once; a single larger call is allowed.
/// More would not be faster, since these fill enough batches of a model, and each call holds its
/// texts in memory.
const CONTENTS: usize = 8 * CONTENTS_A_CALL;
/// A content of more bytes counts as several.
const BYTES_A_CONTENT: usize = BYTES_A_CALL / CONTENTS_A_CALL;

/// How often prepared contents are stored before they are published.
const SAVE: Duration = Duration::from_secs(5);

/// Maximum attempts to prepare contents; after that they are indexed without it.
const PREPARE_ATTEMPTS: u32 = 4;

/// Time without an answer of a model's server after which contents are left for later. A run that reads its corpora once
/// waits as long as the model's own limits say.
const SILENCE: Duration = Duration::from_secs(20);

/// A server that refuses as many contents, our own question, and takes nothing beside them, is itself at fault.
const REFUSED: usize = 3;

/// The preparations that a corpus's indexes need, by index key. They may change while the corpus is read.
pub type Preparations = Arc<RwLock<Vec<(String, Arc<dyn Prepare>)>>>;

/// Runs the preparations of new contents off the worker, and advances its frontier when they are
/// done. Emits no records: only its frontier is used.
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
        let saved = Arc::new(Mutex::new(Instant::now()));
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
                for part in parts(&new) {
                    *calls += 1;
                    let ended = Ended { at, done: done.clone(), wake: wake.clone() };
                    let (preparing, preparations, feed) = (shared.preparing.clone(), preparations.clone(), shared.feed);
                    let part = part.to_vec();
                    // Not held, because the index writer ends with the last sender.
                    let (jobs, saved) = (shared.jobs.downgrade(), saved.clone());
                    shared.handle.clone().spawn(async move {
                        let _ended = ended;
                        for preparation in &preparations {
                            preparing.part(preparation, &part, Some((feed, at))).await;
                        }
                        preparing.progress.prepared.fetch_add(part.len() as u64, Ordering::Relaxed);
                        let mut saved = saved.lock();
                        if saved.elapsed() >= SAVE {
                            *saved = Instant::now();
                            drop(jobs.upgrade().map(|jobs| jobs.send(Job::Save)));
                        }
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

/// Reports the end of a call when dropped, whatever its outcome. A commit is published only after all
/// its calls are reported.
struct Ended {
    at: u64,
    done: Arc<Mutex<Vec<u64>>>,
    wake: WakeSlot,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.done.lock().push(self.at);
        self.wake.wake();
    }
}

fn length(content: &Content) -> usize {
    content.chunk.title.len() + content.chunk.text.len()
}

/// Sorts contents by descending length. Contents of similar length share batches, so calls complete
/// one after another rather than all at the end, and progress is visible.
pub(super) fn in_order(contents: &mut [Content]) {
    contents.sort_by_key(|content| (Reverse(length(content)), content.hash()));
}

/// Splits contents into one part per call.
pub(super) fn parts(contents: &[Content]) -> impl Iterator<Item = &[Content]> {
    let mut rest = contents;
    let most = (contents.len() / CALLS).clamp(LEAST_A_CALL, CONTENTS_A_CALL);
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |content: &&Content| {
            bytes += length(content);
            bytes <= BYTES_A_CALL
        };
        let count = rest.iter().take(most).take_while(fits).count().max(1);
        let (part, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(part)
    })
}

/// Prepares contents with retries, and writes dead letters for those that cannot be prepared.
#[derive(Clone)]
pub struct Preparing {
    /// The corpus.
    pub corpus: Arc<str>,
    /// Dead letters for contents that cannot be prepared.
    pub dead: DeadLetters,
    /// Counters.
    pub progress: Arc<CorpusProgress>,
    /// Where texts are kept; `None`: on the heap.
    pub files: Option<Arc<MappedFiles>>,
    /// How long the server of a model may be silent; `None`: as long as it likes.
    silence: Option<Duration>,
    /// Limits the contents in preparation.
    room: Arc<Semaphore>,
    /// Contents whose server is away.
    pub(super) waiting: Arc<Waiting>,
    /// The jobs of the index writer.
    pub(super) jobs: Arc<OnceLock<mpsc::WeakUnboundedSender<Job>>>,
}

impl Preparing {
    /// Creates the state for a corpus, whose texts are kept in `files`.
    pub fn new(corpus: Arc<str>, dead: DeadLetters, files: Option<Arc<MappedFiles>>) -> Self {
        Self {
            corpus,
            dead,
            progress: Arc::default(),
            files,
            silence: Some(SILENCE),
            room: Arc::new(Semaphore::new(CONTENTS)),
            waiting: Arc::default(),
            jobs: Arc::default(),
        }
    }

    /// The same, with another time for which the server of a model may be silent; `None`: without end.
    #[must_use]
    pub fn silent_for(mut self, silence: Option<Duration>) -> Self {
        self.silence = silence;
        self
    }

    /// Prepares the contents, one part after another.
    pub async fn contents(&self, preparation: &Arc<dyn Prepare>, mut contents: Vec<Content>) {
        in_order(&mut contents);
        for part in parts(&contents) {
            self.part(preparation, part, None).await;
        }
    }

    /// Tries once to prepare a part. Returns whether a model was called.
    pub(super) async fn attempt(&self, preparation: &Arc<dyn Prepare>, part: &[Content]) -> Result<bool, IndexError> {
        // `acquire_many` fails only on a closed semaphore, which this one never is.
        let bytes: usize = part.iter().map(length).sum();
        let _room = self.room.acquire_many(part.len().max(bytes / BYTES_A_CONTENT).min(CONTENTS) as u32).await;
        let prepared = caught_async(|| preparation.clone().prepare(part.to_vec())).await;
        match prepared.map_err(IndexError::from).flatten() {
            Ok(Prepared { embedded }) => {
                self.progress.embedded.fetch_add(embedded as u64, Ordering::Relaxed);
                if embedded > 0 {
                    self.waiting.worked(preparation);
                }
                Ok(embedded > 0)
            }
            Err(error) => {
                self.progress.failures.fetch_add(1, Ordering::Relaxed);
                self.waiting.failed(&error);
                Err(error)
            }
        }
    }

    /// Tries once to prepare a part, as long as the server of the model has not failed or been silent for too long since
    /// `begun`.
    pub(super) async fn attempt_in_time(
        &self,
        preparation: &Arc<dyn Prepare>,
        part: &[Content],
        begun: Instant,
    ) -> Result<bool, IndexError> {
        let attempt = self.attempt(preparation, part);
        let Some(silence) = self.silence.filter(|_| preparation.asks_a_server()) else { return attempt.await };
        // Others are not held back by a pause that a server asks for.
        let mut attempt = std::pin::pin!(patience::within(silence / 2, attempt));
        loop {
            // What it has answered meanwhile shows that it works, and is slow.
            let since = self.waiting.worked_last(preparation).map_or(begun, |last| last.max(begun));
            let left = silence.saturating_sub(since.elapsed());
            if left.is_zero() {
                let (url, seconds) = ("the model's server".to_owned(), silence.as_secs_f64());
                self.progress.failures.fetch_add(1, Ordering::Relaxed);
                return Err(InferenceError::TimedOut { url, seconds, transient: false }.into());
            }
            if let Ok(done) = tokio::time::timeout(left, &mut attempt).await {
                return done;
            }
        }
    }

    async fn part(&self, preparation: &Arc<dyn Prepare>, part: &[Content], commit: Option<Commit>) {
        // Changes do not wait for a server that is known to be away: what waits already is tried again and again.
        if self.silence.is_some() && preparation.asks_a_server() && self.waiting.is_away(preparation, None) {
            let known = self.progress.lacking_here().problem;
            let reason = known.unwrap_or_else(|| "the model's server is away".to_owned());
            return self.set_aside(preparation, part, commit, &reason);
        }
        let (mut delay, begun) = (RETRY.0, Instant::now());
        for attempt in 1..=PREPARE_ATTEMPTS {
            match self.attempt_in_time(preparation, part, begun).await {
                Ok(_) => break,
                Err(error) if error.is_silence() => {
                    self.waiting.is_away(preparation, Some(true));
                    self.set_aside(preparation, part, commit, &error);
                    break;
                }
                Err(error) if self.silence.is_some() && error.after().is_some_and(|after| after >= RETRY.0) => {
                    self.waiting.is_away(preparation, Some(true));
                    self.set_aside(preparation, part, commit, &error);
                    break;
                }
                Err(error) if error.is_outage() => {
                    self.apart(preparation, part, commit, &error, begun).await;
                    break;
                }
                Err(error) if attempt < PREPARE_ATTEMPTS => {
                    tracing::warn!(corpus = %self.corpus, %error, attempt, "cannot prepare contents; will retry");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(RETRY.1);
                }
                Err(error) => drop(self.give_up(preparation, part, commit, &error, begun).await),
            }
        }
        tracing::debug!(corpus = %self.corpus, contents = part.len(), "prepared");
    }

    /// After an outage: a content may be what the server fails on, so each is tried alone, in no order of length. Leaves for
    /// later what cannot be prepared; all of it, if the server is away.
    async fn apart(
        &self,
        preparation: &Arc<dyn Prepare>,
        part: &[Content],
        commit: Option<Commit>,
        error: &IndexError,
        begun: Instant,
    ) {
        let (mut any, mut failed, mut left) = (false, Failures::default(), part.to_vec());
        left.sort_by_key(Content::hash);
        let mut waiting = Vec::new();
        while part.len() > 1
            && !self.waiting.is_away(preparation, None)
            && let Some(content) = left.pop()
        {
            let alone = std::slice::from_ref(&content);
            match self.attempt_in_time(preparation, alone, begun).await {
                Ok(was_called) => any |= was_called,
                Err(error) if error.is_outage() => {
                    waiting.push(content);
                    failed.add(&error);
                    if error.is_silence() || failed.are_an_absence() && !any {
                        self.waiting.is_away(preparation, Some(true));
                    }
                }
                Err(_) => Box::pin(self.part(preparation, alone, commit)).await,
            }
        }
        waiting.append(&mut left);
        self.set_aside(preparation, &waiting, commit, error);
    }

    /// Prepares each content separately, so that a bad one does not block the others. Writes a dead letter for each that
    /// still fails although the server takes others. Returns those that wait because of the server, or because the time
    /// since `begun` is over.
    pub(super) async fn give_up(
        &self,
        preparation: &Arc<dyn Prepare>,
        part: &[Content],
        commit: Option<Commit>,
        error: &IndexError,
        begun: Instant,
    ) -> HashSet<ContentHash> {
        let mut waiting = HashSet::new();
        let mut wait = |contents: &[Content], error: &IndexError| {
            self.set_aside(preparation, contents, commit, error);
            waiting.extend(contents.iter().map(Content::hash));
        };
        // A server may refuse our question only, and take texts.
        let refuses_questions = self.is_of_the_server(preparation, error).await;
        let (mut works, mut refused) = (!refuses_questions, Vec::new());
        let mut part = part.to_vec();
        if refuses_questions {
            // Each time, others are the first ones.
            let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().subsec_nanos();
            part.sort_by_cached_key(|content| (seed, content.hash()).hashed());
        }
        for (at, content) in part.iter().enumerate() {
            let alone = std::slice::from_ref(content);
            if at > 0 && self.silence.is_some_and(|silence| begun.elapsed() >= silence) {
                wait(&part[at..], error);
                break;
            }
            match self.attempt_in_time(preparation, alone, Instant::now()).await {
                Ok(was_called) => works |= was_called,
                // An outage is no fault of the content.
                Err(error) if error.is_silence() => {
                    self.waiting.is_away(preparation, Some(true));
                    wait(&part[at..], &error);
                    break;
                }
                Err(error) if error.is_outage() => wait(alone, &error),
                Err(error) if works => {
                    if let Err(error) = self.refused_again(preparation, content, error, refuses_questions).await {
                        wait(alone, &error);
                    }
                }
                Err(error) => refused.push((content.clone(), error)),
            }
            if !works && refused.len() >= REFUSED {
                self.waiting.is_away(preparation, Some(true));
                wait(&part[at + 1..], error);
                break;
            }
        }
        for (content, error) in refused {
            let again = match works {
                true => self.refused_again(preparation, &content, error, refuses_questions).await,
                false => Err(error),
            };
            if let Err(error) = again {
                wait(std::slice::from_ref(&content), &error);
            }
        }
        waiting
    }

    /// Tries a content again that a server has refused, which takes others: it may have come back since, or have gone. Writes
    /// a dead letter if the content is at fault.
    ///
    /// # Errors
    ///
    /// The server is at fault.
    async fn refused_again(
        &self,
        preparation: &Arc<dyn Prepare>,
        content: &Content,
        error: IndexError,
        refuses_questions: bool,
    ) -> Result<(), IndexError> {
        let alone = std::slice::from_ref(content);
        let error = match error.is_of_a_server() {
            true => match self.attempt_in_time(preparation, alone, Instant::now()).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            },
            false => error,
        };
        if error.is_outage() || !refuses_questions && self.is_of_the_server(preparation, &error).await {
            return Err(error);
        }
        let reason = format!("could not be prepared for indexing: {error}");
        self.dead.write(&self.corpus, &content.chunk.id, &reason, content.chunk.text.as_bytes());
        Ok(())
    }

    /// Whether a server that has refused a content refuses everything now, such as one whose quota is used up.
    async fn is_of_the_server(&self, preparation: &Arc<dyn Prepare>, error: &IndexError) -> bool {
        let probe = || caught_async(|| preparation.probe());
        match (error.is_of_a_server(), self.silence) {
            (false, _) => false,
            (true, None) => !matches!(probe().await, Ok(Ok(()))),
            (true, Some(silence)) => !matches!(tokio::time::timeout(silence, probe()).await, Ok(Ok(Ok(())))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::chunks::chunk;

    #[test]
    fn parts_are_bounded_by_number_and_by_bytes_and_have_everything() {
        let long = "x".repeat(BYTES_A_CALL / 2 - 10);
        let longer = "x".repeat(BYTES_A_CALL + 1);
        let mut contents: Vec<Content> = (0..600)
            .map(|n| match n {
                0..5 => chunk(&format!("{n}"), &format!("{n}{long}")),
                5..7 => chunk(&format!("{n}"), &format!("{n}{longer}")),
                _ => chunk(&format!("{n}"), &format!("{n}")),
            })
            .map(|chunk| Content { chunk })
            .collect();
        in_order(&mut contents);
        let sizes: Vec<usize> = parts(&contents).map(<[Content]>::len).collect();
        assert_eq!(sizes[..2], [1, 1], "too long for any call");
        assert_eq!(sizes[2..4], [2, 2]);
        assert_eq!(sizes.iter().sum::<usize>(), 600);
        assert!(sizes.iter().all(|size| *size <= CONTENTS_A_CALL), "{sizes:?}");
    }
}
