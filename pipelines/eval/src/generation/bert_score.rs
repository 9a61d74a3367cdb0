//! BERTScore: matches each token with the most similar token of the other text, by the cosine of
//! their states (Zhang et al. 2020).
//!
//! Equal to the Python package `bert_score` without idf, on the states that the encoder's graph
//! outputs (for some encoders, the package uses a middle layer). The special tokens at both ends have
//! no weight, but tokens of the other text may match them. A text without tokens scores 0. Texts are
//! stripped and truncated to the encoder's `max_tokens`.
//!
//! MTRAG (Katsis et al. 2025, section 6.3.1) derives two metrics: Bert-Recall, the recall of the
//! reference by the response, and Bert-K-Precision, the precision of the response against the
//! passages. Its published evaluation compares with each passage and takes the best value.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use turnflow_engine::cache::{InferenceCache, Key};
use turnflow_engine::inference::{InferenceError, Priority, Role, TokenEmbedder, TokenVectors};

/// What Bert-K-Precision compares a response with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Against {
    /// Each passage separately; the best value counts. Used by MTRAG.
    #[default]
    Best,
    /// All passages as one text, joined by line breaks and truncated to the encoder's length.
    Joined,
}

/// The similarity of two texts; each value is from −1 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Alike {
    /// Precision of the first text against the second.
    pub precision: f64,
    /// Recall of the second text by the first.
    pub recall: f64,
}

/// BERTScore with an encoder.
pub struct BertScore {
    encoder: Arc<dyn TokenEmbedder>,
    special: Special,
    /// Caches the values of text pairs; token states would be too large.
    cache: Arc<InferenceCache>,
    fingerprint: String,
    /// Token states of recent texts, since tasks of a conversation share passages.
    recent: Mutex<HashMap<String, Arc<TokenVectors>>>,
}

/// Maximum numbers in the states held in memory, about 128 MB.
const RECENT: usize = 32 << 20;

/// The number of special tokens at both ends of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Special {
    front: usize,
    back: usize,
}

/// Why BERTScore cannot use an encoder.
#[derive(Debug, thiserror::Error)]
pub enum EncoderError {
    /// The encoder failed.
    #[error(transparent)]
    Failed(#[from] InferenceError),
    /// The encoder adds a prefix to texts.
    #[error("it adds a prefix to texts, which BERTScore does not allow: remove `query_prefix` and `passage_prefix`")]
    Prefix,
}

impl BertScore {
    /// Creates the scorer; `fingerprint` is the encoder's. Detects the encoder's special tokens by
    /// comparing a query with a passage, which has none.
    ///
    /// # Errors
    ///
    /// The encoder failed, or adds prefixes.
    pub async fn new(
        encoder: Arc<dyn TokenEmbedder>,
        fingerprint: &str,
        cache: &Arc<InferenceCache>,
    ) -> Result<Self, EncoderError> {
        let probe = |role| encoder.embed_tokens(vec!["a word".to_owned()], role, Priority::Corpus);
        let (all, own) = (probe(Role::Query).await?, probe(Role::Passage).await?);
        let (Some(all), Some(own)) = (all.first(), own.first()) else { return Err(EncoderError::Prefix) };
        let (all, own): (Vec<&[f32]>, Vec<&[f32]>) = (all.rows().collect(), own.rows().collect());
        let same = |rows: &[&[f32]]| rows.iter().zip(&own).all(|(a, b)| cosine(a, b) > 0.999);
        let at = all.windows(own.len().max(1)).position(same).ok_or(EncoderError::Prefix)?;
        let special = Special { front: at, back: all.len() - at - own.len() };
        // No encoder adds more special tokens.
        if special.front > 2 || special.back > 2 {
            return Err(EncoderError::Prefix);
        }
        let (cache, fingerprint) = (cache.clone(), fingerprint.to_owned());
        Ok(Self { encoder, special, cache, fingerprint, recent: Mutex::default() })
    }

    /// Compares a text with others; returns the results in their order.
    ///
    /// # Errors
    ///
    /// The encoder failed.
    pub async fn compare(&self, text: &str, others: &[String]) -> Result<Vec<Alike>, InferenceError> {
        let text = text.trim();
        let known = |other: &String| {
            let bytes = self.cache.get(&self.key(text, other.trim()))?;
            let number = |bytes: &[u8]| Some(f64::from_le_bytes(bytes.try_into().ok()?));
            Some(Alike { precision: number(bytes.get(..8)?)?, recall: number(bytes.get(8..)?)? })
        };
        let mut found: Vec<Option<Alike>> = others.iter().map(known).collect();
        let missing: Vec<usize> = (0..others.len()).filter(|at| found[*at].is_none()).collect();
        if !missing.is_empty() {
            let texts: Vec<&str> = [text].into_iter().chain(missing.iter().map(|at| others[*at].trim())).collect();
            let states = self.states(&texts).await?;
            let first = &states[0];
            for (at, states) in missing.into_iter().zip(&states[1..]) {
                let alike = Alike { precision: self.covered(first, states), recall: self.covered(states, first) };
                let bytes = [alike.precision.to_le_bytes(), alike.recall.to_le_bytes()].concat();
                self.cache.put(self.key(text, others[at].trim()), bytes);
                found[at] = Some(alike);
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn key(&self, text: &str, other: &str) -> Key {
        let mut hasher = Sha256::new();
        for part in ["bert_score 1", &self.fingerprint, text, other] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize().into()
    }

    /// The token states of each text, with special tokens.
    async fn states(&self, texts: &[&str]) -> Result<Vec<Arc<TokenVectors>>, InferenceError> {
        let mut held: HashMap<&str, Arc<TokenVectors>> = {
            let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            texts.iter().filter_map(|text| Some((*text, recent.get(*text)?.clone()))).collect()
        };
        let missing: Vec<&str> = texts.iter().filter(|text| !held.contains_key(**text)).copied().collect();
        let asked = missing.iter().map(|text| (*text).to_owned()).collect();
        // `Priority::Corpus` bypasses the inference cache: states are many times larger than their text.
        let made = self.encoder.embed_tokens(asked, Role::Query, Priority::Corpus).await?;
        held.extend(missing.iter().copied().zip(made.into_iter().map(Arc::new)));
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.values().map(|states| states.values.len()).sum::<usize>() > RECENT {
            recent.clear();
        }
        recent.extend(missing.iter().filter_map(|text| Some(((*text).to_owned(), held.get(text)?.clone()))));
        let all: Option<Vec<Arc<TokenVectors>>> = texts.iter().map(|text| held.get(text).cloned()).collect();
        all.ok_or_else(|| InferenceError::Failed("fewer states than texts".to_owned()))
    }

    /// The mean, over the tokens of `one`, of the highest cosine with a token of `other`.
    fn covered(&self, one: &TokenVectors, other: &TokenVectors) -> f64 {
        let Special { front, back } = self.special;
        let own = |states: &TokenVectors| states.rows().len().saturating_sub(front + back);
        if own(one) == 0 || own(other) == 0 {
            return 0.0;
        }
        let best = |token: &[f32]| other.rows().map(|state| cosine(token, state)).fold(f32::NEG_INFINITY, f32::max);
        let tokens = one.rows().skip(front).take(own(one));
        tokens.map(|token| f64::from(best(token))).sum::<f64>() / own(one) as f64
    }
}

/// The inner product of two vectors of length 1, in lanes for SIMD.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0_f32; LANES];
    let (a_lanes, b_lanes) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a_lanes.remainder().iter().zip(b_lanes.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_lanes.zip(b_lanes) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::BoxFuture;

    /// Encodes each letter as a vector, with the special tokens `^` and `$` around the text.
    struct Letters {
        prefix: &'static str,
    }

    impl TokenEmbedder for Letters {
        fn dimension(&self) -> usize {
            128
        }
        fn embed_tokens(
            &self,
            texts: Vec<String>,
            role: Role,
            _: Priority,
        ) -> BoxFuture<'static, Result<Vec<TokenVectors>, InferenceError>> {
            let states = |text: &String| {
                let text = match role {
                    Role::Query => format!("^{}{text}$", self.prefix),
                    Role::Passage => text.clone(),
                };
                let one = |letter: char| (0..128).map(move |at| if at == letter as usize { 1.0 } else { 0.0 });
                TokenVectors { dimension: 128, values: text.chars().flat_map(one).collect() }
            };
            let all = texts.iter().map(states).collect();
            async move { Ok(all) }.boxed()
        }
    }

    fn score(prefix: &'static str) -> Result<BertScore, EncoderError> {
        let cache = InferenceCache::open(None).expect("a store in memory");
        BertScore::new(Arc::new(Letters { prefix }), "letters", &cache).now_or_never().expect("ready")
    }

    fn covered(one: &str, other: &str) -> f64 {
        let score = score("").expect("an encoder");
        assert_eq!(score.special, Special { front: 1, back: 1 });
        let compare = |one, other: &str| score.compare(one, &[other.to_owned()]).now_or_never().expect("ready");
        let (there, back) = (compare(one, other).expect("figures")[0], compare(other, one).expect("figures")[0]);
        assert_eq!((there.precision, there.recall), (back.recall, back.precision));
        assert_eq!(compare(one, other).expect("figures")[0], there, "and cached");
        there.precision
    }

    #[test]
    fn special_tokens_weigh_nothing_and_match() {
        for (one, other, want) in [
            ("ab", "ba", 1.0),
            ("ab", "bc", 0.5),
            ("abcd", "a", 0.25),
            (" a^ ", "a", 1.0),
            ("", "a", 0.0),
            ("a", " ", 0.0),
        ] {
            assert_eq!(covered(one, other), want, "{one:?} {other:?}");
        }
    }

    #[test]
    fn an_encoder_with_a_prefix_is_refused() {
        let error = score("query: ").err();
        // The text is found after the prefix, which would count as special tokens.
        assert!(matches!(error, Some(EncoderError::Prefix)));
    }
}
