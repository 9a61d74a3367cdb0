//! How programs read and change parts of values.

use std::cell::Cell;

use jaq_core::path::Opt;
use jaq_core::val::Range;
use jaq_core::{Error, Exn, ValR, ValT, ValX};
use jaq_json::{Map, Num, Val};
use jaq_std::ValT as _;

use super::held::{self, Parts};
use super::limits::{bytes, steps};
use super::value::{Value, of_digits, told};

/// Maximum number of places that are filled up when an index is behind the end of a list.
const WIDEST: usize = 100_000;

type Results<T> = Box<dyn Iterator<Item = ValR<T, Value>>>;

const ITERABLE: &str = "iterable (array or object)";

fn without_parts(value: Value) -> Error<Value> {
    steps(4);
    Error::typ(value, ITERABLE)
}
const BOUNDS: &str = "the start and the end of a slice are numbers";

/// A number as an index: what is behind its point does not count.
fn index_of(index: &Val) -> Option<isize> {
    match index {
        Val::Num(Num::Int(number)) => Some(*number),
        Val::Num(_) => index.as_f64().filter(|number| !number.is_nan()).map(|number| number.floor() as isize),
        _ => None,
    }
}

/// How far behind the end of a list an index is, if that is not too far.
fn beyond(index: &Val, length: usize) -> Option<usize> {
    let at = usize::try_from(index_of(index)?).ok()?;
    at.checked_sub(length).filter(|gap| *gap <= WIDEST)
}

/// Fills a list up.
fn nulls(number: usize) -> impl ExactSizeIterator<Item = Val> {
    std::iter::repeat_n(Val::Null, number)
}

/// The place in a list of this length that an index names.
pub(super) fn place(index: &Val, length: usize) -> Option<usize> {
    let number = index_of(index)?;
    let at = if number < 0 { length.checked_sub(number.unsigned_abs())? } else { number.unsigned_abs() };
    (at < length).then_some(at)
}

/// The places of a slice of something of this length.
fn places(range: &Range<&Value>, length: usize) -> Option<(usize, usize)> {
    let bound = |bound: &Option<&Value>, otherwise: usize, round: fn(f64) -> f64| match bound.map(|bound| &bound.val) {
        None | Some(Val::Null) => Some(otherwise),
        Some(number @ Val::Num(_)) => {
            let number = match number {
                Val::Num(Num::Int(number)) => *number,
                other => round(other.as_f64()?) as isize,
            };
            let at = if number < 0 { length.saturating_sub(number.unsigned_abs()) } else { number.unsigned_abs() };
            Some(at.min(length))
        }
        Some(_) => None,
    };
    let from = bound(&range.start, 0, f64::floor)?;
    Some((from, bound(&range.end, length, f64::ceil)?.max(from)))
}

/// The start and the end of a slice, as an index names them.
fn slice(index: &Map) -> (Option<Value>, Option<Value>) {
    let bound = |name: &'static str| {
        let found = index.get(&Val::utf8_str(name)).filter(|found| matches!(found, Val::Num(_)));
        found.map(|val| Value::of(held::shared(val), 0))
    };
    (bound("start"), bound("end"))
}

/// The places of a slice, as an index names it.
pub(super) fn slice_of(index: &Map, length: usize) -> Option<std::ops::Range<usize>> {
    let (start, end) = slice(index);
    places(&(start.as_ref()..end.as_ref()), length).map(|(from, to)| from..to)
}

/// The places of bytes at which characters are.
fn of_characters(text: &[u8], range: &Range<&Value>) -> Option<(usize, usize)> {
    steps(text.len() as u64 / 64);
    if text.is_ascii() {
        return places(range, text.len());
    }
    let text = std::str::from_utf8(text).ok()?;
    let (from, to) = places(range, text.chars().count())?;
    let mut starts = text.char_indices().map(|(at, _)| at).skip(from);
    let start = starts.next().unwrap_or(text.len());
    let end = if to == from { start } else { starts.nth(to - from - 1).unwrap_or(text.len()) };
    Some((start, end))
}

impl ValT for Value {
    fn from_num(number: &str) -> ValR<Self> {
        of_digits(number)
    }

    fn from_map<I: IntoIterator<Item = (Self, Self)>>(pairs: I) -> ValR<Self> {
        bytes(held::object(0));
        let (mut depth, mut fields) = (0, Map::default());
        for (name, value) in pairs {
            depth = depth.max(value.depth);
            if !matches!(name.val, Val::TStr(_)) {
                return Err(told(&format_args!("{name:#} cannot be the name of a field, because it is no text")));
            }
            held::insert(&mut fields, name.into_val(), value.into_val());
        }
        Ok(Self::of(Val::obj(fields), depth + 1))
    }

    fn key_values(self) -> Results<(Self, Self)> {
        let mut parts = match Parts::of(self) {
            Ok(parts) => parts,
            Err(other) => return Box::new(std::iter::once(Err(without_parts(other)))),
        };
        Box::new(std::iter::from_fn(move || {
            steps(1);
            let name = parts.name();
            parts.next().map(|value| Ok((name, value)))
        }))
    }

    fn values(self) -> Results<Self> {
        let each = |value| {
            steps(1);
            Ok(value)
        };
        match Parts::of(self) {
            Ok(parts) => Box::new(parts.map(each)),
            Err(other) => Box::new(std::iter::once(Err(without_parts(other)))),
        }
    }

    fn index(self, index: &Self) -> ValR<Self> {
        steps(1);
        let found = match (&self.val, &index.val) {
            (Val::Null, Val::Null | Val::Num(_) | Val::TStr(_) | Val::Obj(_)) => None,
            (Val::Obj(fields), Val::TStr(_)) => {
                held::named(&index.val);
                fields.get(&index.val)
            }
            (Val::Arr(values), Val::Num(_)) => place(&index.val, values.len()).and_then(|at| values.get(at)),
            (Val::Arr(_), Val::Arr(_)) => return super::natives::indices(&self, index),
            (Val::Arr(_) | Val::TStr(_) | Val::BStr(_), Val::Obj(bounds)) => {
                if !["start", "end"].iter().any(|name| bounds.contains_key(&Val::utf8_str(*name))) {
                    return Err(told(&BOUNDS));
                }
                let (start, end) = slice(bounds);
                return self.range(start.as_ref()..end.as_ref());
            }
            _ => return Err(Error::index(self, index.clone())),
        };
        Ok(Self::part(found.map_or(Val::Null, held::shared), self.depth))
    }

    fn range(self, range: Range<&Self>) -> ValR<Self> {
        steps(1);
        match &self.val {
            Val::Null => Ok(self),
            Val::Arr(values) => match places(&range, values.len()) {
                Some((0, to)) if to == values.len() => Ok(self),
                Some((from, to)) => {
                    steps((to - from) as u64 / 8);
                    let part = values[from..to].iter().map(held::shared).collect();
                    Ok(Self::of(held::listed(part), self.depth))
                }
                None => Err(told(&BOUNDS)),
            },
            Val::TStr(text) | Val::BStr(text) => match of_characters(text, &range) {
                Some((from, to)) => Ok(Self::of(held::part(text, &text[from..to]), 0)),
                None => Err(told(&BOUNDS)),
            },
            _ => Err(Error::typ(self, "rangeable (array or string)")),
        }
    }

    fn map_values<'a, I: Iterator<Item = ValX<'a, Self>>>(self, opt: Opt, f: impl Fn(Self) -> I) -> ValX<'a, Self> {
        steps(1);
        let (depth, deepest) = (self.depth, Cell::new(0));
        let changed = |value: ValX<'a, Self>| {
            value.map(|value| {
                steps(1);
                deepest.set(value.depth.max(deepest.get()));
                value.into_val()
            })
        };
        match &self.val {
            Val::Arr(_) => {
                let Ok(parts) = Parts::of(self) else { return Ok(Self::default()) };
                let values: Vec<Val> =
                    parts.filter_map(|part| f(part).next()).map(changed).collect::<Result<_, _>>()?;
                Ok(Self::of(held::listed(values), deepest.get() + 1))
            }
            Val::Obj(_) => {
                bytes(held::object(0));
                let Ok(mut parts) = Parts::of(self) else { return Ok(Self::default()) };
                let mut fields = Map::default();
                loop {
                    let name = parts.name();
                    let Some(part) = parts.next() else { break };
                    if let Some(value) = f(part).next() {
                        held::insert(&mut fields, name.into_val(), changed(value)?);
                    }
                }
                Ok(Self::of(Val::obj(fields), deepest.get() + 1))
            }
            _ => opt.fail(Self::of(self.into_val(), depth), |value| Exn::from(without_parts(value))),
        }
    }

    fn map_index<'a, I: Iterator<Item = ValX<'a, Self>>>(
        mut self,
        index: &Self,
        opt: Opt,
        f: impl Fn(Self) -> I,
    ) -> ValX<'a, Self> {
        steps(1);
        let depth = self.depth;
        if let (Val::Arr(_) | Val::Null, Val::Obj(bounds)) = (&self.val, &index.val) {
            let (start, end) = slice(bounds);
            return self.map_range(start.as_ref()..end.as_ref(), opt, f);
        }
        let deeper = |value: Self, deepest: &mut u32| {
            *deepest = (*deepest).max(value.depth + 1);
            value.into_val()
        };
        let mut deepest = depth;
        match &mut self.val {
            Val::Obj(fields) => {
                if !matches!(index.val, Val::TStr(_)) {
                    let index = index.clone();
                    return opt.fail(self, |value| Exn::from(Error::index(value, index)));
                }
                held::named(&index.val);
                let fields = held::fields_mut(fields);
                let before = fields.get_mut(&index.val).map(std::mem::take);
                let is_there = before.is_some();
                match f(Self::part(before.unwrap_or_default(), depth)).next().transpose()? {
                    Some(value) => {
                        held::insert(fields, held::shared(&index.val), deeper(value, &mut deepest));
                    }
                    None if is_there => held::remove(fields, &index.val),
                    None => {}
                }
            }
            // As in jq, what is not there begins with what is put into it.
            Val::Null if matches!(index.val, Val::TStr(_)) || beyond(&index.val, 0).is_some() => {
                let Some(value) = f(Self::part(Val::Null, depth)).next().transpose()? else { return Ok(self) };
                let value = deeper(value, &mut deepest);
                self.val = match beyond(&index.val, 0) {
                    Some(gap) => held::listed(nulls(gap).chain([value]).collect()),
                    None => held::fielded([(held::shared(&index.val), value)].into_iter().collect()),
                };
            }
            Val::Arr(values) if beyond(&index.val, values.len()).is_some() => {
                let gap = beyond(&index.val, values.len()).unwrap_or_default();
                if let Some(value) = f(Self::part(Val::Null, depth)).next().transpose()? {
                    let value = deeper(value, &mut deepest);
                    let values = held::list_mut(values);
                    held::extend(values, nulls(gap));
                    held::extend(values, [value].into_iter());
                }
            }
            Val::Arr(values) => {
                let Some(at) = place(&index.val, values.len()) else {
                    let index = index.clone();
                    return opt.fail(self, |_| Exn::from(told(&format_args!("index {index:#} out of bounds"))));
                };
                let values = held::list_mut(values);
                let before = std::mem::take(&mut values[at]);
                match f(Self::part(before, depth)).next().transpose()? {
                    Some(value) => values[at] = deeper(value, &mut deepest),
                    None => {
                        steps((values.len() - at) as u64 / 64);
                        values.remove(at);
                        held::less(1);
                    }
                }
            }
            _ => return opt.fail(self, |value| Exn::from(without_parts(value))),
        }
        Ok(Self::of(self.into_val(), deepest))
    }

    fn map_range<'a, I: Iterator<Item = ValX<'a, Self>>>(
        mut self,
        range: Range<&Self>,
        opt: Opt,
        f: impl Fn(Self) -> I,
    ) -> ValX<'a, Self> {
        steps(1);
        let depth = self.depth;
        let is_null = matches!(self.val, Val::Null);
        if is_null {
            self = Self::of(held::listed(Vec::new()), 1);
        }
        let Val::Arr(values) = &mut self.val else {
            return opt.fail(self, |value| Exn::from(Error::typ(value, "array")));
        };
        let Some((from, to)) = places(&range, values.len()) else {
            return opt.fail(self, |_| Exn::from(told(&BOUNDS)));
        };
        let part = match is_null {
            true => Self::default(),
            false => Self::of(held::listed(values[from..to].iter().map(held::shared).collect()), depth),
        };
        let mut deepest = depth;
        let new: Vec<Val> = match f(part).next().transpose()? {
            None => Vec::new(),
            Some(value) => {
                deepest = deepest.max(value.depth);
                let parts = match &value.val {
                    Val::Arr(_) => Parts::of(value),
                    _ => Err(value),
                };
                let parts = parts.map_err(|other| Exn::from(Error::typ(other, "array")))?;
                parts.map(Self::into_val).collect()
            }
        };
        steps((values.len() - from) as u64 / 64);
        let values = held::list_mut(values);
        bytes(held::list(new.len()) - held::list(0));
        let before: Vec<Val> = values.splice(from..to, new).collect();
        held::less(before.len());
        before.into_iter().for_each(held::dropped);
        Ok(Self::of(self.into_val(), deepest))
    }

    fn as_bool(&self) -> bool {
        self.val.as_bool()
    }

    fn into_string(self) -> Self {
        match &self.val {
            Val::TStr(_) => self,
            Val::BStr(text) => Self::of(held::part(text, text), 0),
            _ => Self::from(self.to_string()),
        }
    }
}
