//! The data of a matrix: tasks and judgements, each read once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::anyhow;
use turnflow_engine::wording::count;

use crate::commands::Fault;
use crate::commands::eval::{EvalArgs, inputs, judgements};
use turnflow_eval::matrix::{Hashes, Matrix, Row};
use turnflow_eval::metrics::Qrels;
use turnflow_eval::tasks::Task;

/// The tasks of a row, and their judgements.
pub(super) struct RowData {
    pub tasks: Vec<Task>,
    pub qrels: Option<Qrels>,
    pub tasks_hash: String,
    pub qrels_hash: Option<String>,
}

/// The data of a matrix.
pub(super) struct Data {
    /// The directory.
    pub directory: PathBuf,
    most: Option<usize>,
    /// By the names of the two files.
    read: BTreeMap<(String, Option<String>), Rc<RowData>>,
}

impl Data {
    /// Finds the directory of the data, and checks that it has all files that the matrix names.
    pub fn open(matrix: &Matrix, args: &EvalArgs, file: &Path) -> Result<Self, Fault> {
        let beside = || file.parent().map(Path::to_owned).unwrap_or_default();
        let directory = args.data.clone().unwrap_or_else(beside);
        let directory = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
        // Pipelines would take a relative path for one beside their own file.
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        let config = &matrix.config;
        let rows = matrix.rows.iter().filter(|row| row.config.file.is_some() || row.config.local.is_some());
        let own = rows.flat_map(|row| [&row.config.tasks, &row.config.qrels]).flatten();
        let named = std::iter::once(&config.tasks).chain(&config.qrels).chain(config.corpora.values()).chain(own);
        let missing: Vec<&String> = named.filter(|name| !directory.join(name).exists()).collect();
        if let Some(first) = missing.first() {
            let more = match missing.len() - 1 {
                0 => String::new(),
                more => format!(", and {} too", count(more, "other file")),
            };
            let what = format!("`{first}` of the matrix is missing in `{}`{more}", directory.display());
            let help = match args.data {
                None => ": name the directory of the data with `--data DIR`",
                Some(_) => "",
            };
            return Err(Fault::Told(anyhow!("{what}{help}")));
        }
        Ok(Self { directory, most: config.max_references, read: BTreeMap::new() })
    }

    /// The data of a row.
    pub fn of(&mut self, matrix: &Matrix, row: &Row, args: &EvalArgs) -> Result<Rc<RowData>, Fault> {
        let tasks = row.config.tasks.as_ref().unwrap_or(&matrix.config.tasks).clone();
        let qrels = row.config.qrels.as_ref().or(matrix.config.qrels.as_ref()).cloned();
        let key = (tasks, qrels);
        if let Some(known) = self.read.get(&key) {
            return Ok(known.clone());
        }
        let tasks = inputs::tasks(&self.directory.join(&key.0), self.most, args)?;
        let qrels = key.1.as_ref().map(|qrels| judgements(&self.directory.join(qrels), &tasks)).transpose()?;
        let tasks_hash = Hashes::of_json(&tasks)?;
        let qrels_hash = qrels.as_ref().map(Hashes::of_json).transpose()?;
        let read = Rc::new(RowData { tasks, qrels, tasks_hash, qrels_hash });
        self.read.insert(key, read.clone());
        Ok(read)
    }
}
