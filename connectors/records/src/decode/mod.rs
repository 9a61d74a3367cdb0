//! Decoders: records of files.

mod chat_text;
mod json;
mod mail;
mod sqlite;
mod stream;
mod table;
mod transcript;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use jaq_json::Val;

pub use self::json::Odd;
pub(crate) use self::json::json;
use crate::message::Options;
use crate::{Columns, MapError};

/// Maximum size of a file that is read as a whole, in bytes.
const LARGEST: u64 = 1 << 30;
/// Maximum size of a line, in bytes.
const LONGEST: u64 = 64 << 20;

/// A record, and where it comes from.
#[derive(Clone, Debug)]
pub struct Record {
    /// The record.
    pub value: Val,
    /// Where it comes from.
    pub source: Source,
}

/// Where a record comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// The number of the record's line, or of the record in its file, from 1.
    pub number: u64,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.number)
    }
}

impl Source {
    /// What a program sees as `$source`: the path, the names of the file with and without its ending and of its folder,
    /// and the number of the record.
    pub(crate) fn value(&self) -> Val {
        let named = |part: Option<&std::ffi::OsStr>| {
            part.map_or(Val::Null, |part| Val::from(part.to_string_lossy().into_owned()))
        };
        object([
            ("path", Val::from(self.path.to_string_lossy().into_owned())),
            ("file", named(self.path.file_name())),
            ("name", named(self.path.file_stem())),
            ("folder", named(self.path.parent().and_then(Path::file_name))),
            ("number", Val::from(usize::try_from(self.number).unwrap_or(usize::MAX))),
        ])
    }
}

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub(crate) String);

pub(crate) fn object<const N: usize>(fields: [(&str, Val); N]) -> Val {
    Val::obj(fields.into_iter().map(|(name, value)| (Val::from(name.to_owned()), value)).collect())
}

/// The files at these paths; those of folders in the order of their names.
pub(crate) fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, MapError> {
    let mut found = Vec::new();
    for path in paths {
        let before = found.len();
        walk(path, &mut found).map_err(|source| MapError::Io { path: path.clone(), source })?;
        if found.len() == before {
            return Err(MapError::Nothing(path.clone()));
        }
    }
    Ok(found)
}

fn walk(path: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    if !path.metadata()?.is_dir() {
        found.push(path.to_owned());
        return Ok(());
    }
    let mut entries: Vec<_> = std::fs::read_dir(path)?.collect::<io::Result<_>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries.into_iter().filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')) {
        // Links may lead anywhere.
        if !entry.file_type()?.is_symlink() {
            walk(&entry.path(), found)?;
        }
    }
    Ok(())
}

type Found = Result<Record, (Source, DecodeError)>;

/// Takes the records of a file.
pub(crate) struct Records<'a> {
    path: &'a Path,
    each: &'a mut dyn FnMut(Found),
    odd: Odd,
}

impl Records<'_> {
    pub fn take(&mut self, number: u64, value: Result<Val, String>) {
        let source = Source { path: self.path.to_owned(), number };
        (self.each)(match value {
            Ok(value) => Ok(Record { value, source }),
            Err(reason) => Err((source, DecodeError(reason))),
        });
    }
}

/// The form that the name of a file tells.
pub(crate) fn form_of(path: &Path) -> &'static str {
    match path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase()).as_deref() {
        Some("json") => "json",
        Some("csv" | "tsv") => "csv",
        Some("mbox" | "eml") => "mbox",
        Some("vtt" | "srt") => "vtt",
        Some("sqlite" | "db" | "sqlite3") => "sqlite",
        Some("parquet" | "arrow" | "feather") => "columns",
        Some("sse") => "sse",
        Some("txt") => "text",
        _ => "jsonl",
    }
}

/// Reads the records of a file.
///
/// # Errors
///
/// The file cannot be read. What is wrong with a record goes to `each`.
pub(crate) fn read(
    path: &Path,
    options: &Options,
    columns: Option<Columns<'_>>,
    each: &mut dyn FnMut(Found),
) -> io::Result<Odd> {
    let mut records = Records { path, each, odd: Odd::default() };
    by_form(path, options, columns, &mut records)?;
    Ok(records.odd)
}

fn by_form(path: &Path, options: &Options, columns: Option<Columns<'_>>, records: &mut Records<'_>) -> io::Result<()> {
    let form = match form_of(path) {
        "text" if options.start.is_some() => "lines",
        form => form,
    };
    match options.decode.as_deref().unwrap_or(form) {
        "jsonl" => lines(BufReader::new(File::open(path)?), records),
        "columns" => match columns {
            Some(columns) => lines(BufReader::new(columns(path)?), records),
            None => {
                records.take(1, Err("tables of columns cannot be read here".to_owned()));
                Ok(())
            }
        },
        "json" => {
            document(&whole(path)?, records);
            Ok(())
        }
        "csv" => {
            table::read(&text(path, &mut records.odd)?, records);
            Ok(())
        }
        "mbox" => {
            mail::read(&whole(path)?, records);
            Ok(())
        }
        "vtt" => {
            transcript::read(&text(path, &mut records.odd)?, records);
            Ok(())
        }
        "sse" => {
            stream::read(&text(path, &mut records.odd)?, records);
            Ok(())
        }
        "lines" => {
            chat_text::read(&text(path, &mut records.odd)?, options.start.as_deref().unwrap_or_default(), records);
            Ok(())
        }
        "text" => {
            let text = text(path, &mut records.odd)?;
            records.take(1, Ok(Val::from(text)));
            Ok(())
        }
        "sqlite" => {
            sqlite::read(path, options.query.as_deref(), records);
            Ok(())
        }
        other => {
            records.take(1, Err(format!("there is no decoder `{other}`")));
            Ok(())
        }
    }
}

/// Lines of JSON.
fn lines(mut file: impl BufRead, records: &mut Records<'_>) -> io::Result<()> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if (&mut file).take(LONGEST).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let is_cut = line.len() as u64 == LONGEST && !line.ends_with(b"\n");
        if is_cut {
            records.take(number, Err(format!("the line is longer than {} MB", LONGEST >> 20)));
            skip_line(&mut file)?;
            continue;
        }
        if !line.trim_ascii().is_empty() {
            let value = json(&line, &mut records.odd);
            records.take(number, value);
        }
    }
    Ok(())
}

fn skip_line(file: &mut impl BufRead) -> io::Result<()> {
    loop {
        let (used, is_over) = {
            let ready = file.fill_buf()?;
            match ready.iter().position(|byte| *byte == b'\n') {
                Some(at) => (at + 1, true),
                None => (ready.len(), ready.is_empty()),
            }
        };
        file.consume(used);
        if is_over {
            return Ok(());
        }
    }
}

/// One document; the elements of a list are records.
fn document(bytes: &[u8], records: &mut Records<'_>) {
    match json(bytes, &mut records.odd) {
        Ok(Val::Arr(list)) => {
            (1..).zip(list.iter()).for_each(|(number, value)| records.take(number, Ok(value.clone())))
        }
        value => records.take(1, value),
    }
}

/// Reads a record of JSON.
///
/// # Errors
///
/// It is no JSON, even without what JSON cannot hold.
pub fn value(record: &[u8], odd: &mut Odd) -> Result<Val, String> {
    json(record, odd)
}

fn whole(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > LARGEST {
        return Err(io::Error::other(format!(
            "it has more than {} MB, the limit of a file of this form",
            LARGEST >> 20
        )));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a file in UTF-8 or UTF-16, or else as Windows writes it in western Europe. A file with some bytes that are
/// not UTF-8, and more letters that are, is UTF-8.
fn text(path: &Path, odd: &mut Odd) -> io::Result<String> {
    let bytes = whole(path)?;
    if let Some((encoding, length)) = encoding_rs::Encoding::for_bom(&bytes) {
        return Ok(encoding.decode_without_bom_handling(&bytes[length..]).0.into_owned());
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let (mut letters, mut broken) = (0, 0);
            for part in error.as_bytes().utf8_chunks() {
                letters += part.valid().chars().filter(|letter| !letter.is_ascii()).count();
                broken += usize::from(!part.invalid().is_empty());
            }
            if letters > broken {
                odd.broken += 1;
                return Ok(String::from_utf8_lossy(error.as_bytes()).into_owned());
            }
            encoding_rs::WINDOWS_1252.decode(error.as_bytes()).0.into_owned()
        }
    })
}
