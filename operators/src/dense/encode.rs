//! Computes the 8-bit codes of a vector.

use super::codes::{GREATEST, ROUNDING};

/// Values that are computed together.
const LANES: usize = 16;

/// What is known of a vector beside its codes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Coded {
    /// What a code counts.
    pub scale: f32,
    /// At least the length of the difference between the vector and its codes.
    pub error: f32,
    /// At least its length.
    pub length: f32,
}

/// Computes the codes of a vector, of which there are as many as values.
pub(super) fn encode(vector: &[f32], codes: &mut [i8]) -> Coded {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor supports AVX2.
            return unsafe { encode_avx2(vector, codes) };
        }
    }
    encode_lanes(vector, codes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn encode_avx2(vector: &[f32], codes: &mut [i8]) -> Coded {
    // The same code, which the compiler vectorises with wider instructions.
    encode_lanes(vector, codes)
}

#[inline(always)]
fn encode_lanes(vector: &[f32], codes: &mut [i8]) -> Coded {
    let (whole, rest) = vector.as_chunks::<LANES>();
    let (whole_codes, rest_codes) = codes.as_chunks_mut::<LANES>();
    let mut greatest = [0.0_f32; LANES];
    for values in whole {
        for (greatest, value) in greatest.iter_mut().zip(values) {
            // A value that is no number is not greater.
            *greatest = if value.abs() > *greatest { value.abs() } else { *greatest };
        }
    }
    let greatest = greatest.iter().copied().chain(rest.iter().map(|value| value.abs())).fold(0.0_f32, f32::max);
    let scale = greatest / GREATEST;
    let (mut squares, mut errors) = ([0.0_f64; LANES], [0.0_f64; LANES]);
    for (values, codes) in whole.iter().zip(whole_codes) {
        for lane in 0..LANES {
            let (code, error) = code(values[lane], scale);
            codes[lane] = code;
            squares[lane] += square(values[lane]);
            errors[lane] += square(error);
        }
    }
    let (mut squares, mut errors): (f64, f64) = (squares.iter().sum(), errors.iter().sum());
    for (value, place) in rest.iter().zip(rest_codes) {
        let (code, error) = code(*value, scale);
        *place = code;
        squares += square(*value);
        errors += square(error);
    }
    Coded { scale, error: length(errors), length: length(squares) }
}

/// The code of a value, and the value's difference from it. A value that is not finite has the code 0, and an error that
/// rules nothing out.
#[inline(always)]
fn code(value: f32, scale: f32) -> (i8, f32) {
    let code = (value / scale).round_ties_even().clamp(-GREATEST, GREATEST);
    let code = if code.is_nan() { 0.0 } else { code };
    (code as i8, value - scale * code)
}

#[inline(always)]
fn square(value: f32) -> f64 {
    f64::from(value) * f64::from(value)
}

/// A length whose square was summed.
#[inline(always)]
fn length(square: f64) -> f32 {
    square.sqrt() as f32 * ROUNDING
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn wide_and_plain_codes_are_the_nearest_and_agree(
            vector in proptest::collection::vec(
                prop_oneof![9 => -1.0_f32..1.0, 1 => prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(0.0)]], 0..70),
            by in prop_oneof![Just(1.0_f32), Just(1e-30), Just(1e20), Just(1e-42)],
        ) {
            let vector: Vec<f32> = vector.into_iter().map(|value| value * by).collect();
            let (mut codes, mut others) = (vec![1; vector.len()], vec![2; vector.len()]);
            let (coded, other) = (encode(&vector, &mut codes), encode_lanes(&vector, &mut others));
            prop_assert_eq!(&codes, &others);
            let bits = |of: Coded| [of.scale, of.error, of.length].map(f32::to_bits);
            prop_assert!(bits(coded) == bits(other) || coded.error.is_nan() && other.error.is_nan());
            for (value, code) in vector.iter().zip(codes) {
                let error = (value - coded.scale * f32::from(code)).abs();
                if value.is_finite() && coded.scale.is_finite() && coded.scale > 1e-36 {
                    prop_assert!(error <= coded.scale * 0.501, "{} is coded as {} of {}", value, code, coded.scale);
                } else if !value.is_finite() {
                    prop_assert_eq!(code, 0);
                }
                prop_assert!(error <= coded.error || error.is_nan() || coded.error.is_nan(), "{} exceeds {}", error, coded.error);
            }
        }
    }
}
