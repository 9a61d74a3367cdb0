//! The fields of a matrix file.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use turnflow_engine::component::{Check, Configured, ModelUse};
use turnflow_engine::plan::ModelsFile;
use turnflow_engine::spec::FilePath;

/// How the metrics of answers are conditioned on answerability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize)]
pub enum Conditioning {
    /// As MTRAG's paper says: underspecified and conversational tasks are left out.
    #[default]
    Paper,
    /// As the benchmark's scripts do, by which the shared task was scored: they count too.
    Scripts,
}

/// Fields of `Matrix`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Matrix")]
pub struct MatrixConfig {
    /// The title of the table.
    pub title: String,
    /// A text above the table, such as the source of its figures. Default: none.
    #[serde(default)]
    pub note: Option<String>,
    /// A text above the table if `--local` chooses the rows' `local` files. Default: none.
    #[serde(default)]
    pub local_note: Option<String>,
    /// The tasks: a file in the directory of the data.
    pub tasks: String,
    /// The judgements: a file in the directory of the data. Default: none; then only answers are scored.
    #[serde(default)]
    pub qrels: Option<String>,
    /// The documents of corpora of the pipelines: files or directories in the directory of the data, by the
    /// name of the corpus. Each becomes the `path` of the corpus's source. Default: each corpus keeps its own.
    #[serde(default)]
    pub corpora: BTreeMap<String, String>,
    /// The file of metrics for answers; relative to the matrix file. Default: metrics without models.
    #[serde(default)]
    pub metrics: Option<FilePath>,
    /// The file of metrics with `--local`. Default: the same.
    #[serde(default)]
    pub local_metrics: Option<FilePath>,
    /// How the metrics of answers are conditioned: as MTRAG's `Paper` says, without underspecified and conversational
    /// tasks (default), or as the benchmark's `Scripts` do, which count the former as 1 if the answer asks for
    /// clarification, and the latter like unanswerable ones.
    #[serde(default)]
    pub conditioning: Conditioning,
    /// Only tasks with at most this many reference passages count. Default: all tasks.
    #[serde(default)]
    pub max_references: Option<usize>,
    /// The name of the row that the others are compared with. Default: no comparison.
    #[serde(default)]
    pub baseline: Option<String>,
    // Read one by one, so that each mistake is reported.
    #[serde(rename = "columns")]
    _columns: IgnoredAny,
    #[serde(rename = "rows")]
    _rows: IgnoredAny,
    // Name → list of variants. Each row with a file is run with each variant.
    #[serde(default, rename = "settings")]
    _settings: IgnoredAny,
}

/// Fields of `Column`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Column")]
pub struct ColumnConfig {
    /// A metric of hits, such as `recall@5`, or of answers, such as `rouge_l`.
    pub metric: String,
    /// The heading. Default: the metric, and the group if there is one.
    #[serde(default)]
    pub title: Option<String>,
    /// Only the tasks of one group count, as in `by: ("collection", "cloud")`. Default: all tasks.
    #[serde(default)]
    pub by: Option<(String, String)>,
}

/// Fields of `Row`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Row")]
pub struct RowConfig {
    /// The name of the row.
    pub name: String,
    /// The pipeline file, relative to the matrix file. Default: none; then the row has only the figures of the paper.
    #[serde(default)]
    pub file: Option<FilePath>,
    /// The pipeline file that `--local` chooses instead, such as one with other models. Default: none; then the row is
    /// not run with `--local`.
    #[serde(default)]
    pub local: Option<FilePath>,
    /// The name of the row in the table with `--local`, if `name` names a model that does not run then. Default: `name`.
    #[serde(default)]
    pub local_name: Option<String>,
    // Values by path, as in `--set`; inserted into the pipeline unchanged.
    #[serde(default, rename = "set")]
    _set: IgnoredAny,
    /// The node whose hits are scored. Default: the last node that outputs Hits.
    #[serde(default)]
    pub hits: Option<String>,
    /// Whether to run only the nodes that the hits need. Default: false; answers are computed if a column needs them.
    #[serde(default)]
    pub only_hits: bool,
    /// The tasks, in place of those of the matrix.
    #[serde(default)]
    pub tasks: Option<String>,
    /// The judgements, in place of those of the matrix.
    #[serde(default)]
    pub qrels: Option<String>,
    /// The figures of a paper by the title of the column, in per cent (lengths: as they are). Default: none.
    #[serde(default)]
    pub paper: BTreeMap<String, f64>,
    /// What differs from the paper, or why there is no file. Default: none.
    #[serde(default)]
    pub note: String,
}

/// Fields of a variant in `settings`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Variant")]
pub struct VariantConfig {
    /// Its name, which is added to that of the row.
    pub name: String,
    // Values by path, as in a row.
    #[serde(rename = "set")]
    _set: IgnoredAny,
}

impl MatrixConfig {
    /// The file of metrics.
    pub fn metrics_file(&self, is_local: bool) -> Option<&FilePath> {
        let local = self.local_metrics.as_ref().filter(|_| is_local);
        local.or(self.metrics.as_ref())
    }
}

impl RowConfig {
    /// The pipeline file.
    pub fn pipeline_file(&self, is_local: bool) -> Option<&FilePath> {
        if is_local { self.local.as_ref() } else { self.file.as_ref() }
    }
}

impl Configured for MatrixConfig {}
impl Configured for ColumnConfig {}
impl Configured for RowConfig {}
impl Configured for VariantConfig {}

impl ModelsFile for MatrixConfig {
    fn validate(&self, check: &mut Check<'_>) {
        for (field, metrics) in [("metrics", &self.metrics), ("local_metrics", &self.local_metrics)] {
            if let Some(metrics) = metrics {
                check.exists(field, metrics);
            }
        }
        if self.tasks.trim().is_empty() {
            check.error("wrong-value", "tasks", "`tasks` is empty");
        }
    }
    fn models(&self) -> Vec<ModelUse<'_>> {
        Vec::new()
    }
}

impl ModelsFile for ColumnConfig {
    fn validate(&self, _: &mut Check<'_>) {}
    fn models(&self) -> Vec<ModelUse<'_>> {
        Vec::new()
    }
}

impl ModelsFile for RowConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.name.trim().is_empty() {
            check.error("wrong-value", "name", "`name` is empty");
        }
        if self.local_name.is_some() && self.local.is_none() {
            check.error("wrong-value", "local_name", "`local_name` needs a `local` file");
        }
        if self.file.is_none() && self.local.is_none() {
            for (field, is_given) in [("hits", self.hits.is_some()), ("only_hits", self.only_hits)] {
                if is_given {
                    check.error("wrong-value", field, format!("`{field}` needs a `file`"));
                }
            }
        }
    }
    fn models(&self) -> Vec<ModelUse<'_>> {
        Vec::new()
    }
}

impl ModelsFile for VariantConfig {
    fn validate(&self, _: &mut Check<'_>) {}
    fn models(&self) -> Vec<ModelUse<'_>> {
        Vec::new()
    }
}
