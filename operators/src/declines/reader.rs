//! Reads texts by rules, and by the learned label where there is an encoder.

use std::sync::Arc;

use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role};

use super::head::{Head, Likely};
use super::{Act, Asking, Stance, acts_of, asks, is_blank, sentences, stance_of};

/// Number of sentences of a text that the encoder reads, from the first.
const MOST_SENTENCES: usize = 24;
/// Least cosine of the encoder's vector of the probe with the one in the file. MiniLM in 8 and in 32 bits have 0.99.
const LEAST_COSINE: f32 = 0.95;
/// A shorter sentence that is a courtesy remains one.
const SHORTEST: usize = 5;

/// Reads whether texts decline, answer or ask back.
#[derive(Clone, Default)]
pub struct Reader {
    learned: Option<(Arc<dyn Embedder>, Arc<Head>)>,
}

impl Reader {
    /// A reader with the learned label, by the vectors of this encoder.
    ///
    /// # Errors
    ///
    /// The encoder fails, or is not the one that the weights were learned for.
    pub async fn learned(embedder: Arc<dyn Embedder>, head: Head) -> Result<Self, InferenceError> {
        let (probe, want) = &head.probe;
        let got = embedder.embed(vec![probe.clone()], Role::Passage, Priority::Turn).await?;
        let got = got.first().map_or(&[][..], |vector| vector);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
        let cosine = dot(got, want) / (dot(got, got) * dot(want, want)).sqrt().max(f32::MIN_POSITIVE);
        if got.len() != want.len() || cosine < LEAST_COSINE {
            let message = "gives other vectors than those that the learned label was learned from. Use MiniLM, or name a \
                           `head` that `pipelines/convert/stances.py` has learned for this encoder";
            return Err(InferenceError::Shape(message.to_owned()));
        }
        Ok(Self { learned: Some((embedder, Arc::new(head))) })
    }

    /// What a text does.
    ///
    /// # Errors
    ///
    /// The encoder failed.
    pub async fn stance(&self, text: &str) -> Result<Stance, InferenceError> {
        if is_blank(text) {
            return Ok(Stance::Declines);
        }
        Ok(stance_of(&self.acts(text).await?))
    }

    /// Whether a text asks the user what the question lacks, whatever else it does.
    ///
    /// # Errors
    ///
    /// The encoder failed.
    pub async fn asks(&self, text: &str) -> Result<bool, InferenceError> {
        Ok(asks(&self.acts(text).await?))
    }

    async fn acts(&self, text: &str) -> Result<Vec<(Act, usize)>, InferenceError> {
        let sentences = sentences(text);
        let mut acts = acts_of(&sentences);
        if let Some((embedder, head)) = &self.learned {
            let read = &sentences[..sentences.len().min(MOST_SENTENCES)];
            let vectors = embedder.embed(read.to_vec(), Role::Passage, Priority::Turn).await?;
            for ((acts, sentence), vector) in acts.iter_mut().zip(read).zip(&vectors) {
                correct(acts, head.likely(vector, sentence), head);
            }
        }
        Ok(acts.into_iter().flatten().collect())
    }
}

/// Corrects what the rules read in a sentence.
fn correct(acts: &mut [(Act, usize)], likely: Likely, head: &Head) {
    let words: usize = acts.iter().map(|(_, words)| words).sum();
    let knows = acts.iter().any(|(act, _)| *act == Act::Declines);
    let all_neutral = acts.iter().all(|(act, _)| *act == Act::Neutral);
    for (act, _) in acts.iter_mut() {
        match act {
            Act::Answers if !knows && likely.declines >= head.declines => *act = Act::Declines,
            Act::Neutral if all_neutral && words >= SHORTEST && likely.declines >= head.declines => {
                *act = Act::Declines
            }
            Act::Asks(asking @ (Asking::Something | Asking::Shortly)) if likely.asks >= head.asks => {
                *asking = Asking::Which;
            }
            _ => {}
        }
    }
}
