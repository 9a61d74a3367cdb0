//! 8-bit codes of vectors, with which most passages are ruled out before their exact score is computed.
//!
//! A code's score differs from the exact one by no more than a bound that is known for each passage (by the
//! Cauchy-Schwarz inequality). The best exact scores are therefore among the passages whose score by code, plus the
//! bound, reaches that of enough others, less theirs. Products of codes are integers, so they are the same on every
//! processor.

use std::sync::Arc;

use turnflow_engine::document::Chunk;
use turnflow_engine::inference::Vector;
use turnflow_engine::mapped::{MappedFiles, Values};

use super::encode::{Coded, encode};
use crate::content::{Candidates, Derived};
pub(crate) use crate::products::ROWS;
use crate::products::{self, STEP};

/// The greatest code of a passage's vector.
pub(super) const GREATEST: f32 = 127.0;
/// Scores of longer vectors might not fit into a float, so no bound is known for them.
const LONGEST: f32 = 1e15;
/// More than rounding can change a score whose values are next to nothing.
const NOTHING: f32 = 1e-35;
/// More than the share by which rounding may enlarge an error.
pub(super) const ROUNDING: f32 = 1.001;

/// The codes of a block of passages.
#[derive(Debug, Default)]
pub(crate) struct Codes {
    /// Codes of a row, with padding.
    stride: usize,
    codes: Values<i8>,
    /// What a code of each row counts.
    pub scales: Vec<f32>,
    /// The length of each vector's difference from its codes.
    pub errors: Vec<f32>,
    /// The length of each vector.
    pub lengths: Vec<f32>,
}

fn length(values: impl Iterator<Item = f32>) -> f32 {
    values.map(|value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt() as f32 * ROUNDING
}

impl Derived<Vector> for Codes {
    const AT_ONCE: bool = true;

    fn derive(rows: &[(Vector, Arc<Chunk>)], files: Option<&MappedFiles>) -> Self {
        let mut this = Self::of(rows.iter().map(|(vector, _)| &**vector));
        if let Some(files) = files {
            Values::map_all([&mut this.codes], files);
        }
        this
    }
}

impl Codes {
    /// The codes of vectors of equal length.
    pub fn of<'a>(vectors: impl ExactSizeIterator<Item = &'a [f32]>) -> Self {
        let rows = vectors.len();
        let (mut this, mut all) = (Self::default(), Vec::new());
        for vector in vectors {
            let stride = vector.len().next_multiple_of(STEP);
            if all.is_empty() {
                this.stride = stride;
                all.reserve_exact(rows.next_multiple_of(ROWS) * stride);
            }
            let from = all.len();
            all.resize(from + stride, 0);
            let Coded { scale, error, length } = encode(vector, &mut all[from..from + vector.len()]);
            this.errors.push(if length > LONGEST { f32::INFINITY } else { error });
            this.scales.push(scale);
            this.lengths.push(length);
        }
        all.resize(rows.next_multiple_of(ROWS) * this.stride, 0);
        this.codes = all.into();
        this
    }

    /// The codes of a row, with padding.
    fn row(&self, row: usize) -> &[i8] {
        &self.codes[row * self.stride..][..self.stride]
    }

    /// The values that the codes of a row stand for, with padding.
    pub fn values(&self, row: usize) -> impl Iterator<Item = f32> {
        let scale = self.scales[row];
        self.row(row).iter().map(move |code| f32::from(*code) * scale)
    }
}

/// Queries as 16-bit codes.
pub(crate) struct Queries {
    stride: usize,
    codes: Vec<i16>,
    /// What is needed to bound each query's scores.
    pub bounds: Vec<Bound>,
}

/// How a query's score by code becomes bounds of its exact score.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    scale: f32,
    /// Error for each unit of a row's error, and of its length.
    by_error: f32,
    by_length: f32,
}

impl Bound {
    /// The score by code, and the greatest difference of the exact score from it.
    #[inline]
    pub fn of(&self, product: i32, scale: f32, error: f32, length: f32) -> (f32, f32) {
        (product as f32 * (scale * self.scale), self.by_error * error + self.by_length * length + NOTHING)
    }
}

impl Queries {
    pub fn new(queries: &[&Vector]) -> Self {
        Self::of(&queries.iter().map(|query| &***query).collect::<Vec<_>>())
    }

    pub fn of(queries: &[&[f32]]) -> Self {
        let dimension = queries.first().map_or(0, |query| query.len());
        let stride = dimension.next_multiple_of(STEP);
        // A sum of products fits into 32 bits.
        let most = (i32::MAX as f32 / (GREATEST * stride.max(1) as f32)).floor().min(f32::from(i16::MAX) - 1.0);
        let (mut codes, mut bounds) = (Vec::with_capacity(queries.len() * stride), Vec::new());
        for query in queries {
            let greatest = query.iter().fold(0.0_f32, |greatest, value| greatest.max(value.abs()));
            let scale = greatest / most;
            let from = codes.len();
            codes.extend(query.iter().map(|value| (value / scale).round().clamp(-most, most) as i16));
            let coded = |(value, code): (&f32, &i16)| value - scale * f32::from(*code);
            let error = length(query.iter().zip(&codes[from..]).map(coded));
            codes.resize(from + stride, 0);
            let whole = length(query.iter().copied());
            // The exact score is itself rounded: once in each sum of a lane, and once in the sum of the lanes. The score
            // by code is rounded four times.
            let rounding = (dimension as f32 / 32.0 + 48.0) * f32::EPSILON;
            let by_length = if whole > LONGEST { f32::INFINITY } else { (error + whole * rounding) * ROUNDING };
            bounds.push(Bound { scale, by_error: (whole + error) * ROUNDING, by_length });
        }
        Self { stride, codes, bounds }
    }

    /// Products of the codes of some rows, `from..from + count`, with those of each query: by query, then by row. `from`
    /// and `count` are multiples of [`ROWS`].
    pub fn products(&self, of: &Codes, from: usize, count: usize, products: &mut Vec<i32>) {
        products.clear();
        products.resize(self.bounds.len() * count, 0);
        if self.stride == 0 || self.stride != of.stride {
            return;
        }
        let rows = &of.codes[from * of.stride..(from + count) * of.stride];
        products::products(rows, &self.codes, self.stride, count, products);
    }

    /// The product of the codes of one row with those of the first query.
    pub fn product(&self, of: &Codes, row: usize) -> i32 {
        if self.stride == 0 || self.stride != of.stride {
            return 0;
        }
        products::product(of.row(row), &self.codes[..self.stride])
    }
}

/// The greatest scores that rows may have. `rows` has their scales, errors and lengths.
#[inline(always)]
fn greatest(bound: Bound, products: &[i32], [scales, errors, lengths]: [&[f32]; 3], most: &mut [f32]) {
    let rows = products.iter().zip(scales).zip(errors).zip(lengths);
    for ((((product, scale), error), length), most) in rows.zip(most) {
        let (score, difference) = bound.of(*product, *scale, *error, *length);
        *most = score + difference;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn greatest_avx2(bound: Bound, products: &[i32], rows: [&[f32]; 3], most: &mut [f32]) {
    // The same code, which the compiler vectorises with wider instructions.
    greatest(bound, products, rows, most);
}

/// Looks at the rows `from..` of a block, whose products with the query are given. `permitted` says whether a row's
/// passage may be found.
pub(super) fn look(
    candidates: &mut Candidates,
    bound: Bound,
    codes: &Codes,
    (block, from): (usize, usize),
    products: &[i32],
    permitted: impl Fn(usize) -> bool,
) {
    let (scales, errors) = (&codes.scales[from..], &codes.errors[from..]);
    let lengths = &codes.lengths[from..];
    let mut most = [0.0_f32; 128];
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor supports AVX2.
        unsafe { greatest_avx2(bound, products, [scales, errors, lengths], &mut most) };
    } else {
        greatest(bound, products, [scales, errors, lengths], &mut most);
    }
    #[cfg(not(target_arch = "x86_64"))]
    greatest(bound, products, [scales, errors, lengths], &mut most);
    for (group, most) in most[..products.len().min(scales.len())].chunks(16).enumerate() {
        // A bound that is no number rules nothing out.
        let known = candidates.known();
        if most.iter().fold(true, |ruled_out, most| ruled_out & (*most < known)) {
            continue;
        }
        for (at, most) in (group * 16..).zip(most) {
            if *most < candidates.known() || !permitted(from + at) {
                continue;
            }
            candidates.add(bound.of(products[at], scales[at], errors[at], lengths[at]), (block, from + at));
        }
    }
}

/// Looks at one row of a block, whose product with the query is given. `permitted` says whether its passage may be found.
pub(super) fn look_at(
    candidates: &mut Candidates,
    bound: Bound,
    codes: &Codes,
    (block, row): (usize, usize),
    product: i32,
    permitted: impl Fn() -> bool,
) {
    let (score, difference) = bound.of(product, codes.scales[row], codes.errors[row], codes.lengths[row]);
    // A bound that is no number rules nothing out.
    if score + difference < candidates.known() || !permitted() {
        return;
    }
    candidates.add((score, difference), (block, row));
}

#[cfg(test)]
mod tests;
