//! Products of codes with wide instructions.

use std::arch::x86_64::{
    __m128i, __m256i, _MM_HINT_T0, _mm_add_epi32, _mm_loadu_si128, _mm_prefetch, _mm_storeu_si128, _mm256_add_epi32,
    _mm256_castsi256_si128, _mm256_cvtepi8_epi16, _mm256_extracti128_si256, _mm256_hadd_epi32, _mm256_loadu_si256,
    _mm256_madd_epi16, _mm256_setzero_si256,
};

use super::{QUERIES, ROWS, STEP};

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

/// As [`super::plain`]. `stride` is a multiple of [`STEP`].
#[target_feature(enable = "avx2")]
pub(super) fn products(rows: &[i8], queries: &[i16], stride: usize, count: usize, products: &mut [i32]) {
    // Rows that do not fill a group.
    let (in_pairs, in_groups) = (count / 2 * 2, count / ROWS * ROWS);
    let together = queries.len() / stride / QUERIES * QUERIES;
    for (at, codes) in queries.chunks_exact(stride).enumerate() {
        let done = if at < together { in_pairs } else { in_groups };
        for row in done..count {
            products[at * count + row] = product(&rows[row * stride..][..stride], codes);
        }
    }
    let (rows, _) = rows.as_chunks::<STEP>();
    let (queries, _) = queries.as_chunks::<STEP>();
    let steps = stride / STEP;
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

/// As [`super::plain_product`].
#[target_feature(enable = "avx2")]
pub(super) fn product(row: &[i8], query: &[i16]) -> i32 {
    // The same code, which the compiler vectorises with wider instructions.
    super::plain_product(row, query)
}

/// As [`super::plain`], for any stride.
#[target_feature(enable = "avx2")]
pub(super) fn plain(rows: &[i8], queries: &[i16], stride: usize, count: usize, products: &mut [i32]) {
    super::plain(rows, queries, stride, count, products);
}
