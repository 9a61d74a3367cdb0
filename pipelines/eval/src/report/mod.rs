//! The report of an evaluation: one self-contained HTML page, and its data in a file next to it, used to
//! compare another run with this one.

pub(crate) mod escape;
pub(crate) mod html;
mod plot;
mod sections;
mod series;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// A run, as stored in `report.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// The name of the pipeline.
    pub title: String,
    /// Hash of the pipeline that ran.
    pub pipeline: String,
    /// The name of the task file, without directories.
    pub tasks_file: String,
    /// The node whose hits were scored.
    pub hits: String,
    /// The output of `eval --output`.
    pub figures: Map<String, Json>,
    /// All tasks, in file order.
    pub tasks: Vec<TaskReport>,
}

/// A task with its result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TaskReport {
    /// Its id.
    pub id: String,
    /// The turn's number, from 1.
    pub turn: u32,
    /// The collection of the task.
    pub collection: Option<String>,
    /// The answerability of the task.
    pub answerability: Option<String>,
    /// Whether the question of a later turn can be understood without the conversation.
    #[serde(default)]
    pub standalone: Option<bool>,
    /// The conversation: speaker and text, the question last.
    pub said: Vec<(String, String)>,
    /// The retrieval query.
    pub query: String,
    /// The answer; empty if there is none.
    pub answer: String,
    /// `answered`, `idk`, or `failed`; empty if the pipeline outputs no answers.
    pub status: String,
    /// The reference answer.
    pub target: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// The warnings of the answer.
    pub warnings: Vec<String>,
    /// Results of operators that check the answer.
    pub checks: Map<String, Json>,
    /// Retrieval metrics, if there are judgements.
    pub retrieval: BTreeMap<String, f64>,
    /// Metrics of the answer, conditioned on answerability.
    pub generation: BTreeMap<String, f64>,
    /// The best passages.
    pub hits: Vec<HitReport>,
    /// The outputs of the nodes, in the order in which they appeared.
    pub trace: Vec<(String, String)>,
}

/// A retrieved passage.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HitReport {
    /// Its id.
    pub passage: String,
    /// Its score, which determines its rank.
    pub score: f64,
    /// Its text, shortened.
    pub text: String,
    /// Its grade in the judgements; `None` if it is not judged.
    pub grade: Option<i64>,
}

/// Why a report cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file or directory cannot be used.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not the data of a report.
    #[error("`{}` is not the data of a report", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
}

/// Reads the data of a report, given its directory or the file itself.
///
/// # Errors
///
/// The file does not exist, cannot be read, or is not the data of a report.
pub fn read(path: &Path) -> Result<Report, ReportError> {
    let path = if path.is_dir() { path.join("report.json") } else { path.to_owned() };
    let text = std::fs::read(&path).map_err(|source| ReportError::Io { action: "read", path: path.clone(), source })?;
    serde_json::from_slice(&text).map_err(|source| ReportError::Data { path, source })
}

/// Writes the page and the data to a directory, which is created if necessary; returns the page's path.
///
/// # Errors
///
/// The directory or the files cannot be written.
pub fn write(directory: &Path, report: &Report, beside: Option<&Report>) -> Result<PathBuf, ReportError> {
    let fault = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ReportError::Io { action, path, source }
    };
    std::fs::create_dir_all(directory).map_err(fault("create", directory))?;
    let data = directory.join("report.json");
    let text = serde_json::to_vec(report).map_err(|source| ReportError::Data { path: data.clone(), source })?;
    std::fs::write(&data, text).map_err(fault("write", &data))?;
    let page = directory.join("index.html");
    std::fs::write(&page, html::page(report, beside)).map_err(fault("write", &page))?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(id: &str, turn: u32, ndcg: f64, answerability: &str, confidence: f64) -> TaskReport {
        TaskReport {
            id: id.into(),
            turn,
            collection: Some("govt".into()),
            answerability: Some(answerability.into()),
            standalone: (turn > 1).then_some(turn == 2),
            said: vec![("user".into(), "<script>alert(1)</script> & \"why\"?".into())],
            answer: "because".into(),
            status: "answered".into(),
            checks: Map::from_iter([("confidence".to_owned(), confidence.into())]),
            retrieval: BTreeMap::from([("ndcg@5".to_owned(), ndcg), ("recall@5".to_owned(), ndcg)]),
            hits: vec![HitReport { passage: "p".into(), score: 1.0, text: "t</details>".into(), grade: Some(1) }],
            trace: vec![("query".into(), "why".into())],
            ..TaskReport::default()
        }
    }

    fn report(shift: f64) -> Report {
        let tasks = (0..40)
            .map(|n| {
                let kind = if n % 3 == 0 { "UNANSWERABLE" } else { "ANSWERABLE" };
                task(&format!("t{n}"), n % 5 + 1, f64::from(n % 4) / 4.0 + shift, kind, f64::from(n) / 40.0)
            })
            .collect();
        Report { title: "one".into(), tasks, ..Report::default() }
    }

    #[test]
    fn the_page_is_whole_and_nothing_in_it_is_run() {
        let directory = tempfile::tempdir().unwrap();
        let first = report(0.0);
        let page = write(directory.path(), &first, None).unwrap();
        let text = std::fs::read_to_string(page).unwrap();
        assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
        assert!(!text.contains("<script") && !text.contains("http"), "the page is self-contained");
        assert!(text.contains("&lt;script&gt;") && text.contains("t&lt;/details&gt;"));
        assert!(
            text.contains("by turn")
                && text.contains("by standalone")
                && text.contains("Reliability")
                && text.contains("Worst turns")
        );
        for tag in ["table", "details", "svg", "section"] {
            let opened = text.matches(&format!("<{tag}")).count();
            assert_eq!(opened, text.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        let again = read(directory.path()).unwrap();
        assert_eq!(again.tasks.len(), 40);
    }

    #[test]
    fn two_runs_stand_side_by_side() {
        let text = html::page(&report(0.1), Some(&report(0.0)));
        assert!(text.contains("+0.1000") && text.contains("0.0001"), "the difference and its p-value");
    }

    #[test]
    fn an_empty_run_has_a_page_too() {
        let text = html::page(&Report::default(), None);
        assert!(text.contains("0 tasks"));
    }
}
