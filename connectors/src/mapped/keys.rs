//! Values under keys in another form, as in a compacted topic, a bucket or a table: a mapping makes documents of each.

use std::collections::HashMap;
use std::sync::Arc;

use turnflow_engine::document::Document;
use turnflow_records::Row;

use super::RowMap;
use crate::readers::jsonl::{Fields, of_object};

/// Changes of documents, by id; none if one is deleted.
pub(crate) type Changes = Vec<(Arc<str>, Option<Document>)>;

/// Makes documents of values, and remembers which key has given which.
#[derive(Debug)]
pub(crate) struct KeyMap {
    map: RowMap,
    /// The documents that the last value of each key has given.
    given: HashMap<Arc<str>, Vec<Arc<str>>>,
    /// The key that has given a document last.
    by: HashMap<Arc<str>, Arc<str>>,
}

impl KeyMap {
    pub fn new(map: RowMap) -> Self {
        Self { map, given: HashMap::new(), by: HashMap::new() }
    }

    /// What changes with the value of a key, or if the key is gone; and why the value gives no documents, if it is wrong.
    /// What its value before has given and this one does not give is deleted.
    pub fn change(&mut self, key: &str, value: Option<&[u8]>) -> (Changes, Option<String>) {
        let (mut changes, mut wrong) = (Changes::new(), None);
        let key: Arc<str> = key.into();
        let mut now: Vec<Arc<str>> = Vec::new();
        match value.map(|value| self.documents(&key, value)) {
            Some(Ok(found)) => {
                for (id, document) in found {
                    match &document {
                        Some(_) => {
                            now.push(id.clone());
                            self.by.insert(id.clone(), key.clone());
                        }
                        None => drop(self.by.remove(&id)),
                    }
                    changes.push((id, document));
                }
            }
            Some(Err(reason)) => wrong = Some(reason),
            None => {}
        }
        let before = match now.is_empty() {
            true => self.given.remove(&key),
            false => self.given.insert(key.clone(), now.clone()),
        };
        for id in before.into_iter().flatten() {
            // Another key may have given it since.
            if !now.contains(&id) && self.by.get(&id) == Some(&key) {
                self.by.remove(&id);
                changes.push((id, None));
            }
        }
        (changes, wrong)
    }

    fn documents(&self, key: &str, value: &[u8]) -> Result<Changes, String> {
        let mut changes = Changes::new();
        for Row { id, document } in self.map.under(key, value)? {
            let id: Arc<str> = id.into();
            let document = match document {
                None => None,
                Some(mut row) => {
                    row.shift_remove("_id");
                    let read = of_object(id.clone(), row, &Fields::default());
                    let (document, large) = read.map_err(|error| error.to_string())?;
                    if !large.is_empty() {
                        let fields = large.join(", ");
                        tracing::warn!(id = &*id, fields, "fields of the metadata are too large and left out");
                    }
                    Some(document)
                }
            };
            changes.push((id, document));
        }
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::MapConfig;

    #[test]
    fn a_key_may_give_several_documents_and_loses_those_that_it_gives_no_more() {
        let program =
            r#"if .parts then .parts[] | {id: .n, text: .t} elif .gone then {id: .gone, delete: true} else {text} end"#;
        let map = RowMap::of(&MapConfig::Jq(program.to_owned()), "topic").unwrap();
        let mut keys = KeyMap::new(map);
        let mut change = |key: &str, value: &str| {
            let (changes, wrong) = keys.change(key, Some(value.as_bytes()).filter(|value| !value.is_empty()));
            let shown = |(id, document): (Arc<str>, Option<Document>)| match document {
                Some(document) => format!("{id}={}", document.text),
                None => format!("-{id}"),
            };
            (changes.into_iter().map(shown).collect::<Vec<_>>(), wrong)
        };
        assert_eq!(change("a", r#"{"text": "one"}"#).0, ["a=one"]);
        assert_eq!(change("b", r#"{"parts": [{"n": "x", "t": "1"}, {"n": "y", "t": "2"}]}"#).0, ["x=1", "y=2"]);
        assert_eq!(change("b", r#"{"parts": [{"n": "y", "t": "3"}]}"#).0, ["y=3", "-x"]);
        // Another key takes it over, so it stays when the first one is gone.
        assert_eq!(change("c", r#"{"parts": [{"n": "y", "t": "4"}]}"#).0, ["y=4"]);
        assert_eq!(change("b", "").0, [""; 0]);
        let (changes, wrong) = change("a", r#"{"text": 5}"#);
        assert_eq!(changes, ["-a"]);
        assert!(wrong.unwrap().contains("`text` as 5"));
        assert_eq!(change("d", r#"{"gone": "y"}"#).0, ["-y"]);
        assert_eq!(change("c", "").0, [""; 0]);
    }
}
