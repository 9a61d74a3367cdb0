//! Arithmetic of values.

use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use jaq_core::ops::Math;
use jaq_core::{Error, ValR};
use jaq_json::{Num, Val};

use super::limits::{bits, bytes, steps, text, walk};
use super::value::{Value, fields_mut, list_mut};

/// Number of bits of a number.
fn width(number: &Num) -> u64 {
    match number {
        Num::BigInt(number) => number.bits(),
        _ => 64,
    }
}

impl Add for Value {
    type Output = ValR<Self>;

    fn add(mut self, mut other: Self) -> Self::Output {
        steps(1);
        let depth = self.depth.max(other.depth);
        match (&mut self.val, &mut other.val) {
            (Val::Null, _) | (_, Val::Null) => {}
            (Val::Num(a), Val::Num(b)) => bits(width(a).max(width(b)) + 1),
            (Val::TStr(a), Val::TStr(b)) | (Val::BStr(a), Val::BStr(b)) => {
                // A text that nobody else has grows where it is.
                let copied = if a.is_unique() { 0 } else { a.len() };
                steps(b.len() as u64 / 256 + copied as u64 / 256);
                text((a.len() + b.len()) as u64, (copied + 2 * b.len()) as u64);
            }
            (Val::Arr(a), Val::Arr(b)) => {
                bytes(32 * b.len() as u64);
                list_mut(a).reserve(b.len());
            }
            (Val::Obj(a), Val::Obj(b)) => {
                bytes(112 * b.len() as u64);
                fields_mut(a);
            }
            _ => return Err(Error::math(self, Math::Add, other)),
        }
        Self::told(self.val + other.val, depth)
    }
}

impl Sub for Value {
    type Output = ValR<Self>;

    fn sub(mut self, other: Self) -> Self::Output {
        steps(1);
        let depth = self.depth;
        match (&mut self.val, &other.val) {
            (Val::Num(a), Val::Num(b)) => bits(width(a).max(width(b)) + 1),
            (Val::Arr(a), Val::Arr(b)) => {
                // Each is looked for in a sorted set of the others.
                let sorted = u64::from(b.len().max(2).ilog2());
                let most = a.iter().chain(b.iter()).map(cost).fold(0, u64::saturating_add);
                steps(most.saturating_mul(sorted));
                list_mut(a);
            }
            _ => return Err(Error::math(self, Math::Sub, other)),
        }
        Self::told(self.val - other.val, depth)
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

impl Mul for Value {
    type Output = ValR<Self>;

    fn mul(self, other: Self) -> Self::Output {
        steps(1);
        let depth = self.depth.max(other.depth);
        match (&self.val, &other.val) {
            (Val::Num(a), Val::Num(b)) => bits(width(a) + width(b) - 64),
            (Val::TStr(one) | Val::BStr(one), Val::Num(times)) | (Val::Num(times), Val::TStr(one) | Val::BStr(one)) => {
                let times = match times {
                    Num::Int(times) => (*times).try_into().unwrap_or(0),
                    Num::BigInt(_) => u64::MAX,
                    _ => 1,
                };
                let length = times.saturating_mul(one.len() as u64);
                text(length, length);
            }
            (Val::Obj(_), Val::Obj(_)) => {
                walk(&self.val);
                walk(&other.val);
                let both = super::limits::size_of(&self.val).0 + super::limits::size_of(&other.val).0;
                bytes(16 * both);
            }
            _ => return Err(Error::math(self, Math::Mul, other)),
        }
        Self::told(self.val * other.val, depth)
    }
}

impl Div for Value {
    type Output = ValR<Self>;

    fn div(self, other: Self) -> Self::Output {
        steps(1);
        match (&self.val, &other.val) {
            (Val::Num(_), Val::Num(_)) => {}
            (Val::TStr(whole), Val::TStr(separator)) | (Val::BStr(whole), Val::BStr(separator)) => {
                let parts = match (std::str::from_utf8(whole), std::str::from_utf8(separator)) {
                    (Ok(whole), Ok(separator)) if !separator.is_empty() => whole.matches(separator).count() + 1,
                    _ => whole.len(),
                };
                steps(parts as u64 / 4 + whole.len() as u64 / 64);
                bytes(96 * parts as u64);
            }
            _ => return Err(Error::math(self, Math::Div, other)),
        }
        Self::told(self.val / other.val, 1)
    }
}

impl Rem for Value {
    type Output = ValR<Self>;

    fn rem(self, other: Self) -> Self::Output {
        steps(1);
        match (&self.val, &other.val) {
            (Val::Num(_), Val::Num(_)) => Self::told(self.val % other.val, 0),
            _ => Err(Error::math(self, Math::Rem, other)),
        }
    }
}

impl Neg for Value {
    type Output = ValR<Self>;

    fn neg(self) -> Self::Output {
        steps(1);
        match self.val {
            Val::Num(_) => Self::told(-self.val, 0),
            _ => Err(Error::typ(self, "number")),
        }
    }
}
