//! Rows of CSV: objects by the names of the columns, whose values are texts.

use std::collections::HashMap;

use jaq_json::Val;

use super::Records;
use crate::message::Options;

/// What may be between the fields.
const BETWEEN: [u8; 4] = *b",;\t|";

pub(super) fn read(text: &str, options: &Options, records: &mut Records<'_>) {
    let mut skipped = 0;
    let mut rest = text;
    let mut between = options.separator.as_deref().and_then(|between| between.bytes().next());
    while skipped < options.skip && !rest.is_empty() {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        skipped += 1;
    }
    // Excel's line that says what is between the fields.
    let first = rest.lines().next().unwrap_or_default();
    if let Some(said) = first.trim().strip_prefix("sep=").filter(|said| said.len() <= 1) {
        between = between.or(said.bytes().next().or(Some(b'\t')));
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        skipped += 1;
    }
    let between = between.unwrap_or_else(|| between_of(rest.lines().next().unwrap_or_default()));
    let mut reader = csv::ReaderBuilder::new();
    reader.delimiter(between).flexible(true).has_headers(options.columns.is_empty());
    if let Some(escape) = options.escape.as_deref().and_then(|escape| escape.bytes().next()) {
        reader.escape(Some(escape));
    }
    let mut rows = reader.from_reader(rest.as_bytes());
    let names: Vec<String> = match rows.headers() {
        _ if !options.columns.is_empty() => options.columns.clone(),
        Ok(names) => names.iter().map(|name| name.trim().to_owned()).collect(),
        Err(error) => return records.take(1, Err(error.to_string())),
    };
    let names = distinct(names);
    let escape = options.escape.as_deref().and_then(|escape| escape.bytes().next());
    let mut unclosed = unclosed_quotes(rest, between, escape).into_iter().peekable();
    let reason = |line: u64| {
        let line = line + skipped;
        format!(
            "a quote that begins in line {line} is not closed at the end of a value: further rows may be in that value"
        )
    };
    let mut rows = rows.records().peekable();
    let line_of = |row: Option<&csv::Result<csv::StringRecord>>| match row {
        Some(Ok(row)) => row.position().map_or(u64::MAX, csv::Position::line),
        Some(Err(_)) | None => u64::MAX,
    };
    let first = line_of(rows.peek());
    while let Some(line) = unclosed.next_if(|line| *line < first) {
        records.take(line + skipped, Err(reason(line)));
    }
    while let Some(row) = rows.next() {
        let next = line_of(rows.peek());
        if let Some(line) = unclosed.next_if(|line| *line < next) {
            while unclosed.next_if(|line| *line < next).is_some() {}
            records.take(line + skipped, Err(reason(line)));
            continue;
        }
        let row = match row {
            Ok(row) => row,
            Err(error) => {
                let line = error.position().map_or(0, csv::Position::line);
                records.take(line + skipped, Err(error.to_string()));
                continue;
            }
        };
        let line = row.position().map_or(0, csv::Position::line) + skipped;
        // Values that no column has are named by their numbers.
        let more = (names.len()..row.len()).map(|at| (at + 1).to_string());
        let fields = names.iter().cloned().chain(more).zip(row.iter());
        // What databases write for a value that is not there.
        let is_null = |value: &str| value == "\\N" && options.escape.is_some();
        let value = |value: &str| if is_null(value) { Val::Null } else { Val::from(value.replace("\r\n", "\n")) };
        let field = |(name, of): (String, &str)| (Val::from(name), value(of));
        records.take(line, Ok(Val::obj(fields.map(field).collect())));
    }
}

/// The lines, from 1, of quotes that are still open at the end, or that are closed within a value in a later line.
fn unclosed_quotes(text: &str, between: u8, escape: Option<u8>) -> Vec<u64> {
    let (mut line, mut open, mut is_start, mut found) = (1, None, true, Vec::new());
    let mut bytes = text.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match (byte, open) {
            (_, Some(_)) if Some(byte) == escape => line += u64::from(bytes.next() == Some(b'\n')),
            (b'"', Some(begun)) => {
                if bytes.next_if_eq(&b'"').is_none() {
                    let next = bytes.clone().find(|byte| *byte != b' ');
                    let is_within = next.is_some_and(|next| next != between && !b"\r\n".contains(&next));
                    found.extend((line > begun && is_within).then_some(begun));
                    (open, is_start) = (None, false);
                }
            }
            (_, Some(_)) => {}
            (b'"', None) if is_start => (open, is_start) = (Some(line), false),
            (_, None) => is_start = byte == between || byte == b'\n' || byte == b'\r',
        }
        line += u64::from(byte == b'\n');
    }
    found.extend(open);
    found
}

/// What is between the fields of a line, outside of quotes.
fn between_of(line: &str) -> u8 {
    let mut is_quoted = false;
    let outside: Vec<u8> = line
        .bytes()
        .filter(|byte| {
            is_quoted ^= *byte == b'"';
            !is_quoted
        })
        .collect();
    let count = |between: &u8| outside.iter().filter(|byte| *byte == between).count();
    BETWEEN.into_iter().max_by_key(|between| (count(between), *between == b',')).unwrap_or(b',')
}

/// The names; a name that comes again has a number: `Name 2`. A column without a name has its number.
fn distinct(names: Vec<String>) -> Vec<String> {
    // How often a name was there before.
    let mut seen: HashMap<String, usize> = HashMap::new();
    let named = names.into_iter().enumerate().map(|(at, name)| {
        let name = if name.is_empty() { (at + 1).to_string() } else { name };
        let times = seen.entry(name.clone()).or_default();
        *times += 1;
        if *times == 1 {
            return name;
        }
        let name = format!("{name} {times}");
        seen.insert(name.clone(), 1);
        name
    });
    named.collect()
}
