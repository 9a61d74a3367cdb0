//! Documents of records: a mapping gives of each record documents, and ids of those that are deleted.

use std::collections::HashMap;
use std::path::PathBuf;

use jaq_json::Val;
use serde_json::{Map, Value as Json};

use crate::decode::{self, Record, Source};
use crate::jq::{Program, ProgramError};

use crate::message::{Options, fields, flag, id, text_of, wrong};
use crate::names::unknown;
use crate::options::options;
use crate::{Columns, MapError, Odd};

/// Maximum number of documents of a record.
const MOST: usize = 1_000_000;

/// A document of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its id.
    pub id: String,
    /// The document as a row of a corpus, with `_id`, `title`, `text` and its metadata; none if it is deleted.
    pub document: Option<Map<String, Json>>,
}

/// A mapping of records to documents.
///
/// ```
/// use turnflow_records::{DocumentMapping, Record, Source, decode};
///
/// let mapping = DocumentMapping::of(r#"{id: .url, title: .head, text: (.body | html_text), metadata: {lang}}"#).unwrap();
/// let value = decode::value(br#"{"url": "u", "head": "H", "body": "<p>b</p>", "lang": "en"}"#, &mut Default::default());
/// let rows = mapping.run(&Record { value: value.unwrap(), source: Source::default() }).unwrap();
/// let row = serde_json::json!({"_id": "u", "title": "H", "text": "b", "metadata": {"lang": "en"}});
/// assert_eq!(serde_json::json!(rows[0].document), row);
/// ```
pub struct DocumentMapping {
    program: Program,
    options: Options,
}

impl std::fmt::Debug for DocumentMapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DocumentMapping").field("options", &self.options).finish_non_exhaustive()
    }
}

impl DocumentMapping {
    /// Compiles a program.
    ///
    /// # Errors
    ///
    /// The program or its options are wrong.
    pub fn of(code: &str) -> Result<Self, ProgramError> {
        let options = options(code)?;
        Ok(Self { program: Program::of(code, &["$source"], &options.env)?, options })
    }

    /// How files are read.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The documents of a record.
    ///
    /// # Errors
    ///
    /// The program fails on it or does not end, or gives something that is no document.
    pub fn run(&self, record: &Record) -> Result<Vec<Row>, String> {
        self.run_under(None, record)
    }

    /// The same for a record under a key, which is the id of a document that has none.
    ///
    /// # Errors
    ///
    /// The program fails on it or does not end, or gives something that is no document.
    pub fn run_under(&self, key: Option<&str>, record: &Record) -> Result<Vec<Row>, String> {
        let mut rows = Vec::new();
        self.program.run(record.value.clone(), &[record.source.value()], &mut |given| {
            rows.push(row(&given, key)?);
            if rows.len() > MOST {
                return Err(format!("the mapping gives more than {MOST} documents"));
            }
            Ok(())
        })?;
        Ok(rows)
    }
}

/// Reads what a program has given.
fn row(value: &Val, key: Option<&str>) -> Result<Row, String> {
    let (mut own, mut row, mut is_deleted) = (None, Map::new(), false);
    let mut groups = None;
    for (name, value) in fields(value)? {
        if matches!(value, Val::Null) {
            continue;
        }
        let text = || text_of(&value).ok_or_else(|| wrong(&name, "a text", &value));
        match &*name {
            "id" => own = Some(id(&name, &value)?).filter(|id| !id.is_empty()),
            "title" | "text" => drop(row.insert(name.clone(), text()?.into())),
            "metadata" => {
                let metadata: Option<Map<String, Json>> = serde_json::from_str(&value.to_string()).ok();
                row.insert(name.clone(), metadata.ok_or_else(|| wrong(&name, "an object", &value))?.into());
            }
            "groups" => {
                let one = text_of(&value).map(|group| vec![group]);
                let list = one.or_else(|| serde_json::from_str(&value.to_string()).ok());
                groups = Some(list.ok_or_else(|| wrong(&name, "a text or a list of texts", &value))?);
            }
            "delete" => is_deleted = flag(&name, &value)?,
            other => return Err(unknown(other, "document")),
        }
    }
    let own = own.or_else(|| key.map(str::to_owned));
    let id = own.ok_or("the mapping gives a document without an `id`")?;
    if is_deleted {
        return Ok(Row { id, document: None });
    }
    if !row.contains_key("text") {
        return Err(format!("the mapping gives a document without a `text`: {id:?}"));
    }
    if let Some(groups) = groups {
        let metadata = row.entry("metadata").or_insert_with(|| Map::new().into());
        if let Json::Object(metadata) = metadata {
            metadata.insert("groups".to_owned(), groups.into());
        }
    }
    row.insert("_id".to_owned(), id.clone().into());
    Ok(Row { id, document: Some(row) })
}

/// What a mapping of documents makes of files.
#[derive(Debug, Default)]
pub struct MappedDocuments {
    /// The documents as rows of a corpus, in the order in which they came first.
    pub documents: Vec<Map<String, Json>>,
    /// Number of records that were read.
    pub records: u64,
    /// Number of records that gave no document.
    pub skipped: u64,
    /// Number of documents that a later record of the same id replaced, or deleted.
    pub replaced: u64,
    /// Records that could not be read or mapped, with the reason.
    pub refused: Vec<(Source, String)>,
    /// What was odd about records that were read all the same.
    pub odd: Odd,
    /// What is in folders and is no file, such as a pipe, and what it is: it was not read.
    pub others: Vec<(PathBuf, &'static str)>,
}

/// Maps files, and those of folders, to documents. Of documents with one id, the last one counts.
///
/// # Errors
///
/// A file cannot be read. What is wrong within a file is in [`MappedDocuments::refused`].
pub fn map_documents(
    mapping: &DocumentMapping,
    paths: &[PathBuf],
    columns: Option<Columns<'_>>,
) -> Result<MappedDocuments, MapError> {
    let mut mapped = MappedDocuments::default();
    let mut rows: Vec<Option<Map<String, Json>>> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    let inputs = decode::files(paths)?;
    mapped.others = inputs.others;
    for path in inputs.files {
        let mut each = |record: decode::Found| {
            mapped.records += 1;
            let (source, found) = match record {
                Ok(record) => {
                    let found = mapping.run(&record);
                    (record.source, found)
                }
                Err((source, error)) => (source, Err(error.to_string())),
            };
            match found {
                Ok(found) => {
                    mapped.skipped += u64::from(found.is_empty());
                    for Row { id, document } in found {
                        match places.get(&id) {
                            Some(at) => {
                                mapped.replaced += u64::from(rows[*at].is_some());
                                rows[*at] = document;
                            }
                            None => {
                                places.insert(id, rows.len());
                                rows.push(document);
                            }
                        }
                    }
                }
                Err(reason) => mapped.refused.push((source, reason)),
            }
        };
        let is_named = paths.contains(&path);
        let read = decode::read(&path, mapping.options(), is_named, columns, &mut each);
        mapped.odd.add(read.map_err(|source| MapError::Io { path, source })?);
    }
    mapped.documents = rows.into_iter().flatten().collect();
    Ok(mapped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(code: &str, record: &str) -> Result<Vec<Row>, String> {
        let value = decode::value(record.as_bytes(), &mut Odd::default()).unwrap();
        DocumentMapping::of(code).unwrap().run(&Record { value, source: Source::default() })
    }

    #[test]
    fn records_give_documents_and_deletions() {
        let code = "if .gone then {id: .n, delete: true} else .pages[] | {id, text: .t, groups: .g} end";
        let found = rows(
            code,
            r#"{"pages": [{"id": 12345678901234567890, "t": "x", "g": ["a"]}, {"id": "b", "t": "", "g": "c"}]}"#,
        );
        let found = found.unwrap();
        let first = serde_json::json!({"_id": "12345678901234567890", "text": "x", "metadata": {"groups": ["a"]}});
        assert_eq!(serde_json::json!(found[0].document), first);
        let second = serde_json::json!({"_id": "b", "text": "", "metadata": {"groups": ["c"]}});
        assert_eq!(serde_json::json!(found[1].document), second);
        assert_eq!(rows(code, r#"{"gone": true, "n": 7}"#).unwrap(), [Row { id: "7".to_owned(), document: None }]);
        for (code, reason) in [
            ("{text: \"x\"}", "without an `id`"),
            ("{id: 1}", "without a `text`"),
            ("{id: 1, text: 2}", "`text` as 2, which is not a text"),
            ("{id: 1, text: \"\", groups: 3}", "`groups` as 3"),
            ("{id: 1, text: \"\", speaker: 3}", "`speaker`, which no document has"),
        ] {
            let error = rows(code, "{}").unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn of_files_the_last_document_of_an_id_counts() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("1.csv"), "id,text\na,old\nb,old\nc,kept\n").unwrap();
        std::fs::write(place.path().join("2.jsonl"), "{\"id\": \"a\", \"text\": \"new\"}\n{\"id\": \"b\"}\nnope\n")
            .unwrap();
        let mapping = DocumentMapping::of("if .text then {id, text} else {id, delete: true} end").unwrap();
        let mapped = map_documents(&mapping, &[place.path().to_owned()], None).unwrap();
        let texts: Vec<&str> = mapped.documents.iter().filter_map(|row| row["text"].as_str()).collect();
        assert_eq!(texts, ["new", "kept"]);
        assert_eq!((mapped.records, mapped.replaced, mapped.refused.len()), (6, 2, 1));
    }
}
