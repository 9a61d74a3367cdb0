//! What values hold: bytes are counted when a part of a value is made, and given back when it is dropped.
//!
//! A part is a text's handle, a text, a list with its elements, an object with its fields, or a large number. Several values
//! may share one; it is counted once, and given back by the last of them. The record itself is held by the caller and
//! counts nothing.

use bytes::Bytes;
use jaq_json::{Map, Num, Rc, Val};

use super::limits::{self, bytes, freed, steps};
use super::value::Value;

/// Bytes of the handle of a text, and of a list and an object without what is in them.
const TEXT: u64 = 48;
const LIST: u64 = 64;
const OBJECT: u64 = 160;
/// Bytes of an element of a list, with room to grow, and of a field of an object.
const ELEMENT: u64 = 32;
const FIELD: u64 = 112;

/// Bytes of a list with so many elements, without these.
pub(super) fn list(length: usize) -> u64 {
    LIST + ELEMENT * length as u64
}

/// Bytes of an object with so many fields, without these.
pub(super) fn object(length: usize) -> u64 {
    OBJECT + FIELD * length as u64
}

/// Bytes that are free when a value is dropped: those of what nothing else has.
pub(super) fn weight(value: &Val) -> u64 {
    match value {
        Val::Null | Val::Bool(_) | Val::Num(Num::Int(_) | Num::Float(_)) => 0,
        Val::Num(Num::Dec(digits)) if Rc::strong_count(digits) == 1 => 64 + digits.len() as u64,
        Val::Num(Num::BigInt(number)) if Rc::strong_count(number) == 1 => 64 + number.bits() / 8,
        Val::TStr(text) | Val::BStr(text) => TEXT + if text.is_unique() { text.len() as u64 } else { 0 },
        Val::Arr(elements) if Rc::strong_count(elements) == 1 => {
            list(elements.len()) + elements.iter().map(weight).sum::<u64>()
        }
        Val::Obj(fields) if Rc::strong_count(fields) == 1 => {
            let each = |(name, value)| weight(name) + weight(value);
            object(fields.len()) + fields.iter().map(each).sum::<u64>()
        }
        _ => 0,
    }
}

/// A value of which nothing was counted yet.
pub(super) fn counted(value: Val) -> Val {
    bytes(weight(&value));
    value
}

/// Drops a part of a value.
pub(super) fn dropped(value: Val) {
    match value {
        Val::Arr(elements) => {
            if let Ok(elements) = Rc::try_unwrap(elements) {
                freed(list(elements.len()));
                elements.into_iter().for_each(dropped);
            }
        }
        Val::Obj(fields) => {
            if let Ok(fields) = Rc::try_unwrap(fields) {
                freed(object(fields.len()));
                fields.into_iter().for_each(|(name, value)| {
                    dropped(name);
                    dropped(value);
                });
            }
        }
        Val::Null | Val::Bool(_) | Val::Num(Num::Int(_) | Num::Float(_)) => {}
        other => freed(weight(&other)),
    }
}

/// Another handle of a part of a value.
#[inline]
pub(super) fn shared(value: &Val) -> Val {
    if let Val::TStr(_) | Val::BStr(_) = value {
        bytes(TEXT);
    }
    value.clone()
}

/// Bytes of what holds a text that is counted until its last part is dropped.
const OWNED: u64 = 64;

/// A text that gives its bytes back when its last part is dropped.
pub(super) struct Owned<T> {
    text: T,
    length: u64,
    run: u64,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Owned<T> {
    fn as_ref(&self) -> &[u8] {
        self.text.as_ref()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.run == limits::run() {
            freed(self.length);
        }
    }
}

/// A new text.
pub(super) fn text(text: impl AsRef<[u8]> + Send + 'static) -> Val {
    let length = text.as_ref().len() as u64;
    limits::text(length);
    steps(length / 256);
    let length = OWNED + length;
    bytes(TEXT + length);
    Val::utf8_str(Bytes::from_owner(Owned { text, length, run: limits::run() }))
}

/// A text that the program did not make, such as a name.
pub(super) fn name(text: &'static str) -> Val {
    bytes(TEXT);
    Val::utf8_str(Bytes::from_static(text.as_bytes()))
}

/// A part of a text.
pub(super) fn part(of: &Bytes, part: &[u8]) -> Val {
    bytes(TEXT);
    Val::utf8_str(of.slice_ref(part))
}

/// A new list.
pub(super) fn listed(mut values: Vec<Val>) -> Val {
    // One that is collected from what takes more memory may keep all of it.
    if values.capacity() > 2 * values.len() {
        values.shrink_to_fit();
    }
    bytes(list(values.len()));
    Val::Arr(Rc::new(values))
}

/// A new object.
pub(super) fn fielded(fields: Map) -> Val {
    bytes(object(fields.len()));
    Val::obj(fields)
}

/// The elements of a list, to be changed.
pub(super) fn list_mut(values: &mut Rc<Vec<Val>>) -> &mut Vec<Val> {
    if Rc::strong_count(values) > 1 {
        steps(values.len() as u64 / 8);
        bytes(list(values.len()));
        *values = Rc::new(values.iter().map(shared).collect());
    }
    Rc::make_mut(values)
}

/// The fields of an object, to be changed.
pub(super) fn fields_mut(fields: &mut Rc<Map>) -> &mut Map {
    if Rc::strong_count(fields) > 1 {
        steps(fields.len() as u64 / 2);
        bytes(object(fields.len()));
        *fields = Rc::new(fields.iter().map(|(name, value)| (shared(name), shared(value))).collect());
    }
    Rc::make_mut(fields)
}

/// Counts a look for the name of a field.
pub(super) fn named(name: &Val) {
    if let Val::TStr(name) = name {
        steps(name.len() as u64 / 256);
    }
}

/// Puts a field into an object.
pub(super) fn insert(fields: &mut Map, name: Val, value: Val) {
    named(&name);
    match fields.get_mut(&name) {
        Some(before) => {
            dropped(std::mem::replace(before, value));
            dropped(name);
        }
        None => {
            bytes(FIELD);
            fields.insert(name, value);
        }
    }
}

/// Puts elements at the end of a list.
pub(super) fn extend(values: &mut Vec<Val>, more: impl ExactSizeIterator<Item = Val>) {
    bytes(ELEMENT * more.len() as u64);
    values.extend(more);
}

/// Takes elements out of a list.
pub(super) fn less(number: usize) {
    freed(ELEMENT * number as u64);
}

/// Takes a field out of an object.
pub(super) fn remove(fields: &mut Map, name: &Val) {
    steps(fields.len() as u64 / 64);
    named(name);
    if let Some((name, value)) = fields.shift_remove_entry(name) {
        freed(FIELD);
        dropped(name);
        dropped(value);
    }
}

/// The values in a value, one after the other, with their names or places.
pub(super) struct Parts {
    of: Value,
    at: usize,
    length: usize,
}

impl Parts {
    /// Those of a list or an object.
    ///
    /// # Errors
    ///
    /// It is neither.
    pub fn of(of: Value) -> Result<Self, Value> {
        let length = match &of.val {
            Val::Arr(values) => values.len(),
            Val::Obj(fields) => fields.len(),
            _ => return Err(of),
        };
        Ok(Self { of, at: 0, length })
    }

    /// The name or the place of the part that is next.
    pub fn name(&self) -> Value {
        match &self.of.val {
            Val::Obj(fields) => match fields.get_index(self.at) {
                Some((name, _)) => Value::part(shared(name), self.of.depth),
                None => Value::default(),
            },
            _ => Value::from(self.at as isize),
        }
    }
}

impl Iterator for Parts {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        // A value that nothing else has gives its parts away.
        let val = match &mut self.of.val {
            Val::Arr(values) => match Rc::get_mut(values) {
                Some(values) => std::mem::take(values.get_mut(self.at)?),
                None => shared(values.get(self.at)?),
            },
            Val::Obj(fields) => match Rc::get_mut(fields) {
                Some(fields) => std::mem::take(fields.get_index_mut(self.at)?.1),
                None => shared(fields.get_index(self.at)?.1),
            },
            _ => return None,
        };
        self.at += 1;
        Some(Value::part(val, self.of.depth))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.length - self.at, Some(self.length - self.at))
    }
}

impl ExactSizeIterator for Parts {}
