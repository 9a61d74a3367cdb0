//! An index whose other parts are in other processes of a cluster: scores are computed with the counts of all parts, so
//! they do not depend on how the corpus is divided.
//!
//! A question asks the other parts twice: how often its terms occur, unless an earlier question of the epoch has asked
//! that, and for their best passages.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use turnflow_engine::cluster::{OtherParts, answered};
use turnflow_engine::component::{IndexError, OperatorError, Permitted};
use turnflow_engine::compute::{MOST_ON_A_WORKER, apart_within};
use turnflow_engine::record::{Hit, rank};

use super::reader::{Bm25Reader, Parameters};
use super::score::{Idf, Statistics, okapi_mean};

/// Maximum number of terms whose counts are kept for an epoch.
const MOST_TERMS: usize = 100_000;

#[derive(Serialize, Deserialize)]
enum Question {
    /// In how many passages each of these terms occurs.
    Count(Vec<String>),
    /// The same for all terms.
    CountAll,
    /// The best passages for these terms with their weights, in the order in which scores are summed.
    Search { weights: Vec<(String, f32)>, average: f32, k1: f32, b: f32, top: usize },
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Counts(Statistics, Vec<u64>),
    All(BTreeMap<Vec<u8>, u64>),
    Hits(Vec<Hit>),
}

/// What the other parts counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Elsewhere {
    pub statistics: Statistics,
    pub counts: BTreeMap<String, u64>,
    /// The mean weight of all terms of all parts, if it is needed.
    pub mean: f32,
}

/// The counts that earlier questions of the epoch have asked for.
#[derive(Default)]
struct Known {
    statistics: Mutex<Option<Statistics>>,
    counts: Mutex<HashMap<String, u64>>,
    mean: Mutex<Option<f32>>,
}

impl Known {
    /// The counts of these terms, if all are known.
    fn of(&self, terms: &BTreeMap<String, f32>) -> Option<Elsewhere> {
        let (statistics, counts) = ((*self.statistics.lock())?, self.counts.lock());
        let counts = terms.keys().map(|term| Some((term.clone(), *counts.get(term)?))).collect::<Option<_>>()?;
        Some(Elsewhere { statistics, counts, mean: 0.0 })
    }

    fn keep(&self, found: &Elsewhere) {
        *self.statistics.lock() = Some(found.statistics);
        let mut counts = self.counts.lock();
        if counts.len() >= MOST_TERMS {
            counts.clear();
        }
        counts.extend(found.counts.iter().map(|(term, count)| (term.clone(), *count)));
    }
}

fn unexpected() -> OperatorError {
    OperatorError::Port("an answer of another kind from another process")
}

/// The best permitted passages of all parts.
pub(super) async fn search(
    reader: &Arc<Bm25Reader>,
    others: &OtherParts,
    terms: &BTreeMap<String, f32>,
    parameters: Parameters,
    top: usize,
    permitted: &Permitted,
) -> Result<Vec<Hit>, OperatorError> {
    let known = others.kept("counts", Known::default);
    let mut elsewhere = match known.of(terms) {
        Some(elsewhere) => elsewhere,
        None => {
            let found = count(others, terms).await?;
            known.keep(&found);
            found
        }
    };
    if parameters.idf == Idf::Okapi {
        let before = *known.mean.lock();
        elsewhere.mean = match before {
            Some(mean) => mean,
            None => mean(reader, others, elsewhere.statistics).await?,
        };
        *known.mean.lock() = Some(elsewhere.mean);
    }
    let (weights, average) = reader.weights(terms, parameters.idf, &elsewhere)?;
    let Parameters { k1, b, .. } = parameters;
    let question = Question::Search { weights: weights.clone(), average, k1, b, top };
    // The others are asked first, and search while this part is searched.
    let here =
        async { reader.search_weighted(&weights, average, (k1, b), top, permitted).map_err(OperatorError::from) };
    let (answers, mut hits) = futures::try_join!(others.ask::<_, Answer>(&question), here)?;
    for answer in answers {
        let Answer::Hits(found) = answer else { return Err(unexpected()) };
        hits.extend(found);
    }
    rank(&mut hits, top);
    Ok(hits)
}

/// How often terms occur in the other parts.
async fn count(others: &OtherParts, terms: &BTreeMap<String, f32>) -> Result<Elsewhere, OperatorError> {
    let mut found = Elsewhere::default();
    let asked: Vec<String> = terms.keys().cloned().collect();
    for answer in others.ask::<_, Answer>(&Question::Count(asked)).await? {
        let Answer::Counts(statistics, counts) = answer else { return Err(unexpected()) };
        found.statistics = found.statistics + statistics;
        terms.keys().zip(counts).for_each(|(term, count)| *found.counts.entry(term.clone()).or_default() += count);
    }
    Ok(found)
}

/// The mean weight of all terms of all parts. Cost: all terms.
async fn mean(reader: &Arc<Bm25Reader>, others: &OtherParts, elsewhere: Statistics) -> Result<f32, OperatorError> {
    let mut all = reader.all_counts()?;
    for answer in others.ask::<_, Answer>(&Question::CountAll).await? {
        let Answer::All(counts) = answer else { return Err(unexpected()) };
        counts.into_iter().for_each(|(term, count)| *all.entry(term).or_default() += count);
    }
    Ok(okapi_mean(reader.statistics + elsewhere, &all))
}

/// Answers a question of another process.
pub(super) fn answer(
    reader: Arc<dyn Any + Send + Sync>,
    permitted: Permitted,
    question: Vec<u8>,
) -> BoxFuture<'static, Result<Vec<u8>, OperatorError>> {
    async move {
        let Ok(reader) = reader.downcast::<Bm25Reader>() else { return Err(OperatorError::NoIndex("bm25".to_owned())) };
        answered(question, async |question| {
            let (passages, terms) = reader.counted();
            // As the weight of a search.
            let weight = match &question {
                Question::Count(_) => 0,
                Question::CountAll => terms as usize,
                Question::Search { weights, .. } => (passages as usize / 32).saturating_mul(weights.len() + 1),
            };
            let answer = move || answer_of(&reader, &permitted, question).map_err(OperatorError::from);
            if weight > MOST_ON_A_WORKER { apart_within(async move { answer() }).await } else { answer() }
        })
        .await
    }
    .boxed()
}

fn answer_of(reader: &Bm25Reader, permitted: &Permitted, question: Question) -> Result<Answer, IndexError> {
    Ok(match question {
        Question::Count(terms) => Answer::Counts(reader.statistics, reader.counts(&terms)?),
        Question::CountAll => Answer::All(reader.all_counts()?),
        Question::Search { weights, average, k1, b, top } => {
            Answer::Hits(reader.search_weighted(&weights, average, (k1, b), top, permitted)?)
        }
    })
}
