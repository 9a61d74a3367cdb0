//! `ParquetSink`: writes answers to Parquet files in a directory.
//!
//! ```ron
//! ParquetSink(input: "final", path: "answers", max_seconds: 300.0)
//! ```
//!
//! The directory has files `answers-N.parquet` with one row for each answer, where N is the number of the first row's
//! answer, from 1. A file has its name only when it is complete and on disk, and it does not change after that. Until
//! then, the answers are in a file of JSON Lines, `_open-N.jsonl`. A file is closed when it has `max_answers` answers or
//! `max_mb` of JSON, when its first answer is `max_seconds` old, and when a run ends or starts. Readers of directories
//! leave out files whose names begin with `_`. The file `_answers.json` says which directory it is.
//!
//! | column | type | has |
//! |---|---|---|
//! | `conversation_id` | text | the conversation |
//! | `turn` | int64 | the number of the turn |
//! | `revision` | int64 | 0 for the first answer |
//! | `key` | text | the key of the turn: the same each time it is answered |
//! | `retracted` | boolean | whether the row takes the answer back |
//! | `withdrawn` | boolean | whether no other answer follows, because the question was deleted or replaced |
//! | `status` | text | `answered`, `idk` or `failed` |
//! | `query`, `answer` | text | the query and the answer |
//! | `error` | text | why the turn failed, or null |
//! | `hits` | list of structs | `passage`, `document`, `text`: text; `score`: float; `metadata`: JSON as text, or null |
//! | `checks` | text | results of operators that check the answer: JSON, or null |
//! | `stamp` | struct | `pipeline`: text; `epoch`: int64; `models`: JSON as text; `warnings`: list of text |
//! | `latency_ms` | double | milliseconds from reading the turn to delivering the answer |
//! | `extra` | text | further fields of the turn: JSON, or null |
//!
//! Each answer is in the directory exactly once, however often the process is killed: an answer is acknowledged when the
//! operating system has it in the open file, a checkpoint waits for the disk, and a restart closes the open file and finds
//! the keys of the answers that no checkpoint covers. Closed files may be moved away or deleted; if that is done before a
//! checkpoint covers their answers, which takes a second, and the process is killed before that too, these are written
//! again. In a live pipeline, a revision and a retraction are rows like answers.
//!
//! ```
//! # use turnflow_connectors::parquet::sink::ParquetSinkConfig;
//! # let ron = r#"
//! (input: "answer", path: "answers")
//! # "#;
//! # let config: ParquetSinkConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.max_answers, 100_000);
//! ```

mod found;
mod rows;
mod store;
#[cfg(test)]
pub(crate) mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::claims::real;
use turnflow_engine::component::{
    Building, Check, ComponentContext, Configured, Models, SinkConfig, SinkKind, SinkMode, config,
};
use turnflow_engine::connector::{
    AnswerSink, ConnectorError, Delivery, KeptAnswers, Recovered, Search, SinkPosition, Syncing,
};
use turnflow_engine::spec::{FilePath, from_tree};

use self::found::Found;
use self::store::{ABOUT, Limits, Position, Store};
use crate::open_once::Opened;
use crate::shape::{Shape, When};

/// Fields of `ParquetSink`.
#[config]
pub struct ParquetSinkConfig {
    /// Input node, which outputs Answers, Hits or Queries. The records of Hits and Queries have no answer text.
    pub input: String,
    /// Path of the directory, relative to the pipeline file. It is created if it does not exist.
    pub path: FilePath,
    /// Maximum number of answers in a file.
    #[field(default = 100_000, range = 1..=10_000_000)]
    pub max_answers: u64,
    /// Maximum size of the answers in a file, in MiB of JSON; the answer that reaches it is the last one.
    #[field(default = 128, range = 1..=1024)]
    pub max_mb: u64,
    /// Seconds after which a file is closed, counted from its first answer.
    #[field(default = 60.0, range = 0.1..=86_400.0)]
    pub max_seconds: f64,
    /// Which answers the sink gets: `Answered`, `Idk`, `Failed`, `Any([…])` of these, or `Jq("…")`, a program over the
    /// answer's record whose value is true. Default: all.
    pub when: Option<When>,
    /// Whether the sink receives revisions: `Live` (yes) or `Once` (no). Default: the pipeline's `mode`.
    pub mode: Option<SinkMode>,
}

/// Entry in the connector table.
pub const KIND: SinkKind = SinkKind {
    name: "ParquetSink",
    summary: "Parquet files in a directory, with one row for each answer",
    fields: ParquetSinkConfig::fields,
    parse: |tree, sources| {
        let config: ParquetSinkConfig = from_tree(tree, sources)?;
        Ok(Box::new(Claimed { about: config.path.path.join(ABOUT), config }))
    },
};

/// The configuration with the file that stands for the directory: only one run may write to it.
#[derive(Debug)]
struct Claimed {
    config: ParquetSinkConfig,
    about: PathBuf,
}

impl ParquetSinkConfig {
    fn shape(&self) -> Shape<'_> {
        Shape { when: self.when.as_ref(), body: None }
    }

    /// Opens the directory, and closes the files that an earlier process has left open.
    ///
    /// # Errors
    ///
    /// The directory cannot be read or written, or has a file `_answers.json` of something else.
    pub fn sink(&self, base: &Path) -> Result<ParquetSink, ConnectorError> {
        let limits = Limits {
            answers: self.max_answers,
            bytes: self.max_mb << 20,
            age: Duration::from_secs_f64(self.max_seconds),
        };
        Ok(ParquetSink { store: store::open(&base.join(&self.path.path))?, limits })
    }
}

impl Configured for Claimed {
    fn check_ranges(&self, check: &mut Check<'_>) {
        self.config.check_ranges(check);
    }

    fn effective(&self) -> String {
        self.config.effective()
    }
}

impl SinkConfig for Claimed {
    fn validate(&self, check: &mut Check<'_>) {
        let config = &self.config;
        if config.path.path.exists() && !config.path.path.is_dir() {
            check.error("no-such-path", "path", format!("`{}` is a file, not a directory", config.path.written));
        }
        config.shape().validate(check);
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.about)
    }

    fn another_file(&self) -> Option<PathBuf> {
        Some(self.config.path.path.join("answers.parquet"))
    }

    fn mode(&self) -> Option<SinkMode> {
        self.config.mode
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        self.config.shape().chosen(self.config.sink(Path::new("")))
    }
}

/// Writes answers to Parquet files.
pub struct ParquetSink {
    store: Arc<Opened<Store>>,
    limits: Limits,
}

impl AnswerSink for ParquetSink {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            for answer in delivery.answers() {
                self.store.append(answer, &self.limits)?;
                delivery.took(1);
            }
            Ok(())
        }
        .boxed()
    }

    fn kept(&mut self) -> Option<&mut dyn KeptAnswers> {
        Some(self)
    }
}

impl KeptAnswers for ParquetSink {
    fn mark(&self) -> SinkPosition {
        self.store.mark()
    }

    fn syncing(&mut self) -> Syncing {
        let store = self.store.clone();
        Box::new(move || store.sync())
    }

    fn recover(&mut self, search: Search<'_>) -> Result<Recovered, ConnectorError> {
        self.store.close()?;
        let mut found = Found::default();
        let is_own = |position: &Position| *position.id == **self.store.id();
        let since = search.since.and_then(Position::parse);
        let own = since.as_ref().filter(|position| is_own(position)).map(|position| position.answers);
        found.scan(self.store.directory(), own.unwrap_or_default())?;
        // The directories that the sink had before its path was changed.
        let mut is_there = search.since.is_none() || own.is_some();
        let former = search.former.iter().filter_map(Position::parse);
        let of_others: Vec<PathBuf> = search.others.iter().map(|path| real(path)).collect();
        for position in former.chain(since).filter(|position| !is_own(position)) {
            let is_anothers = of_others.contains(&real(&position.directory.join(ABOUT)));
            if !is_anothers && store::is_at(&position) {
                // After a kill, its last answers are in an open file, which only this run can close.
                if let Err(error) = store::open(&position.directory).and_then(|former| former.close()) {
                    let directory = position.directory.display();
                    tracing::warn!(%error, %directory, "cannot close the last file of the directory before");
                }
                found.scan(&position.directory, position.answers)?;
                is_there = true;
            }
        }
        Ok(Recovered { is_there, answers: Box::new(found) })
    }
}
