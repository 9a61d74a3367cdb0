//! Where a program fails.
//!
//! A program that fails runs once more on the same record, compiled in another way: each of its terms tells when it fails.
//! The first one that tells is the innermost, and those around it pass the error on.

use std::cell::RefCell;
use std::ops::Range;

use jaq_core::Error;
use jaq_core::data::JustLut;
use jaq_core::load::Arena;
use jaq_core::load::lex::StrPart;
use jaq_core::load::parse::{BinaryOp, Pattern, Term};
use jaq_core::native::{Fun, bome, run, v};
use jaq_json::{Rc, Val};
use jaq_std::ValT as _;

use super::natives::Own;
use super::terms::parts;
use super::value::Value;

/// Tells that a term fails. No program can name it.
const FAILED: &str = "!failed";
/// Maximum length of a part of a program that is shown, in characters.
const SHOWN: usize = 40;

thread_local! {
    /// The term that failed last, and with what.
    static LAST: RefCell<Option<(usize, Val)>> = const { RefCell::new(None) };
}

/// The places of the terms of a program, in bytes.
#[derive(Default)]
pub(super) struct Marks(Vec<Range<usize>>);

impl Marks {
    /// Changes a term so that it tells when it fails.
    pub fn mark<'a>(&mut self, term: &mut Term<&'a str>, place: Range<usize>, arena: &'a Arena) {
        let number = Term::Num(arena.alloc(self.0.len().to_string()).as_str());
        self.0.push(place);
        let tell = Term::Call(FAILED, vec![number]);
        *term = Term::TryCatch(Box::new(std::mem::take(term)), Some(Box::new(tell)));
    }

    /// Runs a program with these marks, which gives the error with which it fails, and gives the place of the term.
    pub fn place(&self, program: impl FnOnce() -> Option<Val>, error: &Val) -> Option<Range<usize>> {
        LAST.set(None);
        let found = program();
        let last = LAST.take();
        // Where a term cannot tell, the program fails in another way.
        let (number, _) = last.filter(|(_, told)| found.as_ref() == Some(error) && told == error)?;
        self.0.get(number).cloned()
    }
}

pub(super) fn natives() -> impl Iterator<Item = Fun<JustLut<Value>>> {
    let failed: Own = (FAILED, v(1), |mut cv| {
        let number = cv.0.pop_var().as_isize().and_then(|number| usize::try_from(number).ok()).unwrap_or_default();
        let is_passed_on = LAST.with_borrow(|last| last.as_ref().is_some_and(|(_, told)| is_same(told, &cv.1.val)));
        if !is_passed_on {
            LAST.set(Some((number, cv.1.val.clone())));
        }
        bome(Err(Error::new(cv.1)))
    });
    std::iter::once(run::<JustLut<Value>>(failed))
}

/// Whether it is the same error, and not another one that says the same: that one has a text of its own.
fn is_same(one: &Val, other: &Val) -> bool {
    match (one, other) {
        (Val::TStr(one), Val::TStr(other)) => one.as_ptr() == other.as_ptr() && one.len() == other.len(),
        (Val::Arr(one), Val::Arr(other)) => Rc::ptr_eq(one, other),
        (Val::Obj(one), Val::Obj(other)) => Rc::ptr_eq(one, other),
        _ => one == other,
    }
}

/// Whether the first part of a term is updated.
pub(super) fn is_updated(term: &Term<&str>) -> bool {
    use BinaryOp::{Assign, Update, UpdateAlt, UpdateMath};
    matches!(term, Term::BinOp(_, Assign | Update | UpdateAlt | UpdateMath(_), _))
}

/// The place of a term that may fail by itself, from the first to the last of its names.
pub(super) fn of(code: &str, term: &mut Term<&str>) -> Option<Range<usize>> {
    let may_fail = match term {
        Term::BinOp(_, BinaryOp::Pipe(Some(Pattern::Var(_)) | None) | BinaryOp::Comma, _) => false,
        Term::BinOp(..) | Term::Str(Some(_), _) => true,
        Term::Call(..) | Term::Path(..) | Term::Neg(_) | Term::Fold(..) | Term::Obj(_) => true,
        _ => false,
    };
    if !may_fail {
        return None;
    }
    let mut place: Option<Range<usize>> = None;
    let mut add = |name: &str| {
        let start = (name.as_ptr() as usize).checked_sub(code.as_ptr() as usize);
        let Some(start) = start.filter(|start| start + name.len() <= code.len()) else { return };
        let range = start..start + name.len();
        place = Some(match &place {
            Some(before) => before.start.min(range.start)..before.end.max(range.end),
            None => range,
        });
    };
    match &mut *term {
        // What fails by itself is that the value has not these parts.
        Term::BinOp(left, BinaryOp::Pipe(Some(pattern)), _) => {
            names(left, &mut add);
            parts_of(pattern, &mut add);
        }
        term => names(term, &mut add),
    }
    let mut place = place?;
    let mut before = code[..place.start].trim_end_matches(['.', '"', '[', '-']);
    if let Term::Obj(_) = term {
        before = before.trim_end_matches('(').trim_end().trim_end_matches('{');
    }
    if let Term::BinOp(left, ..) = term
        && matches!(**left, Term::Id)
    {
        let operand = before.trim_end().trim_end_matches(['+', '-', '*', '/', '%', '<', '>', '=', '!']).trim_end();
        before = operand.strip_suffix('.').unwrap_or(before);
    }
    if let Term::BinOp(left, BinaryOp::Pipe(Some(_)), _) = term
        && matches!(**left, Term::Id)
    {
        before = before.trim_end_matches(['[', '{', '(', '"', ' ', '\n']);
        before = before.strip_suffix("as").map_or(before, str::trim_end);
        before = before.strip_suffix('.').unwrap_or(before);
    }
    if let Term::Neg(_) = term {
        before = before.trim_end_matches(['(', ' ', '\n']);
        before = before.strip_suffix('-').unwrap_or(before);
    }
    place.start = before.len();
    place.start = opened(code, &place);
    place.end = closed(code, &place);
    Some(place)
}

/// The start of a part of a program with the brackets that are closed in it.
fn opened(code: &str, place: &Range<usize>) -> usize {
    let (mut open, mut closed) = (0_usize, 0_usize);
    for letter in code[place.clone()].chars() {
        match letter {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' if open > 0 => open -= 1,
            ')' | ']' | '}' => closed += 1,
            _ => {}
        }
    }
    for (at, letter) in code[..place.start].char_indices().rev() {
        match letter {
            _ if closed == 0 => break,
            ')' | ']' | '}' => closed += 1,
            '(' | '[' | '{' if closed == 1 => return at,
            '(' | '[' | '{' => closed -= 1,
            _ => {}
        }
    }
    place.start
}

/// The end of a part of a program with the brackets and quotes that are open at its end.
fn closed(code: &str, place: &Range<usize>) -> usize {
    let (mut open, mut is_escaped) = (Vec::new(), false);
    for (at, letter) in code[place.start..].char_indices() {
        let is_text = open.last() == Some(&'"');
        if place.start + at >= place.end && open.is_empty() {
            return place.start + at;
        }
        match letter {
            '(' if is_text && is_escaped => open.push(')'),
            _ if is_text && is_escaped => {}
            '"' if is_text => drop(open.pop()),
            '"' => open.push('"'),
            '(' if !is_text => open.push(')'),
            '[' if !is_text => open.push(']'),
            '{' if !is_text => open.push('}'),
            ')' | ']' | '}' if !is_text && open.pop().is_none() => return place.end,
            _ => {}
        }
        is_escaped = is_text && letter == '\\' && !is_escaped;
    }
    code.len().max(place.end)
}

/// Gives all names and texts of a term to `each`.
fn names<'a>(term: &mut Term<&'a str>, each: &mut dyn FnMut(&'a str)) {
    match term {
        Term::Call(name, _) | Term::Var(name) | Term::Num(name) | Term::Break(name) | Term::Label(name, _) => {
            each(name)
        }
        Term::Fold(name, ..) => each(name),
        Term::Str(format, text) => {
            format.iter().for_each(|format| each(format));
            for part in text {
                if let StrPart::Str(part) = part {
                    each(part);
                }
            }
        }
        Term::Obj(fields) => {
            for (name, _) in fields.iter_mut().filter(|(_, value)| value.is_none()) {
                names(name, each);
            }
        }
        _ => {}
    }
    parts(term, &mut |part| names(part, each));
}

fn parts_of<'a>(pattern: &mut Pattern<&'a str>, each: &mut dyn FnMut(&'a str)) {
    match pattern {
        Pattern::Var(name) => each(name),
        Pattern::Arr(patterns) => patterns.iter_mut().for_each(|pattern| parts_of(pattern, each)),
        Pattern::Obj(fields) => {
            for (name, pattern) in fields {
                names(name, each);
                parts_of(pattern, each);
            }
        }
    }
}

/// A part of a program, shortly.
pub(super) fn shown(code: &str, place: &Range<usize>) -> String {
    let part = code.get(place.clone()).unwrap_or_default();
    let line = part.lines().next().unwrap_or_default();
    let end = line.char_indices().nth(SHOWN).map_or(line.len(), |(at, _)| at);
    let is_cut = end < part.len();
    format!("`{}{}`", &line[..end], if is_cut { "…" } else { "" })
}
