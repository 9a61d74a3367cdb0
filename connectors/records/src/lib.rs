//! Records of any form become turns of conversations.
//!
//! 1. A *decoder* ([`decode`]) makes records of files: lines of JSON, rows of a table, mails, cues of a transcript.
//! 2. A *mapping* ([`Mapping`]), which is a jq program, makes messages of each record: none, one or many.
//! 3. The *assembly* ([`assemble`]) makes turns of messages: it orders them, drops what came twice, applies edits and
//!    deletions, follows links between messages, removes histories that are repeated, and numbers the turns.
//!
//! Documents are made of records in the same way ([`DocumentMapping`]). What goes out is made by programs, too ([`Body`]).
//!
//! A preset ([`presets`]) is a jq program for a form that many programs write.
//!
//! # The modules
//!
//! A crate by itself, which depends on no other of the workspace but `engine/odd_json`: records of any form become
//! turns. `src/decode/` has one file for each form of file, and beside these `form.rs`, which tells the form,
//! `files.rs` for folders and archives, `packed.rs`, and `dates.rs`, `clock.rs` and `halves.rs` for dates as people
//! write them; `src/mapping.rs` runs jq programs over records, with our own filters (`functions.rs`,
//! `functions/html.rs`, `functions.jq`), `src/documents.rs` makes documents of what they give, `src/message.rs` reads
//! what they give, `src/options.rs` the line of options, `src/parts.rs` splits batches of which a part cannot be
//! mapped, and `src/assemble.rs`, `src/chains.rs` and `src/calls.rs` make turns of messages and of calls of models.
//! `src/jq/` is jaq with limits: `value.rs` wraps its values to count what is done with them (`limits.rs`) and what
//! they hold (`held.rs`), `access.rs` reads and changes parts of them, `program.rs` changes definitions that call
//! themselves so that their calls are counted, `patterns.rs` bounds regular expressions, and `places.rs` finds the term
//! that fails. `matches.rs`, `texts.rs` and `lists.rs` have filters of jq that jaq lacks, or that would take too long
//! as definitions; the table `jq_rows.tsv` says what jq gives. A program that has used up what it may is ended by
//! unwinding, which it cannot catch. `presets/` has one program for each form. `src/stream.rs` does the same with
//! records as they come: messages wait at their places (`stream/due.rs`, `stream/places.rs`), and become turns for good
//! (`stream/turns.rs`; `known.rs` is what is remembered of them).

mod assemble;
mod body;
mod calls;
mod chains;
pub mod decode;
mod documents;
mod functions;
mod jq;
mod known;
mod mapping;
mod message;
mod names;
mod options;
mod parts;
pub mod presets;
mod stream;
mod times;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use self::assemble::assemble;
pub use self::body::{Body, Made};
pub use self::decode::{DecodeError, Odd, Record, Source};
pub use self::documents::{DocumentMapping, MappedDocuments, Row, map_documents};
pub use self::jq::ProgramError;
pub use self::known::{InMemory, Memory};
pub use self::mapping::Mapping;
pub use self::message::{Call, Item, Message, Options};
pub use self::stream::{Held, Released, Stream};

/// A turn as turnflow reads it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Turn {
    /// The conversation.
    pub conversation_id: String,
    /// The number of the question in it, from 1; an agent's turn has that of the question before it.
    pub turn: u32,
    /// `user` or `agent`.
    pub speaker: &'static str,
    /// What was said.
    pub text: String,
    /// When, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<f64>,
    /// Further fields. `removed` is a hash of what the turn takes back, see [`REMOVED`].
    #[serde(flatten)]
    pub fields: serde_json::Map<String, serde_json::Value>,
}

impl Turn {
    /// The turn as a line of JSON, its end included.
    ///
    /// # Errors
    ///
    /// A field cannot be written as JSON.
    pub fn to_line(&self) -> serde_json::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// The field of a turn that takes back what an earlier one said, or is another version of it: a hash of the text that was
/// said, in hexadecimal digits. If the text is empty, nothing else is said.
pub const REMOVED: &str = "removed";

/// The field of a turn that follows one of the same speaker, with nothing in between: of each such turn of an agent, and of
/// a question in a log that is read as a whole and has its agent's replies.
pub const IN_ROW: &str = "in_row";

/// What a mapping makes of files.
#[derive(Debug, Default)]
pub struct Mapped {
    /// The turns, conversation by conversation.
    pub turns: Vec<Turn>,
    /// Number of records that were read.
    pub records: u64,
    /// Number of records that gave no message.
    pub skipped: u64,
    /// Number of messages that became no turn, by the reason.
    pub left_out: BTreeMap<&'static str, u64>,
    /// Records that could not be read or mapped, with the reason.
    pub refused: Vec<(Source, String)>,
    /// What was odd about records that were read all the same.
    pub odd: Odd,
    /// What is in folders and is no file, such as a pipe, and what it is: it was not read.
    pub others: Vec<(PathBuf, &'static str)>,
}

/// Why files cannot be mapped at all.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No file was found.
    #[error("there are no files in {}{}", path.display(), listed(others))]
    Nothing {
        /// The folder.
        path: PathBuf,
        /// What is in it, and is no file.
        others: Vec<(PathBuf, &'static str)>,
    },
    /// A path is no file and no folder.
    #[error("{} is {what}, which is not read: write what it gives to a file, and give that", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
}

/// Names what is no file.
fn listed(others: &[(PathBuf, &'static str)]) -> String {
    let shown = |(path, what): &(PathBuf, &str)| format!("{} is {what}", path.display());
    match others {
        [] => String::new(),
        [one] => format!(": {}", shown(one)),
        [one, rest @ ..] => format!(": {}, and {} more are no files", shown(one), rest.len()),
    }
}

/// Reads a table of columns (Parquet or Arrow) as lines of JSON. This crate has no reader of its own for these.
pub type Columns<'a> = &'a dyn Fn(&Path) -> io::Result<Box<dyn io::Read>>;

/// Maps files, and those of folders, to turns.
///
/// # Errors
///
/// A file cannot be read. What is wrong within a file is in [`Mapped::refused`].
pub fn map_files(mapping: &Mapping, paths: &[PathBuf], columns: Option<Columns<'_>>) -> Result<Mapped, MapError> {
    let mut mapped = Mapped::default();
    let mut items = Vec::new();
    let inputs = decode::files(paths)?;
    mapped.others = inputs.others;
    for path in inputs.files {
        let mut each = |record: Result<Record, (Source, DecodeError)>| {
            mapped.records += 1;
            let (source, found) = match record {
                Ok(record) => {
                    let found = mapping.run_in_parts(&record);
                    (record.source, found)
                }
                Err((source, error)) => (source, Err(error.to_string())),
            };
            match found {
                Ok((found, failed)) => {
                    mapped.refused.extend(failed.map(|reason| (source, reason)));
                    mapped.skipped += u64::from(found.is_empty());
                    items.extend(found);
                }
                Err(reason) => mapped.refused.push((source, reason)),
            }
        };
        let is_named = paths.contains(&path);
        let read = decode::read(&path, mapping.options(), is_named, columns, &mut each);
        mapped.odd.add(read.map_err(|source| MapError::Io { path, source })?);
    }
    (mapped.turns, mapped.left_out) = assemble(items, mapping.options());
    if mapped.odd.before > 0 {
        mapped.left_out.insert("that are lines before the first `start`", mapped.odd.before);
    }
    Ok(mapped)
}

/// The presets that make turns of these files, those that fit best first.
///
/// # Errors
///
/// A file cannot be read.
pub fn recognise(paths: &[PathBuf], columns: Option<Columns<'_>>) -> Result<Vec<(&'static str, Mapped)>, MapError> {
    let first = decode::files(paths)?.files.into_iter().next();
    let form = first.map(|path| decode::form_of(&path)).unwrap_or_default();
    let mut found = Vec::new();
    for (name, code) in presets::PRESETS {
        let Ok(mapping) = Mapping::of(code) else { continue };
        let options = mapping.options();
        let fits = options.decode.as_deref().is_none_or(|decode| decode == form || decode == "lines" && form == "text");
        if !fits {
            continue;
        }
        let mapped = map_files(&mapping, paths, columns)?;
        let speakers: BTreeSet<&str> = mapped.turns.iter().map(|turn| turn.speaker).collect();
        // In a chat of people, only its reader knows who the agent is.
        let needed = if options.form() == Some("lines") { 1 } else { 2 };
        if speakers.len() >= needed && mapped.refused.is_empty() {
            found.push((*name, mapped));
        }
    }
    found.sort_by_cached_key(|(_, mapped)| mapped.fit());
    Ok(found)
}

impl Mapped {
    /// The conversations of the turns.
    #[must_use]
    pub fn conversations(&self) -> BTreeSet<&str> {
        self.turns.iter().map(|turn| &*turn.conversation_id).collect()
    }

    /// How well the mapping fits what it has read; less is better: first, how much it finds, where what is repeated counts
    /// once, then how few records it skips, how many turns have a time, and in how few conversations they are joined.
    fn fit(&self) -> impl Ord + use<> {
        let found: HashSet<(&str, &str)> = self.turns.iter().map(|turn| (turn.speaker, &*turn.text)).collect();
        let times = self.turns.iter().filter(|turn| turn.timestamp.is_some()).count();
        (Reverse(found.len()), self.skipped, Reverse(times), self.conversations().len())
    }
}

#[cfg(test)]
mod tests;
