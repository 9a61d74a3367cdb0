//! Cues of a transcript in WebVTT (W3C) or SRT: begin and end in seconds, voice and text. Each span of a voice is a record.

use jaq_json::Val;
use regex::Regex;

use super::{Records, object};
use crate::message::Options;

pub(super) fn read(text: &str, options: &Options, records: &mut Records<'_>) {
    let starts = options.start.iter().map(|start| Regex::new(start)).collect::<Result<Vec<_>, _>>();
    let starts = match starts {
        Ok(starts) => starts,
        Err(error) => return records.take(1, Err(format!("`start` is no regular expression: {error}"))),
    };
    let carries = options.carry.iter().any(|part| part == "voice");
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let (mut number, mut carried) = (0, None);
    for block in text.split("\n\n").map(str::trim).filter(|block| !block.is_empty()) {
        let lines: Vec<&str> = block.lines().collect();
        let Some(at) = lines.iter().position(|line| line.contains("-->")) else { continue };
        let mut times = lines[at].split("-->");
        let (start, end) = (times.next().and_then(seconds), times.next().and_then(seconds));
        let (Some(start), Some(end)) = (start, end) else {
            number += 1;
            records.take(number, Err(format!("`{}` are no times of a cue", lines[at])));
            continue;
        };
        let spans = spans(&lines[at + 1..].join("\n")).into_iter().flat_map(|span| named(span, &starts));
        for (voice, said) in spans {
            number += 1;
            let voice = voice.or_else(|| carried.clone());
            if carries {
                carried.clone_from(&voice);
            }
            let voice = voice.map_or(Val::Null, Val::from);
            let said =
                [("start", Val::from(start)), ("end", Val::from(end)), ("voice", voice), ("text", Val::from(said))];
            records.take(number, Ok(object(said)));
        }
    }
}

/// The parts of a span of which lines name the speaker.
fn named((voice, text): (Option<String>, String), starts: &[Regex]) -> Vec<(Option<String>, String)> {
    let mut spans: Vec<(Option<String>, String)> = Vec::new();
    for line in text.lines() {
        let found = starts.iter().find_map(|start| start.captures(line));
        let part = |name: &str| Some(found.as_ref()?.name(name)?.as_str().trim().to_owned());
        match (part("voice"), spans.last_mut()) {
            (Some(voice), _) => spans.push((Some(voice), part("text").unwrap_or_default())),
            (None, Some((_, said))) => said.extend(["\n", line]),
            (None, None) => spans.push((voice.clone(), line.to_owned())),
        }
    }
    spans
}

/// A cue without what says where it is shown, such as `{\an8}`.
fn without_places(cue: &str) -> String {
    let (mut kept, mut rest) = (String::new(), cue);
    while let Some(open) = rest.find("{\\") {
        let Some(close) = rest[open..].find('}') else { break };
        kept.push_str(&rest[..open]);
        rest = &rest[open + close + 1..];
    }
    kept + rest
}

/// `01:00:03.500`, `00:03.500` or `01:00:03,500`, and perhaps settings.
fn seconds(time: &str) -> Option<f64> {
    let time = time.split_whitespace().next()?.replace(',', ".");
    time.split(':').try_fold(0.0, |sum, part| Some(sum * 60.0 + part.parse::<f64>().ok()?))
}

/// The parts of a cue by their voices, without tags. Neighbours with one voice are one part.
fn spans(cue: &str) -> Vec<(Option<String>, String)> {
    let mut spans: Vec<(Option<String>, String)> = Vec::new();
    let mut add = |voice: &Option<String>, text: &str| match spans.last_mut() {
        Some((last, said)) if last == voice => said.push_str(text),
        _ => spans.push((voice.clone(), text.to_owned())),
    };
    let cue = without_places(cue);
    let (mut voice, mut rest) = (None, &*cue);
    while let Some(open) = rest.find('<') {
        add(&voice, &decoded(&rest[..open]));
        let Some(close) = rest[open..].find('>') else { break };
        let tag = &rest[open + 1..open + close];
        if tag.starts_with('v') && tag[1..].starts_with([' ', '.', '\t', '\n']) {
            voice = tag.split_once(char::is_whitespace).map(|(_, name)| decoded(name.trim()));
        }
        rest = &rest[open + close + 1..];
    }
    add(&voice, &decoded(rest));
    let said = spans.into_iter().map(|(voice, text)| (voice, text.trim().to_owned()));
    let mut joined: Vec<(Option<String>, String)> = Vec::new();
    for (voice, text) in said.filter(|(_, text)| !text.is_empty()) {
        match joined.last_mut().filter(|(last, _)| *last == voice) {
            Some((_, said)) => said.extend(["\n", &text]),
            None => joined.push((voice, text)),
        }
    }
    joined
}

fn decoded(text: &str) -> String {
    let named = [("&lt;", "<"), ("&gt;", ">"), ("&nbsp;", "\u{a0}"), ("&lrm;", "\u{200e}"), ("&rlm;", "\u{200f}")];
    let text = named.into_iter().fold(text.to_owned(), |text, (name, letter)| text.replace(name, letter));
    text.replace("&amp;", "&")
}
