//! `/v1/review`: the answers that the sink `Review` of a pipeline keeps for people to judge, for those who may manage
//! documents.
//!
//! The queue has passages and answers of everybody. What the caller may not read of them is left out (`readable.rs`), and
//! such an answer cannot be judged by that caller.

mod readable;
mod shown;

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use turnflow_engine::connector::{Judgement, ReviewError, ReviewList, ReviewPage, ReviewQueue, Verdict};
use utoipa::{IntoParams, ToSchema};

use self::readable::Readable;
use self::shown::ListedReview;
use crate::app::App;
use crate::auth::Principal;
use crate::body::{Content, InPath, Params};
use crate::config::DocumentRights;
use crate::error::ApiError;
use crate::served::Served;

/// Most answers of a list, and answers of one without `limit`.
const MOST: usize = 100;
const LISTED: usize = 20;
/// Maximum bytes of a list.
const LIST_BYTES: usize = 8 << 20;

/// Which answers are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReviewState {
    /// Those that nobody has judged.
    #[default]
    Open,
    /// Those that were judged.
    Judged,
}

/// The parameters of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ReviewParams {
    /// The pipeline. Default: the first.
    pipeline: Option<String>,
    /// The node `Review`, if the pipeline has several. Default: the first by name.
    node: Option<String>,
    /// `open`: those that nobody has judged, the oldest first. `judged`: the others, the newest verdict first. Default: `open`.
    #[serde(default)]
    state: ReviewState,
    /// Only those that this rule took.
    rule: Option<String>,
    /// Only those after the answer with this id.
    after: Option<String>,
    /// Number of answers. Default: 20.
    limit: Option<usize>,
}

/// The parameters of a verdict.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct JudgeParams {
    /// The pipeline. Default: the first.
    pipeline: Option<String>,
    /// The node `Review`, if the pipeline has several. Default: the first by name.
    node: Option<String>,
}

/// Answers of the queue.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReviewAnswers {
    /// The answers.
    data: Vec<ListedReview>,
    /// The node.
    node: String,
    /// All nodes `Review` of the pipeline.
    nodes: Vec<String>,
    /// Number of all that are open.
    open: usize,
    /// Number of all that were judged.
    judged: usize,
    /// Number of answers that a rule took while the queue was full.
    left_out: u64,
    /// Whether there are further ones.
    has_more: bool,
    /// The id to continue after; nothing for an empty list.
    next: Option<String>,
}

/// A verdict, with what belongs to it.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewVerdict {
    /// `good`: it is right, and it helps. `bad`: it is wrong, or it does not help. `unsure`: the person cannot tell.
    #[schema(value_type = String, pattern = "^(good|bad|unsure)$")]
    verdict: Verdict,
    /// The right answer, in the person's words.
    correction: Option<String>,
    /// Whether the documents have an answer to the question.
    answerable: Option<bool>,
    /// The ids of passages that bear the right answer out.
    #[serde(default)]
    relevant: Vec<String>,
    /// The ids of passages that do not.
    #[serde(default)]
    irrelevant: Vec<String>,
    /// Why, in the person's words.
    comment: Option<String>,
}

impl ReviewVerdict {
    fn judgement(self, principal: &Principal) -> Judgement {
        let Self { verdict, correction, answerable, relevant, irrelevant, comment } = self;
        let by = principal.extra.is_some().then(|| principal.name.to_string());
        Judgement { verdict, correction, answerable, relevant, irrelevant, comment, by, at: 0.0 }
    }
}

fn may_manage(principal: &Principal) -> Result<(), ApiError> {
    match principal.documents {
        DocumentRights::Manage => Ok(()),
        _ => Err(ApiError::forbidden(
            "the review queue has turns of everybody: only a token with `documents: Manage` may see them",
        )),
    }
}

/// The queues of a pipeline, the wanted one first.
fn queues(served: &Served, node: Option<&str>) -> Result<(Arc<dyn ReviewQueue>, Vec<String>), ApiError> {
    let queues = served.engine().reviews();
    let names: Vec<String> = queues.iter().map(|queue| queue.node().to_owned()).collect();
    let missing = || match node {
        Some(node) => ApiError::not_found(format!("the pipeline `{}` has no sink `Review` `{node}`", served.name())),
        None => ApiError::not_found(format!("the pipeline `{}` has no sink `Review`", served.name())),
    };
    let found = queues.into_iter().find(|queue| node.is_none_or(|node| *queue.node() == *node));
    found.map(|queue| (queue, names)).ok_or_else(|| missing().param("node"))
}

/// Runs a call that waits for the disk.
async fn blocking<T: Send + 'static>(
    queue: &Arc<dyn ReviewQueue>,
    call: impl FnOnce(&dyn ReviewQueue) -> Result<T, ReviewError> + Send + 'static,
) -> Result<T, ApiError> {
    let queue = queue.clone();
    let done = tokio::task::spawn_blocking(move || call(&*queue)).await;
    let done = done.map_err(|_| ApiError::server("the review queue failed"))?;
    done.map_err(|error| match error {
        ReviewError::Unknown(_) => ApiError::not_found("the queue has no answer with this id").param("id"),
        ReviewError::Replaced { .. } => ApiError::conflict(error.to_string()),
        ReviewError::Invalid(reason) => ApiError::bad(reason),
        ReviewError::Failed(error) => ApiError::failed("the review queue", &error),
    })
}

/// Lists answers that people judge, with their questions and passages. Only for callers who may manage documents.
#[utoipa::path(get, path = "/v1/review", tag = "turnflow", params(ReviewParams), responses(
    (status = 200, description = "The answers, and how many there are", body = ReviewAnswers),
    (status = 404, description = "The pipeline has no sink `Review`")
))]
pub async fn list(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    Params(params): Params<ReviewParams>,
) -> Result<Json<ReviewAnswers>, ApiError> {
    may_manage(&principal)?;
    let served = app.pipeline(params.pipeline.as_deref(), &principal)?;
    let (queue, nodes) = queues(&served, params.node.as_deref())?;
    let limit = params.limit.unwrap_or(LISTED);
    if !(1..=MOST).contains(&limit) {
        return Err(ApiError::bad(format!("`limit` must be 1 to {MOST}")).param("limit"));
    }
    let _room = principal.share.reserve(LIST_BYTES)?;
    let ReviewParams { state, rule, after, .. } = params;
    let page = ReviewPage { judged: state == ReviewState::Judged, limit, after, rule };
    let listed =
        blocking(&queue, move |queue| queue.list(&page)).await.map_err(|error| match error.status.as_u16() {
            404 => ApiError::bad("`after` is the id of no answer in this list").param("after"),
            _ => error,
        })?;
    let ReviewList { items, open, judged, left_out, has_more } = listed;
    let next = items.last().map(|item| item.id.to_string());
    let mut readable = Readable::new(&served, &principal);
    let mut data = Vec::new();
    for item in items {
        data.push(ListedReview::of(item, &mut readable).await?);
    }
    let node = queue.node().to_owned();
    Ok(Json(ReviewAnswers { data, node, nodes, open, judged, left_out, has_more, next }))
}

/// Judges an answer. A later verdict on the same answer counts in place of this one; both are kept.
#[utoipa::path(post, path = "/v1/review/{id}", tag = "turnflow", params(("id" = String, Path, description = "The answer's id in the queue"), JudgeParams),
    request_body = ReviewVerdict, responses(
    (status = 200, description = "The answer, with the verdict", body = ListedReview),
    (status = 404, description = "There is no such answer, or the pipeline has no sink `Review`"),
    (status = 409, description = "The turn has another answer now; the message has its id")
))]
pub async fn judge(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
    InPath(id): InPath<String>,
    Params(params): Params<JudgeParams>,
    content: Content,
) -> Result<Json<ListedReview>, ApiError> {
    may_manage(&principal)?;
    let served = app.pipeline(params.pipeline.as_deref(), &principal)?;
    let (queue, _) = queues(&served, params.node.as_deref())?;
    let judgement = content.json::<ReviewVerdict>()?.judgement(&principal);
    let wanted = id.clone();
    let item = blocking(&queue, move |queue| queue.item(&wanted)).await?;
    let mut readable = Readable::new(&served, &principal);
    if !readable.all(&item).await? {
        return Err(ApiError::forbidden("this token may not read all passages of the answer, so it may not judge it"));
    }
    let judged = blocking(&queue, move |queue| queue.judge(&id, &judgement)).await?;
    Ok(Json(ListedReview::of(judged, &mut readable).await?))
}
