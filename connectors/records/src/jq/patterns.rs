//! Regular expressions. They are compiled once, have a limit of size, and a search counts its steps.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use jaq_core::data::JustLut;
use jaq_core::native::{Fun, bome, run, v};
use jaq_core::{Cv, Error, ValR, ValT as _};
use jaq_std::ValT as _;
use regex::bytes::{Regex, RegexBuilder};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

use super::limits::{self, steps};
use super::natives::Own;
use super::value::{Value, told};

/// The filters of the library that are replaced.
pub(super) const NAMES: &[&str] = &["matches", "split_matches", "split_"];
/// Maximum size of an expression, in states.
const LARGEST: u64 = 5_000;
/// Maximum size of a compiled expression, in bytes.
const BYTES: usize = 2 << 20;
/// Maximum size of what a search keeps, in bytes.
const CACHE: usize = 256 << 10;
/// Maximum number of expressions that are kept, and of the ranges of their classes.
const KEPT: usize = 64;
const RANGES: u64 = 200_000;

pub(super) fn natives() -> impl Iterator<Item = Fun<JustLut<Value>>> {
    let of_two = || v(2);
    let all: [Own; 3] = [
        ("matches", of_two(), |cv| bome(found(false, true, cv))),
        ("split_matches", of_two(), |cv| bome(found(true, true, cv))),
        ("split_", of_two(), |cv| bome(found(true, false, cv))),
    ];
    all.into_iter().map(run::<JustLut<Value>>)
}

/// Looks whether an expression with these flags can be used.
pub(super) fn check(pattern: &str, flags: &str) -> Result<(), String> {
    Pattern::of(pattern, flags).map(drop).map_err(|reason| match reason.split_once("error: ") {
        // Where it is in the pattern is shown otherwise.
        Some((_, error)) => format!("it is no regular expression: {}", error.trim()),
        None => reason.trim().to_owned(),
    })
}

struct Pattern {
    regex: Regex,
    states: u64,
    ranges: u64,
    /// Search for all matches, and not for the first one only.
    is_global: bool,
    /// Leave out empty matches.
    is_filled: bool,
    /// The run in which it was counted last.
    run: Cell<u64>,
}

thread_local! {
    static PATTERNS: RefCell<HashMap<(String, String), Rc<Pattern>>> = RefCell::default();
}

impl Pattern {
    fn of(pattern: &str, flags: &str) -> Result<Rc<Self>, String> {
        let key = (pattern.to_owned(), flags.to_owned());
        if let Some(known) = PATTERNS.with_borrow(|patterns| patterns.get(&key).cloned()) {
            known.counted();
            return Ok(known);
        }
        steps(16 * pattern.len() as u64);
        if let Some(flag) = flags.chars().find(|flag| !"gnimslxp".contains(*flag)) {
            return Err(format!("invalid regex flag: {flag}"));
        }
        let has = |flag| flags.contains(flag);
        let (any_line, any_letter) = (has('m') || has('p'), has('s') || has('p'));
        let parsed = ParserBuilder::new()
            .utf8(false)
            .nest_limit(100)
            .case_insensitive(has('i'))
            .multi_line(any_line)
            .dot_matches_new_line(any_letter)
            .ignore_whitespace(has('x'))
            .build()
            .parse(pattern)
            .map_err(|error| format!("invalid regex: {error}"))?;
        let (states, ranges) = (size(&parsed, &|_| 4), size(&parsed, &ranges));
        if states > LARGEST {
            return Err(format!("invalid regex: it has more than {LARGEST} states"));
        }
        limits::pattern();
        let regex = RegexBuilder::new(pattern)
            .size_limit(BYTES)
            .dfa_size_limit(CACHE)
            .nest_limit(100)
            .case_insensitive(has('i'))
            .multi_line(any_line)
            .dot_matches_new_line(any_letter)
            .swap_greed(has('l'))
            .ignore_whitespace(has('x'))
            .build()
            .map_err(|error| format!("invalid regex: {error}"))?;
        let run = Cell::new(limits::run());
        let pattern = Rc::new(Self { regex, states, ranges, is_global: has('g'), is_filled: has('n'), run });
        PATTERNS.with_borrow_mut(|patterns| {
            let kept: u64 = patterns.values().map(|pattern| pattern.ranges).sum();
            if patterns.len() >= KEPT || kept + ranges > RANGES {
                patterns.clear();
            }
            patterns.insert(key, pattern.clone());
        });
        Ok(pattern)
    }
}

impl Pattern {
    /// Counts it once in each run, whether it is kept or not.
    fn counted(&self) {
        if self.run.replace(limits::run()) != limits::run() {
            limits::pattern();
        }
    }
}

/// Number of ranges of a class.
fn ranges(class: &Class) -> u64 {
    match class {
        Class::Unicode(class) => class.ranges().len() as u64,
        Class::Bytes(class) => class.ranges().len() as u64,
    }
}

/// The size of an expression in which a class counts as told.
fn size(part: &Hir, class: &dyn Fn(&Class) -> u64) -> u64 {
    match part.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(literal) => literal.0.len() as u64,
        HirKind::Class(of) => class(of),
        HirKind::Repetition(repeated) => {
            let times = repeated.max.unwrap_or(repeated.min + 1).max(1);
            size(&repeated.sub, class).saturating_mul(times.into())
        }
        HirKind::Capture(capture) => size(&capture.sub, class).saturating_add(2),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().map(|part| size(part, class)).fold(0, u64::saturating_add)
        }
    }
}

/// Counts characters up to places that only grow.
struct Characters<'a> {
    text: &'a [u8],
    at: usize,
    characters: usize,
}

impl Characters<'_> {
    fn up_to(&mut self, place: usize) -> usize {
        let begins = |byte: &&u8| **byte & 0xC0 != 0x80;
        self.characters += self.text[self.at..place].iter().filter(begins).count();
        self.at = place;
        self.characters
    }
}

/// The matches in a text, or what is between them, or both.
fn found<'a>(between: bool, matches: bool, mut cv: Cv<'a, JustLut<Value>>) -> ValR<Value> {
    let (flags, pattern) = (cv.0.pop_var(), cv.0.pop_var());
    let text_of = |value: &Value| {
        let text = value.as_utf8_bytes().map(|text| String::from_utf8_lossy(text).into_owned());
        text.ok_or_else(|| Error::typ(value.clone(), "string"))
    };
    let pattern = Pattern::of(&text_of(&pattern)?, &text_of(&flags)?).map_err(|reason| told(&reason))?;
    let whole = cv.1;
    let Some(text) = whole.as_utf8_bytes() else { return Err(Error::typ(whole, "string")) };
    steps(1 + text.len() as u64 * (2 + pattern.states) / 32);
    let names: Vec<Option<&str>> = pattern.regex.capture_names().collect();
    let (mut places, mut end, mut all) = (Characters { text, at: 0, characters: 0 }, 0, Vec::new());
    for found in pattern.regex.captures_iter(text) {
        let Some(first) = found.get(0) else { continue };
        // Bytes are searched: between those of a letter, there is no place for an empty match.
        let is_within = first.is_empty() && text.get(first.start()).is_some_and(|byte| byte & 0xC0 == 0x80);
        if is_within || pattern.is_filled && first.is_empty() {
            continue;
        }
        if between {
            all.push(whole.as_sub_str(&text[end..first.start()]));
            end = first.end();
        }
        if matches {
            let start = places.up_to(first.start());
            let object = |(part, name): (Option<regex::bytes::Match<'_>>, &Option<&str>)| {
                let part = part?;
                let mut of_part = Characters { text, at: first.start(), characters: start };
                let (offset, length) = match part.start() < first.start() {
                    true => (start, 0),
                    false => (of_part.up_to(part.start()), of_part.up_to(part.end())),
                };
                let fields = [
                    ("offset", Value::from(offset)),
                    ("length", Value::from(length.saturating_sub(offset))),
                    ("string", whole.as_sub_str(part.as_bytes())),
                ];
                let name = name.map(|name| ("name", Value::from(name.to_owned())));
                let fields = fields.into_iter().chain(name);
                Some(Value::from_map(fields.map(|(name, value)| (Value::from(name.to_owned()), value))))
            };
            steps(first.len() as u64 * names.len() as u64 / 64);
            all.push(found.iter().zip(&names).filter_map(object).collect::<Result<Value, _>>()?);
        }
        if !pattern.is_global {
            break;
        }
    }
    if between {
        all.push(whole.as_sub_str(&text[end..]));
    }
    Ok(all.into_iter().collect())
}
