//! Messages of a text: each begins with a line that one of some regular expressions describes, whose named parts are
//! fields. What follows up to the next beginning belongs to its `text`.

use std::collections::BTreeMap;

use jaq_json::Val;
use regex::Regex;

use super::dates::{self, Times, Written};
use super::{Odd, Records};
use crate::message::{Dates, Options};

pub(super) fn read(text: &str, options: &Options, records: &mut Records<'_>) {
    if options.start.is_empty() {
        return records.take(1, Err(super::NO_START.to_owned()));
    }
    let starts = options.start.iter().map(|start| Regex::new(start)).collect::<Result<Vec<_>, _>>();
    let starts = match starts {
        Ok(starts) => starts,
        Err(error) => return records.take(1, Err(format!("`start` is no regular expression: {error}"))),
    };
    let mut messages = Messages { starts, carry: &options.carry, carried: BTreeMap::new(), open: None, before: 0 };
    let mut found: Vec<(u64, Fields)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        found.extend(messages.line(number, line));
    }
    found.extend(messages.end());
    records.odd.before += messages.before;
    if found.is_empty() && messages.before > 0 {
        return records.take(1, Err("no line begins a message: none is as `start` describes it".to_owned()));
    }
    if options.dates != Dates::No {
        add_times(&mut found, options, &mut records.odd);
    }
    for (number, fields) in found {
        let fields = fields.into_iter().map(|(name, value)| (Val::from(name), Val::from(value)));
        records.take(number, Ok(Val::obj(fields.collect())));
    }
}

/// Names and values of a message.
type Fields = Vec<(String, String)>;

/// Adds the part `time`, which the parts `date` and `clock` are.
fn add_times(found: &mut [(u64, Fields)], options: &Options, odd: &mut Odd) {
    let part = |fields: &Fields, name: &str| {
        fields
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.clone())
            .filter(|value| !value.trim().is_empty())
    };
    let written: Vec<Option<Written>> = found
        .iter()
        .map(|(_, fields)| Written::read(&part(fields, "date")?, part(fields, "clock").as_deref().unwrap_or("0:00")))
        .collect();
    let zone = options.dates.zone().and_then(|zone| crate::times::named_zone(zone).ok());
    let Times { times, unsure } = dates::times(&written);
    let mut own = Odd { unsure, ..Odd::default() };
    for (((number, fields), time), written) in found.iter_mut().zip(times).zip(&written) {
        if part(fields, "date").is_none() {
            continue;
        }
        let (Some(time), Some(written)) = (time, written) else {
            own.add(Odd { undated: 1, undated_line: *number, ..Odd::default() });
            continue;
        };
        if written.has_unknown() {
            own.add(Odd { worded: 1, worded_line: *number, ..Odd::default() });
        }
        fields.push(("time".to_owned(), written.told(time, zone.as_ref())));
    }
    odd.add(own);
}

/// Makes messages of lines.
struct Messages<'a> {
    starts: Vec<Regex>,
    carry: &'a [String],
    /// What the last lines with these fields had.
    carried: BTreeMap<String, String>,
    /// The message that may go on: the number of its first line, and its fields.
    open: Option<(u64, Fields)>,
    /// Number of lines before the first message that are not blank.
    before: u64,
}

impl Messages<'_> {
    /// Takes a line. Gives the message before it, if it begins another one.
    fn line(&mut self, number: u64, line: &str) -> Option<(u64, Fields)> {
        let found = self.starts.iter().find_map(|start| Some((start, start.captures(line)?)));
        match (found, &mut self.open) {
            (Some((start, parts)), _) => {
                let named = start.capture_names().flatten();
                let fields = named.filter_map(|name| Some((name.to_owned(), parts.name(name)?.as_str().to_owned())));
                let mut fields: Fields = fields.collect();
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
            (None, None) => {
                self.before += u64::from(!line.trim().is_empty());
                None
            }
        }
    }

    /// The message that is open.
    fn end(&mut self) -> Option<(u64, Fields)> {
        let (number, mut fields) = self.open.take()?;
        if let Some(text) = text_of(&mut fields) {
            // Blank lines before the next message are no part of this one.
            text.truncate(text.trim_end_matches(['\n', '\r']).len());
        }
        Some((number, fields))
    }
}

fn text_of(fields: &mut [(String, String)]) -> Option<&mut String> {
    fields.iter_mut().find(|(name, _)| name == "text").map(|(_, text)| text)
}
