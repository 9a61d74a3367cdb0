//! What a sink that keeps answers for people to judge shows, and what people say.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::ConnectorError;
use crate::record::Status;

/// What a person says about an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", try_from = "String")]
pub enum Verdict {
    /// It is right, and it helps. To say that it does not know can be right, too.
    Good,
    /// It is wrong, or it does not help.
    Bad,
    /// The person cannot tell.
    Unsure,
}

impl TryFrom<String> for Verdict {
    type Error = String;

    /// A text of another kind is said to be none, which a derived enumeration does not do.
    fn try_from(word: String) -> Result<Self, String> {
        match word.as_str() {
            "good" => Ok(Self::Good),
            "bad" => Ok(Self::Bad),
            "unsure" => Ok(Self::Unsure),
            _ => Err(format!("unknown verdict `{word}`, expected `good`, `bad` or `unsure`")),
        }
    }
}

/// A verdict, with what belongs to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judgement {
    /// What the person says about the answer.
    pub verdict: Verdict,
    /// The right answer, in the person's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<String>,
    /// Whether the documents have an answer to the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answerable: Option<bool>,
    /// The ids of passages that bear the right answer out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relevant: Vec<String>,
    /// The ids of passages that do not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub irrelevant: Vec<String>,
    /// Why, in the person's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Who says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// When, in seconds since 1970.
    #[serde(default)]
    pub at: f64,
}

impl Judgement {
    /// Whether another one says the same, by the same person, at whatever time.
    pub fn says_what(&self, other: &Self) -> bool {
        Self { at: other.at, ..self.clone() } == *other
    }
}

/// A passage of an answer that is judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReviewHit {
    /// Its id.
    pub passage: Arc<str>,
    /// The id of its document.
    pub document: Arc<str>,
    /// The corpus in which it was found, where corpora may have documents of the same ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corpus: Option<Arc<str>>,
    /// Its text, or the beginning of it.
    pub text: Arc<str>,
    /// Whether only the beginning is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Whether the answer cites it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cited: bool,
}

/// A document of an answer that is judged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReviewDocument {
    /// Its id.
    pub document: Arc<str>,
    /// The corpus in which it was found, where corpora may have documents of the same ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corpus: Option<Arc<str>>,
}

/// An answer in the queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReviewItem {
    /// Names the turn and this answer to it.
    pub id: Arc<str>,
    /// The conversation.
    pub conversation_id: Arc<str>,
    /// The number of the turn.
    pub turn: u32,
    /// The revision of the answer.
    pub revision: u32,
    /// When the turn was asked, or else when it was queued, in seconds since 1970.
    pub at: f64,
    /// The rules that took it.
    pub rules: Vec<Arc<str>>,
    /// What the user said.
    pub question: Arc<str>,
    /// The query that was searched.
    pub query: Arc<str>,
    /// The corpus that the turn names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collection: Option<Arc<str>>,
    /// The outcome of the turn.
    pub status: Status,
    /// The answer, or the beginning of it.
    pub answer: Arc<str>,
    /// Why the turn failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The first passages, best first.
    pub hits: Vec<ReviewHit>,
    /// Number of further passages, which are not kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_hits: usize,
    /// The documents of further passages. Who may not read them may not read the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_documents: Vec<ReviewDocument>,
    /// The warnings of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// The epoch that was read.
    pub epoch: u64,
    /// What was said about it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judgement: Option<Judgement>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// A part of the queue.
#[derive(Clone, Debug, Default)]
pub struct ReviewPage {
    /// Those that were judged, the newest verdict first; else those that are open, the oldest first.
    pub judged: bool,
    /// Most items.
    pub limit: usize,
    /// Only those after this one.
    pub after: Option<String>,
    /// Only those that this rule took.
    pub rule: Option<String>,
}

/// Items of the queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReviewList {
    /// The items.
    pub items: Vec<ReviewItem>,
    /// Number of all that are open.
    pub open: usize,
    /// Number of all that were judged.
    pub judged: usize,
    /// Number of answers that a rule took while the queue was full.
    pub left_out: u64,
    /// Whether there are further ones after the last item.
    pub has_more: bool,
}

/// Why a verdict was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// Nothing has this id.
    #[error("the queue has no `{0}`")]
    Unknown(String),
    /// The turn has another answer now.
    #[error("the turn has another answer now, `{now}`: judge that one")]
    Replaced {
        /// The id of its answer now.
        now: Arc<str>,
    },
    /// The verdict contradicts itself, or is too long.
    #[error("{0}")]
    Invalid(String),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Failed(#[from] ConnectorError),
}

/// A queue of answers that people judge. Its calls wait for the disk.
pub trait ReviewQueue: Send + Sync {
    /// Its node.
    fn node(&self) -> &str;
    /// A part of it.
    ///
    /// # Errors
    ///
    /// The journal cannot be read, or [`ReviewPage::after`] is not known.
    fn list(&self, page: &ReviewPage) -> Result<ReviewList, ReviewError>;
    /// The answer with this id.
    ///
    /// # Errors
    ///
    /// There is no such answer any more, or the journal cannot be read.
    fn item(&self, id: &str) -> Result<ReviewItem, ReviewError>;
    /// Takes a verdict, and returns what is judged. It is on the disk when this returns.
    ///
    /// # Errors
    ///
    /// There is no such answer any more, or the journal cannot be written.
    fn judge(&self, id: &str, judgement: &Judgement) -> Result<ReviewItem, ReviewError>;
}
