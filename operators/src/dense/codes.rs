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
use crate::content::Derived;

/// Codes of a vector are padded with zeros to a multiple of this.
const STEP: usize = 16;
/// Rows of a block are padded with rows of zeros to a multiple of this.
pub(super) const ROWS: usize = 4;
/// Queries that are multiplied with a row together.
const QUERIES: usize = 4;
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
}

/// Queries as 16-bit codes.
pub(super) struct Queries {
    stride: usize,
    codes: Vec<i16>,
    /// What is needed to bound each query's scores.
    pub bounds: Vec<Bound>,
}

/// How a query's score by code becomes bounds of its exact score.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
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
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports AVX2.
            unsafe { wide::products(rows, &self.codes, self.stride, count, products) };
            return;
        }
        plain(rows, &self.codes, self.stride, count, products);
    }
}

fn plain(rows: &[i8], queries: &[i16], stride: usize, count: usize, products: &mut [i32]) {
    for (query, products) in queries.chunks_exact(stride).zip(products.chunks_exact_mut(count)) {
        for (row, product) in rows.chunks_exact(stride).zip(products) {
            *product = row.iter().zip(query).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m128i, __m256i, _MM_HINT_T0, _mm_add_epi32, _mm_loadu_si128, _mm_prefetch, _mm_storeu_si128,
        _mm256_add_epi32, _mm256_castsi256_si128, _mm256_cvtepi8_epi16, _mm256_extracti128_si256, _mm256_hadd_epi32,
        _mm256_loadu_si256, _mm256_madd_epi16, _mm256_setzero_si256,
    };

    use super::{Bound, QUERIES, ROWS, STEP};

    /// Bytes of a line of the processor's cache.
    const LINE: usize = 64;

    #[target_feature(enable = "avx2")]
    fn row(codes: &[i8; STEP]) -> __m256i {
        // SAFETY: the array has 16 bytes, and the load needs no alignment.
        _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(codes.as_ptr().cast::<__m128i>()) })
    }

    #[target_feature(enable = "avx2")]
    fn query(codes: &[i16; STEP]) -> __m256i {
        // SAFETY: the array has 32 bytes, and the load needs no alignment.
        unsafe { _mm256_loadu_si256(codes.as_ptr().cast::<__m256i>()) }
    }

    /// Asks for the rows after the next ones, which may be far from the processor.
    #[target_feature(enable = "avx2")]
    fn prefetch(rows: &[[i8; STEP]]) {
        let after = rows.as_ptr().wrapping_add(2 * rows.len()).cast::<i8>();
        for line in (0..rows.len() * STEP).step_by(LINE) {
            _mm_prefetch::<_MM_HINT_T0>(after.wrapping_add(line));
        }
    }

    /// The four sums of four registers.
    #[target_feature(enable = "avx2")]
    fn sums([a, b, c, d]: [__m256i; 4]) -> [i32; 4] {
        let pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
        let sums = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
        let mut stored = [0; 4];
        // SAFETY: the array has 16 bytes, and the store needs no alignment.
        unsafe { _mm_storeu_si128(stored.as_mut_ptr().cast::<__m128i>(), sums) };
        stored
    }

    /// As [`super::greatest`].
    #[target_feature(enable = "avx2")]
    pub(super) fn greatest(bound: Bound, products: &[i32], rows: [&[f32]; 3], most: &mut [f32]) {
        // The same code, which the compiler vectorises with wider instructions.
        super::greatest(bound, products, rows, most);
    }

    /// As [`super::plain`]. `stride` is a multiple of [`STEP`], and `count` of [`ROWS`].
    #[target_feature(enable = "avx2")]
    pub(super) fn products(rows: &[i8], queries: &[i16], stride: usize, count: usize, products: &mut [i32]) {
        let (rows, _) = rows.as_chunks::<STEP>();
        let (queries, _) = queries.as_chunks::<STEP>();
        let steps = stride / STEP;
        let together = queries.len() / steps / QUERIES * QUERIES;
        for (group, queries) in queries.chunks_exact(steps * QUERIES).enumerate() {
            let (a, rest) = queries.split_at(steps);
            let (b, rest) = rest.split_at(steps);
            let (c, d) = rest.split_at(steps);
            for (pair, rows) in rows.chunks_exact(steps * 2).enumerate() {
                let (first, second) = rows.split_at(steps);
                let mut of_first = [_mm256_setzero_si256(); QUERIES];
                let mut of_second = [_mm256_setzero_si256(); QUERIES];
                let queries = a.iter().zip(b).zip(c).zip(d);
                for ((first, second), (((a, b), c), d)) in first.iter().zip(second).zip(queries) {
                    let (first, second) = (row(first), row(second));
                    for (at, codes) in [a, b, c, d].into_iter().enumerate() {
                        let codes = query(codes);
                        of_first[at] = _mm256_add_epi32(of_first[at], _mm256_madd_epi16(first, codes));
                        of_second[at] = _mm256_add_epi32(of_second[at], _mm256_madd_epi16(second, codes));
                    }
                }
                let both = sums(of_first).into_iter().zip(sums(of_second));
                for (at, (first, second)) in (group * QUERIES..).zip(both) {
                    products[at * count + pair * 2] = first;
                    products[at * count + pair * 2 + 1] = second;
                }
            }
        }
        for (at, codes) in (together..).zip(queries[together * steps..].chunks_exact(steps)) {
            for (group, rows) in rows.chunks_exact(steps * ROWS).enumerate() {
                prefetch(rows);
                let (a, rest) = rows.split_at(steps);
                let (b, rest) = rest.split_at(steps);
                let (c, d) = rest.split_at(steps);
                let mut of_rows = [_mm256_setzero_si256(); ROWS];
                for ((((a, b), c), d), codes) in a.iter().zip(b).zip(c).zip(d).zip(codes) {
                    let codes = query(codes);
                    for (sum, codes_of_row) in of_rows.iter_mut().zip([a, b, c, d]) {
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(row(codes_of_row), codes));
                    }
                }
                products[at * count + group * ROWS..][..ROWS].copy_from_slice(&sums(of_rows));
            }
        }
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

/// A passage that may be among the best of a query.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Bounds of its exact score.
    least: f32,
    most: f32,
    block: u32,
    row: u32,
}

/// The passages that may be among the best of a query.
pub(super) struct Candidates {
    top: usize,
    all: Vec<Candidate>,
    /// Number of candidates before those that are ruled out are dropped.
    limit: usize,
    /// A score that enough passages reach.
    reached: f32,
}

/// Candidates beyond twice the number of wanted passages before those that are ruled out are dropped first.
const SPARE: usize = 256;

impl Candidates {
    pub fn new(top: usize) -> Self {
        Self { top, all: Vec::new(), limit: 2 * top + SPARE, reached: f32::NEG_INFINITY }
    }

    /// Looks at the rows `from..` of a block, whose products with the query are given. `permitted` says whether a row's
    /// passage may be found.
    pub fn look(
        &mut self,
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
            unsafe { wide::greatest(bound, products, [scales, errors, lengths], &mut most) };
        } else {
            greatest(bound, products, [scales, errors, lengths], &mut most);
        }
        #[cfg(not(target_arch = "x86_64"))]
        greatest(bound, products, [scales, errors, lengths], &mut most);
        for (group, most) in most[..products.len().min(scales.len())].chunks(16).enumerate() {
            // A bound that is no number rules nothing out.
            if most.iter().fold(true, |ruled_out, most| ruled_out & (*most < self.reached)) {
                continue;
            }
            for (at, most) in (group * 16..).zip(most) {
                if *most < self.reached || !permitted(from + at) {
                    continue;
                }
                let (score, difference) = bound.of(products[at], scales[at], errors[at], lengths[at]);
                let least = score - difference;
                let least = if least.is_nan() { f32::NEG_INFINITY } else { least };
                self.all.push(Candidate { least, most: *most, block: block as u32, row: (from + at) as u32 });
                if self.all.len() >= self.limit {
                    self.drop_ruled_out();
                    // Where many passages are equally good, few can be ruled out, and each attempt reads them all.
                    self.limit = self.limit.max(2 * self.all.len());
                }
            }
        }
    }

    /// A score that as many passages as are wanted reach, as far as it is known. Negative infinity if there are fewer.
    pub fn reached(&mut self) -> f32 {
        if self.all.len() > 2 * self.top {
            self.drop_ruled_out();
        }
        self.reached
    }

    fn drop_ruled_out(&mut self) {
        if self.all.len() <= self.top {
            return;
        }
        let (_, last, _) = self.all.select_nth_unstable_by(self.top - 1, |a, b| b.least.total_cmp(&a.least));
        self.reached = self.reached.max(last.least);
        let reached = self.reached;
        self.all.retain(|candidate| candidate.most >= reached || candidate.most.is_nan());
    }

    /// The block and the row of each candidate.
    pub fn into_rows(mut self) -> impl Iterator<Item = (usize, usize)> {
        self.drop_ruled_out();
        self.all.into_iter().map(|candidate| (candidate.block as usize, candidate.row as usize))
    }
}

/// Whether the exact score is within the bounds.
#[cfg(test)]
fn holds(query: &Vector, vector: &Vector) -> bool {
    let chunk = Arc::new(Chunk::new("a".into(), "a".into(), "".into(), "".into()));
    let codes = Codes::derive(&[(vector.clone(), chunk)], None);
    let queries = Queries::new(&[query]);
    let mut products = Vec::new();
    queries.products(&codes, 0, ROWS, &mut products);
    let (score, difference) = queries.bounds[0].of(products[0], codes.scales[0], codes.errors[0], codes.lengths[0]);
    let exact = crate::content::dot(query, vector);
    (exact - score).abs() <= difference || !exact.is_finite()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exact_scores_are_within_the_bounds(
            pairs in proptest::collection::vec((-1.0_f32..1.0, -1.0_f32..1.0), 0..200),
            by in prop_oneof![Just(1.0_f32), Just(1e-30), Just(1e20), Just(1e-42), Just(0.0)],
        ) {
            let (query, vector): (Vec<f32>, Vec<f32>) = pairs.into_iter().map(|(a, b)| (a, b * by)).unzip();
            prop_assert!(holds(&query.into(), &vector.into()));
        }

        #[test]
        fn nothing_is_ruled_out_if_products_may_overflow(
            query in proptest::collection::vec(-1.0_f32..1.0, 4), others in proptest::collection::vec(-1.0_f32..1.0, 4),
            by in prop_oneof![Just(1e18_f32), Just(1e19), Just(1e20), Just(1e38)],
        ) {
            let query: Vector = query.iter().map(|value| value * by).collect();
            let vector: Vector = others.iter().map(|value| value * 1e20).collect();
            let codes = Codes::of([&*vector].into_iter());
            let queries = Queries::new(&[&query]);
            let mut products = Vec::new();
            queries.products(&codes, 0, ROWS, &mut products);
            let mut candidates = Candidates::new(1);
            candidates.look(queries.bounds[0], &codes, (0, 0), &products[..1], |_| true);
            candidates.reached = f32::MAX;
            candidates.drop_ruled_out();
            prop_assert_eq!(candidates.into_rows().count(), 1);
        }

        #[test]
        fn wide_and_plain_products_agree(
            rows in 1_usize..20, queries in 1_usize..10, steps in 1_usize..6, seed in any::<u64>(),
        ) {
            let (count, stride) = (rows.next_multiple_of(ROWS), steps * STEP);
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as i16
            };
            let of_rows: Vec<i8> = (0..count * stride).map(|_| next() as i8).collect();
            let of_queries: Vec<i16> = (0..queries * stride).map(|_| next()).collect();
            let mut products = (vec![0; queries * count], vec![0; queries * count]);
            plain(&of_rows, &of_queries, stride, count, &mut products.0);
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor supports AVX2.
                unsafe { wide::products(&of_rows, &of_queries, stride, count, &mut products.1) };
                prop_assert_eq!(products.0, products.1);
            }
        }
    }

    /// Where all passages are equally good, an attempt to rule some out reads them all.
    #[test]
    fn equal_passages_are_read_few_times() {
        let vector: Vector = vec![0.5; 16].into();
        let rows = 40_000;
        let codes = Codes::of((0..rows).map(|_| &*vector).collect::<Vec<_>>().into_iter());
        let queries = Queries::new(&[&vector]);
        let mut candidates = Candidates::new(10);
        let (mut products, mut limits) = (Vec::new(), Vec::new());
        for from in (0..rows).step_by(128) {
            let count = (rows - from).min(128);
            queries.products(&codes, from, count.next_multiple_of(ROWS), &mut products);
            candidates.look(queries.bounds[0], &codes, (0, from), &products[..count], |_| true);
            limits.push(candidates.limit);
        }
        limits.dedup();
        assert!(limits.len() < 12, "{limits:?}");
        assert_eq!(candidates.into_rows().count(), rows);
    }
}
