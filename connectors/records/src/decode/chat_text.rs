//! Messages of a text: each begins with a line that one of some regular expressions describes, whose named parts are
//! fields. What follows up to the next beginning belongs to its `text`.

use std::collections::BTreeMap;

use jaq_json::Val;
use regex::Regex;

use super::Records;
use crate::message::Options;

pub(super) fn read(text: &str, options: &Options, records: &mut Records<'_>) {
    if options.start.is_empty() {
        return records.take(1, Err(super::NO_START.to_owned()));
    }
    let starts = options.start.iter().map(|start| Regex::new(start)).collect::<Result<Vec<_>, _>>();
    let starts = match starts {
        Ok(starts) => starts,
        Err(error) => return records.take(1, Err(format!("`start` is no regular expression: {error}"))),
    };
    let mut messages = Messages { starts, carry: &options.carry, carried: BTreeMap::new(), open: None };
    for (number, line) in (1..).zip(text.lines()) {
        if let Some((number, value)) = messages.line(number, line) {
            records.take(number, Ok(value));
        }
    }
    if let Some((number, value)) = messages.end() {
        records.take(number, Ok(value));
    }
}

/// Makes messages of lines.
struct Messages<'a> {
    starts: Vec<Regex>,
    carry: &'a [String],
    /// What the last lines with these fields had.
    carried: BTreeMap<String, String>,
    /// The message that may go on: the number of its first line, and its fields.
    open: Option<(u64, Vec<(String, String)>)>,
}

impl Messages<'_> {
    /// Takes a line. Gives the message before it, if it begins another one.
    fn line(&mut self, number: u64, line: &str) -> Option<(u64, Val)> {
        let found = self.starts.iter().find_map(|start| Some((start, start.captures(line)?)));
        match (found, &mut self.open) {
            (Some((start, parts)), _) => {
                let named = start.capture_names().flatten();
                let fields = named.filter_map(|name| Some((name.to_owned(), parts.name(name)?.as_str().to_owned())));
                let mut fields: Vec<(String, String)> = fields.collect();
                for name in self.carry {
                    match fields.iter().find(|(own, _)| own == name) {
                        Some((_, value)) => drop(self.carried.insert(name.clone(), value.clone())),
                        None => fields.extend(self.carried.get(name).map(|value| (name.clone(), value.clone()))),
                    }
                }
                let before = self.end();
                self.open = Some((number, fields));
                before
            }
            (None, Some((_, fields))) => {
                match text_of(fields) {
                    Some(text) => text.extend(["\n", line]),
                    None => fields.push(("text".to_owned(), line.to_owned())),
                }
                None
            }
            (None, None) => None,
        }
    }

    /// The message that is open.
    fn end(&mut self) -> Option<(u64, Val)> {
        let (number, mut fields) = self.open.take()?;
        if let Some(text) = text_of(&mut fields) {
            // Blank lines before the next message are no part of this one.
            text.truncate(text.trim_end_matches(['\n', '\r']).len());
        }
        let fields = fields.into_iter().map(|(name, value)| (Val::from(name), Val::from(value)));
        Some((number, Val::obj(fields.collect())))
    }
}

fn text_of(fields: &mut [(String, String)]) -> Option<&mut String> {
    fields.iter_mut().find(|(name, _)| name == "text").map(|(_, text)| text)
}
