//! The arguments of `turnflow eval`, and which of them go with a matrix.

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _};
use turnflow_engine::spec::Override;

use super::inputs::PartArg;
use crate::commands::{Cli, EngineArgs};

/// Run tasks and score the hits and the answers.
///
/// FILE is a pipeline, or a matrix: a table whose rows are pipelines with settings, and whose columns
/// are metrics. A matrix runs on the data of --data, compares its rows, and writes `table.md`,
/// `index.html` and `results.json` to --results. The result of each row is kept there as soon as the
/// row ends, and a row that has not changed is not run again.
///
///   Matrix(
///       title: "Fusion",
///       tasks: "tasks.jsonl",
///       qrels: "qrels.tsv",
///       corpora: {"docs": "corpus.jsonl"},
///       baseline: "BM25",
///       columns: [Column(metric: "recall@5", title: "R@5"), Column(metric: "ndcg@5")],
///       rows: [
///           Row(name: "BM25", file: "hybrid.ron", hits: "lexical"),
///           Row(name: "fused", file: "hybrid.ron", hits: "fused", set: {"nodes.fused.k": 10}),
///       ],
///   )
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct EvalArgs {
    /// The pipeline file, or a matrix; not with --answers or --published.
    #[arg(required_unless_present_any = ["answers", "published"], conflicts_with_all = ["answers", "published"])]
    pub(super) file: Option<PathBuf>,
    /// Set one value in the file, as in --set 'corpora.docs.source.path="docs.jsonl"'. The value is
    /// RON; paths are relative to the working directory. May be repeated.
    #[arg(long = "set", value_name = "PATH=RON", conflicts_with = "answers")]
    pub(super) set: Vec<Override>,
    /// Score these answers and contexts instead of running a pipeline. The format is that of
    /// --predictions.
    #[arg(long, value_name = "ANSWERS.jsonl")]
    pub(super) answers: Option<PathBuf>,
    /// Score published answers of several models: a folder in `evaluations` that `turnflow import mtrag` writes. Our
    /// scores are shown beside the published ones and the judgements of people.
    #[arg(long, value_name = "DIR", conflicts_with_all = [
        "answers", "set", "tasks", "qrels", "hits", "only_hits", "sample", "max_references", "against", "report", "run",
        "predictions", "subtasks", "data", "results", "rows", "again", "local", "part",
    ])]
    pub(super) published: Option<PathBuf>,
    /// MTRAG tasks or BEIR queries, as JSON Lines. A matrix names its own.
    #[arg(long)]
    pub(super) tasks: Option<PathBuf>,
    /// Judgements (qrels), tab-separated: query, passage or document, grade. Without them, only answers
    /// are scored.
    #[arg(long)]
    pub(super) qrels: Option<PathBuf>,
    /// The file of metrics for answers, with their models [default: ROUGE-L, exact match,
    /// token F1 and abstentions, which need no model].
    #[arg(long, value_name = "METRICS.ron")]
    pub(super) metrics: Option<PathBuf>,
    /// The nodes whose hits are scored side by side, separated by commas, or `all` for all nodes that
    /// output Hits. Files contain the hits of the last one [default: the last node that outputs Hits].
    #[arg(long, value_name = "NODE", value_delimiter = ',', conflicts_with = "answers")]
    pub(super) hits: Vec<String>,
    /// Run only the nodes needed for these hits, and compute no answers.
    #[arg(long, conflicts_with = "answers")]
    pub(super) only_hits: bool,
    /// Run only the tasks of one half, by a hash of the first question of their conversation: `learn`, or `held-out` for
    /// what was learned on the other half.
    #[arg(long, value_enum, default_value = "all", hide_default_value = true)]
    pub(super) part: PartArg,
    /// Run a random sample of this many tasks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) sample: Option<u32>,
    /// Seed of --sample.
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Run only tasks with at most this many reference passages.
    #[arg(long, value_name = "N")]
    pub(super) max_references: Option<usize>,
    /// A TREC run to compare with, query by query.
    #[arg(long, value_name = "RUN.trec", requires = "qrels")]
    pub(super) against: Option<PathBuf>,
    /// Write an HTML report and its data to this directory.
    #[arg(long, value_name = "DIR")]
    pub(super) report: Option<PathBuf>,
    /// The report of another run to show side by side with this one.
    #[arg(long, value_name = "DIR", requires = "report")]
    pub(super) beside: Option<PathBuf>,
    /// Write the figures to this file as JSON.
    #[arg(short, long, visible_alias = "json", value_name = "OUT.json")]
    pub(super) output: Option<PathBuf>,
    /// Write the hits to this file as a TREC run. White space in ids is percent-encoded, such as
    /// `9-Part%201` for `9-Part 1`, because trec_eval splits lines at white space.
    #[arg(long, value_name = "OUT.trec")]
    pub(super) run: Option<PathBuf>,
    /// Write contexts and answers to this file in MTRAG's format of predictions.
    #[arg(long, value_name = "OUT.jsonl", conflicts_with = "answers")]
    pub(super) predictions: Option<PathBuf>,
    /// Write the prediction files of MTRAG's subtasks to this directory, as far as the pipeline has
    /// them: `taska.jsonl` (retrieved passages), `taskb.jsonl` (answers from the reference passages
    /// alone) and `taskc.jsonl` (answers from retrieved passages alone).
    #[arg(long, value_name = "DIR", conflicts_with = "answers")]
    pub(super) subtasks: Option<PathBuf>,
    /// Matrix: the directory of the tasks, the judgements and the documents [default: the directory of
    /// the matrix file].
    #[arg(long, value_name = "DIR")]
    pub(super) data: Option<PathBuf>,
    /// Matrix: the directory of the results and the tables.
    #[arg(long, value_name = "DIR")]
    pub(super) results: Option<PathBuf>,
    /// Matrix: run only these rows, separated by commas. The others keep their results. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub(super) rows: Vec<String>,
    /// Matrix: run the rows whose results are kept too.
    #[arg(long)]
    pub(super) again: bool,
    /// Matrix: run the `local` file of each row, and only rows that have one.
    #[arg(long)]
    pub(super) local: bool,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

impl EvalArgs {
    /// The directory of the results. Ends the process with a message about wrong usage if it is missing, or if an
    /// option does not go with a matrix.
    pub(super) fn check_for_matrix(&self) -> &Path {
        let others = [
            ("--tasks", self.tasks.is_some()),
            ("--qrels", self.qrels.is_some()),
            ("--metrics", self.metrics.is_some()),
            ("--hits", !self.hits.is_empty()),
            ("--only-hits", self.only_hits),
            ("--max-references", self.max_references.is_some()),
            ("--against", self.against.is_some()),
            ("--report", self.report.is_some()),
            ("--output", self.output.is_some()),
            ("--run", self.run.is_some()),
            ("--predictions", self.predictions.is_some()),
            ("--subtasks", self.subtasks.is_some()),
        ];
        if let Some((option, _)) = others.into_iter().find(|(_, is_given)| *is_given) {
            let message =
                format!("`{option}` does not go with a matrix, whose file and results have this for each row");
            wrong_usage(ErrorKind::ArgumentConflict, &message);
        }
        match &self.results {
            Some(results) => results,
            None => wrong_usage(ErrorKind::MissingRequiredArgument, "a matrix needs the argument --results <DIR>"),
        }
    }

    /// The file of tasks. Ends the process with a message about wrong usage if an option needs a matrix, or
    /// `--tasks` is missing.
    pub(super) fn check_for_pipeline(&self) -> &Path {
        let others = [
            ("--data", self.data.is_some()),
            ("--results", self.results.is_some()),
            ("--rows", !self.rows.is_empty()),
            ("--again", self.again),
            ("--local", self.local),
        ];
        if let Some((option, _)) = others.into_iter().find(|(_, is_given)| *is_given) {
            wrong_usage(ErrorKind::ArgumentConflict, &format!("`{option}` is for a matrix, and the file is none"));
        }
        match &self.tasks {
            Some(tasks) => tasks,
            None => wrong_usage(
                ErrorKind::MissingRequiredArgument,
                "the required argument --tasks <TASKS> was not provided",
            ),
        }
    }
}

/// Ends the process with a message about wrong usage, as clap does.
fn wrong_usage(kind: ErrorKind, message: &str) -> ! {
    let mut command = Cli::command();
    // Only a built command has the usage of its subcommands.
    command.build();
    match command.find_subcommand_mut("eval") {
        Some(eval) => eval.error(kind, message).exit(),
        None => command.error(kind, message).exit(),
    }
}
