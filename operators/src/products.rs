//! Inner products of 8-bit codes with 16-bit codes. They are integers, so they are the same on every processor.

#[cfg(target_arch = "x86_64")]
mod wide;

/// Rows of a multiple of so many codes are multiplied with wide instructions.
pub(crate) const STEP: usize = 16;
/// Rows that are multiplied with a query together.
pub(crate) const ROWS: usize = 4;
/// Queries that are multiplied with a row together.
const QUERIES: usize = 4;

/// The products of `count` rows with each query: by query, then by row. Rows and queries have `stride` codes each. A sum of
/// products must fit into 32 bits.
pub(crate) fn products(rows: &[i8], queries: &[i16], stride: usize, count: usize, products: &mut [i32]) {
    if stride == 0 || count == 0 {
        products.fill(0);
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor supports AVX2.
        unsafe {
            match stride.is_multiple_of(STEP) {
                true => wide::products(rows, queries, stride, count, products),
                false => wide::plain(rows, queries, stride, count, products),
            }
        }
        return;
    }
    plain(rows, queries, stride, count, products);
}

/// The product of one row with one query.
pub(crate) fn product(row: &[i8], query: &[i16]) -> i32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor supports AVX2.
        return unsafe { wide::product(row, query) };
    }
    plain_product(row, query)
}

#[inline(always)]
fn plain_product(row: &[i8], query: &[i16]) -> i32 {
    row.iter().zip(query).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum()
}

#[inline(always)]
fn plain(rows: &[i8], queries: &[i16], stride: usize, count: usize, products: &mut [i32]) {
    for (query, products) in queries.chunks_exact(stride).zip(products.chunks_exact_mut(count)) {
        for (row, product) in rows.chunks_exact(stride).zip(products) {
            *product = plain_product(row, query);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn wide_and_plain_products_agree(
            count in 0_usize..20, queries in 0_usize..10, stride in 0_usize..100, seed in any::<u64>(),
        ) {
            let stride = if seed % 3 == 0 { stride } else { stride.next_multiple_of(STEP) };
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as i16
            };
            let rows: Vec<i8> = (0..count * stride).map(|_| next() as i8).collect();
            let of_queries: Vec<i16> = (0..queries * stride).map(|_| next()).collect();
            let mut found = (vec![1; queries * count], vec![0; queries * count]);
            products(&rows, &of_queries, stride, count, &mut found.0);
            if stride > 0 && count > 0 {
                plain(&rows, &of_queries, stride, count, &mut found.1);
            }
            prop_assert_eq!(&found.0, &found.1);
            for (at, query) in of_queries.chunks_exact(stride.max(1)).enumerate().take(if stride > 0 { queries } else { 0 }) {
                for (row, codes) in rows.chunks_exact(stride).enumerate() {
                    prop_assert_eq!(product(codes, query), found.0[at * count + row]);
                }
            }
        }
    }
}
