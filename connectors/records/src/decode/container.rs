//! Lines that a container runtime has written around those of a program: `TIME stdout P PART` (CRI), or
//! `{"log": "PART", "stream": "stdout", "time": "TIME"}` (Docker). It splits long lines; here they are whole again.

use std::collections::BTreeMap;

use jaq_json::Val;

use super::{Records, json, object};
use crate::message::text_of;

/// A line, so far: its number, its time and its text.
type Open = (u64, String, String);

/// A part of a line, and whether it ends it.
struct Part {
    time: String,
    stream: String,
    text: String,
    is_last: bool,
}

pub(super) fn read(text: &str, records: &mut Records<'_>) {
    let mut open: BTreeMap<String, Open> = BTreeMap::new();
    let mut odd = super::Odd::default();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let Some(part) = of_cri(line).or_else(|| of_docker(line, &mut odd)) else {
            records.take(number, Err("it is no line of a container runtime".to_owned()));
            continue;
        };
        let whole = open.entry(part.stream.clone()).or_insert_with(|| (number, part.time, String::new()));
        whole.2.push_str(&part.text);
        if part.is_last
            && let Some(whole) = open.remove(&part.stream)
        {
            give(&part.stream, whole, records);
        }
    }
    records.odd.add(odd);
    // What has no end yet.
    for (stream, whole) in open {
        give(&stream, whole, records);
    }
}

fn give(stream: &str, (number, time, log): Open, records: &mut Records<'_>) {
    let fields = [("time", time), ("stream", stream.to_owned()), ("log", log)];
    records.take(number, Ok(object(fields.map(|(name, value)| (name, Val::from(value))))));
}

fn of_cri(line: &str) -> Option<Part> {
    let mut words = line.splitn(4, ' ');
    let (time, stream, tags) = (words.next()?, words.next()?, words.next()?);
    let is_time = time.starts_with(|first: char| first.is_ascii_digit()) && time.contains('T');
    let tag = tags.split(':').next()?;
    let is_one = is_time && matches!(stream, "stdout" | "stderr") && matches!(tag, "P" | "F");
    is_one.then(|| Part {
        time: time.to_owned(),
        stream: stream.to_owned(),
        text: words.next().unwrap_or_default().to_owned(),
        is_last: tag == "F",
    })
}

fn of_docker(line: &str, odd: &mut super::Odd) -> Option<Part> {
    let Ok(Val::Obj(fields)) = json(line.as_bytes(), odd) else { return None };
    let field = |name: &str| fields.get(&Val::from(name.to_owned())).and_then(text_of);
    let log = field("log")?;
    let text = log.trim_end_matches(['\n', '\r']).to_owned();
    let is_last = log.ends_with('\n');
    Some(Part { time: field("time").unwrap_or_default(), stream: field("stream").unwrap_or_default(), text, is_last })
}
