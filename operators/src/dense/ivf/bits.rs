//! 1-bit codes of a list's vectors, by which most of them are passed over before their 8-bit codes are read.
//!
//! A code has the sign of each value of a vector's difference from the list's centroid, after a rotation (RaBitQ: Gao and
//! Long 2024, sections 3.1 and 3.2). The score that it gives differs from the exact one by an error whose standard deviation is
//! known for each vector, so nearly all vectors that may be wanted are kept. Codes of 32 rows are read together, by table
//! (André, Kermarrec and Le Scouarnec 2015).

use super::rotation::Rotation;

/// Rows whose codes are read together.
pub(super) const ROWS: usize = 32;
/// Values whose signs select an entry of a table.
const SIGNS: usize = 4;
/// Bytes of two tables, and of the signs of [`ROWS`] rows for them.
const PAIR: usize = 32;
/// Pairs of tables whose entries, summed, fit into 16 bits.
const SUMMED: usize = 128;

/// The codes of a list.
#[derive(Default)]
pub(super) struct Bits {
    /// For each group of rows and each pair of tables: row `n` and `n + 16` have the low and the high half of byte `n` for
    /// the first table, and of byte `n + 16` for the second.
    codes: Vec<[u8; PAIR]>,
    /// Pairs of tables.
    pairs: usize,
    /// What the sum of a row's signs counts.
    factors: Vec<f32>,
    /// The standard deviation of each row's error, for a query of length 1.
    errors: Vec<f32>,
}

impl Bits {
    /// The codes of vectors, from the values of their centroid.
    pub fn of<'a>(vectors: impl ExactSizeIterator<Item = &'a [f32]>, centroid: &[f32], rotation: &Rotation) -> Self {
        let dimension = centroid.len();
        let pairs = dimension.div_ceil(2 * SIGNS);
        let rows = vectors.len().next_multiple_of(ROWS);
        let mut this = Self {
            codes: vec![[0; PAIR]; rows / ROWS * pairs],
            pairs,
            factors: vec![0.0; rows],
            errors: vec![0.0; rows],
        };
        let mut difference = vec![0.0_f32; dimension];
        for (row, vector) in vectors.enumerate() {
            difference.iter_mut().zip(vector).zip(centroid).for_each(|((to, value), centre)| *to = value - centre);
            rotation.apply(&mut difference);
            (this.factors[row], this.errors[row]) = measures(&difference);
            let (group, row) = (row / ROWS, row % ROWS);
            for (table, values) in difference.chunks(SIGNS).enumerate() {
                let signs = (0_u8..).zip(values).fold(0, |signs, (at, value)| signs | u8::from(*value > 0.0) << at);
                let byte = &mut this.codes[group * pairs + table / 2][table % 2 * 16 + row % 16];
                *byte |= if row < 16 { signs } else { signs << 4 };
            }
        }
        this
    }

    /// The rows of a group whose scores probably are not below `wanted`, as bits. `near` is the centroid's score, and `margin`
    /// the number of standard deviations times the query's length.
    pub fn kept(&self, group: usize, tables: &Tables, near: f32, margin: f32, wanted: f32) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports AVX2.
            return unsafe { wide::kept(self, group, tables, near, margin, wanted) };
        }
        self.kept_by(group, tables, near, margin, wanted, sum)
    }

    #[inline(always)]
    fn kept_by(
        &self,
        group: usize,
        tables: &Tables,
        near: f32,
        margin: f32,
        wanted: f32,
        sum: impl Fn(&[[u8; PAIR]], &[[u8; PAIR]], &mut [u32; ROWS]),
    ) -> u32 {
        let mut sums = [0_u32; ROWS];
        let codes = &self.codes[group * self.pairs..][..self.pairs];
        for (codes, tables) in codes.chunks(SUMMED).zip(tables.pairs.chunks(SUMMED)) {
            sum(codes, tables, &mut sums);
        }
        let Some([factors, errors]) = self.group(group) else { return u32::MAX };
        let mut ruled_out = [false; ROWS];
        for row in 0..ROWS {
            let most = near + factors[row] * (tables.step * sums[row] as f32 + tables.least) + margin * errors[row];
            // A score that is no number rules nothing out.
            ruled_out[row] = most < wanted;
        }
        (0..ROWS).fold(0, |kept, row| kept | u32::from(!ruled_out[row]) << row)
    }

    /// Factors and errors of a group.
    fn group(&self, group: usize) -> Option<[&[f32; ROWS]; 2]> {
        Some([self.factors.as_chunks().0.get(group)?, self.errors.as_chunks().0.get(group)?])
    }
}

/// What the sum of a vector's signs counts, and the standard deviation of its error, for a vector that is rotated.
fn measures(vector: &[f32]) -> (f32, f32) {
    let squares: f32 = vector.iter().map(|value| value * value).sum();
    let sum: f32 = vector.iter().map(|value| value.abs()).sum();
    if squares == 0.0 {
        return (0.0, 0.0);
    }
    let dimension = vector.len() as f32;
    // The cosine between the vector and its code.
    let cosine = sum / (dimension * squares).sqrt();
    let error = (squares * (1.0 - cosine * cosine).max(0.0) / (dimension - 1.0).max(1.0)).sqrt() / cosine;
    // Nothing is known of values that are not finite.
    if error.is_finite() { (squares / sum, error) } else { (0.0, f32::INFINITY) }
}

/// Adds the entries of the tables that the codes of a group select.
#[inline(always)]
fn sum(codes: &[[u8; PAIR]], tables: &[[u8; PAIR]], sums: &mut [u32; ROWS]) {
    for (codes, tables) in codes.iter().zip(tables) {
        for (half, table) in tables.chunks_exact(16).enumerate() {
            for row in 0..16 {
                let code = codes[half * 16 + row];
                sums[row] += u32::from(table[usize::from(code & 15)]);
                sums[row + 16] += u32::from(table[usize::from(code >> 4)]);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_add_epi16, _mm_storeu_si128, _mm256_add_epi16, _mm256_and_si256, _mm256_castsi256_si128,
        _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
        _mm256_slli_epi16, _mm256_srli_epi16, _mm256_sub_epi16,
    };

    use super::{Bits, PAIR, ROWS, Tables};

    /// As [`Bits::kept_by`].
    #[target_feature(enable = "avx2")]
    pub(super) fn kept(bits: &Bits, group: usize, tables: &Tables, near: f32, margin: f32, wanted: f32) -> u32 {
        bits.kept_by(group, tables, near, margin, wanted, |codes, tables, sums| sum(codes, tables, sums))
    }

    #[target_feature(enable = "avx2")]
    fn load(bytes: &[u8; PAIR]) -> __m256i {
        // SAFETY: the array has 32 bytes, and the load needs no alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast::<__m256i>()) }
    }

    /// The sums of both halves of a register.
    #[target_feature(enable = "avx2")]
    fn halves(sums: __m256i) -> [u16; 8] {
        let both = _mm_add_epi16(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        let mut stored = [0; 8];
        // SAFETY: the array has 16 bytes, and the store needs no alignment.
        unsafe { _mm_storeu_si128(stored.as_mut_ptr().cast::<__m128i>(), both) };
        stored
    }

    /// As [`super::sum`], for at most [`super::SUMMED`] pairs.
    #[target_feature(enable = "avx2")]
    pub(super) fn sum(codes: &[[u8; PAIR]], tables: &[[u8; PAIR]], sums: &mut [u32; ROWS]) {
        let low = _mm256_set1_epi8(15);
        // Sums of even bytes plus 256 times those of odd bytes, and of odd bytes.
        let mut all = [_mm256_setzero_si256(); 2];
        let mut odd = [_mm256_setzero_si256(); 2];
        for (codes, table) in codes.iter().zip(tables) {
            let (codes, table) = (load(codes), load(table));
            let halves = [codes, _mm256_srli_epi16::<4>(codes)];
            for ((half, all), odd) in halves.into_iter().zip(&mut all).zip(&mut odd) {
                let entries = _mm256_shuffle_epi8(table, _mm256_and_si256(half, low));
                *all = _mm256_add_epi16(*all, entries);
                *odd = _mm256_add_epi16(*odd, _mm256_srli_epi16::<8>(entries));
            }
        }
        for ((rows, all), odd) in sums.chunks_exact_mut(16).zip(all).zip(odd) {
            let even = halves(_mm256_sub_epi16(all, _mm256_slli_epi16::<8>(odd)));
            for ((pair, even), odd) in rows.chunks_exact_mut(2).zip(even).zip(halves(odd)) {
                pair[0] += u32::from(even);
                pair[1] += u32::from(odd);
            }
        }
    }
}

/// The tables of a query: the sums of its values, after rotation, for every pattern of signs.
pub(super) struct Tables {
    pairs: Vec<[u8; PAIR]>,
    /// What an entry counts, and the sum of the least entries, so that the sum over signs is `step · entries + least`.
    step: f32,
    least: f32,
}

impl Tables {
    pub fn new(query: &[f32], rotation: &Rotation) -> Self {
        let mut rotated = query.to_vec();
        rotation.apply(&mut rotated);
        let entries = |values: &[f32]| -> [f32; 16] {
            let signed = |signs: usize, at: usize, value: f32| if signs >> at & 1 == 1 { value } else { -value };
            std::array::from_fn(|signs| values.iter().enumerate().map(|(at, value)| signed(signs, at, *value)).sum())
        };
        let all: Vec<[f32; 16]> = rotated.chunks(SIGNS).map(entries).collect();
        // Of opposite signs, so the greatest is as far from zero as the least.
        let greatest = |entries: &[f32; 16]| entries.iter().copied().fold(0.0, f32::max);
        let step = (2.0 * all.iter().map(greatest).fold(0.0, f32::max) / 255.0).max(f32::MIN_POSITIVE);
        let mut pairs = vec![[0; PAIR]; all.len().div_ceil(2)];
        let mut sum = 0.0;
        for (table, entries) in all.iter().enumerate() {
            let least = -greatest(entries);
            sum += least;
            let bytes = &mut pairs[table / 2][table % 2 * 16..][..16];
            bytes.iter_mut().zip(entries).for_each(|(byte, entry)| *byte = ((entry - least) / step).round() as u8);
        }
        Self { pairs, step, least: sum }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vector(dimension: usize, seed: usize) -> Vec<f32> {
        let value = |at: usize| {
            let mixed = ((seed * 1000 + at) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
        };
        (0..dimension).map(value).collect()
    }

    proptest! {
        #[test]
        fn wide_and_plain_sums_agree(pairs in 0_usize..SUMMED + 1, bytes in proptest::collection::vec(any::<u8>(), 64)) {
            let of = |from: usize| -> Vec<[u8; PAIR]> {
                (0..pairs).map(|pair| std::array::from_fn(|at| bytes[(from + pair * 7 + at) % bytes.len()])).collect()
            };
            let (codes, tables) = (of(0), of(13));
            let mut sums = ([1; ROWS], [1; ROWS]);
            sum(&codes, &tables, &mut sums.0);
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                // SAFETY: the processor supports AVX2.
                unsafe { wide::sum(&codes, &tables, &mut sums.1) };
                prop_assert_eq!(sums.0, sums.1);
            }
        }
    }

    /// The errors are as large as they are said to be, and not larger.
    #[test]
    fn scores_by_sign_are_near_the_exact_ones() {
        for dimension in [7, 48, 384, 1100] {
            let rotation = Rotation::new(dimension);
            let centroid = vector(dimension, 0);
            let vectors: Vec<Vec<f32>> = (1..201).map(|seed| vector(dimension, seed)).collect();
            let bits = Bits::of(vectors.iter().map(|vector| &**vector), &centroid, &rotation);
            let (mut of, mut count) = ([0; 3], 0);
            for seed in 201..220 {
                let query = vector(dimension, seed);
                let product = |other: &[f32]| query.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
                let length = product(&query).sqrt();
                let tables = Tables::new(&query, &rotation);
                for group in 0..vectors.len().div_ceil(ROWS) {
                    let kept = |margin: f32, row: usize| {
                        let wanted = product(&vectors[row]);
                        bits.kept(group, &tables, product(&centroid), margin * length, wanted) >> (row % ROWS) & 1
                    };
                    for row in group * ROWS..vectors.len().min((group + 1) * ROWS) {
                        count += 1;
                        // A normal distribution has 15.9 % beyond one standard deviation and 2.3 % beyond two.
                        (0..3).for_each(|deviations| of[deviations] += kept(deviations as f32, row));
                    }
                }
            }
            let shares = of.map(|kept| kept as f32 / count as f32);
            let near = [(0.4..0.6), (0.78..0.9), (0.95..0.999)];
            assert!(
                near.iter().zip(shares).all(|(near, share)| near.contains(&share)),
                "{dimension} values: {shares:?}"
            );
        }
    }

    #[test]
    fn values_that_are_not_finite_rule_nothing_out() {
        let rotation = Rotation::new(8);
        let vectors = [vec![f32::NAN; 8], vec![f32::INFINITY; 8], vec![0.0; 8]];
        let bits = Bits::of(vectors.iter().map(|vector| &**vector), &[0.0; 8], &rotation);
        let kept = |wanted: f32| bits.kept(0, &Tables::new(&[1.0; 8], &rotation), 0.5, 1.0, wanted) & 7;
        assert_eq!((kept(1e30), kept(0.6), kept(0.5)), (3, 3, 7));
    }
}
