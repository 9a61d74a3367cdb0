//! A rotation of vectors, the same on every machine.

/// Rounds of sign changes and transforms.
const ROUNDS: usize = 4;

/// A rotation in which every value depends on every value of the vector: signs change by a fixed pseudo-random pattern,
/// and Hadamard transforms of the first and of the last values alternate.
pub(super) struct Rotation {
    /// The signs of each round, as 1 and −1.
    signs: [Vec<f32>; ROUNDS],
    /// The greatest power of two that is not above the dimension.
    transformed: usize,
}

impl Rotation {
    pub fn new(dimension: usize) -> Self {
        let transformed = if dimension == 0 { 0 } else { 1 << dimension.ilog2() };
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut sign = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if state >> 63 == 0 { 1.0 } else { -1.0 }
        };
        let signs = std::array::from_fn(|_| (0..dimension).map(|_| sign()).collect());
        Self { signs, transformed }
    }

    /// The number of a vector's values.
    pub fn dimension(&self) -> usize {
        self.signs[0].len()
    }

    /// Rotates a vector in place.
    pub fn apply(&self, vector: &mut [f32]) {
        for (round, signs) in self.signs.iter().enumerate() {
            vector.iter_mut().zip(signs).for_each(|(value, sign)| *value *= sign);
            let from = if round % 2 == 0 { 0 } else { vector.len() - self.transformed };
            hadamard(&mut vector[from..from + self.transformed]);
        }
    }
}

/// The orthonormal Hadamard transform of as many values as a power of two.
fn hadamard(values: &mut [f32]) {
    let mut half = 1;
    while half < values.len() {
        for pair in values.chunks_exact_mut(2 * half) {
            let (first, second) = pair.split_at_mut(half);
            for (a, b) in first.iter_mut().zip(second) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = 1.0 / (values.len().max(1) as f32).sqrt();
    values.iter_mut().for_each(|value| *value *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_stay_and_values_spread() {
        for dimension in [0, 1, 2, 7, 48, 384, 1000] {
            let rotation = Rotation::new(dimension);
            let vector = |seed: usize| (0..dimension).map(|at| ((at * seed % 101) as f32).sin()).collect::<Vec<_>>();
            let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
            let (a, b) = (vector(37), vector(53));
            let (mut of_a, mut of_b) = (a.clone(), b.clone());
            rotation.apply(&mut of_a);
            rotation.apply(&mut of_b);
            assert!((product(&a, &b) - product(&of_a, &of_b)).abs() < 1e-3 * (1.0 + dimension as f64));
            assert!((product(&a, &a) - product(&of_a, &of_a)).abs() < 1e-3 * (1.0 + dimension as f64));
        }
        let mut one = vec![0.0; 384];
        one[5] = 1.0;
        Rotation::new(384).apply(&mut one);
        assert!(one.iter().all(|value| value.abs() < 0.4), "{one:?}");
    }
}
