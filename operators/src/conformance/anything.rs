//! A model with every capability, for the conformance tests: slow, failing now and then, and the same for the same text.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildFuture, Capability, ComponentContext, Model, ModelConfig, config, loaded_at_once,
};
use turnflow_engine::inference::{
    Embedder, InferenceError, PairScorer, Priority, Role, RowScorer, SparseEmbedder, SparseVector, TokenEmbedder,
    TokenVectors, Vector, WordVectors,
};
use turnflow_engine::language::{Generation, Generator, Likelihood, Prompt, Sampling, TextStream};

/// Model calls that are in progress.
pub(super) static RUNNING: AtomicUsize = AtomicUsize::new(0);

struct Counted;

impl Counted {
    fn begin() -> Self {
        RUNNING.fetch_add(1, Ordering::AcqRel);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    }
}

fn number(text: &str) -> u64 {
    u64::from_le_bytes(blake3::hash(text.as_bytes()).as_bytes()[..8].try_into().unwrap())
}

/// Waits up to three milliseconds, depending on the text, and fails on some texts.
fn after<T: Send + 'static>(
    text: &str,
    value: impl FnOnce() -> T + Send + 'static,
) -> BoxFuture<'static, Result<T, InferenceError>> {
    let number = number(text);
    async move {
        let _counted = Counted::begin();
        tokio::time::sleep(Duration::from_millis(number % 4)).await;
        if number.is_multiple_of(13) {
            return Err(InferenceError::Failed("out of order".to_owned()));
        }
        Ok(value())
    }
    .boxed()
}

/// A model with every capability, whose outputs depend only on the text.
#[config]
pub(super) struct Anything {}

impl Anything {
    const LETTERS: usize = 26;

    fn letters(text: &str) -> Vector {
        let mut counts = [0.01_f32; Self::LETTERS];
        for letter in text.bytes().filter(u8::is_ascii_alphabetic) {
            counts[usize::from(letter.to_ascii_lowercase() - b'a')] += 1.0;
        }
        let length = counts.iter().map(|count| count * count).sum::<f32>().sqrt();
        counts.iter().map(|count| count / length).collect::<Vec<_>>().into()
    }
}

impl ModelConfig for Anything {
    fn capabilities(&self) -> &'static [Capability] {
        &[
            Capability::Embed,
            Capability::EmbedTokens,
            Capability::EmbedSparse,
            Capability::Words,
            Capability::ScorePairs,
            Capability::ScoreRows,
            Capability::Generate,
            Capability::Likelihood,
        ]
    }
    fn explain(&self) -> String {
        String::new()
    }
    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        let columns = ["hits.rank", "more.score"].map(str::to_owned).into();
        let of = Arc::new(Everything { sampling: Sampling::default(), rows: vec![vec![0.5; 4]; 8], columns });
        loaded_at_once(|| {
            Ok(Model {
                name: context.id().to_owned(),
                fingerprint: "anything".into(),
                embedder: Some(of.clone()),
                token_embedder: Some(of.clone()),
                sparse: Some(of.clone()),
                words: Some(of.clone()),
                pairs: Some(of.clone()),
                rows: Some(of.clone()),
                generator: Some(of.clone()),
                likelihood: Some(of),
                ..Model::default()
            })
        })
    }
}

struct Everything {
    sampling: Sampling,
    rows: Vec<Vec<f32>>,
    /// The features of rows to score.
    columns: Vec<String>,
}

impl RowScorer for Everything {
    fn columns(&self) -> &[String] {
        &self.columns
    }
    fn score(&self, rows: Vec<f32>, _: Priority) -> BoxFuture<'static, Result<Vec<f32>, InferenceError>> {
        let score = |row: &[f32]| row.iter().filter(|value| value.is_finite()).sum();
        let scores = rows.chunks(self.columns.len()).map(score).collect();
        after(&format!("{rows:?}"), || scores)
    }
}

impl Embedder for Everything {
    fn dimension(&self) -> usize {
        Anything::LETTERS
    }
    fn embed(
        &self,
        texts: Vec<String>,
        _: Role,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        async move { Ok(texts.iter().map(|text| Anything::letters(text)).collect()) }.boxed()
    }
}

impl TokenEmbedder for Everything {
    fn dimension(&self) -> usize {
        Anything::LETTERS
    }
    fn embed_tokens(
        &self,
        texts: Vec<String>,
        _: Role,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<TokenVectors>, InferenceError>> {
        let vectors = |text: &String| {
            let rows: Vec<f32> =
                text.split_whitespace().take(16).flat_map(|word| Anything::letters(word).to_vec()).collect();
            TokenVectors { dimension: Anything::LETTERS, values: rows.into() }
        };
        async move { Ok(texts.iter().map(vectors).collect()) }.boxed()
    }
}

impl SparseEmbedder for Everything {
    fn embed_sparse(
        &self,
        texts: Vec<String>,
        _: Role,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<SparseVector>, InferenceError>> {
        let vector = |text: &String| {
            let terms: BTreeSet<u32> = text.split_whitespace().map(|word| (number(word) % 1000) as u32).collect();
            terms.into_iter().map(|term| (term, 1.0)).collect::<Vec<_>>().into()
        };
        async move { Ok(texts.iter().map(vector).collect()) }.boxed()
    }
}

impl WordVectors for Everything {
    fn dimension(&self) -> usize {
        4
    }
    fn place(&self, word: &str) -> Option<u32> {
        Some((number(word) % 10) as u32).filter(|place| (*place as usize) < self.rows.len())
    }

    fn vector(&self, place: u32) -> &[f32] {
        &self.rows[place as usize]
    }
}

impl PairScorer for Everything {
    fn classes(&self) -> usize {
        3
    }
    fn score(
        &self,
        first: String,
        seconds: Vec<String>,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vec<f32>>, InferenceError>> {
        let all = first.clone() + &seconds.concat();
        after(&all, move || {
            let score = |second: &String| (number(&(first.clone() + second)) % 100) as f32 / 10.0;
            seconds.iter().map(|second| vec![score(second), 1.0, 2.0]).collect()
        })
    }
}

impl Generator for Everything {
    fn sampling(&self) -> &Sampling {
        &self.sampling
    }
    fn generate_streamed(
        &self,
        prompt: Prompt,
        _: Sampling,
        stream: TextStream,
    ) -> BoxFuture<'static, Result<Generation, InferenceError>> {
        let text = prompt.plain();
        let at = number(&text) as usize;
        after(&text, move || {
            let replies =
                ["", "no", "Score: 3", "1. when\n2. where", "I do not know.", "It is [1][9].", "{\"query\": 3"];
            let long = "[1] so it is. ".repeat(5_000);
            let text = replies.get(at % (replies.len() + 1)).map_or(long, |reply| (*reply).to_owned());
            stream.send(&text);
            Generation { text, prompt_tokens: 1, tokens: 1, ..Generation::default() }
        })
    }
    fn count(&self, text: &str) -> usize {
        text.len() / 4
    }
}

impl Likelihood for Everything {
    fn log_likelihood(
        &self,
        contexts: Vec<String>,
        text: String,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<f32>, InferenceError>> {
        after(&text, move || contexts.iter().map(|context| -((number(context) % 100) as f32)).collect())
    }
}
