//! A running import: reads records, writes lines, and notes what it leaves out.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::input::{Input, Next, Records};
use super::output::Outputs;
use super::report::{Ledger, Report};
use super::{Benchmark, ImportError, Limits, Settings};
use crate::tasks::without_nan;

/// Records that are tried to find out what a file contains.
const TRIED: usize = 100;

/// A running import.
pub(super) struct Job {
    settings: Settings,
    pub outputs: Outputs,
    pub skipped: Ledger,
    pub invalid: Ledger,
    /// Ids that were written, by file.
    pub written: BTreeMap<String, HashSet<Box<str>>>,
    /// The passages of the judgements.
    judged: Vec<Box<str>>,
}

/// Where a record is.
#[derive(Clone, Copy)]
pub(super) struct Place<'a>(pub &'a Input, pub u64);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0.name, self.1)
    }
}

/// A question to write as a task and as a query.
#[derive(Default)]
pub(super) struct Question {
    pub id: String,
    pub text: String,
    /// The ids of its reference passages.
    pub contexts: Vec<String>,
    pub target: Option<String>,
    /// Further fields.
    pub extra: Map<String, Value>,
}

impl Job {
    pub fn new(output: &Path, settings: Settings) -> Result<Self, ImportError> {
        Ok(Self {
            settings,
            outputs: Outputs::new(output)?,
            skipped: Ledger::default(),
            invalid: Ledger::default(),
            written: BTreeMap::new(),
            judged: Vec::new(),
        })
    }

    pub fn finish(self, benchmark: Benchmark) -> Result<Report, ImportError> {
        let (skipped, is_valid) = (self.skipped.list(), self.invalid.is_empty());
        let invalid = self.invalid.list();
        if !is_valid && !self.settings.skip_invalid {
            return Err(ImportError::Invalid { invalid });
        }
        let passages = || self.written.iter().filter(|(file, _)| file.starts_with("corpus"));
        let known = |id: &str| passages().any(|(_, ids)| ids.contains(id));
        let without = self.judged.iter().filter(|id| passages().next().is_some() && !known(id)).count() as u64;
        let files = self.outputs.publish()?;
        if files.is_empty() {
            return Err(ImportError::Nothing { benchmark, skipped: [skipped, invalid].concat() });
        }
        Ok(Report { files, skipped, invalid, judgements_without_passage: without })
    }

    /// Calls `take` with each record of a file. Records that are not UTF-8 are invalid.
    fn lines(
        &mut self,
        input: &Input,
        mut take: impl FnMut(&mut Self, Place<'_>, &str) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let limits = self.settings.limits;
        let fault = |source| fault(input, limits, source);
        input.read(limits, |reader| {
            let mut records = Records::new(reader, input.extension == "tsv", limits).map_err(fault)?;
            let mut record = Vec::new();
            loop {
                match records.next(&mut record).map_err(fault)? {
                    Next::Record(line) => match std::str::from_utf8(&record) {
                        Ok(text) => take(self, Place(input, line), text.trim_end_matches(['\r', '\n']))?,
                        Err(_) => self.invalid.add("not UTF-8", Place(input, line).to_string()),
                    },
                    Next::Broken(line) => return self.invalid("the list is cut off or damaged", Place(input, line)),
                    Next::End => return Ok(()),
                }
            }
        })
    }

    /// The same for files of JSON objects. Records that are not objects are invalid.
    pub fn objects(
        &mut self,
        input: &Input,
        mut take: impl FnMut(&mut Self, Place<'_>, &str, Map<String, Value>) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        self.lines(input, |job, place, text| match serde_json::from_str(&without_nan(text)) {
            Ok(Value::Object(object)) => take(job, place, text, object),
            Ok(_) => job.invalid("not a JSON object", place),
            Err(_) => job.invalid("not JSON", place),
        })
    }

    /// The first JSON object among the first records of a file. The file is skipped if it is empty, or one
    /// object over several lines; any other file without an object is invalid.
    pub fn first(&mut self, input: &Input) -> Result<Option<Map<String, Value>>, ImportError> {
        let limits = self.settings.limits;
        let (mut record, mut begin) = (Vec::new(), None);
        let found = input.read(limits, |reader| {
            let fault = |source| fault(input, limits, source);
            let mut records = Records::new(reader, false, limits).map_err(fault)?;
            for _ in 0..TRIED {
                let line = match records.next(&mut record).map_err(fault)? {
                    Next::Record(line) | Next::Broken(line) => line,
                    Next::End => break,
                };
                let parsed = std::str::from_utf8(&record).map(|text| serde_json::from_str(&without_nan(text)));
                if let Ok(Ok(Value::Object(object))) = parsed {
                    return Ok(Some(object));
                }
                let is_cut_off = matches!(&parsed, Ok(Err(error)) if error.is_eof()) && record.starts_with(b"{");
                begin.get_or_insert((line, is_cut_off));
            }
            Ok(None)
        })?;
        match begin {
            _ if found.is_some() => {}
            None => self.skipped.add("an empty file", input.name.clone()),
            Some((_, true)) if input.extension == "json" => {
                self.skipped.add("one object, not a list of records", input.name.clone());
            }
            Some((line, _)) => self.invalid.add("no JSON object", Place(input, line).to_string()),
        }
        Ok(found)
    }

    /// The object that a JSON file consists of; `None` if it has something else, or is larger than a record may be.
    pub fn only_object(&mut self, input: &Input) -> Result<Option<Map<String, Value>>, ImportError> {
        if input.extension != "json" {
            return Ok(None);
        }
        let limits = self.settings.limits;
        let fault = |source| fault(input, limits, source);
        let text = input.read(limits, |reader| {
            let mut text = Vec::new();
            loop {
                let bytes = reader.fill_buf().map_err(fault)?;
                let begin = text.iter().chain(bytes).find(|byte| !byte.is_ascii_whitespace() && **byte < 0x80);
                let is_object = begin.is_none_or(|byte| *byte == b'{');
                if bytes.is_empty() || !is_object || text.len() + bytes.len() > limits.record {
                    return Ok((bytes.is_empty() && is_object).then_some(text));
                }
                text.extend_from_slice(bytes);
                let read = bytes.len();
                reader.consume(read);
            }
        })?;
        let text = text.and_then(|text| String::from_utf8(text).ok());
        Ok(text.and_then(|text| serde_json::from_str(&without_nan(text.trim_start_matches('\u{feff}'))).ok()))
    }

    /// Notes a record that cannot be read.
    pub fn invalid(&mut self, reason: impl Into<String>, place: Place<'_>) -> Result<(), ImportError> {
        self.invalid.add(reason, place.to_string());
        Ok(())
    }

    /// Whether an id is new in a file; otherwise the record is skipped.
    pub fn is_new(&mut self, file: &str, id: &str, place: Place<'_>, reason: &str) -> bool {
        let is_new = self.written.entry(file.to_owned()).or_default().insert(id.into());
        if !is_new {
            self.skipped.add(reason, place.to_string());
        }
        is_new
    }

    /// Writes a passage. Passages without text are skipped, and so are further passages with an id.
    pub fn passage(
        &mut self,
        file: &str,
        place: Place<'_>,
        id: &str,
        (title, text): (&str, &str),
        extra: Map<String, Value>,
    ) -> Result<(), ImportError> {
        if text.trim().is_empty() {
            self.skipped.add("a passage without text", place.to_string());
            return Ok(());
        }
        if !self.is_new(file, id, place, "another passage has the id") {
            return Ok(());
        }
        let mut row =
            Map::from_iter([("_id", id), ("title", title), ("text", text)].map(|(k, v)| (k.into(), v.into())));
        row.extend(extra);
        self.outputs.line(file, "passage", "", &Value::Object(row).to_string())
    }

    /// Writes a judgement; of repeated ones, the first.
    pub fn judgement(&mut self, file: &str, query: &str, passage: &str, grade: i64) -> Result<(), ImportError> {
        let pair = format!("{query}\t{passage}");
        if self.written.entry(file.to_owned()).or_default().insert(pair.as_str().into()) {
            self.judged.push(passage.into());
            self.outputs.line(file, "judgement", "query-id\tcorpus-id\tscore\n", &format!("{pair}\t{grade}"))?;
        }
        Ok(())
    }

    /// Writes a question without a conversation: a task, a query, and a judgement for each reference
    /// passage. `suffix` is part of the files' names.
    pub fn question(&mut self, suffix: &str, place: Place<'_>, question: Question) -> Result<(), ImportError> {
        let Question { id, text, contexts, target, extra } = question;
        if [&id].into_iter().chain(&contexts).any(|id| id.is_empty() || id.contains(['\t', '\n', '\r'])) {
            return self.invalid("an id is empty or contains a tab or a line break", place);
        }
        let tasks = format!("tasks{suffix}.jsonl");
        if !self.is_new(&tasks, &id, place, "another task has the id") {
            return Ok(());
        }
        let qrels = format!("qrels{suffix}.tsv");
        for passage in &contexts {
            self.judgement(&qrels, &id, passage, 1)?;
        }
        self.outputs.line(
            &format!("queries{suffix}.jsonl"),
            "query",
            "",
            &json!({"_id": id, "text": text}).to_string(),
        )?;
        let mut task = Map::new();
        task.insert("task_id".into(), json!(id));
        task.insert("conversation_id".into(), json!(id));
        task.insert("turn".into(), json!(1));
        task.extend(extra);
        task.insert("input".into(), json!([{"speaker": "user", "text": text}]));
        if !contexts.is_empty() {
            task.insert("contexts".into(), json!(contexts));
        }
        task.extend(target.map(|target| ("target".to_owned(), json!(target))));
        self.outputs.line(&tasks, "task", "", &Value::Object(task).to_string())
    }

    /// Writes an answer in the format of `eval --predictions`; returns whether it is new.
    pub fn answer(
        &mut self,
        file: &str,
        place: Place<'_>,
        id: &str,
        contexts: &[Value],
        text: &str,
    ) -> Result<bool, ImportError> {
        if !self.is_new(file, id, place, "another answer has the id") {
            return Ok(false);
        }
        let answer = json!({"task_id": id, "contexts": contexts, "predictions": [{"text": text}]});
        self.outputs.line(file, "answer", "", &answer.to_string())?;
        Ok(true)
    }

    /// Writes the judgements of a table: BEIR's three columns, or TREC's four.
    pub fn judgements(&mut self, input: &Input, file: &str) -> Result<(), ImportError> {
        self.lines(input, |job, place, row| {
            let columns: Vec<&str> = row.split('\t').map(str::trim).collect();
            let ([query, passage, grade] | [query, _, passage, grade]) = columns[..] else {
                return job.invalid("a judgement has 3 or 4 columns, separated by tabs", place);
            };
            match grade.parse() {
                Ok(grade) => job.judgement(file, query, passage, grade),
                // The header.
                Err(_) if place.1 == 1 => Ok(()),
                Err(_) => job.invalid("a grade is not a whole number", place),
            }
        })
    }
}

/// An error of reading a file, or of its size.
fn fault(input: &Input, limits: Limits, source: io::Error) -> ImportError {
    match source.kind() {
        ErrorKind::FileTooLarge => ImportError::TooLarge { file: input.name.clone(), limits },
        _ => ImportError::Read { file: input.name.clone(), source },
    }
}
