//! The result of a row, as it is stored.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use turnflow_engine::append::replace;
use turnflow_engine::state::file_name;

use super::Provenance;
use super::column::IDK;
use super::config::Conditioning;
use crate::breakdown::kinds;
use crate::generation::METRICS;
use crate::metrics::Scores;
use crate::tasks::Task;

/// The result of a row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RowResult {
    /// The name of the row.
    pub name: String,
    /// The pipeline file, as the matrix names it.
    pub file: String,
    /// The models that the pipeline uses: what each is, by its name in the pipeline.
    #[serde(default)]
    pub models: BTreeMap<String, String>,
    /// What it depends on.
    pub provenance: Provenance,
    /// Seconds from the first task to the last answer, without indexing.
    pub seconds: f64,
    /// Number of failed tasks.
    pub failed: usize,
    /// The reason of the first failure.
    pub first_failure: Option<String>,
    /// The output of `eval --output`, without the figures of each task.
    pub figures: Map<String, Json>,
    /// Figures by task id.
    pub tasks: BTreeMap<String, TaskFigures>,
}

/// The figures of a task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TaskFigures {
    /// Its groups: dimension and value.
    pub kinds: Vec<(String, String)>,
    /// Its metrics: of hits, and of the answer, conditioned on answerability as the matrix says.
    pub figures: BTreeMap<String, f64>,
}

/// Why a result cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// The file cannot be written.
    #[error("cannot write `{}`", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The result cannot be written as JSON.
    #[error("cannot write `{}` as JSON", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
}

impl RowResult {
    /// The file of a row in the directory of results.
    pub fn path(directory: &Path, name: &str) -> PathBuf {
        directory.join("rows").join(format!("{}.json", file_name(name)))
    }

    /// Reads the result of a row; `None` if there is none, or if it is not that of a row.
    pub fn read(directory: &Path, name: &str) -> Option<Self> {
        let text = fs::read(Self::path(directory, name)).ok()?;
        serde_json::from_slice(&text).ok().filter(|found: &Self| found.name == name)
    }

    /// Writes the result. After a crash, either this or the previous one is there.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), StoredError> {
        let path = Self::path(directory, &self.name);
        let text = serde_json::to_vec(self).map_err(|source| StoredError::Json { path: path.clone(), source })?;
        let rows = path.parent().unwrap_or(directory);
        fs::create_dir_all(rows).and_then(|()| replace(&path, &text)).map_err(|source| StoredError::Io { path, source })
    }

    /// Takes the figures of an evaluation apart: those of each task, and the others.
    pub fn set_figures(
        &mut self,
        tasks: &[Task],
        scores: Option<&Scores>,
        mut figures: Map<String, Json>,
        conditioning: Conditioning,
    ) {
        let answers = figures.remove("tasks").unwrap_or_default();
        for task in tasks {
            let kinds = kinds(task).into_iter().map(|(kind, value)| (kind.to_owned(), value.to_owned())).collect();
            let hits = scores.and_then(|scores| scores.per_query.get(&task.id));
            let mut own: BTreeMap<String, f64> = hits
                .map(|hits| hits.iter().map(|(name, value)| (name.to_owned(), value)).collect())
                .unwrap_or_default();
            if let Some(answer) = answers.get(&task.id) {
                own.extend(answer_figures(answer, conditioning));
                let idk = answer.get("idk").and_then(Json::as_str);
                own.extend(idk.map(|idk| (IDK.to_owned(), f64::from(u8::from(idk == "yes")))));
            }
            self.tasks.insert(task.id.clone(), TaskFigures { kinds, figures: own });
        }
        self.figures = figures;
    }
}

/// The metrics of a scored answer (see [`task_json`](crate::generation::report::task_json)): the conditioned ones,
/// and those that are only raw.
pub fn answer_figures(scored: &Json, conditioning: Conditioning) -> BTreeMap<String, f64> {
    let numbers = |part: &str| {
        let part = scored.get(part).and_then(Json::as_object).into_iter().flatten();
        part.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect::<BTreeMap<_, _>>()
    };
    let mut all = numbers("raw");
    all.retain(|name, _| METRICS.iter().any(|metric| metric.name == name && !metric.conditioned));
    all.extend(numbers(match conditioning {
        Conditioning::Paper => "metrics",
        Conditioning::Scripts => "by_scripts",
    }));
    all
}
