//! Decoders: records of files.

mod chat_text;
pub(crate) mod clock;
mod container;
mod dates;
mod documents;
mod files;
mod form;
mod halves;
mod json;
mod mail;
mod packed;
mod sqlite;
mod stream;
mod table;
mod transcript;
mod urlencoded;
mod xml;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek as _};
use std::path::{Path, PathBuf};

use jaq_json::Val;

pub(crate) use self::files::{files, pattern as allowed};
pub use self::json::Odd;
pub(crate) use self::json::{DIGITS, json};
pub use self::packed::{Packing, plain};
pub(crate) use self::urlencoded::{fields as form_fields, form};
use crate::Columns;
use crate::message::Options;

/// The forms that a mapping may name.
pub(crate) const FORMS: &[&str] =
    &["jsonl", "json", "csv", "mbox", "vtt", "xml", "lines", "sqlite", "sse", "forms", "container", "text"];
/// What is told of `lines` without the beginning of a message.
pub(crate) const NO_START: &str = "lines of text need to know how a message begins: give `start`, a regular expression whose \
     named parts are the fields of a record, such as \"start\": \"^(?<time>\\\\S+) (?<name>[^:]+): (?<text>.*)$\"";

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
    /// and the number of the record. The ending of a packed file is left out.
    pub(crate) fn value(&self) -> Val {
        let plain = plain(&self.path);
        let named = |part: Option<&std::ffi::OsStr>| {
            part.map_or(Val::Null, |part| Val::from(part.to_string_lossy().into_owned()))
        };
        object([
            ("path", Val::from(self.path.to_string_lossy().into_owned())),
            ("file", named(plain.file_name())),
            ("name", named(plain.file_stem())),
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

/// A record, or why it cannot be read.
pub type Found = Result<Record, (Source, DecodeError)>;

/// Takes the records of a file.
pub(crate) struct Records<'a> {
    path: &'a Path,
    each: &'a mut dyn FnMut(Found),
    /// Takes records that have no end yet, if the file may grow.
    open: Option<&'a mut (dyn FnMut(Record) + 'a)>,
    /// Is told the places at which no record is open.
    rests: Option<&'a mut (dyn FnMut(Place) + 'a)>,
    odd: Odd,
}

/// A place in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Number of bytes before it.
    pub bytes: u64,
    /// Number of lines before it.
    pub lines: u64,
}

/// How a file that may grow is read.
#[derive(Default)]
pub struct Growing<'a> {
    /// Takes the records that have no end yet, such as lines of a container of which a part is there.
    pub open: Option<&'a mut (dyn FnMut(Record) + 'a)>,
    /// Is told each place at which no record is open, so that the file can be read from there. Only lines of containers in
    /// a file that is not packed have such places.
    pub rests: Option<&'a mut (dyn FnMut(Place) + 'a)>,
    /// Begin at this place, as it was told.
    pub from: Place,
}

impl Records<'_> {
    pub fn take(&mut self, number: u64, value: Result<Val, String>) {
        let source = Source { path: self.path.to_owned(), number };
        (self.each)(match value {
            Ok(value) => Ok(Record { value, source }),
            Err(reason) => Err((source, DecodeError(reason))),
        });
    }

    /// Takes a record that has no end. If the file is over, it is given as it is.
    pub fn unfinished(&mut self, number: u64, value: Val) {
        match &mut self.open {
            Some(open) => open(Record { value, source: Source { path: self.path.to_owned(), number } }),
            None => {
                self.odd.unfinished += 1;
                self.take(number, Ok(value));
            }
        }
    }
}

/// The form of a file: what its name tells, or else its first bytes.
pub fn form_of(path: &Path) -> &'static str {
    let head = files::open(path).and_then(|mut file| head(&mut file));
    let (head, is_whole) = head.unwrap_or_default();
    form::form(path, &head, is_whole)
}

/// Reads the records of a file. `is_named` says that the file is wanted, and not only found in a folder.
///
/// # Errors
///
/// The file cannot be read. What is wrong with a record goes to `each`.
pub fn read(
    path: &Path,
    options: &Options,
    is_named: bool,
    columns: Option<Columns<'_>>,
    each: &mut dyn FnMut(Found),
) -> io::Result<Odd> {
    read_with(File::open(path)?, path, options, is_named, columns, each, Growing::default())
}

/// Reads the records of a file that is open and was at this path.
///
/// # Errors
///
/// As for [`read`].
pub fn read_open<'a>(
    file: &File,
    path: &'a Path,
    options: &Options,
    each: &'a mut dyn FnMut(Found),
    growing: Growing<'a>,
) -> io::Result<Odd> {
    let mut file = file.try_clone()?;
    if growing.from == Place::default() {
        file.rewind()?;
        return read_with(file, path, options, true, None, each, growing);
    }
    let Growing { open, rests, from } = growing;
    file.seek(io::SeekFrom::Start(from.bytes))?;
    let mut records = Records { path, each, open, rests, odd: Odd::default() };
    container::read(&mut BufReader::new(file), from, &mut records)?;
    Ok(records.odd)
}

fn read_with<'a>(
    mut file: File,
    path: &'a Path,
    options: &Options,
    is_named: bool,
    columns: Option<Columns<'_>>,
    each: &'a mut dyn FnMut(Found),
    growing: Growing<'a>,
) -> io::Result<Odd> {
    let pattern = match options.files.as_deref().map(files::pattern).transpose() {
        Ok(pattern) => pattern,
        Err(reason) => {
            each(Err((Source { path: path.to_owned(), number: 0 }, DecodeError(reason))));
            return Ok(Odd::default());
        }
    };
    let mut odd = Odd::default();
    let mut start = [0; 4];
    let read = file.read(&mut start)?;
    let is_archive = start == *b"PK\x03\x04";
    file.rewind()?;
    if is_archive {
        files::entries(file, path, &mut |inner, entry| {
            if !files::allows(pattern.as_ref(), inner) {
                odd.unread += 1;
                return Ok(());
            }
            let mut records = Records { path: inner, each: &mut *each, open: None, rests: None, odd: Odd::default() };
            let entry = packed::unpacked(Box::new(entry))?;
            by_form(inner, None, entry, options, columns, &mut records)?;
            odd.add(records.odd);
            Ok(())
        })?;
        return Ok(odd);
    }
    if !files::allows(pattern.as_ref(), path) {
        odd.unread += 1;
        return Ok(odd);
    }
    let rests = growing.rests.filter(|_| packed::Packing::of(&start[..read]).is_none());
    let mut records = Records { path, each, open: growing.open, rests, odd };
    let file = packed::unpacked(Box::new(file))?;
    by_form(path, Some(is_named), file, options, columns, &mut records)?;
    Ok(records.odd)
}

/// Number of bytes at the beginning of a file that tell its form.
const HEAD: u64 = 64 << 10;

/// The beginning of a file, and whether that is all of it.
fn head(file: &mut dyn Read) -> io::Result<(Vec<u8>, bool)> {
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head)?;
    let is_whole = (head.len() as u64) < HEAD;
    Ok((head, is_whole))
}

/// Reads a file, which is one of an archive if `is_named` is none.
fn by_form(
    path: &Path,
    is_named: Option<bool>,
    mut file: Box<dyn Read + '_>,
    options: &Options,
    columns: Option<Columns<'_>>,
    records: &mut Records<'_>,
) -> io::Result<()> {
    let (head, is_whole) = head(&mut file)?;
    let form = options.form().unwrap_or_else(|| form::form(path, &head, is_whole));
    let is_table = matches!(form, "sqlite" | "columns");
    if !is_table && is_named != Some(true) && form::is_binary(&head) {
        records.odd.unread += 1;
        return Ok(());
    }
    if is_table && (is_named.is_none() || packed::Packing::of(&file_start(path)?).is_some()) {
        records.take(1, Err("a database or a table of columns is not read from within a packed file".to_owned()));
        return Ok(());
    }
    let mut file = io::Cursor::new(head).chain(file);
    match form {
        "jsonl" => lines(BufReader::new(file), records)?,
        "columns" => match columns {
            Some(columns) => lines(BufReader::new(columns(path)?), records)?,
            None => records.take(1, Err("tables of columns cannot be read here".to_owned())),
        },
        "json" => documents::read(&text(&mut file, &mut records.odd)?, records),
        "csv" => table::read(&text(&mut file, &mut records.odd)?, options, records),
        "mbox" => mail::read(&whole(&mut file)?, records),
        "vtt" => transcript::read(&text(&mut file, &mut records.odd)?, options, records),
        "forms" => urlencoded::read(&mut BufReader::new(file), records)?,
        "container" => container::read(&mut BufReader::new(file), Place::default(), records)?,
        "sse" => stream::read(&text(&mut file, &mut records.odd)?, records),
        "lines" => chat_text::read(&text(&mut file, &mut records.odd)?, options, records),
        "xml" => xml::read(&text(&mut file, &mut records.odd)?, records),
        "text" => {
            let text = text(&mut file, &mut records.odd)?;
            records.take(1, Ok(Val::from(text)));
        }
        "sqlite" => sqlite::read(path, options.query.as_deref(), records),
        other => records.take(1, Err(format!("there is no decoder `{other}`"))),
    }
    Ok(())
}

fn file_start(path: &Path) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(8).read_to_end(&mut start)?;
    Ok(start)
}

/// Lines of JSON.
fn lines(mut file: impl BufRead, records: &mut Records<'_>) -> io::Result<()> {
    each_line(&mut file, LONGEST, &mut |number, line| match line {
        Line::TooLong(reason) => records.take(number, Err(reason)),
        Line::Whole(line) | Line::Last(line) => {
            if !line.trim_ascii().is_empty() {
                let value = json(line, &mut records.odd);
                records.take(number, value);
            }
        }
    })
}

/// A line of a file.
enum Line<'a> {
    Whole(&'a [u8]),
    /// The last one, without its end.
    Last(&'a [u8]),
    /// With the reason why it is not read.
    TooLong(String),
}

/// Gives the lines of a file with their numbers, from 1.
fn each_line(file: &mut dyn BufRead, longest: u64, each: &mut dyn FnMut(u64, Line<'_>)) -> io::Result<()> {
    if matches!(file.fill_buf()?, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
        let text = text(file, &mut Odd::default())?;
        return each_line(&mut text.as_bytes(), longest, each);
    }
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if (&mut *file).take(longest).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if line.ends_with(b"\n") {
            each(number, Line::Whole(&line));
        } else if (line.len() as u64) < longest {
            each(number, Line::Last(&line));
        } else {
            each(number, Line::TooLong(format!("the line is longer than {} MB", longest >> 20)));
            skip_line(file)?;
        }
    }
    Ok(())
}

fn skip_line(file: &mut dyn BufRead) -> io::Result<()> {
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

/// Reads a record of JSON.
///
/// # Errors
///
/// It is no JSON, even without what JSON cannot hold.
pub fn value(record: &[u8], odd: &mut Odd) -> Result<Val, String> {
    json(record, odd)
}

fn whole(file: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(io::Error::other(format!(
            "it has more than {} MB, the limit of a file of this form",
            LARGEST >> 20
        )));
    }
    Ok(bytes)
}

/// The text of a file in UTF-8 or UTF-16, or else as Windows writes it in western Europe. A file with some bytes that are
/// not UTF-8, and more letters that are, is UTF-8.
fn text(mut file: impl Read, odd: &mut Odd) -> io::Result<String> {
    let bytes = whole(&mut file)?;
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
