//! `/healthz` and `/readyz`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value as Json_, json};
use turnflow_engine::publish::CorpusProgress;
use turnflow_engine::run::MOST_REASONS;

use crate::app::App;

/// Reports that the process is alive.
#[utoipa::path(get, path = "/healthz", tag = "server", responses((status = 200, description = "The process is alive")))]
pub async fn alive() -> Json<Json_> {
    Json(json!({ "status": "ok" }))
}

/// Number of pipelines with a corpus that is not published yet, or that have ended.
pub(crate) fn loading(app: &App) -> usize {
    let waiting = app.pipelines().iter().filter(|served| {
        let engine = served.engine();
        engine.has_ended() || !engine.is_serving()
    });
    waiting.count()
}

/// How far the corpora that are not published yet are. The names of corpora are not public.
fn progress(app: &App) -> Json_ {
    let loading = app.pipelines().iter().filter(|served| served.engine().is_loading());
    let corpora = loading.flat_map(|served| served.engine().corpora());
    let mut sums = [0; 4];
    for (_, progress, _) in corpora {
        let counters = [&progress.documents, &progress.cut, &progress.prepared, &progress.prepare];
        sums.iter_mut().zip(counters).for_each(|(sum, counter)| *sum += CorpusProgress::get(counter));
    }
    let [documents, passages, embedded, to_embed] = sums;
    json!({ "documents_read": documents, "passages_cut": passages, "embedded": embedded, "to_embed": to_embed })
}

/// Reports whether every corpus of every pipeline is published, how many pipelines run without an optional model, how many
/// passages are missing from an index because a model's server is away, how many documents are missing because they cannot be
/// read, and how many sources cannot reach their servers.
#[utoipa::path(get, path = "/readyz", tag = "server", responses(
    (status = 200, description = "The server is ready"),
    (status = 503, description = "A corpus is not published yet, or the server is shutting down")
))]
pub async fn ready(State(app): State<App>) -> (StatusCode, Json<Json_>) {
    // The names of pipelines are not public, so only their number is reported.
    let waiting = loading(&app);
    let lacking = app.pipelines().iter().filter(|served| !served.engine().lacking().is_empty()).count();
    let status = if app.is_draining() {
        "ending"
    } else if waiting > 0 {
        "loading"
    } else {
        "ready"
    };
    let code = if status == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let pipelines = app.pipelines().len();
    let missing: Vec<_> = app.pipelines().iter().flat_map(|served| served.engine().missing()).collect();
    let count: u64 = missing.iter().map(|(_, count, _)| count).sum();
    let away: Vec<_> = app.pipelines().iter().flat_map(|served| served.engine().away()).collect();
    let corpora = app.pipelines().iter().flat_map(|served| served.engine().corpora());
    let corpora: Vec<_> = corpora.map(|(_, progress, _)| progress).collect();
    let empty: u64 = corpora.iter().map(|progress| CorpusProgress::get(&progress.empty)).sum();
    let unreadable: Vec<_> = corpora.iter().filter(|progress| progress.unreadable() > 0).collect();
    let documents: u64 = unreadable.iter().map(|progress| progress.unreadable()).sum();
    let mut body = json!({
        "status": status, "pipelines": pipelines, "loading": waiting, "lacking_models": lacking, "missing_passages": count,
        "missing_documents": documents, "empty_documents": empty, "sources_away": away.len(),
    });
    if waiting > 0 {
        body["progress"] = progress(&app);
    }
    // The reasons name servers and files, which callers with tokens do not see here.
    if app.tokens().is_empty() {
        if documents > 0 {
            let because = unreadable.iter().flat_map(|progress| progress.unreadable_because(MOST_REASONS));
            body["missing_documents_because"] = because.take(MOST_REASONS).collect();
        }
        if count > 0 {
            body["missing_because"] = missing.into_iter().map(|(_, _, reason)| reason).collect();
        }
        if !away.is_empty() {
            body["away_because"] = away.into_iter().map(|(_, reason)| reason).collect();
        }
    }
    (code, Json(body))
}
