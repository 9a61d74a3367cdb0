//! `turnflow read`: what a pipeline sees of a file. The program also starts itself in this way as a reader of files that are
//! not plain text.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use serde_json::json;
use turnflow_connectors::readers::{Format, ReadError, worker};
use turnflow_engine::document::Document;
use turnflow_engine::wording::count;

use super::{Fault, Outcome};

/// Print what a pipeline sees of files: their text, as Markdown.
///
/// This is the text that is cut into passages, and shows why something is not found. A file that cannot be read is named
/// with the reason on standard error, and the command ends with exit code 1.
#[derive(Args)]
pub(super) struct ReadArgs {
    /// The files.
    #[arg(required_unless_present = "worker", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// `markdown`, or `json`: one object a file, with its title, text and metadata.
    #[arg(long, value_enum, default_value_t = Form::Markdown)]
    format: Form,
    /// Reads files for another process of turnflow, over standard input and output.
    #[arg(long, hide = true)]
    worker: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Form {
    Markdown,
    Json,
}

/// The arguments with which the program becomes a reader.
const ARGUMENTS: [&str; 2] = ["read", "--worker"];

/// Becomes a reader if the program was started as one, before anything else is prepared. Otherwise files are read by such
/// processes from now on.
pub(super) fn begin() -> Option<ExitCode> {
    let is_reader = std::env::args_os().skip(1).eq(ARGUMENTS);
    if is_reader {
        return Some(worker::serve());
    }
    worker::start_with(&ARGUMENTS);
    None
}

pub(super) fn run(args: &ReadArgs) -> Outcome {
    if args.worker {
        // The arguments were written in another way than those of [`begin`].
        return match worker::serve() {
            ExitCode::SUCCESS => Ok(()),
            _ => Err(Fault::Ended(3)),
        };
    }
    let mut out = io::stdout().lock();
    let mut unread = 0;
    for (number, path) in args.files.iter().enumerate() {
        let document = match document(path) {
            Ok(document) => document,
            Err(reason) => {
                unread += 1;
                eprintln!("{}: {reason}", path.display());
                continue;
            }
        };
        match args.format {
            Form::Json => {
                let Document { id, title, text, metadata, .. } = &document;
                let object = json!({"path": id, "title": title, "text": &**text, "metadata": metadata.to_json()});
                writeln!(out, "{object}")?;
            }
            Form::Markdown => {
                if args.files.len() > 1 {
                    writeln!(out, "{}<!-- {} -->\n", if number > 0 { "\n" } else { "" }, path.display())?;
                }
                writeln!(out, "{}", &*document.text)?;
            }
        }
    }
    out.flush()?;
    match unread {
        0 => Ok(()),
        unread => Err(Fault::Told(anyhow!("{} could not be read", count(unread, "file")))),
    }
}

/// What a source of files makes of a file.
fn document(path: &Path) -> Result<Document, String> {
    let unknown = || format!("there is no reader for this kind of file; those that are read end with {}", endings());
    let format = Format::of(path).ok_or_else(unknown)?;
    if format.has_rows() {
        return Err("each of its rows is a document; `turnflow index` reads them".to_owned());
    }
    let bytes = std::fs::read(path).map_err(|error| ReadError::from(error).to_string())?;
    let id: Arc<str> = path.to_string_lossy().into();
    format.read(id, &bytes).map_err(|error| error.to_string())
}

/// The endings of the names of files that are read.
fn endings() -> String {
    const ENDINGS: [&str; 11] =
        [".md", ".txt", ".html", ".pdf", ".docx", ".pptx", ".xlsx", ".csv", ".tsv", ".epub", ".eml"];
    ENDINGS.join(", ")
}
