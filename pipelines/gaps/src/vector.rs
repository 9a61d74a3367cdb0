//! Vectors of questions as 8-bit codes: small on disk and in memory, and the same after a restart.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A vector of length 1, as codes from -127 to 127.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codes(Box<[i8]>);

impl Codes {
    /// The codes of a vector of any length.
    pub fn of(vector: &[f32]) -> Self {
        let most = vector.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let scale = if most > 0.0 { 127.0 / most } else { 0.0 };
        Self(vector.iter().map(|value| (value * scale).round() as i8).collect())
    }

    /// The vector, with length 1.
    pub fn unit(&self) -> Vec<f32> {
        let length = self.0.iter().map(|code| f32::from(*code).powi(2)).sum::<f32>().sqrt().max(1.0);
        self.0.iter().map(|code| f32::from(*code) / length).collect()
    }

    /// Number of components.
    pub fn dimension(&self) -> usize {
        self.0.len()
    }
}

impl Serialize for Codes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = self.0.iter().map(|code| code.cast_unsigned()).collect();
        serializer.serialize_str(&STANDARD_NO_PAD.encode(bytes))
    }
}

impl<'de> Deserialize<'de> for Codes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        let bytes = STANDARD_NO_PAD.decode(text.as_bytes()).map_err(serde::de::Error::custom)?;
        Ok(Self(bytes.into_iter().map(u8::cast_signed).collect()))
    }
}

/// The inner product.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Eight sums, so that the compiler can use wide instructions.
    let mut sums = [0.0_f32; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_keep_the_direction() {
        let vector: Vec<f32> = (0..100).map(|i| (i as f32 * 0.7).sin()).collect();
        let codes = Codes::of(&vector);
        let unit = codes.unit();
        assert!((dot(&unit, &unit) - 1.0).abs() < 1e-5);
        let length = dot(&vector, &vector).sqrt();
        assert!(dot(&unit, &vector) / length > 0.9999);
        let again: Codes = serde_json::from_str(&serde_json::to_string(&codes).unwrap()).unwrap();
        assert_eq!(again, codes);
    }

    #[test]
    fn a_vector_of_zeros_has_codes_too() {
        assert_eq!(Codes::of(&[0.0; 4]).unit(), [0.0; 4]);
        assert_eq!(Codes::of(&[]).dimension(), 0);
    }
}
