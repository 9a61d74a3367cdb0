//! `JsonLinesSink`: writes answers to a file, one JSON object on each line.
//!
//! ```ron
//! JsonLinesSink(input: "final", path: "answers.jsonl", append: true)
//! ```
//!
//! Each line is passed to the operating system in one write. If the write fails halfway (a full disk), the file is
//! truncated to its former length, so a retry leaves no torn line. If a file ends with an unfinished line, the next
//! answer starts on a new line.
//!
//! If the file is renamed or deleted (log rotation), the next answer goes to a new file at the path. After a restart,
//! existing answers are found by their keys and not written again, also in files that were renamed or copied in the
//! meantime, if these are still in the directory. The same holds if the sink's path has changed, unless another sink
//! now has the old path. If it is unknown which file was written last, all files that carry the path's name are read
//! (`answers.jsonl.1`, `answers.jsonl-20260102.gz`, `answers.1.jsonl`). Otherwise only files written since are read,
//! because a log may begin with the same record every day. An answer that a crash has cut off is removed and written
//! again. With `append: false`, each run starts with an empty file, and existing answers are not searched for; a reload
//! that adds the sink continues the existing file.
//!
//! In a live pipeline, `mode: Once` passes only first answers to the sink; `mode: Live` also passes revisions, even if
//! the pipeline's mode does not.
//!
//! ```
//! # use turnflow_connectors::jsonl_sink::JsonLinesSinkConfig;
//! # let ron = r#"
//! (input: "answer", path: "answers.jsonl", append: true)
//! # "#;
//! # let config: JsonLinesSinkConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.input, "answer");
//! ```

mod output;
mod recover;
mod rotated;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use turnflow_engine::component::{Building, Check, ComponentContext, Models, SinkConfig, SinkKind, SinkMode, config};
use turnflow_engine::connector::{
    AnswerSink, ConnectorError, Delivery, KeptAnswers, NoAnswers, Recovered, Search, SinkPosition, Syncing,
};
use turnflow_engine::record::AnswerRecord;
use turnflow_engine::spec::FilePath;

use self::output::Output;
use self::recover::Found;
use self::rotated::{Marked, scan_one, scan_rotated, sync};
use crate::known_file::{FileMark, MarkedFile, find, is_same};
use crate::shape::{Bodies, BodyConfig, Shape, When};
use crate::watch::identity_of;

/// Fields of `JsonLinesSink`.
#[config]
pub struct JsonLinesSinkConfig {
    /// Input node, which outputs Answers, Hits or Queries. The records of Hits and Queries have no answer text.
    pub input: String,
    /// Path of the file, relative to the pipeline file. The file and its directory are created if they do not exist.
    pub path: FilePath,
    /// Whether a run appends to an existing file (true) or empties it (false).
    #[field(default = true)]
    pub append: bool,
    /// Which answers the sink gets: `Answered`, `Idk`, `Failed`, `Any([…])` of these, or `Jq("…")`, a program over the
    /// answer's record whose value is true. Default: all.
    pub when: Option<When>,
    /// What is written in place of the answer's record: the values of a program over it, `Jq("…")` or `JqFile("path")`,
    /// one on each line. Their lines do not tell whose answers they are, so after a kill some may be there twice. Default:
    /// the record.
    pub body: Option<BodyConfig>,
    /// Whether the sink receives revisions: `Live` (yes) or `Once` (no). Default: the pipeline's `mode`.
    pub mode: Option<SinkMode>,
}

impl JsonLinesSinkConfig {
    fn shape(&self) -> Shape<'_> {
        Shape { when: self.when.as_ref(), body: self.body.as_ref() }
    }

    /// Opens the file. With `append: false` it is emptied when a run starts.
    pub fn sink(&self, base: &Path) -> Result<JsonLinesSink, ConnectorError> {
        let path = base.join(&self.path.path);
        let bodies = self.shape().bodies()?;
        let output = Output::open(&path)?;
        Ok(JsonLinesSink { path, append: self.append, bodies, output })
    }
}

/// Entry in the connector table.
pub const KIND: SinkKind =
    SinkKind::of::<JsonLinesSinkConfig>("JsonLinesSink", "a file with one JSON line for each answer");

impl SinkConfig for JsonLinesSinkConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.path.path.is_dir() {
            check.error("no-such-path", "path", format!("`{}` is a directory, not a file", self.path.written));
        }
        self.shape().validate(check);
    }

    fn file(&self) -> Option<&Path> {
        Some(&self.path.path)
    }

    fn mode(&self) -> Option<SinkMode> {
        self.mode
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        self.shape().chosen(self.sink(Path::new("")))
    }
}

fn fault(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ConnectorError {
    let path = path.display().to_string();
    move |source| ConnectorError::Io { action, path, source }
}

/// Writes answers to a file.
pub struct JsonLinesSink {
    path: PathBuf,
    append: bool,
    bodies: Bodies,
    output: Output,
}

impl JsonLinesSink {
    /// Switches to the file that is now at the path, if the open one was renamed or deleted. A file that was copied and
    /// truncated counts as a new one.
    fn follow(&mut self) -> Result<(), ConnectorError> {
        if !self.output.is_file {
            return Ok(());
        }
        let there = fs::metadata(&self.path).ok().filter(|there| identity_of(there) == self.output.identity);
        let what = match there.map(|there| there.len()) {
            Some(length) if length >= self.output.length_seen => {
                self.output.length_seen = length;
                return Ok(());
            }
            Some(_) => "the file was truncated; continuing in it",
            None => "the file was renamed or deleted; continuing in a new one",
        };
        // Earlier answers must reach the disk before later ones. Otherwise a power loss could remove only the older of
        // two answers.
        self.output.unsynced().map_err(fault("keep open", &self.path))?.sync(&self.path)?;
        // The new file is not emptied, whoever created it.
        self.output = Output::open(&self.path)?;
        tracing::info!(file = %self.path.display(), "{what}");
        Ok(())
    }

    fn append(&mut self, answer: &AnswerRecord) -> Result<(), ConnectorError> {
        self.follow()?;
        for made in self.bodies.of(answer)? {
            self.output.lines.append(made.json().into_bytes()).map_err(fault("append to", &self.path))?;
        }
        // The answer is written, whatever happens here. A file that was truncated meanwhile is shorter.
        self.output.length_seen = self.output.length().unwrap_or_default().max(self.output.length_seen);
        Ok(())
    }
}

impl AnswerSink for JsonLinesSink {
    fn begin(&mut self) -> Result<(), ConnectorError> {
        if self.append || !self.output.is_file {
            return Ok(());
        }
        self.output.lines.target.set_len(0).map_err(fault("empty", &self.path))?;
        self.output = Output::open(&self.path)?;
        self.output.is_new.store(true, Ordering::Release);
        Ok(())
    }

    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        ready(delivery.answers().iter().try_for_each(|answer| {
            self.append(answer)?;
            delivery.took(1);
            Ok(())
        }))
        .boxed()
    }

    fn kept(&mut self) -> Option<&mut dyn KeptAnswers> {
        // Lines of another form do not tell whose answers they are.
        if self.output.is_file && self.bodies.are_records() { Some(self) } else { None }
    }
}

impl KeptAnswers for JsonLinesSink {
    fn mark(&self) -> SinkPosition {
        // If the file cannot be inspected, the mark matches no file after a restart, which is safe.
        let length = self.output.length().unwrap_or_default();
        SinkPosition { log: self.output.log(length).unwrap_or_default(), length, content: self.output.content(length) }
    }

    fn syncing(&mut self) -> Syncing {
        let (path, file) = (self.path.clone(), self.output.unsynced());
        Box::new(move || file.map_err(fault("keep open", &path))?.sync(&path))
    }

    fn recover(&mut self, search: Search<'_>) -> Result<Recovered, ConnectorError> {
        let Search { since, former, others, others_had } = search;
        if !self.append || !self.output.is_file {
            return Ok(Recovered { is_there: false, answers: Box::new(NoAnswers) });
        }
        let mut found = Found::default();
        self.follow()?;
        for position in former {
            self.scan_former(&mut found, position, search, others)?;
        }
        // A file that another sink had may carry a name like a rotation's.
        let is_own = |path: &PathBuf| {
            let is_former = |of: &SinkPosition| FileMark::path_of(&of.log).is_some_and(|of| is_same(&of, path));
            is_same(path, &self.path) || former.iter().any(is_former)
        };
        let had = others_had.iter().filter_map(|position| FileMark::path_of(&position.log));
        let others: Vec<PathBuf> = others.iter().cloned().chain(had.filter(|path| !is_own(path))).collect();
        let others = &others[..];
        let mark = since.and_then(|since| Some((FileMark::of(since)?, since.length)));
        let marked = |is_found| mark.as_ref().map(|(mark, length)| Marked { mark, length: *length, is_found });
        let standing = mark.as_ref().map(|(mark, length)| (find(&self.path, mark, *length), *length));
        // The sink's path has changed, and the file was not moved to the present one.
        let is_here = matches!(standing, Some((MarkedFile::Here(_), _)));
        let had_another =
            |since: &&SinkPosition| FileMark::path_of(&since.log).is_some_and(|path| !is_same(&path, &self.path));
        let is_elsewhere = match since.filter(had_another) {
            Some(since) if !is_here => self.scan_former(&mut found, since, search, others)?,
            _ => false,
        };
        let (is_there, from) = match standing {
            _ if is_elsewhere => (scan_rotated(&self.path, &mut found, None, others, marked(true))?, 0),
            // An empty file can only be identified by its inode, which may belong to another file by now.
            Some((MarkedFile::Here(_), 0)) => {
                scan_rotated(&self.path, &mut found, None, others, marked(true))?;
                (true, 0)
            }
            Some((MarkedFile::Here(_), length)) => (true, length),
            // The rest of the old file, under its new name, and all files that came after it.
            Some((MarkedFile::Away(file, path), length)) => {
                let identity = identity_of(&file.metadata().map_err(fault("read", &path))?);
                sync(&file, &path)?;
                scan_one(&path, file, length, &mut found)?;
                scan_rotated(&self.path, &mut found, Some(identity), others, marked(true))?;
                (true, 0)
            }
            // It had no answers that could be lost.
            Some((MarkedFile::Gone, 0)) => {
                scan_rotated(&self.path, &mut found, None, others, marked(true))?;
                (true, 0)
            }
            Some((MarkedFile::Gone, _)) | None => {
                let is_there = scan_rotated(&self.path, &mut found, None, others, marked(false))?;
                // A file that begins so was changed, or is another one: all of it is searched.
                let begins_so = mark.as_ref().is_some_and(|(mark, length)| {
                    !matches!(find(&self.path, &mark.beginning(), *length), MarkedFile::Gone)
                });
                (is_there || begins_so || since.is_none(), 0)
            }
        };
        if let Some(since) = since.filter(|_| !is_there) {
            let bytes = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
            tracing::warn!(file = %self.path.display(), bytes, marked = since.length, mark = %since.log,
                "this file does not have the answers that a checkpoint names, and neither has a rotated one");
        }
        // Uses the open handle, because the file may have been rotated since it was opened.
        let reader = self.output.reader.as_ref().map(File::try_clone);
        let file = reader.unwrap_or_else(|| File::open(&self.path)).map_err(fault("read", &self.path))?;
        let torn = found.scan(file, from).map_err(fault("read", &self.path))?;
        if let Some(torn) = torn {
            self.output.lines.torn = true;
            if torn.is_whole {
                // Only the newline is missing.
                self.output.lines.finish().map_err(fault("append to", &self.path))?;
            } else if torn.is_ours {
                tracing::warn!(
                    file = %self.path.display(), bytes = torn.length,
                    "removing an incomplete answer"
                );
                self.output.cut(torn.start).map_err(fault("cut", &self.path))?;
                // The truncation must reach the disk before anything is appended. Otherwise a power loss could restore
                // the removed part.
                self.output.lines.target.sync_data().map_err(fault("write to the disk", &self.path))?;
            }
        }
        Ok(Recovered { is_there, answers: Box::new(found) })
    }
}
