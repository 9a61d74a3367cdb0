//! Filters of jq over values of JSON, which the library has for its own values only.

use std::cell::Cell;

use jaq_core::box_iter::box_once;
use jaq_core::data::JustLut;
use jaq_core::native::{Fun, bome, run, unary, v};
use jaq_core::path::Opt;
use jaq_core::{Bind, Cv, Error, Exn, Native, RunPtr, ValR, ValT as _, ValX};
use jaq_json::{Num, Val};
use jaq_std::ValT as _;

use super::limits::{self, Lent, steps, walk};
use super::value::{Value, told};
use super::{held, write};
use crate::decode::{Odd, json};

/// Changes what is at the paths that a filter gives, all of which are those of the value as it is. No program can name it.
pub(super) const MODIFY: &str = "!modify";
/// Counts calls; what is given to it comes out. No program can name it.
pub(super) const TICK: &str = "!tick";
/// Maximum length of a path.
const LONGEST: usize = 1_000;

/// A filter of ours: its name, its arguments, and what it does.
pub(crate) type Own = (&'static str, Box<[jaq_core::Bind]>, RunPtr<JustLut<Value>>);

/// The filters.
pub(super) fn natives() -> impl Iterator<Item = Fun<JustLut<Value>>> {
    let all: [Own; 9] = [
        ("nan", v(0), |_| bome(Ok(f64::NAN.into()))),
        ("infinite", v(0), |_| bome(Ok(f64::INFINITY.into()))),
        ("fromjson", v(0), |cv| bome(from_json(&cv.1))),
        ("tojson", v(0), |cv| bome(Ok(Value::from(cv.1.to_string())))),
        ("length", v(0), |cv| bome(length(&cv.1))),
        ("contains", v(1), |cv| unary(cv, |whole, part| contained(&whole, &part))),
        ("has", v(1), |cv| unary(cv, |of, key| has(&of, &key))),
        ("indices", v(1), |cv| unary(cv, |of, sought| indices(&of, &sought))),
        ("bsearch", v(1), |cv| {
            unary(cv, |sorted, sought| {
                let Val::Arr(list) = &sorted.val else { return Err(Error::typ(sorted, "array")) };
                let before = |value: &Val| Value::of(held::shared(value), sorted.depth).cmp(&sought);
                Ok(match list.binary_search_by(before) {
                    Ok(at) => (at as isize).into(),
                    Err(at) => (-1 - at as isize).into(),
                })
            })
        }),
    ];
    let both = [Bind::Fun(()), Bind::Fun(())].into();
    let modify: Own = (MODIFY, both, |cv| box_once(modified(cv)));
    all.into_iter().chain([modify]).map(run::<JustLut<Value>>).chain([tick()])
}

fn modified<'a>(mut cv: Cv<'a, JustLut<Value>>) -> ValX<'a, Value> {
    type New<'a, 'b> = &'b dyn Fn(Value) -> ValX<'a, Option<Value>, Value>;
    fn change<'a>(value: Value, path: &[Value], new: New<'a, '_>, is_gone: &Cell<bool>) -> ValX<'a, Value> {
        let Some((first, rest)) = path.split_first() else { return Ok(new(value)?.unwrap_or_default()) };
        value.map_index(first, Opt::Essential, |part| {
            // What goes is deleted at the end; until then, a slice has its places.
            let kept =
                if rest.is_empty() && matches!(first.val, Val::Obj(_)) { part.clone() } else { Value::default() };
            let changed = match rest.is_empty() {
                false => Some(change(part, rest, new, is_gone)),
                true => new(part).transpose(),
            };
            is_gone.set(is_gone.get() || changed.is_none());
            std::iter::once(changed.unwrap_or(Ok(kept)))
        })
    }
    let ((new, in_new), (paths, in_paths)) = (cv.0.pop_fun(), cv.0.pop_fun());
    let (mut all, mut gone, mut lent): (Vec<Vec<Value>>, Vec<Value>, Lent) = (Vec::new(), Vec::new(), Lent::of(0));
    for path in paths.paths((in_paths, (cv.1.clone(), Default::default()))) {
        let path: Vec<Value> = path?.1.iter().map(|part| part.clone().listed()).collect();
        lent.more(32 + 32 * path.len() as u64);
        limits::path(path.len() > LONGEST);
        all.push(path.into_iter().rev().collect());
    }
    let new = |value| new.run((in_new.clone(), value)).next().transpose();
    let mut value = cv.1;
    for path in all {
        let is_gone = Cell::new(false);
        value = change(value, &path, &new, &is_gone)?;
        if is_gone.get() {
            gone.push(path.into_iter().collect());
        }
    }
    match gone.is_empty() {
        true => Ok(value),
        false => super::lists::without(value, gone.into_iter().collect()).map_err(Exn::from),
    }
}

/// Maps values only, so that programs can update through it.
fn tick() -> Fun<JustLut<Value>> {
    let filter = Native::<JustLut<Value>>::new(|cv| {
        steps(2);
        bome(Ok(cv.1.copied()))
    });
    let filter = filter.with_paths(|cv| {
        let length = cv.1.1.iter().take(LONGEST + 1).count();
        steps(2 + length as u64 / 32);
        limits::path(length > LONGEST);
        Box::new(std::iter::once(Ok((cv.1.0.copied(), cv.1.1))))
    });
    let filter = filter.with_update(|cv, update| {
        steps(2);
        update(cv.1.copied())
    });
    (TICK, v(0), filter)
}

fn from_json(value: &Value) -> ValR<Value> {
    let Some(text) = value.as_utf8_bytes() else { return Err(Error::typ(value.clone(), "string")) };
    let found = parsed(text);
    found.map(Value::new).map_err(|reason| told(&format_args!("cannot parse a text as JSON: {reason}")))
}

/// The value that a text is in JSON.
pub(crate) fn parsed(text: &[u8]) -> Result<Val, String> {
    steps(text.len() as u64 / 64);
    let _lent = Lent::of(40 * text.len() as u64);
    json(text, &mut Odd::default())
}

/// A value in JSON.
pub(crate) fn shown(value: &Val) -> String {
    walk(value);
    write::Json(value).to_string()
}

fn length(value: &Value) -> ValR<Value> {
    Ok(match &value.val {
        Val::Null => 0_usize.into(),
        Val::Num(Num::Int(number)) => (*number).saturating_abs().into(),
        Val::Num(_) => value.as_f64().unwrap_or_default().abs().into(),
        Val::TStr(text) => {
            steps(text.len() as u64 / 64);
            String::from_utf8_lossy(text).chars().count().into()
        }
        Val::BStr(text) => text.len().into(),
        Val::Arr(list) => list.len().into(),
        Val::Obj(fields) => fields.len().into(),
        Val::Bool(_) => return Err(told(&format_args!("{} has no length", value.val))),
    })
}

/// Whether `text` has `part` in it.
fn is_within(text: &[u8], part: &[u8]) -> bool {
    steps((text.len() + part.len()) as u64 / 64);
    match (std::str::from_utf8(text), std::str::from_utf8(part)) {
        (Ok(text), Ok(part)) => text.contains(part),
        _ => {
            steps(text.len() as u64 * part.len() as u64 / 64);
            part.is_empty() || text.windows(part.len()).any(|window| window == part)
        }
    }
}

fn contained(whole: &Value, part: &Value) -> ValR<Value> {
    match std::mem::discriminant(&whole.val) == std::mem::discriminant(&part.val) {
        true => Ok(contains(&whole.val, &part.val).into()),
        false if matches!((&whole.val, &part.val), (Val::TStr(_) | Val::BStr(_), Val::TStr(_) | Val::BStr(_))) => {
            Ok(contains(&whole.val, &part.val).into())
        }
        false => Err(told(&format_args!("{whole:#} cannot contain {part:#}, because it is of another type"))),
    }
}

fn contains(whole: &Val, part: &Val) -> bool {
    steps(1);
    match (whole, part) {
        (Val::TStr(whole) | Val::BStr(whole), Val::TStr(part) | Val::BStr(part)) => is_within(whole, part),
        (Val::Arr(whole), Val::Arr(parts)) => parts.iter().all(|part| whole.iter().any(|whole| contains(whole, part))),
        (Val::Obj(whole), Val::Obj(parts)) => {
            parts.iter().all(|(name, part)| whole.get(name).is_some_and(|whole| contains(whole, part)))
        }
        _ => whole == part,
    }
}

fn has(of: &Value, key: &Value) -> ValR<Value> {
    steps(1);
    held::named(&key.val);
    match (&of.val, &key.val) {
        (Val::Null, _) => Ok(false.into()),
        (Val::Obj(fields), name @ Val::TStr(_)) => Ok(fields.contains_key(name).into()),
        (Val::Arr(list), Val::Num(_)) => Ok(key.as_f64().is_some_and(|at| at >= 0.0 && at < list.len() as f64).into()),
        _ => Err(Error::index(of.clone(), key.clone())),
    }
}

pub(super) fn indices(of: &Value, sought: &Value) -> ValR<Value> {
    let found: Vec<usize> = match (&of.val, &sought.val) {
        (Val::Null, sought) if !matches!(sought, Val::Null) => return Ok(Value::default()),
        (Val::Obj(_), Val::TStr(_)) => return jaq_core::ValT::index(of.clone(), sought),
        (Val::TStr(text), Val::TStr(part)) => {
            steps(text.len() as u64 / 32);
            let (text, part) = (String::from_utf8_lossy(text), String::from_utf8_lossy(part));
            steps(text.len() as u64 * (part.len() as u64).min(256) / 256);
            let starts = |(at, (place, _)): (usize, (usize, char))| text[place..].starts_with(&*part).then_some(at);
            if part.is_empty() { Vec::new() } else { text.char_indices().enumerate().filter_map(starts).collect() }
        }
        (Val::Arr(list), Val::Arr(part)) => {
            let cost: u64 = part.iter().map(|value| 1 + u64::from(walk(value) > 0) * limits::size_of(value).0).sum();
            steps(list.len() as u64 * cost / 4);
            let windows = if part.is_empty() { [].windows(1) } else { list.windows(part.len()) };
            windows.enumerate().filter_map(|(at, window)| (window == &***part).then_some(at)).collect()
        }
        (Val::Arr(list), one) => {
            let cost = 1 + u64::from(walk(one) > 0) * limits::size_of(one).0;
            steps(list.len() as u64 * cost / 4);
            list.iter().enumerate().filter_map(|(at, value)| (value == one).then_some(at)).collect()
        }
        _ => return Err(Error::index(of.clone(), sought.clone())),
    };
    Ok(found.into_iter().map(Value::from).collect())
}
