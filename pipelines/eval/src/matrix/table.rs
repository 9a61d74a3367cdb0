//! The table: the results of all rows, compared with the baseline and with the figures of a paper.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Column, Matrix, Provenance, Row, RowResult};
use crate::significance::{Difference, Interval, bootstrap, compare, holm};

/// A table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Its title.
    pub title: String,
    /// The text above it.
    pub note: Option<String>,
    /// Its columns.
    pub columns: Vec<Column>,
    /// The title of the row that the others are compared with.
    pub baseline: Option<String>,
    /// Whether `--local` chose other models than the paper's. Its figures are then not subtracted from ours: other models
    /// answer, and metrics may be on another scale.
    pub is_local: bool,
    /// Its rows.
    pub rows: Vec<TableRow>,
}

/// A row.
#[derive(Clone, Debug, Serialize)]
pub struct TableRow {
    /// Its name.
    pub name: String,
    /// What it is called in the table: its name, or with `--local` that of what ran instead.
    pub title: String,
    /// The pipeline file, as the matrix names it.
    pub file: Option<String>,
    /// The models that ran: what each is, by its name in the pipeline.
    pub models: BTreeMap<String, String>,
    /// The values that it sets, as `path = value`.
    pub set: Vec<String>,
    /// What differs from the paper.
    pub note: String,
    /// Whether there is a result.
    pub outcome: Outcome,
    /// One cell per column.
    pub cells: Vec<Cell>,
}

/// The file of a row, and its result: the reason if there is none, and nothing if the row was not run.
pub type Finished = (Option<String>, Option<Result<RowResult, String>>);

/// Whether a row has a result.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It has a result.
    Done {
        /// Seconds from the first task to the last answer, without indexing.
        seconds: f64,
        /// Number of tasks.
        tasks: usize,
        /// Number of failed tasks.
        failed: usize,
        /// What the result depends on.
        provenance: Box<Provenance>,
    },
    /// It could not be run, for this reason.
    Failed(String),
    /// It has not been run, or has changed since.
    Missing,
    /// It has no pipeline file.
    NoFile,
    /// It has no pipeline file for `--local`.
    NoLocalFile,
}

/// A figure. All values are in the unit of the column.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Cell {
    /// The figure of this row.
    pub value: Option<f64>,
    /// Its 95 % confidence interval, if it is a mean over tasks.
    pub interval: Option<Interval>,
    /// Number of tasks that have the metric.
    pub tasks: usize,
    /// The figure of the paper.
    pub paper: Option<f64>,
    /// The difference to the baseline.
    pub difference: Option<Compared>,
}

/// The difference to the baseline, on the tasks that both rows have.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The difference.
    #[serde(flatten)]
    pub difference: Difference,
    /// The p-value, adjusted by Holm's method over the rows of the column.
    pub adjusted: f64,
}

impl Compared {
    /// Whether the difference is significant at 5 %.
    pub fn is_significant(&self) -> bool {
        self.adjusted < 0.05
    }
}

impl Table {
    /// The table of a matrix with what its rows came to, in their order.
    pub fn new(matrix: &Matrix, is_local: bool, rows: &[Finished]) -> Self {
        let config = &matrix.config;
        let mut table = Self {
            title: config.title.clone(),
            note: config.note.clone().into_iter().chain(config.local_note.clone().filter(|_| is_local)).reduce(joined),
            columns: matrix.columns.clone(),
            baseline: None,
            is_local,
            rows: matrix.rows.iter().zip(rows).map(|(row, found)| table_row(matrix, is_local, row, found)).collect(),
        };
        let result = |at: usize| rows.get(at).and_then(|(_, result)| result.as_ref()?.as_ref().ok());
        let baseline = table.rows.iter().position(|row| Some(&row.name) == config.baseline.as_ref());
        table.baseline = baseline.map(|at| table.rows[at].title.clone());
        if let Some(baseline) = baseline.and_then(|at| Some((at, result(at)?))) {
            for (at, column) in matrix.columns.iter().enumerate() {
                table.compare(at, column, baseline, result);
            }
        }
        table
    }

    /// Compares the rows of a column with the baseline.
    fn compare<'r>(
        &mut self,
        at: usize,
        column: &Column,
        (baseline, other): (usize, &RowResult),
        result: impl Fn(usize) -> Option<&'r RowResult>,
    ) {
        let theirs = column.values(other);
        let mut found: BTreeMap<usize, Difference> = BTreeMap::new();
        for row in (0..self.rows.len()).filter(|row| *row != baseline) {
            let Some(result) = result(row) else { continue };
            let ours = column.values(result);
            let pairs = ours.iter().filter_map(|(id, value)| Some((*value, *theirs.get(id)?)));
            let (ours, theirs): (Vec<f64>, Vec<f64>) = pairs.unzip();
            if !ours.is_empty() {
                found.insert(row, compare(&ours, &theirs));
            }
        }
        let p: Vec<f64> = found.values().map(|difference| difference.p).collect();
        for ((row, mut difference), adjusted) in found.into_iter().zip(holm(&p)) {
            difference.interval = in_unit(column, difference.interval);
            self.rows[row].cells[at].difference = Some(Compared { difference, adjusted });
        }
    }

    /// Our figure minus that of the paper, if the paper's models ran.
    pub(super) fn apart(&self, cell: &Cell) -> Option<f64> {
        let (ours, paper) = cell.value.zip(cell.paper)?;
        (!self.is_local).then_some(ours - paper)
    }

    /// Whether any row has a figure of a paper in this column.
    pub(super) fn has_paper(&self, at: usize) -> bool {
        self.rows.iter().any(|row| row.cells[at].paper.is_some())
    }

    /// Number of rows that failed.
    pub fn failed(&self) -> usize {
        self.rows.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_))).count()
    }
}

fn joined(first: String, second: String) -> String {
    format!("{first} {second}")
}

fn table_row(matrix: &Matrix, is_local: bool, row: &Row, (file, result): &Finished) -> TableRow {
    let outcome = match result {
        _ if file.is_none() && row.config.file.is_some() => Outcome::NoLocalFile,
        _ if file.is_none() => Outcome::NoFile,
        None => Outcome::Missing,
        Some(Err(reason)) => Outcome::Failed(reason.clone()),
        Some(Ok(result)) => Outcome::Done {
            seconds: result.seconds,
            tasks: result.tasks.len(),
            failed: result.failed,
            provenance: Box::new(result.provenance.clone()),
        },
    };
    let result = result.as_ref().and_then(|result| result.as_ref().ok());
    let cell = |column: &Column| {
        let paper = row.config.paper.get(&column.title).copied();
        let Some(result) = result else { return Cell { paper, ..Cell::default() } };
        let values: Vec<f64> = column.values(result).into_values().collect();
        let interval = (!values.is_empty()).then(|| in_unit(column, bootstrap(&values)));
        let value = column.value(result).map(|value| column.scaled(value));
        Cell { value, interval, tasks: values.len(), paper, difference: None }
    };
    let written = |span: turnflow_engine::spec::Span| {
        let text = &matrix.sources.get(span.source).text;
        text.get(span.start..span.end).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    // What follows the name are its variants.
    let variants = row.name.strip_prefix(&row.base).unwrap_or_default();
    let local_name = row.config.local_name.as_ref().filter(|_| is_local);
    TableRow {
        name: row.name.clone(),
        title: local_name.map_or_else(|| row.name.clone(), |name| format!("{name}{variants}")),
        file: file.clone(),
        models: result.map(|result| result.models.clone()).unwrap_or_default(),
        set: row.set.iter().map(|entry| format!("{} = {}", entry.key.text, written(entry.value.span))).collect(),
        note: row.config.note.clone(),
        outcome,
        cells: matrix.columns.iter().map(cell).collect(),
    }
}

fn in_unit(column: &Column, interval: Interval) -> Interval {
    let Interval { mean, low, high } = interval;
    Interval { mean: column.scaled(mean), low: column.scaled(low), high: column.scaled(high) }
}
