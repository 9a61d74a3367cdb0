//! The values of programs: those of JSON, which count what is done with them and what they hold.

use std::cmp::Ordering;
use std::fmt;

use jaq_core::val::Range;
use jaq_core::{Error, ValR};
use jaq_json::{Num, Val};

use super::held::{self, Parts};
use super::limits::{self, steps, walk};
use super::write;
use crate::decode::DIGITS;
use crate::message::short;

/// Bytes of a copy, with what the library keeps beside it.
const COPY: u64 = 288;

/// A value.
#[derive(Debug, Default)]
pub(crate) struct Value {
    pub val: Val,
    /// An upper bound of its depth: values are dropped by calls in each other.
    pub depth: u32,
    /// Whether it is a copy of another value. Branches that a program has not taken yet and variables hold copies, and each
    /// of these takes memory itself.
    is_copy: bool,
}

impl Clone for Value {
    fn clone(&self) -> Self {
        steps(1);
        limits::bytes(COPY);
        Self { val: held::shared(&self.val), depth: self.depth, is_copy: true }
    }
}

impl Drop for Value {
    #[inline]
    fn drop(&mut self) {
        if self.is_copy {
            limits::freed(COPY);
        }
        if !matches!(self.val, Val::Null | Val::Bool(_) | Val::Num(Num::Int(_) | Num::Float(_))) {
            held::dropped(std::mem::take(&mut self.val));
        }
    }
}

impl Value {
    /// A new value whose depth is not known.
    pub fn new(val: Val) -> Self {
        let depth = walk(&val);
        Self { val: held::counted(val), depth, is_copy: false }
    }

    /// A value of at most this depth that is counted. If that is too much, the value itself is looked at.
    pub fn of(val: Val, depth: u32) -> Self {
        let depth = match &val {
            Val::Arr(_) | Val::Obj(_) if depth > limits::DEPTH => walk(&val),
            Val::Arr(_) | Val::Obj(_) => depth.max(1),
            _ => 0,
        };
        Self { val, depth, is_copy: false }
    }

    /// A part of a value of this depth.
    pub fn part(val: Val, depth: u32) -> Self {
        Self::of(val, depth.saturating_sub(1))
    }

    /// The same value, which a branch may hold that is not taken yet.
    pub fn copied(mut self) -> Self {
        if !self.is_copy {
            limits::bytes(COPY);
            self.is_copy = true;
        }
        self
    }

    /// The same value, which only a list has.
    pub fn listed(mut self) -> Self {
        let val = std::mem::take(&mut self.val);
        Self { val, depth: self.depth, is_copy: false }
    }

    /// What it is without counting.
    pub fn into_val(mut self) -> Val {
        std::mem::take(&mut self.val)
    }

    /// A number.
    pub fn number(number: Num) -> Self {
        let number = match number {
            Num::Float(number) => whole(number).map_or(Num::Float(number), Num::Int),
            other => other,
        };
        Self { val: held::counted(Val::Num(number)), depth: 0, is_copy: false }
    }

    /// Counts a comparison.
    fn compared(&self, other: &Self) {
        steps(1);
        if let (Val::Arr(_), Val::Arr(_)) | (Val::Obj(_), Val::Obj(_)) = (&self.val, &other.val) {
            walk(&self.val);
            walk(&other.val);
        } else if let (Val::TStr(a), Val::TStr(b)) = (&self.val, &other.val) {
            steps(a.len().min(b.len()) as u64 / 256);
        } else if let (Val::Num(a), Val::Num(b)) = (&self.val, &other.val) {
            steps((width(a) + width(b)) / 4096);
        }
    }
}

/// Number of bits of a number.
pub(super) fn width(number: &Num) -> u64 {
    match number {
        Num::BigInt(number) => number.bits(),
        _ => 64,
    }
}

/// A number without a fraction, as a whole number.
pub(super) fn whole(number: f64) -> Option<isize> {
    let is_whole = number.fract() == 0.0 && number.abs() < 1e17 && (number != 0.0 || number.is_sign_positive());
    is_whole.then_some(number as isize)
}

/// An error with a text that is not long.
pub(super) fn told(error: &impl fmt::Display) -> Error<Value> {
    /// Takes the beginning of a text.
    struct Beginning(String);
    impl fmt::Write for Beginning {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0.push_str(&part[..part.floor_char_boundary(300)]);
            if self.0.len() > 500 { Err(fmt::Error) } else { Ok(()) }
        }
    }
    steps(48);
    let mut text = Beginning(String::new());
    let _ = fmt::write(&mut text, format_args!("{error}"));
    Error::new(Value::from(text.0))
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f.write_str(&short(&self.val));
        }
        walk(&self.val);
        write::json(f, &self.val)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        steps(1);
        Self { val: Val::from(value), depth: 0, is_copy: false }
    }
}

impl From<isize> for Value {
    fn from(number: isize) -> Self {
        steps(1);
        Self { val: Val::from(number), depth: 0, is_copy: false }
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        steps(1);
        Self::number(Num::from_integral(number))
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        steps(1);
        Self::number(Num::Float(number))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        steps(1);
        Self { val: held::text(text), depth: 0, is_copy: false }
    }
}

impl From<Range<Self>> for Value {
    fn from(range: Range<Self>) -> Self {
        let fields = [("start", range.start), ("end", range.end)].into_iter();
        let fields = fields.map(|(name, value)| (held::name(name), value.map_or(Val::Null, Self::into_val)));
        Self::of(held::fielded(fields.collect()), 1)
    }
}

impl FromIterator<Self> for Value {
    fn from_iter<T: IntoIterator<Item = Self>>(values: T) -> Self {
        let (mut depth, mut lent) = (0, limits::Lent::of(0));
        let each = |value: Self| {
            lent.more(held::list(1) - held::list(0));
            depth = depth.max(value.depth);
            value.into_val()
        };
        let values: Vec<Val> = values.into_iter().map(each).collect();
        drop(lent);
        Self::of(held::listed(values), depth + 1)
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

impl jaq_std::ValT for Value {
    fn into_seq<S: FromIterator<Self>>(self) -> Result<S, Self> {
        match &self.val {
            Val::Arr(values) => steps(values.len() as u64 / 4),
            _ => return Err(self),
        }
        Ok(Parts::of(self)?.collect())
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
        steps(1);
        match &self.val {
            Val::TStr(text) | Val::BStr(text) => Self { val: held::part(text, part), depth: 0, is_copy: false },
            _ => Self::default(),
        }
    }

    fn from_utf8_bytes(text: impl AsRef<[u8]> + Send + 'static) -> Self {
        steps(1);
        Self { val: held::text(text), depth: 0, is_copy: false }
    }
}

/// Numbers that programs write, as they are.
pub(super) fn of_digits(number: &str) -> ValR<Value> {
    steps(1 + number.len() as u64 / 8);
    if number.len() > DIGITS {
        if !number.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Value::number(Num::from_dec_str(number)));
        }
        // There are at least three bits in each digit.
        limits::bits(3 * number.len() as u64);
    }
    let found: ValR<Val> = jaq_core::ValT::from_num(number);
    found.map(|val| Value::of(held::counted(val), 0)).map_err(|error| told(&error))
}
