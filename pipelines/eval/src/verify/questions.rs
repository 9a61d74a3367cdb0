//! Reads or samples questions, and asks them of each retriever.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Map;
use turnflow_engine::component::Snapshot;
use turnflow_engine::component::{BuildError, Call, CorpusRef, IndexDefinition, Models, Operator, Warnings, digest};
use turnflow_engine::document::Chunk;
use turnflow_engine::plan::{NodeKind, Plan};
use turnflow_engine::record::{PortType, Query, Turn, Value};
use turnflow_operators::sentences::sentence_ranges;

use super::IndexContents;
use super::inventory::Found;

/// Why questions cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum QuestionsError {
    /// The file cannot be read.
    #[error("cannot read the questions `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A line is a JSON object without a question.
    #[error("`{}`, line {line}: the object has no field `text` with the question", path.display())]
    NoText {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
    },
}

/// Reads questions, one per line: the question itself, or an object with the field `text`.
///
/// # Errors
///
/// The file cannot be read, or an object has no `text`.
pub fn read_questions(path: &Path) -> Result<Vec<String>, QuestionsError> {
    let io = |source| QuestionsError::Io { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(io)?;
    let mut questions = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let json = line.trim_start().starts_with('{').then(|| serde_json::from_str::<Map<_, serde_json::Value>>(line));
        let question = match json {
            None => line.trim().to_owned(),
            Some(object) => {
                let text = object.ok().and_then(|object| Some(object.get("text")?.as_str()?.to_owned()));
                text.ok_or_else(|| QuestionsError::NoText { path: path.to_owned(), line: at + 1 })?
            }
        };
        questions.push(question);
    }
    Ok(questions)
}

/// Samples sentences of a corpus as questions that have results. The same seed and corpus produce the same
/// questions.
pub fn sample_questions(contents: &IndexContents, corpus: &str, count: usize, seed: u64) -> Vec<String> {
    let mut chunks: BTreeMap<&str, &Arc<Chunk>> = BTreeMap::new();
    for ((name, _), inventory) in &contents.indexes {
        if **name == *corpus {
            let passages = inventory.iter().flat_map(|inventory| &inventory.passages);
            chunks.extend(passages.filter_map(|(id, passage)| Some((&**id, passage.chunk.as_ref()?))));
        }
    }
    let draw = |id: &str| digest(&[&seed.to_le_bytes(), id.as_bytes()].concat());
    let mut drawn: Vec<(u64, &Arc<Chunk>)> = chunks.into_iter().map(|(id, chunk)| (draw(id), chunk)).collect();
    drawn.sort_by_key(|(draw, _)| *draw);
    let sentence = |(draw, chunk): (u64, &Arc<Chunk>)| {
        let ranges = sentence_ranges(&chunk.text);
        let (start, end) = *ranges.get((draw % ranges.len().max(1) as u64) as usize)?;
        Some(chunk.text[start..end].split_whitespace().collect::<Vec<_>>().join(" "))
    };
    drawn.into_iter().filter_map(sentence).take(count).collect()
}

/// A node that searches a corpus, outside a dataflow.
pub struct Retriever {
    /// Its id.
    pub node: Arc<str>,
    /// The key of its index.
    pub index: String,
    /// The corpora that it searches.
    pub corpora: Vec<Arc<str>>,
    operator: Arc<dyn Operator>,
}

/// The nodes of a plan that take queries, search a corpus and output hits. Operators on hits need no
/// check: they depend only on these and on data that is compared already.
///
/// # Errors
///
/// An operator cannot be built.
pub fn retrievers(plan: &Plan, models: &Models) -> Result<Vec<Retriever>, BuildError> {
    let mut all = Vec::new();
    for node in plan.nodes.iter().filter(|node| node.output == Some(PortType::Hits)) {
        let NodeKind::Operator(config) = &node.kind else { continue };
        let takes_queries = node.ports.first().is_some_and(|port| port.takes(PortType::Queries));
        let Some(corpus) = config.corpus().filter(|_| takes_queries) else { continue };
        if config.models().iter().any(|used| plan.lacks(used.name, models)) {
            continue;
        }
        let corpora = plan.corpora.iter().map(|planned| planned.name.clone());
        let corpora = corpora.filter(|name| !matches!(corpus, CorpusRef::Named(named) if **named != **name));
        let definitions: Vec<Arc<dyn IndexDefinition>> = config.indexes(models)?;
        let index = definitions.first().map(|definition| definition.key()).unwrap_or_default();
        let operator = turnflow_engine::component::build_alone(&**config, &node.id, models)?;
        all.push(Retriever { node: node.id.clone(), index, corpora: corpora.collect(), operator });
    }
    Ok(all)
}

/// A question with its result.
pub struct Asked {
    /// The question.
    pub question: String,
    /// Passages with their scores, or the error.
    pub hits: Result<Vec<(Arc<str>, f32)>, String>,
}

/// Asks the questions of each corpus of all its retrievers.
pub async fn ask_all(
    retrievers: &[Retriever],
    questions: &BTreeMap<Arc<str>, Vec<String>>,
    snapshot: &Arc<Snapshot>,
) -> BTreeMap<(Arc<str>, Arc<str>), Found> {
    let mut all = BTreeMap::new();
    for retriever in retrievers {
        for corpus in &retriever.corpora {
            let mut found = Found { index: retriever.index.clone(), asked: Vec::new() };
            for question in questions.get(corpus).into_iter().flatten() {
                let hits = ask(retriever, corpus, question, snapshot).await;
                found.asked.push(Asked { question: question.clone(), hits });
            }
            all.insert((corpus.clone(), retriever.node.clone()), found);
        }
    }
    all
}

async fn ask(
    retriever: &Retriever,
    corpus: &Arc<str>,
    question: &str,
    snapshot: &Arc<Snapshot>,
) -> Result<Vec<(Arc<str>, f32)>, String> {
    let turn = Turn {
        conversation_id: "verify".into(),
        turn: 1,
        text: question.into(),
        history: Vec::new(),
        collection: Some(corpus.clone()),
        timestamp: None,
        extra: Map::new(),
        position: "".into(),
        epoch: snapshot.epoch,
        entered_us: 0,
        filter: None,
        sequence: 0,
        source: "turns".into(),
        standing: None,
        computed_at: None,
        similar_to: None,
        tokens: Default::default(),
        key: "".into(),
    };
    let inputs = vec![Value::Query(Query::new(question))];
    let call = Call {
        turn: Arc::new(turn),
        inputs,
        snapshot: snapshot.clone(),
        warnings: Warnings::default(),
        stream: Default::default(),
        weights: None,
        format: None,
        watch: Default::default(),
    };
    match retriever.operator.clone().call(call).await {
        Ok(Value::Hits(hits)) => Ok(hits.hits.iter().map(|hit| (hit.chunk.id.clone(), hit.score)).collect()),
        Ok(_) => Err("the retriever did not return hits".into()),
        Err(error) => Err(error.to_string()),
    }
}
