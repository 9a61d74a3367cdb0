//! Lines that a container runtime has written around those of a program: `TIME stdout P PART` (CRI), or
//! `{"log": "PART", "stream": "stdout", "time": "TIME"}` (Docker). It splits long lines; here they are whole again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

use jaq_json::Val;

use super::{Line, Odd, Place, Records, each_line, json, object};
use crate::message::{short, text_of};

/// Maximum size of a line of a program, in bytes.
const LONGEST: usize = 8 << 20;
/// Maximum number of streams with an open line. A runtime has two.
const STREAMS: usize = 16;

/// A line, so far: the number of its first part, its time, and its text if that is not too long.
struct Open {
    number: u64,
    time: String,
    text: Option<String>,
}

/// A part of a line, and whether it ends it.
struct Part {
    time: String,
    stream: String,
    text: String,
    is_last: bool,
}

/// A stream that counts the bytes that were read of it.
struct Counted<'a> {
    file: &'a mut dyn BufRead,
    bytes: &'a Cell<u64>,
}

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(into)?;
        self.bytes.set(self.bytes.get() + read as u64);
        Ok(read)
    }
}

impl BufRead for Counted<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.file.fill_buf()
    }

    fn consume(&mut self, number: usize) {
        self.file.consume(number);
        self.bytes.set(self.bytes.get() + number as u64);
    }
}

/// Reads the lines behind a place.
pub(super) fn read(file: &mut dyn BufRead, from: Place, records: &mut Records<'_>) -> io::Result<()> {
    let mut open: BTreeMap<String, Open> = BTreeMap::new();
    let (mut odd, mut last) = (Odd::default(), None);
    let bytes = Cell::new(from.bytes);
    if matches!(file.fill_buf()?, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) {
        // The lines of UTF-16 are not those of the file.
        records.rests = None;
    }
    each_line(&mut Counted { file, bytes: &bytes }, 2 * LONGEST as u64, &mut |number, line| {
        let number = from.lines + number;
        let is_whole = matches!(line, Line::Whole(_));
        let line = match line {
            Line::Whole(line) => line,
            // The runtime writes it still.
            Line::Last(line) if records.open.is_some() => {
                last = Some((number, String::from_utf8_lossy(line.trim_ascii()).into_owned()));
                return;
            }
            Line::Last(line) => line,
            Line::TooLong(reason) => return records.take(number, Err(reason)),
        };
        if line.trim_ascii().is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(line);
        odd.broken += u64::from(matches!(text, std::borrow::Cow::Owned(_)));
        match of_cri(&text).or_else(|| of_docker(&text, &mut odd)) {
            Some(part) => take(number, part, &mut open, records),
            None => records.take(number, Err("it is no line of a container runtime".to_owned())),
        }
        if let Some(rests) = records.rests.as_mut().filter(|_| open.is_empty() && is_whole) {
            rests(Place { bytes: bytes.get(), lines: number });
        }
    })?;
    records.odd.add(odd);
    // What has no end yet.
    let mut open: Vec<(String, Open)> = open.into_iter().collect();
    open.sort_by_key(|(_, line)| line.number);
    for (stream, line) in open {
        let number = line.number;
        match whole(stream, line) {
            Ok(value) => records.unfinished(number, value),
            Err(reason) => records.take(number, Err(reason)),
        }
    }
    if let Some((number, line)) = last.filter(|(_, line)| !line.is_empty()) {
        records.unfinished(number, Val::from(line));
    }
    Ok(())
}

/// Takes a part of a line; gives the line, if this ends it.
fn take(number: u64, part: Part, open: &mut BTreeMap<String, Open>, records: &mut Records<'_>) {
    let Part { time, stream, text, is_last } = part;
    if open.len() >= STREAMS && !open.contains_key(&stream) {
        let stream = short(&Val::from(stream));
        let reason = format!("lines of {STREAMS} streams are open, and this one is of another: {stream}");
        return records.take(number, Err(reason));
    }
    let mut line = open.remove(&stream).unwrap_or(Open { number, time, text: Some(String::new()) });
    line.text = line.text.filter(|known| known.len() + text.len() <= LONGEST);
    if let Some(known) = &mut line.text {
        known.push_str(&text);
    }
    if is_last {
        records.take(line.number, whole(stream, line));
    } else {
        open.insert(stream, line);
    }
}

fn whole(stream: String, Open { time, text, .. }: Open) -> Result<Val, String> {
    let text = text.ok_or_else(|| format!("the line is longer than {} MB", LONGEST >> 20))?;
    Ok(object([("time", time), ("stream", stream), ("log", text)].map(|(name, value)| (name, Val::from(value)))))
}

fn of_cri(line: &str) -> Option<Part> {
    let mut words = line.trim_end_matches(['\n', '\r']).splitn(4, ' ');
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

fn of_docker(line: &str, odd: &mut Odd) -> Option<Part> {
    let Ok(Val::Obj(fields)) = json(line.as_bytes(), odd) else { return None };
    let field = |name: &str| fields.get(&Val::from(name.to_owned())).and_then(text_of);
    let log = field("log")?;
    let text = log.trim_end_matches(['\n', '\r']).to_owned();
    let is_last = log.ends_with('\n');
    Some(Part { time: field("time").unwrap_or_default(), stream: field("stream").unwrap_or_default(), text, is_last })
}
