//! `turnflow read`: what a pipeline sees of a file. The program also starts itself in this way as a reader of files that are
//! not plain text.

mod marks;
mod passages;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value as Json};
use turnflow_connectors::readers::{self, Format, ReadError, worker};
use turnflow_engine::document::{Chunk, Document};
use turnflow_engine::wording::count;

use self::passages::{PassageArgs, Passages};
use super::{Fault, Outcome};

/// Print what a pipeline sees of files: their text, as Markdown.
///
/// This is the text that is cut into passages, and shows why something is not found. Comments mark where pages and tables
/// begin, pages without text, and pages of which some letters are not known; they are no part of the text. A file that
/// cannot be read is named with the reason on standard error, and the command ends with exit code 1.
#[derive(Args)]
pub(super) struct ReadArgs {
    /// The files.
    #[arg(required_unless_present = "worker", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    passages: PassageArgs,
    /// `markdown`, or `json`: one object a file, with its path, format, title, text, pages, metadata and passages, or the
    /// error.
    #[arg(long, value_enum, default_value_t = Form::Markdown, value_name = "FORMAT")]
    format: Form,
    /// The same as --format json.
    #[arg(long, conflicts_with = "format")]
    json: bool,
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
    readers::ocr::look_with(crate::ocr::open);
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
    let passages = Passages::of(&args.passages)?;
    let mut out = io::stdout().lock();
    let mut unread = 0;
    for (number, path) in args.files.iter().enumerate() {
        let read = Read::of(path, passages.as_ref());
        if let Err(reason) = &read {
            unread += 1;
            eprintln!("{}: {reason}", path.display());
        }
        if args.json || matches!(args.format, Form::Json) {
            writeln!(out, "{}", to_json(path, read))?;
        } else if let Ok(read) = read {
            if args.files.len() > 1 {
                writeln!(out, "{}<!-- {} -->\n", if number > 0 { "\n" } else { "" }, path.display())?;
            }
            read.print(&mut out)?;
        }
    }
    out.flush()?;
    match unread {
        0 => Ok(()),
        unread => Err(Fault::Told(anyhow!("{} could not be read", count(unread, "file")))),
    }
}

/// A file that was read.
struct Read {
    document: Document,
    passages: Option<Vec<Chunk>>,
}

impl Read {
    fn of(path: &Path, passages: Option<&Passages>) -> Result<Self, String> {
        let document = document(path)?;
        let passages = passages.map(|passages| passages.make(&document)).transpose()?;
        Ok(Self { document, passages })
    }

    /// Prints it as Markdown: the passages, if they are asked for, or the text.
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Some(passages) = &self.passages else { return writeln!(out, "{}", marks::marked(&self.document)) };
        if passages.is_empty() {
            writeln!(out, "<!-- no passages -->")?;
        }
        let mut passages = passages.iter().map(passages::to_markdown);
        let first = passages.next();
        first.iter().try_for_each(|passage| write!(out, "{passage}"))?;
        passages.try_for_each(|passage| write!(out, "\n{passage}"))
    }
}

/// What is known of a file, as an object.
fn to_json(path: &Path, read: Result<Read, String>) -> Json {
    let format = Format::of(path).map(Format::name);
    let mut object = Map::new();
    object.insert("path".to_owned(), path.to_string_lossy().into());
    object.insert("format".to_owned(), format.into());
    match read {
        Err(reason) => drop(object.insert("error".to_owned(), reason.into())),
        Ok(Read { document, passages }) => {
            let pages: Vec<Json> = marks::pages(&document).iter().map(marks::Page::to_json).collect();
            object.insert("title".to_owned(), document.title.to_string().into());
            object.insert("text".to_owned(), document.text.to_string().into());
            object.insert("pages".to_owned(), pages.into());
            object.insert("metadata".to_owned(), document.metadata.to_json().into());
            let passages = passages.map(|passages| passages.iter().map(passages::to_json).collect::<Json>());
            passages.into_iter().for_each(|passages| drop(object.insert("passages".to_owned(), passages)));
        }
    }
    Json::Object(object)
}

/// What a source of files makes of a file.
fn document(path: &Path) -> Result<Document, String> {
    if path.is_dir() {
        return Err("it is a folder; name its files".to_owned());
    }
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
    const ENDINGS: [&str; 15] = [
        ".md", ".txt", ".html", ".pdf", ".docx", ".pptx", ".xlsx", ".csv", ".tsv", ".epub", ".eml", ".png", ".jpg",
        ".tiff", ".webp",
    ];
    ENDINGS.join(", ")
}
