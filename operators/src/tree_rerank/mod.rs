//! Reranks the candidates of several lists with boosted trees: Hits, Hits, … → Hits.
//!
//! ```ron
//! TreeRerank(inputs: ["lexical", "dense", "sparse"], model: "trees", depth: 80, top: 100)
//! ```
//!
//! The candidates are the passages in the first `depth` places of any list. The trees score each candidate by its
//! features (LambdaMART, Burges 2010). The features of each list: the passage's score, its distance from the best
//! score, its rank, the distance of its best sibling, and that of its parent. Siblings are passages whose ids differ
//! only in the last part, such as `a#1` and `a#2`, or `4.1.(a)` and `4.1.(b)`; their parent's id is the part before it.
//! The other features: the number of lists with the passage, the sum of its reciprocal ranks, the number of distinct
//! content words of question and passage, and how much of the one's words the other contains, weighted by their rarity
//! among the candidates. How the question's words occur in the passage: how many of them, of the pairs of neighbours
//! (term dependence, Metzler and Croft 2005), of the names and of the numbers, the longest run, and the rarest word that
//! is missing. Scores, ranks and siblings are read from the whole lists, so lists that are longer than
//! `depth` leave fewer of them unknown.
//!
//! `turnflow tune FILE --node NODE --features DIR` computes these features for labelled questions, and
//! `pipelines/convert/trees.py` learns trees from them. Without `model`, the sum of reciprocal ranks orders the
//! candidates. If the trees fail, it does too, with a warning in the answer's provenance. Ties are ordered by passage
//! id.
//!
//! Cost: two passes over the candidates' texts (one for trees that were learned without the question's words), and one
//! walk through each tree for each candidate; no call of another model.

mod features;
mod matching;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildError, BuildFuture, Call, Capability, Check, ComponentContext, InputPort, ModelUse, Models, Operator,
    OperatorConfig, OperatorError, OperatorKind, built_at_once, config,
};
use turnflow_engine::document::Chunk;
use turnflow_engine::inference::{InferenceError, Priority, RowScorer};
use turnflow_engine::record::{Hit, Hits, PortType, Value, rank};

use crate::models::able;
use features::MATCHES;
pub use features::{List, candidates, columns, rows};

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<TreeRerankConfig>(
    "TreeRerank",
    &[InputPort::many(PortType::Hits)],
    PortType::Hits,
    "candidates of several lists reranked by boosted trees",
);

/// Fields of `TreeRerank`.
#[config]
pub struct TreeRerankConfig {
    /// Input nodes that produce hits. The features have the names of these nodes.
    pub inputs: Vec<String>,
    /// The trees. Default: none; then the sum of reciprocal ranks orders the candidates.
    #[field(unset = "none")]
    pub model: Option<String>,
    /// Number of passages of each list that are candidates, best first.
    #[field(default = 80, range = 1..=10_000)]
    pub depth: usize,
    /// Maximum number of passages to return.
    #[field(default = 100, range = 1..=100_000)]
    pub top: usize,
}

impl OperatorConfig for TreeRerankConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.inputs.is_empty() {
            check.error("wrong-value", "inputs", "at least one input is required");
        }
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        let used = |name| ModelUse { field: "model", name, capability: Capability::ScoreRows };
        self.model.as_deref().map(used).into_iter().collect()
    }

    fn candidates(&self) -> Option<usize> {
        Some(self.depth)
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let trees = self.model.as_ref().map(|model| Trees::new(models, model, &self.inputs)).transpose()?;
            Ok(Arc::new(TreeRerank { config: self.clone(), trees }))
        })
    }
}

/// The loaded trees.
struct Trees {
    scorer: Arc<dyn RowScorer>,
    /// For each of the trees' features, its place among those of this operator.
    places: Vec<usize>,
    /// Whether they read how the question's words occur. Trees of earlier versions do not.
    matches: bool,
}

impl Trees {
    fn new(models: &Models, model: &str, inputs: &[String]) -> Result<Self, BuildError> {
        let scorer = able(models, model, KIND.name, Capability::ScoreRows, |model| model.rows.clone())?;
        let here = columns(inputs.iter().map(String::as_str));
        let place = |wanted: &String| {
            here.iter().position(|column| column == wanted).ok_or_else(|| {
                let message = format!(
                    "was learned with the feature `{wanted}`, which this node does not have; its inputs are `{}`. \
                     Learn the trees again, or name the inputs as they were named then",
                    inputs.join("`, `")
                );
                BuildError::Model { model: model.to_owned(), source: InferenceError::Shape(message) }
            })
        };
        let places: Vec<usize> = scorer.columns().iter().map(place).collect::<Result<_, _>>()?;
        let matches = places.iter().any(|place| *place + MATCHES >= here.len());
        Ok(Self { places, matches, scorer })
    }

    async fn score(&self, rows: &[f32], width: usize) -> Result<Vec<f32>, InferenceError> {
        let selected = rows.chunks(width).flat_map(|row| self.places.iter().map(|place| row[*place])).collect();
        let scores = self.scorer.score(selected, Priority::Turn).await?;
        if scores.iter().all(|score| score.is_finite()) {
            Ok(scores)
        } else {
            Err(InferenceError::Failed("a score is not a number".to_owned()))
        }
    }
}

struct TreeRerank {
    config: TreeRerankConfig,
    trees: Option<Trees>,
}

impl Operator for TreeRerank {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let query = call.hits(0)?.query.clone();
            let mut lists: Vec<List<'_>> = Vec::new();
            for (at, name) in self.config.inputs.iter().enumerate() {
                lists.push((name, &call.hits(at)?.hits));
            }
            let mut found = candidates(&lists, self.config.depth);
            if let Some(trees) = self.trees.as_ref().filter(|_| !found.is_empty()) {
                let width = columns(self.config.inputs.iter().map(String::as_str)).len();
                match trees.score(&rows(&query.text, &lists, &found, trees.matches), width).await {
                    Ok(scores) => found.iter_mut().zip(scores).for_each(|(candidate, score)| candidate.1 = score),
                    Err(error) => call.warnings.add(format!("ordered by reciprocal ranks, without the trees: {error}")),
                }
            }
            let hit = |(chunk, score): (Arc<Chunk>, f32)| Hit { chunk, score };
            let mut hits = found.into_iter().map(hit).collect();
            rank(&mut hits, self.config.top);
            Ok(Value::Hits(Arc::new(Hits { query, hits })))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        let texts = if self.trees.is_some() { call.weight_of_passages(self.config.depth) } else { 0 };
        // A passage's words are read more slowly than its bytes.
        call.weight() + 3 * texts
    }
}
