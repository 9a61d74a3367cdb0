//! `/v1/reports`: the reports of evaluations in a directory, as `turnflow eval --output` writes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use axum::extract::State;
use axum::{Extension, Json};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::app::App;
use crate::auth::Principal;
use crate::error::ApiError;
use crate::openapi::List;

/// Maximum size of a report file.
const LARGEST: u64 = 1 << 20;
/// Maximum number of listed reports; the newest are listed.
const MOST: usize = 200;
/// The files are read for one request at a time.
static READING: Mutex<()> = Mutex::new(());

/// A report.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Report {
    /// The name of its file without `.json`.
    name: String,
    /// When it was written, in seconds since the Unix epoch.
    modified: u64,
    /// Number of queries.
    queries: Option<u64>,
    /// The scores by metric.
    metrics: Map<String, Value>,
    /// The scores by group, if any.
    by: Option<Value>,
}

/// Lists the reports of the directory `reports` in the configuration, the newest first. A caller that may use only some
/// of the pipelines gets none, because a report does not say which pipeline it is about.
#[utoipa::path(get, path = "/v1/reports", tag = "turnflow", responses(
    (status = 200, description = "The reports; none without the setting", body = List<Report>)
))]
pub async fn list(
    State(app): State<App>,
    Extension(principal): Extension<Arc<Principal>>,
) -> Result<Json<List<Report>>, ApiError> {
    let directory = app.config().reports.clone().filter(|_| principal.pipelines.is_none());
    let Some(directory) = directory else { return Ok(Json(List { data: Vec::new() })) };
    let reports = tokio::task::spawn_blocking(move || read(&directory)).await;
    let reports = reports.map_err(|_| ApiError::server("cannot read the reports"))?.map_err(|error| {
        tracing::warn!(%error, "cannot read the directory of reports");
        ApiError::server("cannot read the directory of reports")
    })?;
    Ok(Json(List { data: reports }))
}

/// The shown part of a file.
#[derive(Deserialize)]
struct Shown {
    queries: Option<u64>,
    metrics: Map<String, Value>,
    by: Option<Value>,
}

fn read(directory: &Path) -> std::io::Result<Vec<Report>> {
    let _one = READING.lock();
    let mut files: Vec<(u64, String, PathBuf)> = std::fs::read_dir(directory)?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let name = path.file_name()?.to_str()?.strip_suffix(".json")?.to_owned();
            let metadata = path.metadata().ok().filter(|metadata| metadata.is_file() && metadata.len() <= LARGEST)?;
            let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs();
            Some((modified, name, path))
        })
        .collect();
    files.sort_by(|(a, name, _), (b, other, _)| b.cmp(a).then_with(|| name.cmp(other)));
    files.truncate(MOST);
    Ok(files.into_iter().filter_map(|(modified, name, path)| report(modified, name, &path)).collect())
}

/// The report in a file; `None` if the file is something else.
fn report(modified: u64, name: String, path: &Path) -> Option<Report> {
    let Shown { queries, metrics, by } = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    Some(Report { name, modified, queries, metrics, by })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_files_are_no_reports() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        write("a.json", r#"{"queries": 2, "metrics": {"recall@5": 0.5}}"#);
        write("b.json", r#"{"metrics": 7}"#);
        write("c.json", "{");
        write("d.txt", r#"{"metrics": {}}"#);
        std::fs::create_dir(directory.path().join("e.json")).unwrap();
        let reports = read(directory.path()).unwrap();
        assert_eq!(reports.len(), 1);
        assert_eq!((reports[0].name.as_str(), reports[0].queries), ("a", Some(2)));
    }
}
