//! Shared by all text encoders: prefixes, tokenization, and batches padded to their longest text.

use std::sync::{Arc, LazyLock};

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use ndarray::Array2;
use ort::session::{Session, SessionInputValue};
use ort::value::Tensor;
use tokenizers::{EncodeInput, Encoding, Tokenizer, TruncationParams};
use tokio::sync::Semaphore;
use turnflow_engine::compute::MOST_ON_A_WORKER;
use turnflow_engine::inference::{InferenceError, Priority, Role};

use super::runtime::{Device, Tokens};

/// Maximum number of texts to tokenize on the threads that turns run on.
const FEW: usize = 8;

/// Number of texts to tokenize before the model gets them. The model runs on them while the next are tokenized.
const PART: usize = 32;

/// Maximum number of bytes to read for each token that a model accepts. The text after that is cut in any case, so it
/// is not tokenized.
const TOKEN: usize = 64;

/// Tokenizes texts and cuts them to a model's length.
#[derive(Clone)]
pub(crate) struct Texts {
    tokenizer: Arc<Tokenizer>,
    /// Maximum number of bytes of a text to read.
    most: usize,
    query_prefix: Arc<str>,
    passage_prefix: Arc<str>,
}

impl Texts {
    /// `max_tokens` includes the special tokens.
    pub fn new(
        tokens: &Tokens,
        max_tokens: usize,
        query_prefix: &str,
        passage_prefix: &str,
    ) -> Result<Self, InferenceError> {
        let mut tokenizer = tokens.tokenizer.clone();
        let truncation = TruncationParams { max_length: max_tokens, ..Default::default() };
        tokenizer.with_truncation(Some(truncation)).map_err(|error| InferenceError::Tokenizer(error.to_string()))?;
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            most: max_tokens.saturating_mul(TOKEN),
            query_prefix: query_prefix.into(),
            passage_prefix: passage_prefix.into(),
        })
    }

    /// Tokenizes the texts, and turns each encoding into an input.
    pub fn encode<T: Send + 'static>(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
        input: fn(&Encoding) -> T,
    ) -> Inputs<T> {
        let prefix = self.prefix(role);
        let texts = texts.into_iter().map(|text| format!("{prefix}{}", self.read(&text)));
        let texts = texts.collect::<Vec<String>>();
        let bytes = texts.iter().map(String::len).sum();
        self.run(texts, bytes, priority, input)
    }

    /// Tokenizes the pairs, and turns each encoding into an input.
    pub fn encode_pairs<T: Send + 'static>(
        &self,
        pairs: Vec<(String, String)>,
        priority: Priority,
        input: fn(&Encoding) -> T,
    ) -> Inputs<T> {
        let read = |text: String| if text.len() > self.most { self.read(&text).to_owned() } else { text };
        let pairs: Vec<(String, String)> =
            pairs.into_iter().map(|(first, second)| (read(first), read(second))).collect();
        let bytes = pairs.iter().map(|(first, second)| first.len() + second.len()).sum();
        self.run(pairs, bytes, priority, input)
    }

    fn prefix(&self, role: Role) -> &str {
        match role {
            Role::Query => &self.query_prefix,
            Role::Passage => &self.passage_prefix,
        }
    }

    /// The start of a text, as far as a model can accept it.
    fn read<'t>(&self, text: &'t str) -> &'t str {
        &text[..text.floor_char_boundary(self.most)]
    }

    fn run<S, T>(&self, texts: Vec<S>, bytes: usize, priority: Priority, input: fn(&Encoding) -> T) -> Inputs<T>
    where
        S: Into<EncodeInput<'static>> + Send + 'static,
        T: Send + 'static,
    {
        let tokenizer = self.tokenizer.clone();
        let count = texts.len();
        let encode = move |texts: Vec<S>| {
            let each = |text: S| {
                let encoding = tokenizer.encode_fast(text, true);
                encoding.map(|encoding| input(&encoding)).map_err(|error| InferenceError::Tokenizer(error.to_string()))
            };
            texts.into_iter().map(each).collect::<Result<Vec<T>, InferenceError>>()
        };
        let parts = match count > FEW || bytes > MOST_ON_A_WORKER {
            true => apart(texts, priority, encode).boxed(),
            false => stream::iter([encode(texts)]).boxed(),
        };
        Inputs { count, parts }
    }

    /// The tokens of one text.
    pub fn tokens(&self, text: &str, role: Role) -> Result<Vec<u32>, InferenceError> {
        let encoding = self.tokenizer.encode_fast(format!("{}{}", self.prefix(role), self.read(text)), true);
        encoding
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| InferenceError::Tokenizer(error.to_string()))
    }
}

/// The inputs of a call, in the order of its texts. They come in parts, as they are tokenized.
pub(crate) struct Inputs<T> {
    /// Number of inputs.
    pub count: usize,
    /// The parts; the first error ends a call.
    pub parts: BoxStream<'static, Result<Vec<T>, InferenceError>>,
}

/// Tokenizes parts of the texts on other threads, up to half of the cores for one call. All calls of turns share the
/// cores, and those of corpora three quarters of them: a model's own thread is slower while all cores are busy. A
/// cancelled call ends after the parts that have begun.
fn apart<S, T>(
    texts: Vec<S>,
    priority: Priority,
    encode: impl Fn(Vec<S>) -> Result<Vec<T>, InferenceError> + Clone + Send + 'static,
) -> impl Stream<Item = Result<Vec<T>, InferenceError>> + Send
where
    S: Send + 'static,
    T: Send + 'static,
{
    static TURNS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(cores())));
    static CORPORA: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new((3 * cores() / 4).max(1))));
    let threads = match priority {
        Priority::Turn => TURNS.clone(),
        Priority::Corpus => CORPORA.clone(),
    };
    let mut texts = texts.into_iter();
    let parts = std::iter::from_fn(move || {
        let part: Vec<S> = texts.by_ref().take(PART).collect();
        (!part.is_empty()).then_some(part)
    });
    let tokenized = move |part| {
        let (encode, threads) = (encode.clone(), threads.clone());
        // In a task of its own, it goes on, and gives its thread back, while the call waits for room in the queue.
        let task = tokio::spawn(async move {
            // The semaphore is never closed.
            let permit = threads.acquire_owned().await.ok();
            let encoded = move || {
                let _permit = permit;
                encode(part)
            };
            tokio::task::spawn_blocking(encoded).await.map_err(failed).flatten()
        });
        let task = tokio_util::task::AbortOnDropHandle::new(task);
        async move { task.await.map_err(failed).flatten() }
    };
    stream::iter(parts).map(tokenized).buffered((cores() / 2).max(1))
}

/// A tokenizer that has panicked, or the end of the runtime.
fn failed(error: tokio::task::JoinError) -> InferenceError {
    if error.is_cancelled() {
        return InferenceError::Failed("the run has ended".to_owned());
    }
    InferenceError::Tokenizer(error.to_string())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A row of a batch.
pub(crate) struct Row<'a> {
    /// The token ids.
    pub ids: &'a [u32],
    /// The type of each token; all 0 if empty.
    pub types: &'a [u32],
}

/// How batches are padded.
#[derive(Clone, Copy)]
pub(crate) struct Padding {
    /// The padding token.
    pub token: i64,
    /// The device, which determines suitable lengths.
    pub device: Device,
    /// The maximum length, which texts are cut to.
    pub most: usize,
}

/// The inputs of BERT-like models, int64 of shape `[batch, tokens]` each, padded to the longest row, or somewhat
/// further if the device requires it.
pub(crate) fn inputs(
    session: &Session,
    padding: Padding,
    batch: &[Row<'_>],
) -> ort::Result<Vec<(&'static str, SessionInputValue<'static>)>> {
    let tokens = batch.iter().map(|row| row.ids.len()).max().unwrap_or(0).max(1);
    let tokens = padding.device.padded(tokens, padding.most);
    let mut ids = Array2::from_elem((batch.len(), tokens), padding.token);
    let mut mask = Array2::<i64>::zeros((batch.len(), tokens));
    let mut types = Array2::<i64>::zeros((batch.len(), tokens));
    for (at, row) in batch.iter().enumerate() {
        for (column, id) in row.ids.iter().enumerate() {
            ids[(at, column)] = i64::from(*id);
            mask[(at, column)] = 1;
        }
        for (column, kind) in row.types.iter().enumerate() {
            types[(at, column)] = i64::from(*kind);
        }
    }
    let mut inputs: Vec<(&'static str, SessionInputValue<'static>)> =
        vec![("input_ids", Tensor::from_array(ids)?.into()), ("attention_mask", Tensor::from_array(mask)?.into())];
    if session.inputs().iter().any(|input| input.name() == "token_type_ids") {
        inputs.push(("token_type_ids", Tensor::from_array(types)?.into()));
    }
    Ok(inputs)
}
