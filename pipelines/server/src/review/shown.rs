//! An answer of the queue, as its reader sees it.

use std::sync::Arc;

use serde::Serialize;
use turnflow_engine::connector::{Judgement, ReviewItem, Verdict};
use turnflow_engine::record::Status;
use utoipa::ToSchema;

use super::readable::{Readable, document_of};
use crate::error::ApiError;

/// An answer that people judge.
#[derive(Debug, Serialize, ToSchema)]
pub struct ListedReview {
    /// Names the turn and this answer to it.
    #[schema(value_type = String)]
    id: Arc<str>,
    #[schema(value_type = String)]
    conversation_id: Arc<str>,
    turn: u32,
    revision: u32,
    /// When the turn was asked, or else when it was queued, in seconds since the Unix epoch.
    at: f64,
    /// The rules that took it.
    #[schema(value_type = Vec<String>)]
    rules: Vec<Arc<str>>,
    /// What the user said.
    #[schema(value_type = String)]
    question: Arc<str>,
    /// The query that was searched.
    #[schema(value_type = String)]
    query: Arc<str>,
    /// The corpus that the turn names.
    #[schema(value_type = Option<String>)]
    collection: Option<Arc<str>>,
    /// `answered`, `idk` or `failed`.
    #[schema(value_type = String)]
    status: Status,
    /// The answer, or the beginning of it; nothing if it is withheld.
    #[schema(value_type = Option<String>)]
    answer: Option<Arc<str>>,
    /// Why the turn failed.
    error: Option<String>,
    /// The first passages, best first.
    hits: Vec<ListedPassage>,
    /// Number of further passages, which are not kept.
    more_hits: usize,
    warnings: Vec<String>,
    /// The epoch that was read.
    epoch: u64,
    /// Whether the caller may not read some of the passages, and so not the answer.
    withheld: bool,
    /// What was said about it last.
    judgement: Option<ListedVerdict>,
}

/// A passage of an answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ListedPassage {
    #[schema(value_type = String)]
    passage: Arc<str>,
    #[schema(value_type = String)]
    document: Arc<str>,
    /// The corpus in which it was found, where corpora may have documents of the same ids.
    #[schema(value_type = Option<String>)]
    corpus: Option<Arc<str>>,
    /// Its text, or the beginning of it, as it was; nothing if the caller may not read it.
    #[schema(value_type = Option<String>)]
    text: Option<Arc<str>>,
    /// Whether only the beginning is kept.
    cut: bool,
    /// Whether the answer cites it.
    cited: bool,
}

/// A verdict.
#[derive(Debug, Serialize, ToSchema)]
pub struct ListedVerdict {
    /// `good`, `bad` or `unsure`.
    #[schema(value_type = String)]
    verdict: Verdict,
    correction: Option<String>,
    answerable: Option<bool>,
    relevant: Vec<String>,
    irrelevant: Vec<String>,
    comment: Option<String>,
    /// Who says so.
    by: Option<String>,
    /// When, in seconds since the Unix epoch.
    at: f64,
}

impl ListedReview {
    /// What the caller may read of an answer.
    pub async fn of(item: ReviewItem, readable: &mut Readable<'_>) -> Result<Self, ApiError> {
        let is_readable = readable.all(&item).await?;
        let ReviewItem { id, conversation_id, turn, revision, at, rules, question, query, .. } = item;
        let ReviewItem { collection, status, answer, error, more_hits, warnings, epoch, .. } = item;
        let mut hits = Vec::new();
        for hit in item.hits {
            let text = readable.document(&document_of(&hit)).await?.then_some(hit.text);
            let (passage, document, corpus) = (hit.passage, hit.document, hit.corpus);
            hits.push(ListedPassage { passage, document, corpus, text, cut: hit.cut, cited: hit.cited });
        }
        // A verdict quotes what its writer could read.
        let judgement = item.judgement.map(|judgement| {
            let Judgement { verdict, correction, answerable, relevant, irrelevant, comment, by, at } = judgement;
            let [correction, comment] = [correction, comment].map(|text| text.filter(|_| is_readable));
            ListedVerdict { verdict, correction, answerable, relevant, irrelevant, comment, by, at }
        });
        Ok(Self {
            id,
            conversation_id,
            turn,
            revision,
            at,
            rules,
            question,
            query,
            collection,
            status,
            answer: is_readable.then_some(answer),
            error: error.filter(|_| is_readable),
            hits,
            more_hits,
            warnings: if is_readable { warnings } else { Vec::new() },
            epoch,
            withheld: !is_readable,
            judgement,
        })
    }
}
