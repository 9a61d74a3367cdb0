//! The learned label of a sentence: a logistic regression over the sentence's vector and counts of words.

use std::collections::HashSet;

use serde::Deserialize;
use turnflow_engine::component::BuildError;
use turnflow_engine::spec::{FilePath, from_str};

/// The weights that are built in. They were learned for MiniLM in 8 bits.
const SHIPPED: &str = include_str!("head.ron");
/// Number of first words that are looked at apart.
const FIRST: usize = 3;

/// The file of weights, as `pipelines/convert/stances.py` writes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Head")]
struct File {
    classes: Vec<String>,
    declines: f32,
    asks: f32,
    cues: Vec<(String, String)>,
    beginnings: Vec<String>,
    products: Vec<Vec<String>>,
    probe: String,
    probed: Vec<f32>,
    bias: Vec<f32>,
    weights: Vec<Vec<f32>>,
}

/// The weights of the learned label.
#[derive(Clone, Debug)]
pub struct Head {
    /// Sets of words that are counted.
    cues: Vec<HashSet<String>>,
    /// Cues that are looked for among the first words too.
    beginnings: Vec<usize>,
    /// Cues whose counts are multiplied.
    products: Vec<Vec<usize>>,
    /// The cue that is multiplied with a question mark.
    you: Option<usize>,
    bias: Vec<f32>,
    weights: Vec<Vec<f32>>,
    /// Least probability of a sentence that declines.
    pub(super) declines: f32,
    /// Least probability of a sentence that asks back.
    pub(super) asks: f32,
    /// A sentence whose vector is known, and that vector: whether an encoder is the one of the weights.
    pub(super) probe: (String, Vec<f32>),
}

/// The probabilities of a sentence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Likely {
    pub declines: f32,
    pub asks: f32,
}

impl Head {
    /// The weights in a file, or those that are built in.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no file of weights.
    pub fn load(file: Option<&FilePath>) -> Result<Self, BuildError> {
        let fault = |reason| BuildError::File {
            path: file.map_or_else(|| "built-in weights".into(), |file| file.path.clone()),
            reason,
        };
        let text = match file {
            Some(file) => std::fs::read_to_string(&file.path).map_err(|error| fault(error.to_string()))?,
            None => SHIPPED.to_owned(),
        };
        Self::parse(&text).map_err(fault)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: File = from_str(text).map_err(|error| error.to_string())?;
        if file.classes != ["answers", "declines", "asks"] {
            return Err(format!("the classes are {:?}, not answers, declines and asks", file.classes));
        }
        let place = |name: &String| {
            let found = file.cues.iter().position(|(cue, _)| cue == name);
            found.ok_or_else(|| format!("`{name}` is none of the `cues`"))
        };
        let beginnings: Vec<usize> = file.beginnings.iter().map(place).collect::<Result<_, _>>()?;
        let products: Vec<Vec<usize>> =
            file.products.iter().map(|names| names.iter().map(place).collect()).collect::<Result<_, _>>()?;
        let width = file.probed.len() + file.cues.len() + beginnings.len() + products.len() + 4;
        let fits = file.weights.len() == file.classes.len() && file.weights.iter().all(|row| row.len() == width);
        if !fits || file.bias.len() != file.classes.len() {
            return Err(format!(
                "`weights` must have {} rows of {width} numbers, and `bias` as many",
                file.classes.len()
            ));
        }
        Ok(Self {
            you: file.cues.iter().position(|(cue, _)| cue == "you"),
            cues: file.cues.iter().map(|(_, words)| words.split(' ').map(str::to_owned).collect()).collect(),
            beginnings,
            products,
            bias: file.bias,
            weights: file.weights,
            declines: file.declines,
            asks: file.asks,
            probe: (file.probe, file.probed),
        })
    }

    /// The probabilities of a sentence with this vector.
    pub(super) fn likely(&self, vector: &[f32], sentence: &str) -> Likely {
        let row: Vec<f32> = vector.iter().copied().chain(self.features(sentence)).collect();
        let sum = |(weights, bias): (&Vec<f32>, &f32)| bias + weights.iter().zip(&row).map(|(w, x)| w * x).sum::<f32>();
        let sums: Vec<f32> = self.weights.iter().zip(&self.bias).map(sum).collect();
        let most = sums.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let parts: Vec<f32> = sums.iter().map(|sum| (sum - most).exp()).collect();
        let all: f32 = parts.iter().sum();
        Likely { declines: parts[1] / all, asks: parts[2] / all }
    }

    /// The counts of words, as the script computes them.
    fn features(&self, sentence: &str) -> Vec<f32> {
        let lower = sentence.to_lowercase().replace('’', "'");
        let words: Vec<&str> = lower
            .split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '\''))
            .filter(|word| !word.is_empty())
            .collect();
        let count =
            |cue: &HashSet<String>| words.iter().filter(|word| cue.contains(**word)).count().min(2) as f32 / 2.0;
        let counts: Vec<f32> = self.cues.iter().map(count).collect();
        let first = |cue: &usize| f32::from(words.iter().take(FIRST).any(|word| self.cues[*cue].contains(*word)));
        let product = |cues: &Vec<usize>| cues.iter().map(|cue| counts[*cue]).product::<f32>();
        let asks = f32::from(sentence.trim_end().ends_with('?'));
        let mut found = counts.clone();
        found.extend(self.beginnings.iter().map(first));
        found.extend(self.products.iter().map(product));
        found.extend([asks, asks * self.you.map_or(0.0, |you| counts[you])]);
        found.extend([words.len().min(40) as f32 / 40.0, f32::from(words.len() < 6)]);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_as_the_script_counts_them() {
        let head = Head::load(None).expect("the built-in weights");
        let features = head.features("I don’t know which documents you mean, 4.5?");
        let want = [0.5, 0.0, 0.0, 0.5, 0.5, 0.0, 0.5, 0.0, 0.5, 1.0, 0.0];
        assert_eq!(
            &features[..11],
            want,
            "negation, lack, sorry, speaker, source, thing, find, tell, you, meaning, if"
        );
        assert_eq!(&features[11..15], [1.0, 0.0, 1.0, 0.0], "among the first three words");
        assert_eq!(&features[15..18], [0.25, 0.25, 0.0], "negation by speaker, source and thing");
        assert_eq!(&features[26..], [1.0, 0.5, 9.0 / 40.0, 0.0], "a question to the user, of nine words");
    }

    #[test]
    fn other_files_are_refused() {
        for (change, with, want) in [
            ("\"asks\"],", "\"asking\"],", "the classes are"),
            ("bias: [", "bias: [1.0,", "`weights` must have 3 rows"),
            ("beginnings: [\"negation\"", "beginnings: [\"denial\"", "`denial` is none of the `cues`"),
        ] {
            let error = Head::parse(&SHIPPED.replacen(change, with, 1)).expect_err(want);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
