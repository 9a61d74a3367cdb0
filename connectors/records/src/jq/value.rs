//! The values of programs: those of JSON, which count what is done with them.

use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt;

use jaq_core::path::Opt;
use jaq_core::val::Range;
use jaq_core::{Error, Exn, ValR, ValT, ValX};
use jaq_json::{Map, Num, Rc, Val};

use super::limits::{self, bytes, steps, walk};

/// Maximum number of places that are filled up when an index is behind the end of a list.
const WIDEST: usize = 100_000;
/// Bytes of an element of a list, with room to grow, and of a field of an object.
const ELEMENT: u64 = 32;
const FIELD: u64 = 112;

/// A value.
#[derive(Debug)]
pub(crate) struct Value {
    pub val: Val,
    /// An upper bound of its depth: values are dropped by calls in each other.
    pub depth: u32,
}

impl Clone for Value {
    fn clone(&self) -> Self {
        steps(1);
        if let Val::TStr(_) | Val::BStr(_) = self.val {
            bytes(32);
        }
        Self { val: self.val.clone(), depth: self.depth }
    }
}

impl Value {
    /// A value whose depth is not known.
    pub fn new(val: Val) -> Self {
        let depth = walk(&val);
        Self { val, depth }
    }

    /// A value of at most this depth. If that is too much, the value itself is looked at.
    pub fn of(val: Val, depth: u32) -> Self {
        let depth = match &val {
            Val::Arr(_) | Val::Obj(_) if depth > limits::DEPTH => walk(&val),
            Val::Arr(_) | Val::Obj(_) => depth.max(1),
            _ => 0,
        };
        Self { val, depth }
    }

    /// A part of a value of this depth.
    pub fn part(val: Val, depth: u32) -> Self {
        Self::of(val, depth.saturating_sub(1))
    }

    /// A result of the library, which has an error of its own.
    pub fn told<E: fmt::Display>(found: Result<Val, E>, depth: u32) -> ValR<Self> {
        found.map(|val| Self::of(val, depth)).map_err(|error| told(&error))
    }

    /// Counts a comparison.
    fn compared(&self, other: &Self) {
        steps(1);
        if let (Val::Arr(_), Val::Arr(_)) | (Val::Obj(_), Val::Obj(_)) = (&self.val, &other.val) {
            walk(&self.val);
            walk(&other.val);
        } else if let (Val::TStr(a), Val::TStr(b)) = (&self.val, &other.val) {
            steps(a.len().min(b.len()) as u64 / 256);
        }
    }
}

/// An error of the library with a text that is not long.
pub(super) fn told(error: &impl fmt::Display) -> Error<Value> {
    /// Takes the beginning of a text.
    struct Beginning(String);
    impl fmt::Write for Beginning {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0.extend(part.chars().take(300));
            if self.0.len() > 500 { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut text = Beginning(String::new());
    let _ = fmt::write(&mut text, format_args!("{error}"));
    Error::new(Value::from(text.0))
}

fn list(list: Rc<Vec<Val>>) -> Vec<Val> {
    Rc::try_unwrap(list).unwrap_or_else(|shared| {
        bytes(16 * shared.len() as u64);
        (*shared).clone()
    })
}

fn fields(fields: Rc<Map>) -> Map {
    Rc::try_unwrap(fields).unwrap_or_else(|shared| {
        bytes(FIELD * shared.len() as u64);
        (*shared).clone()
    })
}

/// The list, to be changed.
pub(super) fn list_mut(list: &mut Rc<Vec<Val>>) -> &mut Vec<Val> {
    if Rc::get_mut(list).is_none() {
        bytes(16 * list.len() as u64);
    }
    Rc::make_mut(list)
}

/// The fields, to be changed.
pub(super) fn fields_mut(fields: &mut Rc<Map>) -> &mut Map {
    if Rc::get_mut(fields).is_none() {
        bytes(FIELD * fields.len() as u64);
    }
    Rc::make_mut(fields)
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        walk(&self.val);
        self.val.fmt(f)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        steps(1);
        Self { val: Val::from(value), depth: 0 }
    }
}

impl From<isize> for Value {
    fn from(number: isize) -> Self {
        steps(1);
        Self { val: Val::from(number), depth: 0 }
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        steps(1);
        Self { val: Val::from(number), depth: 0 }
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        steps(1);
        Self { val: Val::from(number), depth: 0 }
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        steps(1);
        limits::text(text.len() as u64, text.len() as u64);
        Self { val: Val::from(text), depth: 0 }
    }
}

impl From<Range<Self>> for Value {
    fn from(range: Range<Self>) -> Self {
        Self::of(Val::from(range.start.map(|start| start.val)..range.end.map(|end| end.val)), 1)
    }
}

impl FromIterator<Self> for Value {
    fn from_iter<T: IntoIterator<Item = Self>>(values: T) -> Self {
        bytes(64);
        let mut depth = 0;
        let each = |value: Self| {
            bytes(ELEMENT);
            depth = depth.max(value.depth);
            value.val
        };
        let val: Val = values.into_iter().map(each).collect();
        Self::of(val, depth + 1)
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.compared(other);
        self.val == other.val
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> Ordering {
        self.compared(other);
        self.val.cmp(&other.val)
    }
}

type Results<T> = Box<dyn Iterator<Item = ValR<T, Value>>>;

const ITERABLE: &str = "iterable (array or object)";

/// How far behind the end of a list an index is, if that is not too far.
fn beyond(index: &Val, length: usize) -> Option<usize> {
    let Val::Num(number) = index else { return None };
    let at = usize::try_from(number.as_isize()?).ok()?;
    at.checked_sub(length).filter(|gap| *gap <= WIDEST)
}

/// Fills a list up.
fn nulls(number: usize) -> impl Iterator<Item = Val> {
    bytes(ELEMENT * number as u64);
    std::iter::repeat_n(Val::Null, number)
}

/// The place in a list of this length that an index names.
fn place(index: &Val, length: usize) -> Option<usize> {
    let Val::Num(number) = index else { return None };
    let number = number.as_isize()?;
    let at = if number < 0 { length.checked_sub(number.unsigned_abs())? } else { number.unsigned_abs() };
    (at < length).then_some(at)
}

impl ValT for Value {
    fn from_num(number: &str) -> ValR<Self> {
        steps(1);
        Self::told(Val::from_num(number), 0)
    }

    fn from_map<I: IntoIterator<Item = (Self, Self)>>(pairs: I) -> ValR<Self> {
        bytes(128);
        let mut depth = 0;
        let each = |(name, value): (Self, Self)| {
            bytes(FIELD);
            depth = depth.max(value.depth).max(name.depth);
            if name.depth > 0 {
                walk(&name.val);
            }
            (name.val, value.val)
        };
        let fields: Map = pairs.into_iter().map(each).collect();
        Ok(Self::of(Val::obj(fields), depth + 1))
    }

    fn key_values(self) -> Results<(Self, Self)> {
        let depth = self.depth;
        match self.val {
            Val::Arr(values) => {
                let each = move |(at, value)| Ok((Self::from(at as isize), Self::part(value, depth)));
                Box::new(list(values).into_iter().enumerate().map(each))
            }
            Val::Obj(values) => {
                let each = move |(name, value)| Ok((Self::part(name, depth), Self::part(value, depth)));
                Box::new(fields(values).into_iter().map(each))
            }
            val => Box::new(std::iter::once(Err(Error::typ(Self::of(val, depth), ITERABLE)))),
        }
    }

    fn values(self) -> Results<Self> {
        let depth = self.depth;
        let each = move |value| {
            steps(1);
            Ok(Self::part(value, depth))
        };
        match self.val {
            Val::Arr(values) => Box::new(list(values).into_iter().map(each)),
            Val::Obj(values) => Box::new(fields(values).into_values().map(each)),
            val => Box::new(std::iter::once(Err(Error::typ(Self::of(val, depth), ITERABLE)))),
        }
    }

    fn index(self, index: &Self) -> ValR<Self> {
        steps(1);
        let depth = self.depth;
        match (&self.val, &index.val) {
            (Val::Null, _) | (Val::BStr(_), Val::Num(Num::Int(_))) | (Val::Arr(_), Val::Num(Num::Int(_))) => {}
            (Val::Obj(_), Val::Arr(_) | Val::Obj(_)) => {
                walk(&index.val);
            }
            (Val::Obj(_), _) => {}
            (Val::Arr(values), Val::Arr(sought)) => {
                walk(&self.val);
                steps(values.len() as u64 * sought.len() as u64 / 16);
                walk(&index.val);
            }
            (Val::Arr(values), Val::Obj(_)) => bytes(16 * values.len() as u64),
            (Val::TStr(text) | Val::BStr(text), Val::Obj(_)) => steps(text.len() as u64 / 64),
            _ => return Err(Error::index(self, index.clone())),
        }
        Self::told(self.val.index(&index.val), depth.saturating_sub(1).max(1))
    }

    fn range(self, range: Range<&Self>) -> ValR<Self> {
        steps(1);
        match &self.val {
            Val::Arr(values) => bytes(16 * values.len() as u64),
            Val::TStr(text) | Val::BStr(text) => {
                bytes(32);
                steps(text.len() as u64 / 64);
            }
            _ => return Err(Error::typ(self, "rangeable (array or string)")),
        }
        let depth = self.depth;
        Self::told(self.val.range(range.start.map(|start| &start.val)..range.end.map(|end| &end.val)), depth)
    }

    fn map_values<'a, I: Iterator<Item = ValX<'a, Self>>>(self, opt: Opt, f: impl Fn(Self) -> I) -> ValX<'a, Self> {
        steps(1);
        let (depth, deepest) = (self.depth, Cell::new(0));
        let changed = |value: ValX<'a, Self>| {
            bytes(ELEMENT);
            value.map(|value| {
                deepest.set(value.depth.max(deepest.get()));
                value.val
            })
        };
        match self.val {
            Val::Arr(values) => {
                let values = list(values).into_iter().flat_map(|value| f(Self::part(value, depth)));
                let values: Vec<Val> = values.map(changed).collect::<Result<_, _>>()?;
                Ok(Self::of(Val::Arr(Rc::new(values)), deepest.get() + 1))
            }
            Val::Obj(values) => {
                let each =
                    |(name, value)| Some(changed(f(Self::part(value, depth)).next()?).map(|value| (name, value)));
                let values: Map = fields(values).into_iter().filter_map(each).collect::<Result<_, _>>()?;
                Ok(Self::of(Val::obj(values), deepest.get() + 1))
            }
            val => opt.fail(Self::of(val, depth), |value| Exn::from(Error::typ(value, ITERABLE))),
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
        if let (Val::Arr(_), Val::Obj(range)) = (&self.val, &index.val) {
            let bound = |name: &str| range.get(&Val::utf8_str(name.to_owned())).cloned().map(|val| Self::of(val, 1));
            let (start, end) = (bound("start"), bound("end"));
            return self.map_range(start.as_ref()..end.as_ref(), opt, f);
        }
        let deeper = |value: Self, deepest: &mut u32| {
            *deepest = (*deepest).max(value.depth + 1);
            value.val
        };
        let mut deepest = depth;
        match &mut self.val {
            Val::Obj(values) => {
                bytes(FIELD);
                if index.depth > 0 {
                    walk(&index.val);
                }
                let values = fields_mut(values);
                let before = values.get_mut(&index.val).map(std::mem::take);
                let is_there = before.is_some();
                match f(Self::part(before.unwrap_or_default(), depth)).next().transpose()? {
                    Some(value) => {
                        values.insert(index.val.clone(), deeper(value, &mut deepest));
                    }
                    None if is_there => {
                        values.swap_remove(&index.val);
                    }
                    None => {}
                }
            }
            // As in jq, what is not there begins with what is put into it.
            Val::Null if matches!(index.val, Val::TStr(_)) || beyond(&index.val, 0).is_some() => {
                let Some(value) = f(Self::part(Val::Null, depth)).next().transpose()? else { return Ok(self) };
                bytes(FIELD);
                let value = deeper(value, &mut deepest);
                self.val = match beyond(&index.val, 0) {
                    Some(gap) => nulls(gap).chain([value]).collect(),
                    None => Val::obj([(index.val.clone(), value)].into_iter().collect()),
                };
            }
            Val::Arr(values) if beyond(&index.val, values.len()).is_some() => {
                let gap = beyond(&index.val, values.len()).unwrap_or_default();
                if let Some(value) = f(Self::part(Val::Null, depth)).next().transpose()? {
                    let value = deeper(value, &mut deepest);
                    list_mut(values).extend(nulls(gap).chain([value]));
                }
            }
            Val::Arr(values) => {
                let Some(at) = place(&index.val, values.len()) else {
                    let index = index.clone();
                    return opt.fail(self, |_| Exn::from(told(&format_args!("index {index} out of bounds"))));
                };
                let values = list_mut(values);
                let before = std::mem::take(&mut values[at]);
                match f(Self::part(before, depth)).next().transpose()? {
                    Some(value) => values[at] = deeper(value, &mut deepest),
                    None => {
                        values.remove(at);
                    }
                }
            }
            _ => return opt.fail(self, |value| Exn::from(Error::typ(value, ITERABLE))),
        }
        Ok(Self::of(self.val, deepest))
    }

    fn map_range<'a, I: Iterator<Item = ValX<'a, Self>>>(
        mut self,
        range: Range<&Self>,
        opt: Opt,
        f: impl Fn(Self) -> I,
    ) -> ValX<'a, Self> {
        steps(1);
        let depth = self.depth;
        let bound = |bound: Option<&Self>, length: usize, default: usize| match bound.map(|bound| &bound.val) {
            None | Some(Val::Null) => Some(default),
            Some(Val::Num(number)) => {
                let number = number.as_isize()?;
                let at = if number < 0 { length.saturating_sub(number.unsigned_abs()) } else { number.unsigned_abs() };
                Some(at.min(length))
            }
            Some(_) => None,
        };
        let Val::Arr(values) = &mut self.val else {
            return opt.fail(self, |value| Exn::from(Error::typ(value, "array")));
        };
        let length = values.len();
        let (Some(from), Some(to)) = (bound(range.start, length, 0), bound(range.end, length, length)) else {
            return opt.fail(self, |_| Exn::from(told(&"the bounds of a slice are whole numbers")));
        };
        bytes(32 * length as u64);
        let slice: Val = values[from..to.max(from)].iter().cloned().collect();
        let mut deepest = depth;
        let new = match f(Self::of(slice, depth)).next().transpose()? {
            None => Vec::new(),
            Some(Self { val: Val::Arr(new), depth }) => {
                deepest = deepest.max(depth);
                list(new)
            }
            Some(other) => return Err(Exn::from(Error::typ(other, "array"))),
        };
        list_mut(values).splice(from..to.max(from), new);
        Ok(Self::of(self.val, deepest))
    }

    fn as_bool(&self) -> bool {
        self.val.as_bool()
    }

    fn into_string(self) -> Self {
        match self.val {
            Val::BStr(text) | Val::TStr(text) => Self { val: Val::TStr(text), depth: 0 },
            _ => Self::from(self.to_string()),
        }
    }
}

impl jaq_std::ValT for Value {
    fn into_seq<S: FromIterator<Self>>(self) -> Result<S, Self> {
        let depth = self.depth;
        match self.val {
            Val::Arr(values) => {
                bytes(ELEMENT * values.len() as u64);
                Ok(list(values).into_iter().map(|value| Self::part(value, depth)).collect())
            }
            val => Err(Self::of(val, depth)),
        }
    }

    fn is_int(&self) -> bool {
        self.val.is_int()
    }

    fn as_isize(&self) -> Option<isize> {
        self.val.as_isize()
    }

    fn as_f64(&self) -> Option<f64> {
        self.val.as_f64()
    }

    fn is_utf8_str(&self) -> bool {
        self.val.is_utf8_str()
    }

    fn as_bytes(&self) -> Option<&[u8]> {
        self.val.as_bytes()
    }

    fn as_sub_str(&self, part: &[u8]) -> Self {
        bytes(64);
        Self { val: self.val.as_sub_str(part), depth: 0 }
    }

    fn from_utf8_bytes(text: impl AsRef<[u8]> + Send + 'static) -> Self {
        steps(1);
        let length = text.as_ref().len() as u64;
        limits::text(length, length);
        Self { val: Val::from_utf8_bytes(text), depth: 0 }
    }
}
