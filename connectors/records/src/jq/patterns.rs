//! Regular expressions. They are compiled once, and have a limit of size.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use jaq_json::Val;
use regex::bytes::{Regex, RegexBuilder};
use regex_automata::Input;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{self, NFA, State, WhichCaptures};
use regex_automata::util::primitives::StateID;
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

use super::limits::{self, steps};

/// Maximum size of an expression, in states.
const LARGEST: u64 = 5_000;
/// Maximum size of a compiled expression, in bytes.
const BYTES: usize = 2 << 20;
/// Maximum size of what a search keeps, in bytes.
const CACHE: usize = 256 << 10;
/// Length of matches up to which it does not matter how far a search looks behind them.
const SHORT: usize = 64;
/// Maximum number of expressions that are kept, and of the ranges of their classes.
const KEPT: usize = 64;
const RANGES: u64 = 200_000;

/// Looks whether an expression with these flags can be used.
pub(super) fn check(pattern: &str, flags: &str) -> Result<(), String> {
    Pattern::of(pattern, flags).map(drop).map_err(|reason| match fault(&reason) {
        Some(fault) => format!("it is no regular expression: {fault}"),
        None => reason.trim().to_owned(),
    })
}

/// What is wrong with an expression, without the drawing of where that is, which has several lines. In these, the expression
/// itself may have this word.
pub(super) fn fault(reason: &str) -> Option<&str> {
    reason.rsplit_once("\nerror: ").map(|(_, fault)| fault.trim())
}

pub(super) struct Pattern {
    pub regex: Regex,
    /// The same expression, and what counts the bytes that a search of it looks at.
    expression: Hir,
    looked: RefCell<Option<(DFA, Cache)>>,
    /// The names of its parts, without that of the whole.
    pub names: Vec<Option<Val>>,
    states: u64,
    ranges: u64,
    /// Search for all matches, and not for the first one only.
    pub is_global: bool,
    /// Leave out empty matches.
    pub is_filled: bool,
    /// The run in which it was counted last.
    run: Cell<u64>,
}

thread_local! {
    static PATTERNS: RefCell<HashMap<(String, String), Rc<Pattern>>> = RefCell::default();
}

impl Pattern {
    pub fn of(pattern: &str, flags: &str) -> Result<Rc<Self>, String> {
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
        let (any_line, any_letter) = (has('m'), has('p'));
        let parsed = ParserBuilder::new()
            .utf8(false)
            .nest_limit(100)
            .case_insensitive(has('i'))
            .multi_line(any_line)
            .dot_matches_new_line(any_letter)
            .ignore_whitespace(has('x'))
            .swap_greed(has('l'))
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
        let names = regex.capture_names().skip(1).map(|name| name.map(|name| Val::from(name.to_owned()))).collect();
        let (is_global, is_filled) = (has('g'), has('n'));
        let pattern = Rc::new(Self {
            regex,
            expression: parsed,
            looked: RefCell::default(),
            names,
            states,
            ranges,
            is_global,
            is_filled,
            run,
        });
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
    /// Counts a search of a text: at worst, each byte meets each state, which takes about 2 ns.
    pub fn searches(&self, length: usize) {
        steps(1 + length as u64 * (2 + self.states) / 96);
    }

    /// The number of bytes that a search from a place on looks at, which may be many more than the match has.
    pub fn looks_at(&self, text: &[u8], from: usize) -> usize {
        let longest = self.expression.properties().maximum_len();
        if longest.is_some_and(|longest| longest <= SHORT) {
            return 0;
        }
        let mut looked = self.looked.borrow_mut();
        let Some((dfa, mut cache)) = looked.take().or_else(|| looking(&self.expression)) else {
            return text.len() - from;
        };
        // Beside letters of several bytes, the automaton cannot tell borders of words; and it may grow too large.
        let found = looked_at(&dfa, &mut cache, text, from).unwrap_or_else(|| match longest {
            Some(longest) => longest.min(text.len() - from),
            None => followed(dfa.get_nfa(), text, from),
        });
        *looked = Some((dfa, cache));
        found
    }

    /// Counts it once in each run, whether it is kept or not.
    fn counted(&self) {
        if self.run.replace(limits::run()) != limits::run() {
            limits::pattern();
        }
    }
}

/// An automaton that searches as the expression does.
fn looking(expression: &Hir) -> Option<(DFA, Cache)> {
    let config = thompson::Config::new().utf8(false).which_captures(WhichCaptures::None);
    let nfa = thompson::Compiler::new().configure(config).build_from_hir(expression).ok()?;
    let config = DFA::config().cache_capacity(CACHE).skip_cache_capacity_check(true).unicode_word_boundary(true);
    let config = config.minimum_cache_clear_count(Some(4));
    let dfa = DFA::builder().configure(config).build_from_nfa(nfa).ok()?;
    let cache = dfa.create_cache();
    Some((dfa, cache))
}

/// How far it looks, unless it cannot tell.
fn looked_at(dfa: &DFA, cache: &mut Cache, text: &[u8], from: usize) -> Option<usize> {
    let mut state = dfa.start_state_forward(cache, &Input::new(text).range(from..)).ok()?;
    for (at, byte) in text[from..].iter().enumerate() {
        state = dfa.next_state(cache, state, *byte).ok()?;
        if state.is_dead() {
            return Some(at + 1);
        }
        if state.is_quit() {
            return None;
        }
    }
    Some(text.len() - from)
}

/// How far a search looks that follows all states at a time.
fn followed(nfa: &NFA, text: &[u8], from: usize) -> usize {
    let (mut states, mut known, mut has_match) = (Vec::new(), vec![usize::MAX; nfa.states().len()], false);
    let mut reach = |first: StateID, at: usize, states: &mut Vec<StateID>| {
        let mut open = vec![first];
        while let Some(state) = open.pop() {
            if std::mem::replace(&mut known[state.as_usize()], at) == at {
                continue;
            }
            match nfa.state(state) {
                State::Union { alternates } => open.extend(alternates.iter().rev()),
                State::BinaryUnion { alt1, alt2 } => open.extend([*alt2, *alt1]),
                State::Capture { next, .. } => open.push(*next),
                State::Look { look, next } if nfa.look_matcher().matches(*look, text, at) => open.push(*next),
                State::Look { .. } | State::Fail => {}
                _ => states.push(state),
            }
        }
    };
    for (at, byte) in text.iter().enumerate().skip(from) {
        if !has_match {
            reach(nfa.start_anchored(), at, &mut states);
        }
        steps(1 + states.len() as u64 / 4);
        let mut next = Vec::new();
        for state in states {
            let then = match nfa.state(state) {
                State::ByteRange { trans } => trans.matches_byte(*byte).then_some(trans.next),
                State::Sparse(all) => all.matches_byte(*byte),
                State::Dense(all) => all.matches_byte(*byte),
                State::Match { .. } => {
                    // What has less priority than a match is over.
                    has_match = true;
                    break;
                }
                _ => None,
            };
            if let Some(then) = then {
                reach(then, at + 1, &mut next);
            }
        }
        states = next;
        if has_match && states.is_empty() {
            return at + 1 - from;
        }
    }
    text.len() - from
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
