//! What encoders of texts share: prefixes, tokens, and batches padded to their longest text.

use std::sync::Arc;

use ndarray::Array2;
use ort::session::{Session, SessionInputValue};
use ort::value::Tensor;
use tokenizers::{EncodeInput, Encoding, Tokenizer, TruncationParams};
use turnflow_engine::compute::MOST_ON_A_WORKER;
use turnflow_engine::inference::{InferenceError, Role};

use super::runtime::{Device, Tokens};

/// Above so many texts tokenizing is kept off the threads that turns run on.
const FEW: usize = 8;

/// Bytes of a token, at most, as far as a text is read: what is behind as many of them as a model
/// takes tokens is cut away in any case, and need not be tokenized first.
const TOKEN: usize = 64;

/// Texts to tokens, cut to a model's length.
#[derive(Clone)]
pub(crate) struct Texts {
    tokenizer: Arc<Tokenizer>,
    /// Bytes of a text that are read.
    most: usize,
    query_prefix: Arc<str>,
    passage_prefix: Arc<str>,
}

impl Texts {
    /// `max_tokens` has the special tokens in it.
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

    /// Makes an input of each text's tokens.
    pub async fn encode<T: Send + 'static>(
        &self,
        texts: Vec<String>,
        role: Role,
        input: fn(&Encoding) -> T,
    ) -> Result<Vec<T>, InferenceError> {
        let prefix = match role {
            Role::Query => self.query_prefix.clone(),
            Role::Passage => self.passage_prefix.clone(),
        };
        let texts = texts.into_iter().map(|text| format!("{prefix}{}", self.read(&text)));
        let texts = texts.collect::<Vec<String>>();
        let bytes = texts.iter().map(String::len).sum();
        self.run(texts, bytes, input).await
    }

    /// Makes an input of each pair's tokens.
    pub async fn encode_pairs<T: Send + 'static>(
        &self,
        pairs: Vec<(String, String)>,
        input: fn(&Encoding) -> T,
    ) -> Result<Vec<T>, InferenceError> {
        let read = |text: String| if text.len() > self.most { self.read(&text).to_owned() } else { text };
        let pairs: Vec<(String, String)> =
            pairs.into_iter().map(|(first, second)| (read(first), read(second))).collect();
        let bytes = pairs.iter().map(|(first, second)| first.len() + second.len()).sum();
        self.run(pairs, bytes, input).await
    }

    /// The beginning of a text that a model can take at all.
    fn read<'t>(&self, text: &'t str) -> &'t str {
        &text[..text.floor_char_boundary(self.most)]
    }

    async fn run<S, T>(&self, texts: Vec<S>, bytes: usize, input: fn(&Encoding) -> T) -> Result<Vec<T>, InferenceError>
    where
        S: Into<EncodeInput<'static>> + Send + 'static,
        T: Send + 'static,
    {
        let tokenizer = self.tokenizer.clone();
        let many = texts.len() > FEW || bytes > MOST_ON_A_WORKER;
        let encode = move || -> Result<Vec<T>, InferenceError> {
            let each = |text: S| {
                let encoding = tokenizer.encode_fast(text, true);
                encoding.map(|encoding| input(&encoding)).map_err(|error| InferenceError::Tokenizer(error.to_string()))
            };
            texts.into_iter().map(each).collect()
        };
        if many {
            let encoded = tokio::task::spawn_blocking(encode).await;
            encoded.map_err(|error| InferenceError::Tokenizer(error.to_string()))?
        } else {
            encode()
        }
    }

    /// The tokens of one text, as a passage.
    pub fn passage(&self, text: &str) -> Result<Vec<u32>, InferenceError> {
        let encoding = self.tokenizer.encode_fast(format!("{}{}", self.passage_prefix, self.read(text)), true);
        encoding
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| InferenceError::Tokenizer(error.to_string()))
    }
}

/// A row of a batch.
pub(crate) struct Row<'a> {
    /// Tokens.
    pub ids: &'a [u32],
    /// The type of each token; where there are none, 0.
    pub types: &'a [u32],
}

/// How batches are padded.
#[derive(Clone, Copy)]
pub(crate) struct Padding {
    /// With this token.
    pub token: i64,
    /// To lengths that suit this device.
    pub device: Device,
    /// To no more than this, which texts are cut to.
    pub most: usize,
}

/// The inputs of BERT and its kin, int64 of shape `[batch, tokens]` each, padded to the
/// longest row, or somewhat further where the device wants it.
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
