//! Filters that search texts by regular expressions. A search takes linear time and counts its steps.

use std::rc::Rc;

use bytes::Bytes;
use jaq_core::data::JustLut;
use jaq_core::native::{Fun, bome, run, v};
use jaq_core::{Bind, Cv, Error, Exn, ValXs};
use jaq_json::{Map, Val};
use jaq_std::ValT as _;
use regex::bytes::{Captures, Match};

use super::held;
use super::limits::{self, Lent, steps};
use super::natives::Own;
use super::patterns::{Pattern, fault};
use super::value::{Value, told};

pub(super) fn natives() -> impl Iterator<Item = Fun<JustLut<Value>>> {
    let of_filter = || [Bind::Var(()), Bind::Fun(()), Bind::Var(())].into();
    let all: [Own; 6] = [
        ("test", v(2), |cv| bome(Search::of(cv).map(|search| search.first().is_some().into()))),
        ("matches", v(2), |cv| bome(Search::of(cv).map(|search| search.matches()))),
        ("captures", v(2), |cv| bome(Search::of(cv).map(|search| search.captured()))),
        ("scanned", v(2), |cv| bome(Search::of(cv).map(|search| search.scanned()))),
        ("between", v(2), |cv| bome(Search::of(cv).map(|search| search.between()))),
        ("sub", of_filter(), replaced),
    ];
    all.into_iter().map(run::<JustLut<Value>>)
}

/// Number of matches for which it is not counted what a search looks at.
const FEW: usize = 16;

/// A search of a text.
struct Search {
    pattern: Rc<Pattern>,
    whole: Value,
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

/// What the searches of a text look at. Each of them may look at all that follows, and find little.
#[derive(Default)]
struct Looked {
    matches: usize,
    end: usize,
    bytes: usize,
}

impl Looked {
    fn count(&mut self, search: &Search, found: &Match<'_>) {
        self.matches += 1;
        if self.matches > FEW {
            self.bytes += search.pattern.looks_at(search.text(), self.end);
            // As much as the text has was counted before.
            if let Some(more) = self.bytes.checked_sub(search.text().len()) {
                search.pattern.searches(more);
                self.bytes -= more;
            }
        }
        self.end = found.end();
    }
}

impl Search {
    fn of(mut cv: Cv<'_, JustLut<Value>>) -> Result<Self, Error<Value>> {
        let (flags, pattern) = (cv.0.pop_var(), cv.0.pop_var());
        Self::by(&pattern, &flags, cv.1)
    }

    fn by(pattern: &Value, flags: &Value, whole: Value) -> Result<Self, Error<Value>> {
        if whole.as_utf8_bytes().is_none() {
            return Err(told(&format_args!("{whole:#} cannot be matched, because it is no text")));
        }
        let text_of = |value: &Value, what: &str| match value.as_utf8_bytes() {
            Some(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            None => Err(told(&format_args!("{value:#} is no {what}: it is no text"))),
        };
        // As in jq, null is no flags.
        let flags = match &flags.val {
            Val::Null => String::new(),
            _ => text_of(flags, "set of flags")?,
        };
        let expression = text_of(pattern, "regular expression")?;
        let pattern = Pattern::of(&expression, &flags).map_err(|reason| match fault(&reason) {
            Some(fault) => told(&format_args!("{pattern:#} is no regular expression: {fault}")),
            None => told(&reason),
        })?;
        let search = Self { pattern, whole };
        search.pattern.searches(search.text().len());
        Ok(search)
    }

    fn bytes(&self) -> &Bytes {
        static NOTHING: Bytes = Bytes::new();
        match &self.whole.val {
            Val::TStr(text) | Val::BStr(text) => text,
            _ => &NOTHING,
        }
    }

    fn text(&self) -> &[u8] {
        self.bytes()
    }

    /// Whether a match counts. Bytes are searched: between those of a letter, there is no place for an empty match.
    fn counts(&self, found: &Match<'_>) -> bool {
        let is_within = || self.text().get(found.start()).is_some_and(|byte| byte & 0xC0 == 0x80);
        !found.is_empty() || !self.pattern.is_filled && !is_within()
    }

    /// The matches, or the first of them.
    fn all(&self) -> impl Iterator<Item = Captures<'_>> {
        let most = if self.pattern.is_global { usize::MAX } else { 1 };
        let counts = |found: &Captures<'_>| found.get(0).is_some_and(|whole| self.counts(&whole));
        let mut looked = Looked::default();
        let each = move |found: &Captures<'_>| found.get(0).into_iter().for_each(|whole| looked.count(self, &whole));
        self.pattern.regex.captures_iter(self.text()).inspect(each).filter(counts).take(most)
    }

    /// The same, without the parts.
    fn wholes(&self) -> impl Iterator<Item = Match<'_>> {
        let most = if self.pattern.is_global { usize::MAX } else { 1 };
        let mut looked = Looked::default();
        let each = move |found: &Match<'_>| looked.count(self, found);
        self.pattern.regex.find_iter(self.text()).inspect(each).filter(|found| self.counts(found)).take(most)
    }

    fn first(&self) -> Option<Match<'_>> {
        self.wholes().next()
    }

    fn part(&self, part: Option<Match<'_>>) -> Val {
        part.map_or(Val::Null, |part| held::part(self.bytes(), part.as_bytes()))
    }

    /// The parts of the matches as `match` gives them.
    fn matches(&self) -> Value {
        let mut places = Characters { text: self.text(), at: 0, characters: 0 };
        let all = self.all().filter_map(|found| {
            let whole = found.get(0)?;
            steps(2 + 2 * found.len() as u64 + (whole.len() * found.len()) as u64 / 64);
            let start = places.up_to(whole.start());
            let place = |part: Match<'_>| {
                let mut of_part = Characters { text: self.text(), at: whole.start(), characters: start };
                match part.start() < whole.start() {
                    true => (start, start),
                    false => (of_part.up_to(part.start()), of_part.up_to(part.end())),
                }
            };
            let fields = |part: Option<Match<'_>>| {
                let (offset, length) = match part.map(place) {
                    Some((from, to)) => (Val::from(from), Val::from(to - from)),
                    None => (Val::from(-1_isize), Val::from(0_isize)),
                };
                [("offset", offset), ("length", length), ("string", self.part(part))]
                    .map(|(name, value)| (held::name(name), value))
            };
            let of_part = |(part, name): (Option<Match<'_>>, &Option<Val>)| {
                let name = (held::name("name"), name.as_ref().map_or(Val::Null, held::shared));
                held::fielded(fields(part).into_iter().chain([name]).collect())
            };
            let parts = held::listed(found.iter().skip(1).zip(&self.pattern.names).map(of_part).collect());
            let parts = (held::name("captures"), parts);
            Some(held::fielded(fields(Some(whole)).into_iter().chain([parts]).collect()))
        });
        Value::of(held::listed(all.collect()), 4)
    }

    /// The named parts of a match.
    fn named(&self, found: &Captures<'_>) -> Value {
        let names = self.pattern.names.iter().zip(found.iter().skip(1));
        let named = names.filter_map(|(name, part)| Some((name.as_ref()?, part)));
        let fields: Map = named.map(|(name, part)| (held::shared(name), self.part(part))).collect();
        Value::of(held::fielded(fields), 1)
    }

    fn captured(&self) -> Value {
        self.all().map(|found| self.named(&found)).collect()
    }

    /// The matches as texts, or as lists of their parts if they have some.
    fn scanned(&self) -> Value {
        if self.pattern.names.is_empty() {
            let counted = |found: Match<'_>| {
                steps(1);
                self.part(Some(found))
            };
            return Value::of(held::listed(self.wholes().map(counted).collect()), 1);
        }
        let parts = |found: Captures<'_>| {
            steps(1);
            held::listed(found.iter().skip(1).map(|part| self.part(part)).collect())
        };
        Value::of(held::listed(self.all().map(parts).collect()), 2)
    }

    /// What is between the matches.
    fn between(&self) -> Value {
        let (mut end, mut all) = (0, Vec::new());
        for found in self.wholes() {
            steps(1);
            all.push(held::part(self.bytes(), &self.text()[end..found.start()]));
            end = found.end();
        }
        all.push(held::part(self.bytes(), &self.text()[end..]));
        Value::of(held::listed(all), 1)
    }
}

/// The text with other texts for its matches. If the filter gives several for each match, there are several.
fn replaced<'a>(mut cv: Cv<'a, JustLut<Value>>) -> ValXs<'a, Value> {
    let flags = cv.0.pop_var();
    let (filter, context) = cv.0.pop_fun();
    let pattern = cv.0.pop_var();
    let search = match Search::by(&pattern, &flags, cv.1) {
        Ok(search) => search,
        Err(error) => return bome(Err(error)),
    };
    let (mut all, mut lent, mut end): (Vec<Vec<u8>>, Lent, usize) = (Vec::new(), Lent::of(0), 0);
    for found in search.all() {
        let Some(whole) = found.get(0) else { continue };
        steps(1);
        let gap = &search.text()[end..whole.start()];
        end = whole.end();
        for (at, new) in filter.run((context.clone(), search.named(&found))).enumerate() {
            let new = match new {
                Ok(new) => new,
                Err(error) => return Box::new(std::iter::once(Err(error))),
            };
            let Some(text) = new.as_utf8_bytes() else {
                let reason = format_args!("{new:#} cannot replace a part of a text, because it is no text").to_string();
                return Box::new(std::iter::once(Err(Exn::from(told(&reason)))));
            };
            if all.len() <= at {
                lent.more(64);
                all.push(Vec::new());
            }
            lent.more((gap.len() + text.len()) as u64);
            all[at].extend_from_slice(gap);
            all[at].extend_from_slice(text);
            limits::text(all[at].len() as u64);
            steps((gap.len() + text.len()) as u64 / 256);
        }
    }
    if all.is_empty() {
        return bome(Ok(search.whole));
    }
    let each = move |mut text: Vec<u8>| {
        text.extend_from_slice(&search.text()[end..]);
        Ok(Value::from_utf8_bytes(text))
    };
    drop(lent);
    Box::new(all.into_iter().map(each))
}
