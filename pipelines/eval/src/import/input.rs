//! Finds the files of a download and reads them record by record, also from `.gz` and `.zip`.
//!
//! Nothing is unpacked to the disk, and the names in an archive are never used as paths. The bytes that
//! are read are counted after decompression, so a small archive cannot fill the memory or the disk.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use zip::ZipArchive;

use super::{ImportError, Limits};

/// Beginning of the file that a clone without Git LFS has in place of a large file.
const LFS: &[u8] = b"version https://git-lfs";

/// A file, or an entry of an archive.
#[derive(Clone, Debug)]
pub(super) struct Input {
    /// For messages: the path, and the entry after a colon.
    pub name: String,
    /// The file name without folders and extensions: `clapnq` for `clapnq.jsonl.zip`.
    pub stem: String,
    /// The names of the folders around it, from the folder that was named in the call.
    pub folders: Vec<String>,
    /// The extension: `json`, `jsonl` or `tsv`.
    pub extension: String,
    /// Whether it was found in a folder, not named itself.
    pub found: bool,
    path: PathBuf,
    entry: Option<usize>,
}

/// The file name without `.gz` or `.zip`, and its extension in lower case.
fn parts(name: &str) -> (String, String) {
    let packed = [".gz", ".zip"].iter().find_map(|end| name.strip_suffix(end));
    let name = packed.unwrap_or(name);
    match name.rsplit_once('.') {
        Some((stem, extension)) => (stem.to_owned(), extension.to_lowercase()),
        None => (name.to_owned(), String::new()),
    }
}

impl Input {
    /// `root` is the folder in which the file was found.
    fn new(path: &Path, entry: Option<(usize, &str)>, root: Option<&Path>) -> Self {
        let above = root.and_then(Path::parent).and_then(|above| path.strip_prefix(above).ok()).unwrap_or(path);
        let mut folders: Vec<String> = above.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        let mut name = path.display().to_string();
        if let Some((_, entry)) = entry {
            name = format!("{name}:{entry}");
            folders.extend(entry.split(['/', '\\']).map(str::to_owned));
        }
        let (stem, extension) = parts(&folders.pop().unwrap_or_default());
        let (found, entry) = (root.is_some(), entry.map(|(at, _)| at));
        Self { name, stem, folders, extension, found, path: path.into(), entry }
    }

    /// Whether a folder around it has this name.
    pub fn is_in(&self, folder: &str) -> bool {
        self.folders.iter().any(|name| name == folder)
    }

    fn is_data(&self) -> bool {
        ["json", "jsonl", "tsv"].contains(&self.extension.as_str())
    }

    /// Reads it, decompressed, up to the limit.
    pub fn read<T>(
        &self,
        limits: Limits,
        read: impl FnOnce(&mut dyn BufRead) -> Result<T, ImportError>,
    ) -> Result<T, ImportError> {
        let fault = |source| ImportError::Read { file: self.name.clone(), source };
        let mut file = BufReader::new(File::open(&self.path).map_err(fault)?);
        if file.fill_buf().map_err(fault)?.starts_with(LFS) {
            return Err(ImportError::Pointer { file: self.name.clone() });
        }
        let bounded = |reader: &mut dyn Read| -> Result<T, ImportError> {
            read(&mut BufReader::with_capacity(1 << 16, Bounded { inner: reader, left: limits.file }))
        };
        match self.entry {
            Some(at) => {
                let mut archive = archive(file, &self.path)?;
                let broken = |source| ImportError::Archive { file: self.name.clone(), source };
                bounded(&mut archive.by_index(at).map_err(broken)?)
            }
            None if self.path.extension().is_some_and(|end| end == "gz") => bounded(&mut MultiGzDecoder::new(file)),
            None => bounded(&mut file),
        }
    }
}

fn archive(file: BufReader<File>, path: &Path) -> Result<ZipArchive<BufReader<File>>, ImportError> {
    ZipArchive::new(file).map_err(|source| ImportError::Archive { file: path.display().to_string(), source })
}

/// Fails after this many bytes.
struct Bounded<'a> {
    inner: &'a mut dyn Read,
    left: u64,
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or(ErrorKind::FileTooLarge)?;
        Ok(read)
    }
}

/// The data files among these paths: files, the files in folders, and the entries of archives, each
/// path's sorted by name. Files in `output` are omitted.
pub(super) fn find(paths: &[PathBuf], output: &Path) -> Result<Vec<Input>, ImportError> {
    let output = output.canonicalize().ok();
    let mut inputs = Vec::new();
    for path in paths {
        let fault = |path: &Path| {
            let file = path.display().to_string();
            move |source| ImportError::Read { file, source }
        };
        let is_folder = std::fs::metadata(path).map_err(fault(path))?.is_dir();
        if is_folder && output.is_some() && path.canonicalize().ok() == output {
            return Err(ImportError::SameFolder { path: path.clone() });
        }
        let (mut files, mut folders) = (Vec::new(), Vec::new());
        if is_folder { &mut folders } else { &mut files }.push(path.clone());
        while let Some(folder) = folders.pop() {
            if output.is_some() && folder.canonicalize().ok() == output {
                continue;
            }
            for entry in std::fs::read_dir(&folder).map_err(fault(&folder))? {
                let entry = entry.map_err(fault(&folder))?;
                // Links are not followed: a folder may link to itself.
                let kind = entry.file_type().map_err(fault(&folder))?;
                if entry.file_name().to_string_lossy().starts_with('.') {
                    continue;
                }
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if kind.is_file() {
                    files.push(entry.path());
                }
            }
        }
        files.sort();
        let root = is_folder.then_some(path.as_path());
        for file in files {
            if file.extension().is_some_and(|end| end.eq_ignore_ascii_case("zip")) {
                entries(&file, root, &mut inputs)?;
            } else {
                let input = Input::new(&file, None, root);
                inputs.extend((input.is_data() || !is_folder).then_some(input));
            }
        }
    }
    Ok(inputs)
}

/// Adds the data files of an archive, without what macOS adds.
fn entries(file: &Path, root: Option<&Path>, inputs: &mut Vec<Input>) -> Result<(), ImportError> {
    let fault = |source| ImportError::Read { file: file.display().to_string(), source };
    let mut reader = BufReader::new(File::open(file).map_err(fault)?);
    if reader.fill_buf().map_err(fault)?.starts_with(LFS) {
        return Err(ImportError::Pointer { file: file.display().to_string() });
    }
    let archive = archive(reader, file)?;
    let mut named: Vec<Input> = (0..archive.len())
        .filter_map(|at| Some(Input::new(file, Some((at, archive.name_for_index(at)?)), root)))
        .filter(|input| input.is_data() && !input.stem.starts_with('.') && !input.is_in("__MACOSX"))
        .collect();
    named.sort_by(|a, b| a.name.cmp(&b.name));
    inputs.extend(named);
    Ok(())
}

/// The records of a file: the elements of a JSON list, or else its lines.
pub(super) struct Records<'a> {
    reader: &'a mut dyn BufRead,
    line: u64,
    /// Bytes that a record may have.
    most: usize,
    list: Option<List>,
}

/// Where a list is.
enum List {
    Open,
    Closed,
}

/// What is read next.
pub(super) enum Next {
    /// A record is in the buffer. It begins at this line, counted from 1.
    Record(u64),
    /// The list ends before its `]`, or text follows it, at this line.
    Broken(u64),
    /// The end of the file.
    End,
}

impl<'a> Records<'a> {
    /// Recognises a JSON list by its first character, unless only lines are expected.
    pub fn new(reader: &'a mut dyn BufRead, only_lines: bool, limits: Limits) -> io::Result<Self> {
        let mut this = Self { reader, line: 1, most: limits.record, list: None };
        if this.reader.fill_buf()?.starts_with("\u{feff}".as_bytes()) {
            this.reader.consume(3);
        }
        if !only_lines && this.peek_solid()? == Some(b'[') {
            this.reader.consume(1);
            this.list = Some(List::Open);
        }
        Ok(this)
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.reader.fill_buf()?.first().copied())
    }

    /// Skips white space.
    fn peek_solid(&mut self) -> io::Result<Option<u8>> {
        loop {
            match self.peek()? {
                Some(byte) if byte.is_ascii_whitespace() => {
                    self.line += u64::from(byte == b'\n');
                    self.reader.consume(1);
                }
                other => return Ok(other),
            }
        }
    }

    /// Reads the next record into the buffer. It need not be valid JSON.
    pub fn next(&mut self, record: &mut Vec<u8>) -> io::Result<Next> {
        record.clear();
        match self.list {
            None => self.next_line(record),
            Some(List::Closed) => Ok(self.peek_solid()?.map_or(Next::End, |_| {
                self.list = None;
                Next::Broken(self.line)
            })),
            Some(List::Open) => self.next_element(record),
        }
    }

    fn next_line(&mut self, record: &mut Vec<u8>) -> io::Result<Next> {
        loop {
            record.clear();
            let most = self.most as u64 + 1;
            if (&mut *self.reader).take(most).read_until(b'\n', record)? as u64 == most {
                return Err(ErrorKind::FileTooLarge.into());
            }
            let line = self.line;
            self.line += u64::from(record.ends_with(b"\n"));
            match record.trim_ascii() {
                [] if record.is_empty() => return Ok(Next::End),
                [] => {}
                _ => return Ok(Next::Record(line)),
            }
        }
    }

    fn next_element(&mut self, record: &mut Vec<u8>) -> io::Result<Next> {
        while self.peek_solid()? == Some(b',') {
            self.reader.consume(1);
        }
        let begin = self.line;
        let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
        loop {
            let Some(byte) = self.peek()? else {
                self.list = Some(List::Closed);
                return Ok(Next::Broken(if record.is_empty() { self.line } else { begin }));
            };
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                _ if quoted => {}
                b'{' | b'[' => depth += 1,
                b',' if depth == 0 => return Ok(Next::Record(begin)),
                b']' if depth == 0 => {
                    if record.is_empty() {
                        self.reader.consume(1);
                        self.list = Some(List::Closed);
                        return self.next(record);
                    }
                    return Ok(Next::Record(begin));
                }
                b'}' | b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if record.len() >= self.most {
                return Err(ErrorKind::FileTooLarge.into());
            }
            self.line += u64::from(byte == b'\n');
            record.push(byte);
            self.reader.consume(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { file: 1 << 20, record: 100 };

    /// Every record with its line; `!` for what is broken.
    fn records(text: &str) -> Vec<(u64, String)> {
        let mut bytes = text.as_bytes();
        let mut records = Records::new(&mut bytes, false, LIMITS).unwrap();
        let (mut found, mut record) = (Vec::new(), Vec::new());
        loop {
            match records.next(&mut record).unwrap() {
                Next::Record(line) => found.push((line, String::from_utf8_lossy(record.trim_ascii()).into_owned())),
                Next::Broken(line) => found.push((line, "!".to_owned())),
                Next::End => return found,
            }
        }
    }

    #[test]
    fn lists_and_lines_have_the_lines_of_their_records() {
        let told =
            |found: &[(u64, &str)]| found.iter().map(|(line, text)| (*line, (*text).to_owned())).collect::<Vec<_>>();
        for (text, want) in [
            ("\u{feff}{\"a\":1}\r\n\n {\"b\":[\n", told(&[(1, "{\"a\":1}"), (3, "{\"b\":[")])),
            (
                "\n [\n  {\"a\": \"],[\\\"\"},\n\n  [1,\n2], 3]\n",
                told(&[(3, "{\"a\": \"],[\\\"\"}"), (5, "[1,\n2]"), (6, "3")]),
            ),
            ("[]", Vec::new()),
            ("[{\"a\":1},\n{\"b\"", told(&[(1, "{\"a\":1}"), (2, "!")])),
            ("[1]\nx", told(&[(1, "1"), (2, "!"), (2, "x")])),
            ("", Vec::new()),
        ] {
            assert_eq!(records(text), want, "{text}");
        }
    }

    #[test]
    fn a_long_record_is_an_error() {
        for text in [format!("[\"{}\"]", "x".repeat(200)), "y".repeat(200)] {
            let mut bytes = text.as_bytes();
            let mut records = Records::new(&mut bytes, false, LIMITS).unwrap();
            let error = records.next(&mut Vec::new()).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        }
    }

    #[test]
    fn names_are_parts_of_paths() {
        let input = Input::new(
            Path::new("corpora/passage_level/clapnq.jsonl.zip"),
            Some((0, "x/clapnq.jsonl")),
            Some(Path::new("corpora")),
        );
        assert_eq!((input.stem.as_str(), input.extension.as_str()), ("clapnq", "jsonl"));
        assert!(input.is_in("passage_level") && input.is_in("x") && input.is_data());
        let input = Input::new(Path::new("ObliQA_dev.json.gz"), None, None);
        assert_eq!((input.stem.as_str(), input.extension.as_str()), ("ObliQA_dev", "json"));
        let input = Input::new(Path::new("scripts/data/a.jsonl"), None, Some(Path::new("scripts/data")));
        assert_eq!(input.folders, ["data"]);
    }
}
