//! Tests of 8-bit codes.

use proptest::prelude::*;

use super::*;

/// Whether the exact score is within the bounds.
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
        look(&mut candidates, queries.bounds[0], &codes, (0, 0), &products[..1], |_| true);
        candidates.add((f32::MAX, 0.0), (0, 1));
        prop_assert_eq!(candidates.into_rows().count(), 2);
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
