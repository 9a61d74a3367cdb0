//! Keeps the questions that lack an answer, in groups.
//!
//! ```ron
//! Gaps(input: "final", model: "minilm", path: "gaps.jsonl", edits: Some("edits.jsonl"))
//! ```
//!
//! A question joins the group whose questions are most like it, by the vectors of `model` (average linkage). With
//! `mode: Live` of the pipeline, the sink sees each revision: a question that is answered after an edit is settled, and
//! one whose answer goes is broken. What an epoch did is a line of `edits`, which is also a record of a log of turns:
//! `JsonLines(path: "edits.jsonl")` brings it to any sink. `turnflow gaps` shows the groups.
//!
//! A question lacks an answer if the answer says so (`idk`), if `SelfCheck` has flagged it, or if its confidence or its
//! entailment is below the bound. Turns that have failed do not count: they say nothing about the documents. The journal
//! at `path` survives a kill; a delivery that comes twice counts once. Cost: one model input for each such question, and
//! up to three passages for the first eight questions of a group.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::Instant;
use turnflow_engine::component::{
    Building, Capability, Check, ComponentContext, ComponentError, ModelUse, Models, SinkConfig, SinkKind, built,
    config,
};
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery};
use turnflow_engine::inference::{Embedder, Priority, Role};
use turnflow_engine::record::{AnswerRecord, Status};
use turnflow_engine::spec::FilePath;

use crate::journal::Outcome;
use crate::kept::{Kept, Meters, Need, New, short};
use crate::vector::{Codes, dot};

/// Questions with an answer that are kept for comparison.
const SAMPLES: usize = 256;
/// An edit is told after so long, although answers go on coming.
const LONGEST: Duration = Duration::from_secs(3);
/// How often the time is looked at.
const TICK: Duration = Duration::from_millis(200);

/// Fields of `Gaps`.
#[config]
pub struct GapsConfig {
    /// Input node that produces answers.
    _input: String,
    /// The model that turns questions into vectors.
    pub model: String,
    /// The journal: a file that only this node writes. It is created if it does not exist.
    pub path: FilePath,
    /// A file that gets a line for each edit that settled questions or broke answers. Default: none.
    pub edits: Option<FilePath>,
    /// Least mean cosine of a question and the questions of its group, 0 to 1. Default: chosen by the questions.
    #[field(range = 0.0..=1.0, unset = "chosen by the questions")]
    pub threshold: Option<f32>,
    /// An answer with a lower `checks.confidence` is a gap, 0 to 1. Default: confidence does not matter.
    #[field(range = 0.0..=1.0)]
    pub min_confidence: Option<f64>,
    /// An answer with a lower `checks.nli.entailment` is a gap, 0 to 1. Default: entailment does not matter.
    #[field(range = 0.0..=1.0)]
    pub min_entailment: Option<f64>,
    /// Seconds without a further answer after which an edit is told, 0.1 to 60.
    #[field(default = 1.0, range = 0.1..=60.0)]
    pub settle_s: f64,
}

/// Entry in the table of sinks.
pub const KIND: SinkKind =
    SinkKind::of::<GapsConfig>("Gaps", "questions without an answer, in groups, and what edits did to them");

impl SinkConfig for GapsConfig {
    fn validate(&self, check: &mut Check<'_>) {
        for (field, path) in [("path", Some(&self.path)), ("edits", self.edits.as_ref())] {
            if let Some(path) = path.filter(|path| path.path.is_dir()) {
                check.error("no-such-path", field, format!("`{}` is a directory, not a file", path.written));
            }
        }
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, capability: Capability::Embed }]
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.path.path)
    }

    fn takes_callers(&self) -> bool {
        true
    }

    fn another_file(&self) -> Option<PathBuf> {
        self.edits.as_ref().map(|edits| edits.path.clone())
    }

    fn build<'a>(&'a self, context: &'a ComponentContext, models: &'a Models) -> Building<'a, dyn AnswerSink> {
        built(self.sink(context, models).map(|sink| Box::new(sink) as Box<dyn AnswerSink>))
    }
}

impl GapsConfig {
    /// Opens the sink, and starts the task that tells of edits.
    ///
    /// # Errors
    ///
    /// The model is not loaded, or the journal cannot be read.
    pub fn sink(&self, context: &ComponentContext, models: &Models) -> Result<GapsSink, ConnectorError> {
        let model = models.get(&self.model).filter(|model| model.embedder.is_some()).cloned();
        let (embedder, fingerprint) = match model {
            Some(model) => (model.embedder.clone(), Arc::from(&*model.fingerprint)),
            None => (None, Arc::default()),
        };
        let Some(embedder) = embedder else {
            let reason = format!("the model `{}` is not loaded, and questions have no vectors without it", self.model);
            return Err(ComponentError::new(reason).into());
        };
        let kept = Kept::open(self, fingerprint)?;
        let sink = GapsSink {
            config: self.clone(),
            embedder,
            meters: Arc::new(Meters::of(context)),
            kept: Arc::new(Mutex::new(kept)),
            before: HashMap::new(),
        };
        sink.meters.show(&sink.kept.lock().book);
        let (kept, meters, shutdown) = (Arc::downgrade(&sink.kept), sink.meters.clone(), context.shutdown().clone());
        let settle = Duration::from_secs_f64(self.settle_s);
        context.runtime().spawn(async move {
            // Since when there is something to tell.
            let (mut since, mut shown): (Option<Instant>, _) = (None, None);
            loop {
                tokio::select! {
                    () = tokio::time::sleep(TICK) => {}
                    () = shutdown.cancelled() => return,
                }
                let Some(kept) = kept.upgrade() else { return };
                let mut kept = kept.lock();
                // All questions are looked at, so not with each answer.
                if kept.last != shown {
                    shown = kept.last;
                    meters.show(&kept.book);
                }
                if kept.book.untold.is_empty() {
                    since = None;
                    continue;
                }
                let waited = since.get_or_insert_with(Instant::now).elapsed();
                if waited >= LONGEST.max(settle) || kept.last.is_none_or(|last| last.elapsed() >= settle) {
                    kept.tell(&meters);
                    since = None;
                }
            }
        });
        Ok(sink)
    }

    /// What became of a question; `None` if its turn failed.
    fn outcome(&self, record: &AnswerRecord) -> Option<Outcome> {
        let number = |pointer: &[&str]| {
            let (first, rest) = pointer.split_first()?;
            rest.iter().try_fold(record.checks.get(*first)?, |value, name| value.get(*name))?.as_f64()
        };
        let failed = |check: &str| {
            let failed = record.checks.get(check).and_then(|check| check.get("failed"));
            failed.and_then(|failed| failed.as_array()).is_some_and(|failed| !failed.is_empty())
        };
        let below = |value: Option<f64>, bound: Option<f64>| matches!((value, bound), (Some(value), Some(bound)) if value < bound);
        Some(match record.status {
            Status::Failed => return None,
            Status::Idk => Outcome::Declined,
            Status::Answered if failed("self_check") => Outcome::Unsupported,
            Status::Answered if below(number(&["nli", "entailment"]), self.min_entailment) => Outcome::Unsupported,
            Status::Answered if below(number(&["confidence"]), self.min_confidence) => Outcome::Weak,
            Status::Answered => Outcome::Answered,
        })
    }
}

/// The sink.
pub struct GapsSink {
    config: GapsConfig,
    embedder: Arc<dyn Embedder>,
    meters: Arc<Meters>,
    kept: Arc<Mutex<Kept>>,
    /// By turn, the answers that were retracted and whose revisions follow.
    before: HashMap<Arc<str>, Before>,
}

/// An answer that was retracted.
struct Before {
    answer: Arc<str>,
    outcome: Option<Outcome>,
    /// Its passages, their documents, and hashes of their texts.
    passages: Vec<(Arc<str>, Arc<str>, u64)>,
}

impl AnswerSink for GapsSink {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            self.kept.lock().refresh()?;
            let new = self.unknown(delivery.answers());
            let vectors = self.questions(&new).await?;
            let likeness = self.passages(&new, &vectors).await?;
            let mut kept = self.kept.lock();
            kept.last = Some(Instant::now());
            let lines = kept.lines(new, vectors, likeness);
            if let Err(error) = kept.journal.append(&lines) {
                kept.is_stale = true;
                return Err(error);
            }
            let has_come = |key: &str| delivery.answers().iter().any(|answer| !answer.retracted && *answer.key == *key);
            self.before.retain(|key, _| !has_come(key));
            delivery.took(delivery.answers().len());
            Ok(())
        }
        .boxed()
    }
}

impl GapsSink {
    /// The answers that the journal does not have.
    fn unknown(&mut self, answers: &[AnswerRecord]) -> Vec<New> {
        let kept = self.kept.clone();
        let book = &kept.lock().book;
        let (mut new, mut seen, mut samples) = (Vec::new(), HashMap::new(), book.samples.len());
        for record in answers {
            let outcome = self.config.outcome(record);
            if record.withdrawn {
                let known = book.question(&record.key).filter(|known| known.asked.outcome != Outcome::Withdrawn);
                if known.is_some() {
                    let (before, documents) = Default::default();
                    let (record, outcome, need) = (record.clone(), Outcome::Withdrawn, Need::Again);
                    new.push(New { record, outcome, before, documents, need });
                }
                continue;
            }
            if record.retracted {
                self.before.insert(record.key.clone(), Before::of(record, outcome));
                continue;
            }
            let (known, this) =
                (seen.get(&record.key).copied().max(book.last(&record.key)), (record.stamp.epoch, record.revision));
            let Some(outcome) = outcome.filter(|_| known.is_none_or(|known| this > known)) else { continue };
            seen.insert(record.key.clone(), this);
            let before = self.before.get(&record.key);
            let documents = before.map(|before| before.difference(record)).unwrap_or_default();
            let in_group = book.question(&record.key).is_some()
                || new.iter().any(|new: &New| new.record.key == record.key && new.need == Need::Group);
            let need = match outcome {
                _ if in_group => Need::Again,
                Outcome::Answered if known.is_some() => continue,
                Outcome::Answered if samples < SAMPLES && !record.hits.is_empty() && is_sampled(book.fine, samples) => {
                    samples += 1;
                    Need::Sample
                }
                Outcome::Answered => Need::Count,
                _ => Need::Group,
            };
            let had_answer = before.is_some_and(|before| before.outcome == Some(Outcome::Answered));
            let before = before.filter(|_| had_answer).map(|before| before.answer.clone());
            new.push(New { record: record.clone(), outcome, before, documents, need });
        }
        new
    }

    /// The vectors of the questions that need one.
    async fn questions(&self, new: &[New]) -> Result<Vec<Option<Codes>>, ConnectorError> {
        let needs = |new: &&New| matches!(new.need, Need::Group | Need::Sample);
        let texts: Vec<String> = new.iter().filter(needs).map(|new| new.record.query.to_string()).collect();
        let mut vectors = self.embed(texts, Role::Query).await?.into_iter();
        Ok(new.iter().map(|new| needs(&new).then(|| vectors.next()).flatten()).collect())
    }

    /// The cosines of questions with their first passages, where they are needed.
    async fn passages(&self, new: &[New], vectors: &[Option<Codes>]) -> Result<Vec<Vec<f32>>, ConnectorError> {
        let (wanted, questions): (Vec<usize>, Vec<Option<Codes>>) = {
            let kept = self.kept.lock();
            new.iter().zip(vectors).map(|(new, vector)| kept.compared(new, vector.as_ref())).unzip()
        };
        let hits = |(new, wanted): (&'_ New, &usize)| {
            new.record.hits[..*wanted].iter().map(|hit| hit.text.to_string()).collect::<Vec<_>>()
        };
        let texts: Vec<String> = new.iter().zip(&wanted).flat_map(hits).collect();
        let mut passages = self.embed(texts, Role::Passage).await?.into_iter();
        let of = |(vector, wanted): (&Option<Codes>, &usize)| {
            let question = vector.as_ref().map(Codes::unit).unwrap_or_default();
            passages.by_ref().take(*wanted).map(|passage| dot(&question, &passage.unit())).collect()
        };
        Ok(questions.iter().zip(&wanted).map(of).collect())
    }

    async fn embed(&self, texts: Vec<String>, role: Role) -> Result<Vec<Codes>, ConnectorError> {
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        // No turn waits for it.
        let vectors = self.embedder.embed(texts, role, Priority::Corpus).await;
        let vectors = vectors.map_err(|error| ComponentError::transient(error.to_string()))?;
        Ok(vectors.iter().map(|vector| Codes::of(vector)).collect())
    }
}

#[cfg(test)]
impl GapsSink {
    /// Has the next lines written to another file.
    pub(crate) fn break_journal(&self, path: &Path) {
        self.kept.lock().journal.break_off(path);
    }
}

/// Whether an answered question is kept for comparison: the first ones, and then now and then.
fn is_sampled(fine: u64, samples: usize) -> bool {
    samples < SAMPLES / 4 || fine.is_multiple_of(fine / 16 + 1)
}

impl Before {
    fn of(record: &AnswerRecord, outcome: Option<Outcome>) -> Self {
        let answer = short(&record.answer);
        let passages =
            record.hits.iter().map(|hit| (hit.passage.clone(), hit.document.clone(), hash(&hit.text))).collect();
        Self { answer, outcome, passages }
    }

    /// The documents whose passages came, went or changed between this answer and the next.
    fn difference(&self, next: &AnswerRecord) -> Vec<Arc<str>> {
        let after: Vec<_> = next.hits.iter().map(|hit| (&hit.passage, &hit.document, hash(&hit.text))).collect();
        let came = after.iter().filter(|(passage, _, text)| {
            !self.passages.iter().any(|(known, _, before)| known == *passage && before == text)
        });
        let went = self
            .passages
            .iter()
            .filter(|(passage, _, text)| !after.iter().any(|(known, _, now)| *known == passage && now == text));
        let documents =
            came.map(|(_, document, _)| (*document).clone()).chain(went.map(|(_, document, _)| document.clone()));
        let distinct: std::collections::BTreeSet<Arc<str>> = documents.collect();
        distinct.into_iter().collect()
    }
}

fn hash(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}
