//! The passages that answered similar questions before: Queries → Hits.
//!
//! ```ron
//! AskedBefore(input: "query", corpus: "docs", model: "minilm", questions: "asked.jsonl", top: 100)
//! ```
//!
//! The file holds labelled questions, one JSON object on each line: `{"question": "…", "passages": {"ID": GRADE, …}}`.
//! `turnflow tune FILE --node NODE --output asked.jsonl` writes it from labelled tasks, and `turnflow import feedback`
//! makes such tasks from what users say of answers. A passage's score is the greatest cosine between the question and a
//! labelled question that this passage answers (a grade above 0). Passages that the corpus no longer contains are not
//! returned. An id may name a document; then all of its passages are returned. Ties are ordered by passage id.
//!
//! Without `questions`, nothing is found. A reload after a change of the file reads it again. The questions are embedded when the pipeline starts; the inference cache of a
//! state directory keeps their vectors. Cost: one model call for the question, and questions × dimension
//! multiplications.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use turnflow_engine::component::{
    BuildError, BuildFuture, Call, Capability, Check, ComponentContext, CorpusRef, IndexDefinition, InputPort,
    ModelUse, Models, Operator, OperatorConfig, OperatorError, OperatorKind, built_at_once, config,
};
use turnflow_engine::document::Chunk;
use turnflow_engine::filter::Filter;
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, Vector};
use turnflow_engine::record::{Hit, Hits, PortType, Value, rank};
use turnflow_engine::spec::FilePath;
use turnflow_engine::wording::JsonError;

use crate::content::dot;
use crate::models::embedder;
use crate::references;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<AskedBeforeConfig>(
    "AskedBefore",
    &[InputPort::one(PortType::Queries)],
    PortType::Hits,
    "passages that answered similar questions before",
);

/// Fields of `AskedBefore`.
#[config]
pub struct AskedBeforeConfig {
    /// Input node that produces queries.
    _input: String,
    /// Corpus of the passages, or `FromTurn`.
    pub corpus: CorpusRef,
    /// The bi-encoder that compares questions.
    pub model: String,
    /// File of labelled questions. Default: none; then nothing is found.
    #[field(unset = "none")]
    pub questions: Option<FilePath>,
    /// Maximum number of passages to return.
    #[field(default = 100, range = 1..=100_000)]
    pub top: usize,
    /// Condition that passages must meet, such as `Eq("lang", "en")` (see the handbook, "Metadata and filters").
    /// Default: none.
    pub filter: Option<Filter>,
}

/// A question with the passages that answer it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Labelled {
    /// The question, as the retrievers search for it.
    pub question: String,
    /// Ids of passages or documents, with their grades.
    pub passages: BTreeMap<String, i64>,
}

impl OperatorConfig for AskedBeforeConfig {
    fn validate(&self, check: &mut Check<'_>) {
        // The file's text is part of the pipeline's hash, so that a reload notices a change.
        if let Some(file) = &self.questions
            && let Some(text) = check.text("questions", file)
            && let Err(reason) = parse(&text)
        {
            check.error("wrong-value", "questions", format!("`{}`: {reason}", file.written));
        }
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: &self.model, capability: Capability::Embed }]
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        Some(&self.corpus)
    }

    fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    fn indexes(&self, _: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(references::Definition)])
    }

    fn build<'a>(&'a self, context: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let embedder = embedder(models, &self.model, KIND.name)?;
            let read = |file: &FilePath| {
                read(&file.path).map_err(|reason| BuildError::File { path: file.path.clone(), reason })
            };
            let labelled = self.questions.as_ref().map(read).transpose()?.unwrap_or_default();
            let asked = Arc::new(Asked { embedder, labelled, vectors: OnceCell::new() });
            if !asked.labelled.is_empty() {
                // The first turns wait for this; if it fails, a turn tries again.
                let (asked, stop, node) = (asked.clone(), context.shutdown().clone(), context.id().to_owned());
                context.runtime().spawn(async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        embedded = asked.vectors() => match embedded {
                            Ok(vectors) => tracing::info!(%node, questions = vectors.len(), "questions embedded"),
                            Err(error) => tracing::warn!(%node, %error, "the questions are not embedded yet"),
                        },
                    }
                });
            }
            Ok(Arc::new(AskedBefore { config: self.clone(), asked }) as Arc<dyn Operator>)
        })
    }
}

/// Reads a file of labelled questions.
///
/// # Errors
///
/// What is wrong, with the number of the line.
pub fn read(path: &Path) -> Result<Vec<Labelled>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read it: {error}"))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Labelled>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let labelled = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| {
            let what = r#"each line is an object such as {"question": "…", "passages": {"ID": 1}}"#;
            format!("line {}: {}; {what}", at + 1, JsonError::from(error))
        })
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(labelled).collect()
}

/// Number of questions that are embedded in one call.
const BATCH: usize = 256;

/// The labelled questions with their vectors.
struct Asked {
    embedder: Arc<dyn Embedder>,
    labelled: Vec<Labelled>,
    vectors: OnceCell<Vec<Vector>>,
}

impl Asked {
    /// The vector of each question. The first call embeds them.
    async fn vectors(&self) -> Result<&[Vector], InferenceError> {
        let embed = || async {
            let mut vectors = Vec::with_capacity(self.labelled.len());
            for some in self.labelled.chunks(BATCH) {
                let texts = some.iter().map(|one| one.question.clone()).collect();
                vectors.extend(self.embedder.embed(texts, Role::Query, Priority::Turn).await?);
            }
            Ok(vectors)
        };
        self.vectors.get_or_try_init(embed).await.map(Vec::as_slice)
    }

    /// The greatest cosine of each labelled passage.
    fn scores<'a>(&'a self, asked: &Vector, vectors: &[Vector]) -> BTreeMap<&'a str, f32> {
        let mut best: BTreeMap<&str, f32> = BTreeMap::new();
        let length = dot(asked, asked).sqrt();
        for (vector, labelled) in vectors.iter().zip(&self.labelled) {
            let lengths = length * dot(vector, vector).sqrt();
            let cosine = if lengths > 0.0 { dot(asked, vector) / lengths } else { 0.0 };
            for (passage, _) in labelled.passages.iter().filter(|(_, grade)| **grade > 0) {
                let score = best.entry(passage).or_insert(cosine);
                *score = score.max(cosine);
            }
        }
        best
    }
}

struct AskedBefore {
    config: AskedBeforeConfig,
    asked: Arc<Asked>,
}

impl Operator for AskedBefore {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let query = call.query(0)?.clone();
            let corpus = self.config.corpus.resolve(&call.turn, &call.snapshot)?;
            let reader = corpus.index::<references::Reader>(&references::Definition.key())?;
            let texts: Vec<String> = query.searches().iter().map(ToString::to_string).collect();
            let texts = if self.asked.labelled.is_empty() { Vec::new() } else { texts };
            let known = self.asked.vectors().await?;
            let vectors = self.asked.embedder.embed(texts, Role::Query, Priority::Turn).await?;
            let mut found: BTreeMap<_, (f32, Arc<Chunk>)> = BTreeMap::new();
            for vector in &vectors {
                let mut scores: Vec<_> = self.asked.scores(vector, known).into_iter().collect();
                scores.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(b.0)));
                let found_by_id = |id: &str| {
                    let mut found = reader.find(id, &call.turn);
                    if let Some(filter) = &self.config.filter {
                        found.retain(|chunk| filter.holds(&chunk.metadata, &call.turn));
                    }
                    found
                };
                let passages = scores.into_iter().map(|(id, score)| (found_by_id(id), score));
                let passages = passages.filter(|(chunks, _)| !chunks.is_empty()).take(self.config.top);
                for (chunk, score) in passages.flat_map(|(chunks, score)| chunks.into_iter().map(move |of| (of, score)))
                {
                    let best = found.entry(chunk.identity()).or_insert((score, chunk));
                    best.0 = best.0.max(score);
                }
            }
            self.config.corpus.found(&call.turn, &call.snapshot, found.values().map(|(_, chunk)| chunk));
            let mut hits = found.into_values().map(|(score, chunk)| Hit { chunk, score }).collect();
            rank(&mut hits, self.config.top);
            Ok(Value::Hits(Arc::new(Hits { query, hits })))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        call.weight() + self.asked.labelled.len() * self.asked.embedder.dimension() / 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_questions_are_read_and_others_refused_by_line() {
        let path = std::env::temp_dir().join(format!("turnflow-asked-{}.jsonl", std::process::id()));
        let one = Labelled { question: "Who pays?".into(), passages: BTreeMap::from([("a#1".into(), 1)]) };
        std::fs::write(&path, format!("{}\n\n", serde_json::to_string(&one).unwrap())).unwrap();
        assert_eq!(read(&path), Ok(vec![one]));
        std::fs::write(&path, "{\"question\": \"Who pays?\"}\n").unwrap();
        let told = read(&path).unwrap_err();
        assert!(told.contains("line 1") && told.contains("passages"), "{told}");
        std::fs::write(&path, b"{\"question\": \"\xff\"}\n").unwrap();
        assert!(read(&path).unwrap_err().contains("UTF-8"));
        std::fs::remove_file(&path).unwrap();
        assert!(read(&path).unwrap_err().contains("cannot read it"));
    }
}
