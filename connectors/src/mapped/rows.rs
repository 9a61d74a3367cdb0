//! Rows of a corpus in another form: a mapping makes documents of them.

use std::collections::HashMap;
use std::io::{self, Read};

use turnflow_engine::component::Check;
use turnflow_engine::panics::caught;
use turnflow_records::{DocumentMapping, Record, Row, Source, decode};

use super::MapConfig;
use super::config::code_of;
use crate::lines::{Line, LineReader};

/// What makes documents of rows.
#[derive(Debug)]
pub(crate) struct RowMap {
    mapping: DocumentMapping,
    /// The file or the table, as `$source.path`.
    path: String,
}

/// A row that gave no document: its number, why, and its beginning.
pub(crate) type Refused = (u64, String, Vec<u8>);

impl RowMap {
    /// # Errors
    ///
    /// The program is wrong, or cannot be read.
    pub fn of(map: &MapConfig, path: &str) -> Result<Self, String> {
        let code = match map {
            MapConfig::Jq(code) => code.clone(),
            MapConfig::JqFile(file) => std::fs::read_to_string(&file.path)
                .map_err(|error| format!("cannot read `{}`: {error}", file.written))?,
            MapConfig::Preset(_) => return Err(PRESET.to_owned()),
        };
        let mapping = DocumentMapping::of(&code).map_err(|error| error.to_string())?;
        Ok(Self { mapping, path: path.to_owned() })
    }

    /// Reports what is wrong with a field `map`.
    pub fn validate(map: Option<&MapConfig>, check: &mut Check<'_>) {
        let Some(map) = map else { return };
        if matches!(map, MapConfig::Preset(_)) {
            return check.error("map-form", "map", PRESET.to_owned());
        }
        let Some((name, code)) = code_of(map, check) else { return };
        match (DocumentMapping::of(&code), name) {
            (Ok(_), _) => {}
            (Err(error), None) => check.error_within("bad-map", "map", (error.line, error.column), error.reason),
            (Err(error), Some(name)) => check.error("bad-map", "map", format!("{name}, {error}")),
        }
    }

    fn documents(&self, line: &[u8], number: u64) -> Result<Vec<Row>, String> {
        let value = decode::value(line, &mut Default::default())?;
        let record = Record { value, source: Source { path: self.path.clone().into(), number } };
        caught(|| self.mapping.run(&record)).unwrap_or_else(|panic| Err(format!("mapping it {panic}")))
    }

    /// The documents of a value under a key, which is `$source.path`, and the id of a document that has none.
    ///
    /// # Errors
    ///
    /// The value is no JSON, or the program fails on it.
    #[cfg(feature = "remote")]
    pub fn under(&self, key: &str, value: &[u8]) -> Result<Vec<Row>, String> {
        let value = decode::value(value, &mut Default::default())?;
        let record = Record { value, source: Source { path: key.into(), number: 0 } };
        let found = caught(|| self.mapping.run_under(Some(key), &record));
        found.unwrap_or_else(|panic| Err(format!("mapping it {panic}"))).map_err(|error| format!("not mapped: {error}"))
    }

    /// Which row of each id is the last one, and the rows that give no document. A last line without its end counts if it
    /// `is_last`.
    ///
    /// # Errors
    ///
    /// The stream cannot be read.
    pub fn look(&self, stream: impl Read, limit: usize, is_last: bool) -> io::Result<(Latest, Vec<Refused>)> {
        let (mut latest, mut refused) = (HashMap::new(), Vec::new());
        let mut lines = LineReader::new(stream, limit);
        let mut place = 0_u64;
        loop {
            let finished = lines.advance()?;
            if !finished && !lines.is_inside() {
                break;
            }
            let number = lines.number();
            match lines.line() {
                Line::TooLong { start, bytes } => {
                    refused.push((number, format!("the line has {bytes} bytes, more than {limit}"), start.to_vec()));
                }
                Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => {}
                Line::Whole(line) => match self.documents(line, number) {
                    Ok(rows) => {
                        for Row { id, .. } in rows {
                            latest.insert(key(&id), place);
                            place += 1;
                        }
                    }
                    Err(reason) if finished || is_last => {
                        refused.push((number, format!("not mapped: {reason}"), line.to_vec()));
                    }
                    Err(_) => {}
                },
            }
            if !finished {
                break;
            }
        }
        Ok((Latest(latest), refused))
    }

    /// The documents of a stream of rows, one on each line.
    pub fn rows<'a, R: Read + 'a>(&'a self, stream: R, limit: usize, latest: Latest) -> impl Read + 'a {
        let lines = LineReader::new(stream, limit);
        Mapped { map: self, lines, latest, place: 0, made: Vec::new(), at: 0, has_ended: false }
    }
}

const PRESET: &str = "presets make turns of logs, and no documents: write a program with `Jq` or `JqFile`";

/// For each id the place of the last document that has it.
pub(crate) struct Latest(HashMap<[u8; 16], u64>);

fn key(id: &str) -> [u8; 16] {
    let mut key = [0; 16];
    key.copy_from_slice(&blake3::hash(id.as_bytes()).as_bytes()[..16]);
    key
}

/// Rows that become documents as they are read.
struct Mapped<'a, R> {
    map: &'a RowMap,
    lines: LineReader<R>,
    latest: Latest,
    place: u64,
    /// Lines that were made, and what of them was read.
    made: Vec<u8>,
    at: usize,
    has_ended: bool,
}

impl<R: Read> Mapped<'_, R> {
    fn fill(&mut self) -> io::Result<()> {
        (self.at, self.has_ended) = (0, false);
        self.made.clear();
        while self.made.is_empty() && !self.has_ended {
            let finished = self.lines.advance()?;
            self.has_ended = !finished;
            if !finished && !self.lines.is_inside() {
                return Ok(());
            }
            match self.lines.line() {
                Line::TooLong { .. } => {}
                Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => {}
                Line::Whole(line) => match self.map.documents(line, self.lines.number()) {
                    Ok(rows) => {
                        for Row { id, document } in rows {
                            let is_latest = self.latest.0.get(&key(&id)) == Some(&self.place);
                            self.place += 1;
                            if let Some(document) = document.filter(|_| is_latest) {
                                self.made.extend(serde_json::to_vec(&document).unwrap_or_default());
                                self.made.push(b'\n');
                            }
                        }
                    }
                    // A line that is still written.
                    Err(_) if !finished => self.made.extend_from_slice(line),
                    Err(_) => {}
                },
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for Mapped<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.made.len() {
            if self.has_ended {
                return Ok(0);
            }
            self.fill()?;
        }
        let read = buffer.len().min(self.made.len() - self.at);
        buffer[..read].copy_from_slice(&self.made[self.at..self.at + read]);
        self.at += read;
        Ok(read)
    }
}
