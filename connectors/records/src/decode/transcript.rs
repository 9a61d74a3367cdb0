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
    for cue in cues(&text) {
        let Cue { start, end, lines } = match cue {
            Ok(cue) => cue,
            Err(line) => {
                number += 1;
                records.take(number, Err(format!("`{line}` are no times of a cue")));
                continue;
            }
        };
        let spans = spans(&lines.join("\n")).into_iter().flat_map(|span| named(span, &starts));
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

/// A cue: when it begins and ends, and its lines.
struct Cue<'a> {
    start: f64,
    end: f64,
    lines: Vec<&'a str>,
}

/// The cues of a transcript, or lines that should be times. A cue ends with a blank line, or where the next one begins: its
/// number may stand before its times.
fn cues(text: &str) -> Vec<Result<Cue<'_>, &str>> {
    let (mut cues, mut is_open): (Vec<Result<Cue<'_>, &str>>, bool) = (Vec::new(), false);
    for line in text.lines() {
        let times = line.split_once("-->").map(|(start, end)| (seconds(start), seconds(end)));
        let last = cues.last_mut().and_then(|cue| cue.as_mut().ok()).filter(|_| is_open);
        match (times, last) {
            _ if line.trim().is_empty() => is_open = false,
            (Some((Some(start), Some(end))), last) => {
                if let Some(last) = last
                    && last.lines.last().is_some_and(|line| line.trim().bytes().all(|byte| byte.is_ascii_digit()))
                {
                    last.lines.pop();
                }
                cues.push(Ok(Cue { start, end, lines: Vec::new() }));
                is_open = true;
            }
            (_, Some(last)) => last.lines.push(line),
            (Some(_), None) => cues.push(Err(line)),
            (None, None) => {}
        }
    }
    cues
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
    while let Some(open) = tag_in(rest) {
        let Some(close) = rest[open..].find('>') else { break };
        let tag = &rest[open + 1..open + close];
        let is_voice = tag.starts_with('v') && tag[1..].starts_with([' ', '.', '\t', '\n']);
        add(&voice, &decoded(if is_voice { without_dash(&rest[..open]) } else { &rest[..open] }));
        if is_voice {
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

/// Where a tag begins: `<` before a letter, a time or `/`. Another one is only less.
fn tag_in(text: &str) -> Option<usize> {
    let is_tag = |at: &usize| {
        let after = text[at + 1..].trim_start_matches('/');
        let end = after.bytes().take(MOST).position(|byte| byte == b'>');
        let is_time = end.is_some_and(|end| after[..end].contains(':') && seconds(&after[..end]).is_some());
        after.starts_with(|first: char| first.is_ascii_alphabetic()) || is_time
    };
    text.match_indices('<').map(|(at, _)| at).find(is_tag)
}

/// The text without the dash before the next speaker.
fn without_dash(text: &str) -> &str {
    let (before, last) = text.rsplit_once('\n').map_or(("", text), |(before, last)| (before, last));
    if matches!(last.trim(), "-" | "\u{2013}" | "\u{2014}") { before } else { text }
}

/// Text with the letters that entities stand for.
fn decoded(text: &str) -> String {
    let (mut kept, mut rest) = (String::new(), text);
    while let Some(open) = rest.find('&') {
        kept.push_str(&rest[..open]);
        rest = &rest[open..];
        let length = rest.bytes().take(MOST + 2).position(|byte| byte == b';').map_or(0, |end| end + 1);
        let name = rest.get(1..length.saturating_sub(1)).unwrap_or_default();
        let is_entity =
            (1..=MOST).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'#');
        let used = if is_entity { length } else { 1 };
        kept.push_str(&match is_entity {
            true => entity(&rest[..length]),
            false => "&".to_owned(),
        });
        rest = &rest[used..];
    }
    kept + rest
}

/// The longest name of an entity.
const MOST: usize = 32;

fn entity(name: &str) -> String {
    match name {
        "&nbsp;" => "\u{a0}".to_owned(),
        "&lrm;" => "\u{200e}".to_owned(),
        "&rlm;" => "\u{200f}".to_owned(),
        name => crate::functions::html_text(name),
    }
}
