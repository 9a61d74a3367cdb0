//! Imports published benchmarks, and the feedback of users: reads files and writes them as corpora, tasks,
//! queries, judgements and turns in turnflow's formats.
//!
//! - MTRAG and MTRAG-UN (Katsis et al. 2025; Rosenthal et al. 2026): `mtrag`.
//! - ObliQA and RIRAG (Gokhan et al. 2024): `obliqa`.
//! - HotpotQA (Yang et al. 2018) and its subset HQ-small: `hotpotqa`.
//! - Feedback in one's own turn logs: `feedback`.
//!
//! Files are read record by record, so memory does not grow with the texts of a corpus, only with its
//! ids. What a file contains is recognised by the fields of its first record.

mod evaluations;
mod feedback;
mod hotpotqa;
mod input;
mod job;
mod mtrag;
mod obliqa;
mod output;
mod report;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use self::input::Input;
use self::job::{Job, Place, Question};
pub use self::output::Written;
pub use self::report::{LeftOut, Report};

/// A benchmark whose files can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Benchmark {
    /// MTRAG and MTRAG-UN.
    Mtrag,
    /// ObliQA and RIRAG.
    Obliqa,
    /// HotpotQA and HQ-small.
    Hotpotqa,
    /// Turn logs with feedback, and answers.
    Feedback,
}

impl fmt::Display for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Benchmark::Mtrag => "MTRAG",
            Benchmark::Obliqa => "ObliQA",
            Benchmark::Hotpotqa => "HotpotQA",
            Benchmark::Feedback => "turn logs with feedback",
        })
    }
}

/// Limits of what is read, in bytes after decompression.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one file.
    pub file: u64,
    /// Bytes of one record.
    pub record: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { file: 4 << 30, record: 64 << 20 }
    }
}

/// How files are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Leave out records that cannot be read, instead of writing nothing.
    pub skip_invalid: bool,
    /// Limits of what is read.
    pub limits: Limits,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file cannot be read.
    #[error("{file}: cannot read it")]
    Read {
        /// The file.
        file: String,
        /// Why not.
        source: io::Error,
    },
    /// A file or a record is larger than the limit.
    #[error("{file}: it has more than {} MB, or a record of more than {} MB; `--max-mb` sets the limit", limits.file >> 20, limits.record >> 20)]
    TooLarge {
        /// The file.
        file: String,
        /// The limits.
        limits: Limits,
    },
    /// An archive is damaged.
    #[error("{file}: cannot read the archive")]
    Archive {
        /// The archive.
        file: String,
        /// Why not.
        source: zip::result::ZipError,
    },
    /// A file is the placeholder that a clone without Git LFS has.
    #[error("{file}: this is a pointer of Git LFS, not the file; `git lfs pull` fetches it")]
    Pointer {
        /// The file.
        file: String,
    },
    /// The output folder is also an input.
    #[error("`{}` is both an input and the output folder", path.display())]
    SameFolder {
        /// The folder.
        path: PathBuf,
    },
    /// No file belongs to the benchmark.
    #[error("no file of {benchmark} is among the inputs{}", Listed("skipped", skipped))]
    Nothing {
        /// The benchmark.
        benchmark: Benchmark,
        /// The files that were found.
        skipped: Vec<LeftOut>,
    },
    /// Some records cannot be read.
    #[error(
        "some records cannot be read, so nothing was written; `--skip-invalid` leaves them out{}",
        Listed("invalid", invalid)
    )]
    Invalid {
        /// These records.
        invalid: Vec<LeftOut>,
    },
    /// The output cannot be written.
    #[error("{}: cannot write to it", path.display())]
    Write {
        /// The output folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What was left out, as part of an error.
struct Listed<'a>(&'static str, &'a [LeftOut]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        report::list(f, self.0, self.1)
    }
}

/// Imports a benchmark from files, folders and archives.
///
/// # Errors
///
/// An input cannot be read or is larger than the limits, no input belongs to the benchmark, a record is
/// invalid, or the output cannot be written. Then the output folder is as it was.
pub fn import(
    benchmark: Benchmark,
    paths: &[PathBuf],
    output: &Path,
    settings: &Settings,
) -> Result<Report, ImportError> {
    let inputs = input::find(paths, output)?;
    let mut job = Job::new(output, *settings)?;
    match benchmark {
        Benchmark::Mtrag => mtrag::import(&inputs, &mut job)?,
        Benchmark::Obliqa => obliqa::import(&inputs, &mut job)?,
        Benchmark::Hotpotqa => hotpotqa::import(&inputs, &mut job)?,
        Benchmark::Feedback => feedback::import(&inputs, &mut job)?,
    }
    job.finish(benchmark)
}

/// The elements of a JSON list with their lines. Where the list is broken off, there is an empty element.
pub(crate) fn list_elements(text: &str) -> Vec<(usize, String)> {
    let mut bytes = text.as_bytes();
    let limits = Limits { file: u64::MAX, record: usize::MAX };
    let Ok(mut records) = input::Records::new(&mut bytes, false, limits) else { return Vec::new() };
    let (mut found, mut record) = (Vec::new(), Vec::new());
    let line = |line: u64| usize::try_from(line).unwrap_or(usize::MAX);
    loop {
        match records.next(&mut record) {
            Ok(input::Next::Record(at)) => found.push((line(at), String::from_utf8_lossy(&record).trim().to_owned())),
            Ok(input::Next::Broken(at)) => found.push((line(at), String::new())),
            Ok(input::Next::End) | Err(_) => return found,
        }
    }
}

/// A field that is text, or a number written as text.
fn text(object: &Map<String, Value>, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| match object.get(*name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

/// The endings of the names of several files of questions: `.dev` for `ObliQA_dev`, or the whole
/// name. One file alone needs none.
fn suffixes(questions: &[&Input]) -> Vec<String> {
    const SPLITS: [&str; 6] = ["train", "dev", "validation", "test", "unseen", "sample"];
    let words = |input: &&Input| -> String {
        let name = input.stem.to_lowercase();
        let mut words = name.split(|letter: char| !letter.is_alphanumeric());
        let split = words.find(|word| SPLITS.contains(word)).unwrap_or(&name);
        format!(".{}", safe(split))
    };
    match questions {
        [_] => vec![String::new()],
        several => {
            let names: Vec<String> = several.iter().map(words).collect();
            let is_unique = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
            let whole = |(name, input): (&String, &&Input)| {
                if is_unique(name) { name.clone() } else { format!(".{}", safe(&input.stem)) }
            };
            names.iter().zip(several).map(whole).collect()
        }
    }
}

/// A name as a part of a file name.
fn safe(name: &str) -> String {
    let letter = |letter: char| if letter.is_alphanumeric() || "._-".contains(letter) { letter } else { '-' };
    let name: String = name.chars().map(letter).take(100).collect();
    match name.trim_start_matches('.') {
        "" => "unnamed".to_owned(),
        name => name.to_owned(),
    }
}
