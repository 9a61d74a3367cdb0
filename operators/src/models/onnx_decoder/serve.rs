//! The model's thread: texts that arrive together are decoded together, and each leaves when it has ended.
//!
//! Texts that arrive while others are decoded form a separate cohort; cohorts are stepped in turn. Rows of one cohort
//! have equal lengths except for whole blocks of padding, so that sums are rounded in the same way whatever else is in
//! the batch (see [`super::net::BLOCK`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;
use turnflow_engine::inference::{InferenceError, Priority, Usage};

use super::super::search::{Found, Search, log_softmax};
use super::net::{Cache, Net};

/// Sends the result to the caller.
pub(super) type Reply<T> = oneshot::Sender<Result<T, InferenceError>>;

/// Whether the generated tokens contain a stop string.
pub(super) type Stops = Box<dyn Fn(&[u32]) -> bool + Send>;

/// Receives the tokens generated so far, for texts that are decoded without beams.
pub(super) type Tell = Box<dyn Fn(&[u32]) + Send>;

/// A request to the model.
pub(super) enum Job {
    /// Generates a text after a prompt.
    Generate { prompt: Vec<u32>, search: Box<Search>, stops: Option<Stops>, tell: Option<Tell>, reply: Reply<Found> },
    /// Computes the mean log probability of the last `scored` tokens of each text.
    Likelihood { texts: Vec<Vec<u32>>, scored: usize, reply: Reply<Vec<f32>> },
}

impl Job {
    /// Maximum number of rows that it needs.
    fn width(&self) -> usize {
        match self {
            Job::Generate { search, .. } => search.width(),
            Job::Likelihood { texts, .. } => texts.len(),
        }
    }

    /// Whether its caller no longer waits for it.
    fn is_abandoned(&self) -> bool {
        match self {
            Job::Generate { reply, .. } => reply.is_closed(),
            Job::Likelihood { reply, .. } => reply.is_closed(),
        }
    }
}

#[derive(Default)]
struct Queue {
    turns: VecDeque<Job>,
    corpus: VecDeque<Job>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

/// Drops the waiting jobs when the thread ends, even by a panic; otherwise their callers would wait for ever.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        *queue = Queue { ended: true, ..Queue::default() };
    }
}

/// Counts the work of the thread.
#[derive(Default)]
pub(super) struct Meter {
    inputs: AtomicU64,
    batches: AtomicU64,
    tokens: AtomicU64,
    padded: AtomicU64,
    busy_us: AtomicU64,
}

impl Meter {
    pub fn usage(&self) -> Usage {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Usage {
            inputs: get(&self.inputs),
            batches: get(&self.batches),
            tokens: get(&self.tokens),
            padded: get(&self.padded),
            busy_us: get(&self.busy_us),
        }
    }

    fn count(&self, inputs: usize, tokens: usize, padded: usize, begun: Instant) {
        let add = |counter: &AtomicU64, count: usize| counter.fetch_add(count as u64, Ordering::Relaxed);
        add(&self.inputs, inputs);
        add(&self.batches, 1);
        add(&self.tokens, tokens);
        add(&self.padded, padded);
        self.busy_us.fetch_add(begun.elapsed().as_micros() as u64, Ordering::Relaxed);
    }
}

/// A handle to the thread. Dropping it ends the thread.
pub(super) struct Serving {
    name: String,
    shared: Arc<Shared>,
    pub meter: Arc<Meter>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Serving {
    /// Starts the thread and loads the model on it.
    pub fn start(
        name: &str,
        batch: usize,
        load: impl FnOnce() -> Result<Net, InferenceError> + Send + 'static,
    ) -> Result<Self, InferenceError> {
        let shared = Arc::<Shared>::default();
        let meter = Arc::<Meter>::default();
        let (loaded, is_loaded) = std::sync::mpsc::sync_channel(1);
        let (for_thread, counted) = (shared.clone(), meter.clone());
        let thread = std::thread::Builder::new()
            .name(format!("model {name}"))
            .spawn(move || match load() {
                Ok(net) => {
                    let _ = loaded.send(Ok(()));
                    let _end = End(&for_thread);
                    Loop { net, batch, shared: &for_thread, meter: &counted, cohorts: Vec::new() }.run();
                }
                Err(error) => _ = loaded.send(Err(error)),
            })
            .map_err(|error| InferenceError::Failed(format!("cannot start a thread: {error}")))?;
        is_loaded.recv().map_err(|_| InferenceError::Ended(name.to_owned()))??;
        Ok(Self { name: name.to_owned(), shared, meter, thread: Some(thread) })
    }

    /// Enqueues a job. The number of turns in flight bounds the queue. If the thread has ended, the job is dropped,
    /// which its caller sees as a closed channel.
    pub fn put(&self, job: Job, priority: Priority) {
        let mut queue = self.shared.queue.lock();
        match priority {
            _ if queue.ended => return,
            Priority::Turn => queue.turns.push_back(job),
            Priority::Corpus => queue.corpus.push_back(job),
        }
        drop(queue);
        self.shared.work.notify_one();
    }

    /// The error for a caller whose job was dropped.
    pub fn ended(&self) -> InferenceError {
        InferenceError::Ended(self.name.clone())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.shared.queue.lock().ended = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Texts that were started together.
struct Cohort {
    live: Vec<Live>,
    /// The rows of all of its texts, in order.
    cache: Cache,
}

/// A text that is being decoded. Its rows are adjacent in the cache.
struct Live {
    search: Box<Search>,
    stops: Option<Stops>,
    tell: Option<Tell>,
    reply: Reply<Found>,
}

impl Live {
    /// Takes the logits of its rows. Returns, for each new row, the index of the row that it continues.
    fn advance(&mut self, logits: &[&[f32]]) -> Vec<usize> {
        let parents = self.search.advance(logits);
        if let Some(tell) = self.tell.as_ref().filter(|_| self.search.rows() == 1 && self.search.width() == 1) {
            tell(self.search.so_far());
        }
        match &self.stops {
            Some(stops) if self.search.rows() == 1 && stops(self.search.so_far()) => {
                self.search.stop();
                Vec::new()
            }
            _ => parents,
        }
    }

    fn finish(self) {
        let _ = self.reply.send(self.search.found());
    }
}

struct Loop<'a> {
    net: Net,
    batch: usize,
    shared: &'a Shared,
    meter: &'a Meter,
    cohorts: Vec<Cohort>,
}

impl Loop<'_> {
    fn run(mut self) {
        while let Some(jobs) = self.next() {
            let mut begun = Vec::new();
            for job in jobs {
                match job {
                    Job::Generate { prompt, search, stops, tell, reply } => {
                        begun.extend(self.begin(&prompt, Live { search, stops, tell, reply }));
                    }
                    Job::Likelihood { texts, scored, reply } => _ = reply.send(self.score(&texts, scored)),
                }
            }
            let rows: Vec<(&Cache, usize)> =
                begun.iter().flat_map(|(live, cache)| (0..live.search.rows()).map(move |_| (cache, 0))).collect();
            let cache = (!rows.is_empty()).then(|| self.net.gather(&rows));
            let live = begun.into_iter().map(|(live, _)| live);
            match cache {
                Some(Ok(cache)) => self.cohorts.push(Cohort { live: live.collect(), cache }),
                Some(Err(error)) => live.for_each(|live| _ = live.reply.send(Err(error.clone()))),
                None => {}
            }
            for cohort in std::mem::take(&mut self.cohorts) {
                let kept = self.step(cohort);
                self.cohorts.extend(kept);
            }
        }
    }

    /// The jobs that fit the batch. Waits for one while nothing is decoded. `None` at the end.
    fn next(&self) -> Option<Vec<Job>> {
        let rows = |cohort: &Cohort| cohort.live.iter().map(|live| live.search.rows()).sum::<usize>();
        let mut rows: usize = self.cohorts.iter().map(rows).sum();
        let mut queue = self.shared.queue.lock();
        loop {
            if queue.ended {
                return None;
            }
            let Queue { turns, corpus, .. } = &mut *queue;
            let mut jobs = Vec::new();
            // A job with more beams than the batch size runs alone.
            while let Some(width) = turns.front().or(corpus.front()).map(Job::width)
                && (rows == 0 || rows + width <= self.batch)
            {
                let job = turns.pop_front().or_else(|| corpus.pop_front());
                for job in job.into_iter().filter(|job| !job.is_abandoned()) {
                    rows += width;
                    jobs.push(job);
                }
            }
            if rows > 0 {
                return Some(jobs);
            }
            self.shared.work.wait(&mut queue);
        }
    }

    /// Reads a prompt. Returns the text and its cache, unless it ends with the first token.
    fn begin(&mut self, prompt: &[u32], mut live: Live) -> Option<(Live, Cache)> {
        let begun = Instant::now();
        let read = self.net.read(&[prompt], 1).and_then(|(cache, logits)| {
            live.advance(&[logits.row(0, 0)?]);
            Ok(cache)
        });
        self.meter.count(1, prompt.len(), prompt.len(), begun);
        match read {
            Ok(cache) if live.search.rows() > 0 => return Some((live, cache)),
            Ok(_) => live.finish(),
            Err(error) => _ = live.reply.send(Err(error)),
        }
        None
    }

    /// Generates one more token for each text of a cohort. Returns the rest of the cohort.
    fn step(&mut self, cohort: Cohort) -> Option<Cohort> {
        let Cohort { mut live, cache } = cohort;
        match self.try_step(&mut live, cache) {
            Ok(cache) => cache.map(|cache| Cohort { live, cache }),
            Err(error) => {
                live.into_iter().for_each(|live| _ = live.reply.send(Err(error.clone())));
                None
            }
        }
    }

    fn try_step(&mut self, all: &mut Vec<Live>, cache: Cache) -> Result<Option<Cache>, InferenceError> {
        let begun = Instant::now();
        let tokens: Vec<i64> = all.iter().flat_map(|live| live.search.last()).map(i64::from).collect();
        let (cache, logits) = self.net.run(cache, &tokens, 1)?;
        self.meter.count(0, tokens.len(), tokens.len(), begun);
        let (mut row, mut kept) = (0, Vec::with_capacity(tokens.len()));
        for live in all.iter_mut() {
            let rows = live.search.rows();
            let of_rows = (row..row + rows).map(|row| logits.row(row, 0)).collect::<Result<Vec<_>, _>>()?;
            let parents = live.advance(&of_rows);
            // A text without a waiting caller need not be finished.
            if live.reply.is_closed() {
                live.search.stop();
            } else {
                kept.extend(parents.into_iter().map(|parent| row + parent));
            }
            row += rows;
        }
        for at in (0..all.len()).rev() {
            if all[at].search.rows() == 0 {
                all.remove(at).finish();
            }
        }
        if kept.is_empty() {
            return Ok(None);
        }
        if kept.iter().copied().eq(0..row) {
            return Ok(Some(cache));
        }
        let rows: Vec<(&Cache, usize)> = kept.iter().map(|&row| (&cache, row)).collect();
        self.net.gather(&rows).map(Some)
    }

    fn score(&mut self, texts: &[Vec<u32>], scored: usize) -> Result<Vec<f32>, InferenceError> {
        let begun = Instant::now();
        let rows: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        let (_, logits) = self.net.read(&rows, scored + 1)?;
        let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        self.meter.count(rows.len(), rows.iter().map(|row| row.len()).sum(), rows.len() * longest, begun);
        let mean = |(row, text): (usize, &&[u32])| -> Result<f32, InferenceError> {
            let mut sum = 0.0;
            for (at, token) in text[text.len() - scored..].iter().enumerate() {
                let log = log_softmax(logits.row(row, scored - at)?);
                sum += f64::from(log.get(*token as usize).copied().unwrap_or(f32::NEG_INFINITY));
            }
            Ok((sum / scored as f64) as f32)
        };
        rows.iter().enumerate().map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> (Job, oneshot::Receiver<Result<Vec<f32>, InferenceError>>) {
        let (reply, answer) = oneshot::channel();
        (Job::Likelihood { texts: Vec::new(), scored: 0, reply }, answer)
    }

    /// A thread that panics in its first job while another job waits.
    #[test]
    fn nobody_waits_for_a_thread_that_has_panicked() {
        let shared = Arc::<Shared>::default();
        let for_thread = shared.clone();
        let thread = std::thread::spawn(move || {
            let _end = End(&for_thread);
            let mut queue = for_thread.queue.lock();
            while queue.turns.len() < 2 {
                for_thread.work.wait(&mut queue);
            }
            let _first = queue.turns.pop_front();
            drop(queue);
            panic!("as a fault in the code would");
        });
        let serving = Serving { name: "m".into(), shared, meter: Arc::default(), thread: Some(thread) };
        let ((first, first_answer), (second, second_answer)) = (job(), job());
        serving.put(first, Priority::Turn);
        serving.put(second, Priority::Turn);
        assert!(first_answer.blocking_recv().is_err());
        assert!(second_answer.blocking_recv().is_err());
        let (late, late_answer) = job();
        serving.put(late, Priority::Turn);
        assert!(late_answer.blocking_recv().is_err());
        assert!(matches!(serving.ended(), InferenceError::Ended(name) if name == "m"));
    }
}
