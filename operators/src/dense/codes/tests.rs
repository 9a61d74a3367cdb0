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
}
