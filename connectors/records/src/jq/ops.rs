//! Arithmetic of values.

use std::collections::BTreeSet;
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use bytes::{Bytes, BytesMut};
use jaq_core::ops::Math;
use jaq_core::{Error, ValR};
use jaq_json::{Map, Num, Rc, Val};
use jaq_std::ValT as _;

use super::held;
use super::limits::{bits, bytes, freed, steps, text, walk};
use super::value::{Value, told, width};

/// Counts an operation with large numbers whose time grows with the product of their lengths.
fn multiplied(a: &Num, b: &Num) {
    steps(width(a) * width(b) / (1 << 19));
}

/// One text behind the other. One that nothing else has grows where it is.
fn joined(mut a: Box<Bytes>, b: Box<Bytes>) -> Val {
    let copied = if a.is_unique() { 0 } else { a.len() };
    steps(b.len() as u64 / 256 + copied as u64 / 256);
    text((a.len() + b.len()) as u64);
    bytes((copied + b.len()) as u64);
    let mut buffer = match copied {
        0 => BytesMut::from(std::mem::take(&mut *a)),
        _ => {
            let mut buffer = BytesMut::with_capacity(a.len() + b.len());
            buffer.extend_from_slice(&a);
            buffer
        }
    };
    buffer.extend_from_slice(&b);
    held::dropped(Val::TStr(b));
    *a = buffer.freeze();
    Val::TStr(a)
}

/// The elements of a list, which are gone if nothing else has them.
fn elements(list: Rc<Vec<Val>>) -> Vec<Val> {
    match Rc::try_unwrap(list) {
        Ok(list) => {
            freed(held::list(list.len()));
            list
        }
        Err(list) => list.iter().map(held::shared).collect(),
    }
}

/// Gives the fields of an object to `put`. They are gone if nothing else has them.
fn each_field(fields: Rc<Map>, mut put: impl FnMut(Val, Val)) {
    match Rc::try_unwrap(fields) {
        Ok(fields) => {
            freed(held::object(fields.len()));
            fields.into_iter().for_each(|(name, value)| put(name, value));
        }
        Err(fields) => fields.iter().for_each(|(name, value)| put(held::shared(name), held::shared(value))),
    }
}

impl Add for Value {
    type Output = ValR<Self>;

    fn add(self, other: Self) -> Self::Output {
        steps(1);
        let depth = self.depth.max(other.depth);
        if let (Val::Num(a), Val::Num(b)) = (&self.val, &other.val) {
            bits(width(a).max(width(b)) + 1);
            steps((width(a) + width(b)) / 4096);
            return Ok(Self::number(a.clone() + b.clone()));
        }
        let val = match (self.into_val(), other.into_val()) {
            (Val::Null, one) | (one, Val::Null) => one,
            (Val::TStr(a) | Val::BStr(a), Val::TStr(b) | Val::BStr(b)) => match (a.is_empty(), b.is_empty()) {
                (_, true) => {
                    held::dropped(Val::TStr(b));
                    Val::TStr(a)
                }
                (true, false) => {
                    held::dropped(Val::TStr(a));
                    Val::TStr(b)
                }
                _ => joined(a, b),
            },
            (Val::Arr(mut a), Val::Arr(b)) => {
                if a.is_empty() {
                    held::dropped(Val::Arr(a));
                    Val::Arr(b)
                } else {
                    steps(b.len() as u64 / 16);
                    held::extend(held::list_mut(&mut a), elements(b).into_iter());
                    Val::Arr(a)
                }
            }
            (Val::Obj(mut a), Val::Obj(b)) => {
                if a.is_empty() {
                    held::dropped(Val::Obj(a));
                    Val::Obj(b)
                } else {
                    let all = held::fields_mut(&mut a);
                    each_field(b, |name, value| held::insert(all, name, value));
                    Val::Obj(a)
                }
            }
            (a, b) => return Err(Error::math(Self::of(a, depth), Math::Add, Self::of(b, depth))),
        };
        Ok(Self::of(val, depth))
    }
}

impl Sub for Value {
    type Output = ValR<Self>;

    fn sub(mut self, other: Self) -> Self::Output {
        steps(1);
        let depth = self.depth;
        match (&mut self.val, &other.val) {
            (Val::Num(a), Val::Num(b)) => {
                bits(width(a).max(width(b)) + 1);
                steps((width(a) + width(b)) / 4096);
                let found = a.clone() - b.clone();
                Ok(Self::number(found))
            }
            (Val::Arr(a), Val::Arr(b)) => {
                // Each is looked for in a sorted set of the others.
                let sorted = u64::from(b.len().max(2).ilog2());
                let most = a.iter().chain(b.iter()).map(cost).fold(0, u64::saturating_add);
                steps(most.saturating_mul(sorted));
                let gone: BTreeSet<&Val> = b.iter().collect();
                let all = held::list_mut(a);
                let removed: Vec<Val> = all.extract_if(.., |value| gone.contains(value)).collect();
                held::less(removed.len());
                removed.into_iter().for_each(held::dropped);
                Ok(Self::of(self.into_val(), depth))
            }
            _ => Err(Error::math(self, Math::Sub, other)),
        }
    }
}

/// Steps of a comparison with another value.
fn cost(value: &Val) -> u64 {
    match value {
        Val::Arr(_) | Val::Obj(_) => {
            walk(value);
            super::limits::size_of(value).0 / 4
        }
        Val::TStr(text) | Val::BStr(text) => 1 + text.len() as u64 / 256,
        _ => 1,
    }
}

/// A text several times.
fn repeated(one: &Bytes, times: f64) -> Value {
    if times.is_nan() || times <= 0.0 {
        return Value::default();
    }
    let times = if times < 1.0 { 1 } else { times as u64 };
    let length = times.saturating_mul(one.len() as u64);
    text(length);
    steps(length / 256);
    Value::of(held::text(one.repeat(times as usize)), 0)
}

/// Puts the fields of an object into another one, and those of objects within them.
fn merge(into: &mut Rc<Map>, from: Rc<Map>) {
    let into = held::fields_mut(into);
    each_field(from, |name, value| match (into.get_mut(&name), value) {
        (Some(Val::Obj(before)), Val::Obj(value)) => {
            merge(before, value);
            held::dropped(name);
        }
        (_, value) => held::insert(into, name, value),
    });
}

impl Mul for Value {
    type Output = ValR<Self>;

    fn mul(self, other: Self) -> Self::Output {
        steps(1);
        let depth = self.depth.max(other.depth);
        match (&self.val, &other.val) {
            (Val::Num(a), Val::Num(b)) => {
                bits(width(a) + width(b) - 64);
                multiplied(a, b);
                Ok(Self::number(a.clone() * b.clone()))
            }
            (Val::TStr(one) | Val::BStr(one), times @ Val::Num(_))
            | (times @ Val::Num(_), Val::TStr(one) | Val::BStr(one)) => {
                Ok(repeated(one, times.as_f64().unwrap_or_default()))
            }
            (Val::Obj(_), Val::Obj(_)) => {
                walk(&self.val);
                walk(&other.val);
                let (Val::Obj(mut one), Val::Obj(two)) = (self.into_val(), other.into_val()) else {
                    return Ok(Self::default());
                };
                merge(&mut one, two);
                Ok(Self::of(Val::Obj(one), depth))
            }
            _ => Err(Error::math(self, Math::Mul, other)),
        }
    }
}

/// The parts of a text between others.
pub(super) fn split(whole: &Bytes, separator: &[u8]) -> Vec<Val> {
    let parts: Vec<&[u8]> = match (std::str::from_utf8(whole), std::str::from_utf8(separator)) {
        _ if whole.is_empty() => Vec::new(),
        (Ok(text), Ok("")) => {
            let ends = text.char_indices().map(|(at, letter)| &whole[at..at + letter.len_utf8()]);
            ends.collect()
        }
        (Ok(text), Ok(separator)) => text.split(separator).map(str::as_bytes).collect(),
        _ => vec![whole],
    };
    steps(parts.len() as u64 / 4 + whole.len() as u64 / 64);
    parts.into_iter().map(|part| held::part(whole, part)).collect()
}

fn by_zero(value: &Value) -> Error<Value> {
    told(&format_args!("{value:#} cannot be divided, because the divisor is zero"))
}

impl Div for Value {
    type Output = ValR<Self>;

    fn div(self, other: Self) -> Self::Output {
        steps(1);
        match (&self.val, &other.val) {
            (Val::Num(_), by @ Val::Num(_)) if by.as_f64() == Some(0.0) => Err(by_zero(&self)),
            (Val::Num(a), Val::Num(b)) => Ok(Self::number(a.clone() / b.clone())),
            (Val::TStr(whole) | Val::BStr(whole), Val::TStr(separator) | Val::BStr(separator)) => {
                Ok(Self::of(held::listed(split(whole, separator)), 1))
            }
            _ => Err(Error::math(self, Math::Div, other)),
        }
    }
}

impl Rem for Value {
    type Output = ValR<Self>;

    fn rem(self, other: Self) -> Self::Output {
        steps(1);
        match (&self.val, &other.val) {
            (Val::Num(Num::Int(_) | Num::BigInt(_)), Val::Num(Num::Int(0))) => Err(by_zero(&self)),
            (Val::Num(a @ (Num::Int(_) | Num::BigInt(_))), Val::Num(b @ (Num::Int(_) | Num::BigInt(_)))) => {
                multiplied(a, b);
                Ok(Self::number(a.clone() % b.clone()))
            }
            // As in jq, what is behind the points does not count.
            (a @ Val::Num(_), b @ Val::Num(_)) => {
                let (a, b) = (a.as_f64().unwrap_or(f64::NAN), b.as_f64().unwrap_or(f64::NAN));
                if a.is_nan() || b.is_nan() {
                    return Ok(Self::from(f64::NAN));
                }
                let (a, b) = (a as isize, (b as isize).unsigned_abs());
                if b == 0 {
                    return Err(by_zero(&self));
                }
                let rest = (a.unsigned_abs() % b) as isize;
                Ok(Self::from(if a < 0 { -rest } else { rest }))
            }
            _ => Err(Error::math(self, Math::Rem, other)),
        }
    }
}

impl Neg for Value {
    type Output = ValR<Self>;

    fn neg(self) -> Self::Output {
        steps(1);
        match &self.val {
            Val::Num(number) => {
                steps(width(number) / 4096);
                Ok(Self::number(-number.clone()))
            }
            _ => Err(Error::typ(self, "number")),
        }
    }
}
