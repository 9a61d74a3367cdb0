//! Wrappers that cache the outputs of a model for turns, one for each capability.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value as Json;

use super::{InferenceCache, Key};
use crate::component::Model;
use crate::inference::tokens::{self, Tokens};
use crate::inference::{
    Embedder, InferenceError, PairScorer, Priority, Role, SparseEmbedder, SparseVector, TokenEmbedder, TokenVectors,
    Vector,
};
use crate::language::{Generation, Generator, Likelihood, Prompt, Sampling, Spoken, TextStream, known_controls};

impl Model {
    /// Wraps the model so that its outputs for turns are cached, and its texts are free of thoughts.
    pub fn remembering(mut self, cache: &Arc<InferenceCache>) -> Self {
        let with = |capability| Remembering {
            cache: cache.clone(),
            fingerprint: self.fingerprint.as_str().into(),
            model: self.name.as_str().into(),
            capability,
        };
        let by = |what: &str| with(what.to_owned());
        self.embedder = self.embedder.map(|inner| Arc::new(Remembered { by: by("embed"), inner }) as _);
        self.token_embedder = self.token_embedder.map(|inner| Arc::new(Remembered { by: by("tokens"), inner }) as _);
        self.sparse = self.sparse.map(|inner| Arc::new(Remembered { by: by("sparse"), inner }) as _);
        self.pairs = self.pairs.map(|inner| Arc::new(Remembered { by: by("pairs"), inner }) as _);
        self.generator = self.generator.map(|inner| {
            let inner = Arc::new(Remembered { by: by("generate"), inner });
            Arc::new(Spoken::new(inner)) as _
        });
        self.likelihood = self.likelihood.map(|inner| Arc::new(Remembered { by: by("likelihood"), inner }) as _);
        self
    }
}

/// Version of the cache keys. Change it when the same model and input give a different output.
const VERSION: &[u8] = b"1";

#[derive(Clone)]
struct Remembering {
    cache: Arc<InferenceCache>,
    fingerprint: Arc<str>,
    model: Arc<str>,
    capability: String,
}

impl Remembering {
    /// The hash of the model, the capability and the parts of an input.
    fn key(&self, parts: &[&[u8]]) -> Key {
        let mut hasher = blake3::Hasher::new();
        for part in [VERSION, self.fingerprint.as_bytes(), self.capability.as_bytes()].iter().chain(parts) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        *hasher.finalize().as_bytes()
    }

    fn keys(&self, texts: &[String], role: Role) -> Vec<Key> {
        let role = match role {
            Role::Query => b"query".as_slice(),
            Role::Passage => b"passage",
        };
        texts.iter().map(|text| self.key(&[role, text.as_bytes()])).collect()
    }
}

struct Remembered<M: ?Sized> {
    by: Remembering,
    inner: Arc<M>,
}

/// An error if a value is not finite: such a vector would be near to everything, or to nothing.
fn finite<'v>(values: impl IntoIterator<Item = &'v f32>) -> Result<(), InferenceError> {
    match values.into_iter().all(|value| value.is_finite()) {
        true => Ok(()),
        false => Err(InferenceError::Shape("returned a vector with a value that is not a number".to_owned())),
    }
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn read_floats(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.chunks_exact(4).filter_map(|bytes| Some(f32::from_le_bytes(bytes.try_into().ok()?)))
}

fn pick(texts: &[String], places: &[usize]) -> Vec<String> {
    places.iter().map(|&at| texts[at].clone()).collect()
}

impl Embedder for Remembered<dyn Embedder> {
    fn dimension(&self) -> usize {
        self.inner.dimension()
    }

    fn is_remote(&self) -> bool {
        self.inner.is_remote()
    }

    fn embed(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        let (by, inner) = (self.by.clone(), self.inner.clone());
        async move {
            let embed = |texts: Vec<String>| async {
                let vectors = inner.embed(texts, role, priority).await?;
                vectors.iter().try_for_each(|vector| finite(vector.iter()))?;
                Ok(vectors)
            };
            if priority == Priority::Corpus {
                return embed(texts).await;
            }
            let keys = by.keys(&texts, role);
            let decode = |bytes: &[u8]| Some(read_floats(bytes).collect::<Vector>());
            let compute = |missing: Vec<usize>| embed(pick(&texts, &missing));
            by.cache.each(&keys, decode, |vector| floats(vector), compute).await
        }
        .boxed()
    }
}

impl TokenEmbedder for Remembered<dyn TokenEmbedder> {
    fn dimension(&self) -> usize {
        self.inner.dimension()
    }

    fn embed_tokens(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<TokenVectors>, InferenceError>> {
        let (by, inner, dimension) = (self.by.clone(), self.inner.clone(), self.inner.dimension());
        async move {
            let embed = |texts: Vec<String>| async {
                let vectors = inner.embed_tokens(texts, role, priority).await?;
                vectors.iter().try_for_each(|vectors| finite(vectors.values.iter()))?;
                Ok(vectors)
            };
            if priority == Priority::Corpus {
                return embed(texts).await;
            }
            let keys = by.keys(&texts, role);
            let decode = |bytes: &[u8]| Some(TokenVectors { dimension, values: read_floats(bytes).collect() });
            let compute = |missing: Vec<usize>| embed(pick(&texts, &missing));
            by.cache.each(&keys, decode, |vectors| floats(&vectors.values), compute).await
        }
        .boxed()
    }
}

impl SparseEmbedder for Remembered<dyn SparseEmbedder> {
    fn embed_sparse(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<SparseVector>, InferenceError>> {
        let (by, inner) = (self.by.clone(), self.inner.clone());
        async move {
            let embed = |texts: Vec<String>| async {
                let vectors = inner.embed_sparse(texts, role, priority).await?;
                vectors.iter().try_for_each(|vector| finite(vector.iter().map(|(_, weight)| weight)))?;
                Ok(vectors)
            };
            if priority == Priority::Corpus {
                return embed(texts).await;
            }
            let keys = by.keys(&texts, role);
            let decode = |bytes: &[u8]| {
                let pair = |bytes: &[u8]| {
                    let (term, weight) = bytes.split_at(4);
                    Some((u32::from_le_bytes(term.try_into().ok()?), f32::from_le_bytes(weight.try_into().ok()?)))
                };
                bytes.chunks_exact(8).map(pair).collect::<Option<SparseVector>>()
            };
            let encode = |vector: &SparseVector| {
                vector.iter().flat_map(|(term, weight)| [term.to_le_bytes(), weight.to_le_bytes()].concat()).collect()
            };
            let compute = |missing: Vec<usize>| embed(pick(&texts, &missing));
            by.cache.each(&keys, decode, encode, compute).await
        }
        .boxed()
    }
}

impl PairScorer for Remembered<dyn PairScorer> {
    fn classes(&self) -> usize {
        self.inner.classes()
    }

    fn score(
        &self,
        first: String,
        seconds: Vec<String>,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vec<f32>>, InferenceError>> {
        let (by, inner) = (self.by.clone(), self.inner.clone());
        async move {
            let keys: Vec<Key> = seconds.iter().map(|second| by.key(&[first.as_bytes(), second.as_bytes()])).collect();
            let decode = |bytes: &[u8]| Some(read_floats(bytes).collect::<Vec<f32>>());
            let compute = |missing: Vec<usize>| inner.score(first.clone(), pick(&seconds, &missing), priority);
            by.cache.each(&keys, decode, |scores| floats(scores), compute).await
        }
        .boxed()
    }
}

impl Likelihood for Remembered<dyn Likelihood> {
    fn log_likelihood(
        &self,
        contexts: Vec<String>,
        text: String,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<f32>, InferenceError>> {
        let (by, inner) = (self.by.clone(), self.inner.clone());
        async move {
            let keys: Vec<Key> = contexts.iter().map(|each| by.key(&[each.as_bytes(), text.as_bytes()])).collect();
            let decode = |bytes: &[u8]| read_floats(bytes).next();
            let compute = |missing: Vec<usize>| inner.log_likelihood(pick(&contexts, &missing), text.clone(), priority);
            by.cache.each(&keys, decode, |value| value.to_le_bytes().to_vec(), compute).await
        }
        .boxed()
    }
}

/// Sampling as a part of a key. Earlier versions had no labels, and their outputs count on.
fn of_sampling(sampling: &Sampling) -> Vec<u8> {
    let json = serde_json::to_string(sampling).unwrap_or_default();
    let known = json.strip_suffix(r#","labels":[]}"#).map(|rest| format!("{rest}}}"));
    known.unwrap_or(json).into_bytes()
}

impl Generator for Remembered<dyn Generator> {
    fn sampling(&self) -> &Sampling {
        self.inner.sampling()
    }

    fn generate_streamed(
        &self,
        prompt: Prompt,
        sampling: Sampling,
        stream: TextStream,
    ) -> BoxFuture<'static, Result<Generation, InferenceError>> {
        let (by, inner) = (self.by.clone(), self.inner.clone());
        async move {
            let parts = [serde_json::to_vec(&prompt).unwrap_or_default(), of_sampling(&sampling)];
            // Earlier versions passed text in the form of a control token to models as a control token.
            let mut texts = prompt.messages.iter().flat_map(|message| &message.parts);
            let key = match texts.any(|part| known_controls(&part.text).next().is_some()) {
                true => by.key(&[&parts[0], &parts[1], b"control tokens are text"]),
                false => by.key(&[&parts[0], &parts[1]]),
            };
            let decode = |bytes: &[u8]| serde_json::from_slice::<Generation>(bytes).ok();
            let encode = |generation: &Generation| match generation.doubt {
                Some(_) => Vec::new(),
                None => serde_json::to_vec(generation).unwrap_or_default(),
            };
            let is_known = AtomicBool::new(true);
            let (streamed, known) = (stream.clone(), &is_known);
            let compute = |_| async move {
                known.store(false, Ordering::Relaxed);
                Ok(vec![inner.generate_streamed(prompt, sampling, streamed).await?])
            };
            let mut generations = by.cache.each(&[key], decode, encode, compute).await?;
            let generation = generations.pop().ok_or_else(|| InferenceError::Failed("no output".to_owned()))?;
            let is_known = is_known.load(Ordering::Relaxed);
            tokens::add(&by.model, Tokens::of(&generation, is_known));
            if is_known {
                stream.send(&generation.text);
            }
            Ok(generation)
        }
        .boxed()
    }

    fn count(&self, text: &str) -> usize {
        self.inner.count(text)
    }

    fn check_form(&self, form: &Json) -> Result<(), InferenceError> {
        self.inner.check_form(form)
    }

    fn unmarked_thoughts(&self) -> Option<bool> {
        self.inner.unmarked_thoughts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampling_without_labels_has_the_key_of_earlier_versions() {
        let before = concat!(
            r#"{"max_tokens":256,"temperature":0.0,"top_p":1.0,"top_k":0,"repetition_penalty":1.0,"seed":0,"#,
            r#""stop":[],"beams":1,"no_repeat_ngram":0,"length_penalty":1.0,"early_stopping":true}"#,
        );
        assert_eq!(of_sampling(&Sampling::default()), before.as_bytes());
        let labelled = String::from_utf8(of_sampling(&Sampling::default().of_labels(["a"]))).unwrap();
        assert!(labelled.ends_with(r#""labels":["a"]}"#), "{labelled}");
    }
}
