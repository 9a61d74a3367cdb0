//! What an evaluation came to, as a page to look at: one HTML file without anything outside of
//! it, and beside it the data, by which another run can be set beside this one.

mod escape;
mod html;
mod plot;
mod sections;
mod series;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

/// A run, as `report.json` holds it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// What it is called: the pipeline's name.
    pub title: String,
    /// Hash of the pipeline as it ran.
    pub pipeline: String,
    /// The file of tasks, without its directories.
    pub tasks_file: String,
    /// The node whose hits were scored.
    pub hits: String,
    /// What `eval --json` writes.
    pub figures: Map<String, Json>,
    /// Every task, in the order of the file.
    pub tasks: Vec<TaskReport>,
}

/// A task and what became of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TaskReport {
    /// Its id.
    pub id: String,
    /// The turn's number, from 1.
    pub turn: u32,
    /// The collection that it names.
    pub collection: Option<String>,
    /// Whether it can be answered, as the task says.
    pub answerability: Option<String>,
    /// What was said: speaker and text, the question last.
    pub said: Vec<(String, String)>,
    /// What was looked for.
    pub query: String,
    /// The answer; empty where there is none.
    pub answer: String,
    /// `answered`, `idk`, or `failed`; empty where no answer is given.
    pub status: String,
    /// The reference answer.
    pub target: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// What was done without.
    pub warnings: Vec<String>,
    /// What operators found out about the answer.
    pub checks: Map<String, Json>,
    /// Retrieval figures, where there are judgements.
    pub retrieval: BTreeMap<String, f64>,
    /// Figures of the answer, conditioned on answerability.
    pub generation: BTreeMap<String, f64>,
    /// The first passages.
    pub hits: Vec<HitReport>,
    /// What every node gave, in the order in which they gave it.
    pub trace: Vec<(String, String)>,
}

/// A passage that was found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HitReport {
    /// Its id.
    pub passage: String,
    /// By which it stands where it does.
    pub score: f64,
    /// Its text, shortened.
    pub text: String,
    /// What it was judged; `None` if it was not.
    pub grade: Option<i64>,
}

/// Why a report cannot be written, or another not read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file or directory cannot be used.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// As a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The other report's data is not one.
    #[error("`{}` is no report's data", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
}

/// Reads the data of a report: of its directory, or the file itself.
///
/// # Errors
///
/// There is none, or it cannot be read.
pub fn read(path: &Path) -> Result<Report, ReportError> {
    let path = if path.is_dir() { path.join("report.json") } else { path.to_owned() };
    let text = std::fs::read(&path).map_err(|source| ReportError::Io { action: "read", path: path.clone(), source })?;
    serde_json::from_slice(&text).map_err(|source| ReportError::Data { path, source })
}

/// Writes the page and the data to a directory, which is made if need be; gives the page's path.
///
/// # Errors
///
/// The directory or the files cannot be written.
pub fn write(directory: &Path, report: &Report, beside: Option<&Report>) -> Result<PathBuf, ReportError> {
    let fault = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ReportError::Io { action, path, source }
    };
    std::fs::create_dir_all(directory).map_err(fault("make", directory))?;
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
        assert!(!text.contains("<script") && !text.contains("http"), "a page without anything outside of it");
        assert!(text.contains("&lt;script&gt;") && text.contains("t&lt;/details&gt;"));
        assert!(text.contains("by turn") && text.contains("Reliability") && text.contains("Worst turns"));
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
        assert!(text.contains("+0.1000") && text.contains("0.0001"), "the difference and how likely it is by chance");
    }

    #[test]
    fn an_empty_run_has_a_page_too() {
        let text = html::page(&Report::default(), None);
        assert!(text.contains("0 tasks"));
    }
}
