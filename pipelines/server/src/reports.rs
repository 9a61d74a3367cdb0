//! `/v1/reports`: the reports of evaluations in a directory, as `turnflow eval --json` writes them.

use std::path::Path;
use std::time::UNIX_EPOCH;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::ApiError;

/// Larger files are no reports.
const LARGEST: u64 = 8 << 20;
/// So many reports are listed, the newest.
const MOST: usize = 200;

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
    /// The scores by group, if it has some.
    by: Option<Value>,
}

/// Lists the reports of the directory `reports` in the configuration, the newest first.
#[utoipa::path(get, path = "/v1/reports", tag = "turnflow", responses(
    (status = 200, description = "`{\"data\": [...]}`: the reports; none without the setting", body = Vec<Report>)
))]
pub async fn list(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    let Some(directory) = app.config().reports.clone() else { return Ok(Json(json!({ "data": [] }))) };
    let reports = tokio::task::spawn_blocking(move || read(&directory)).await;
    let reports = reports.map_err(|_| ApiError::server("the reports cannot be read"))?.map_err(|error| {
        tracing::warn!(%error, "the directory of the reports cannot be read");
        ApiError::server("the directory of the reports cannot be read")
    })?;
    Ok(Json(json!({ "data": reports })))
}

fn read(directory: &Path) -> std::io::Result<Vec<Report>> {
    let mut reports: Vec<Report> =
        std::fs::read_dir(directory)?.filter_map(|entry| report(&entry.ok()?.path())).collect();
    reports.sort_by(|a, b| b.modified.cmp(&a.modified).then_with(|| a.name.cmp(&b.name)));
    reports.truncate(MOST);
    Ok(reports)
}

/// The report in a file; `None` if the file is something else.
fn report(path: &Path) -> Option<Report> {
    let name = path.file_name()?.to_str()?.strip_suffix(".json")?.to_owned();
    let metadata = path.metadata().ok().filter(|metadata| metadata.is_file() && metadata.len() <= LARGEST)?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let mut value: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let Value::Object(metrics) = value.get_mut("metrics")?.take() else { return None };
    Some(Report { name, modified, queries: value["queries"].as_u64(), metrics, by: value.get("by").cloned() })
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
