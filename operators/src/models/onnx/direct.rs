//! The encoder by itself, without the service: what the service is measured against.

use tokenizers::Tokenizer;
use turnflow_engine::inference::{Backend, InferenceError, Vector};

pub use super::super::runtime::Settings;
use super::{Encoder, OnnxConfig};

/// A session that is called directly, on the caller's thread.
pub struct Direct {
    encoder: Encoder,
    tokenizer: Tokenizer,
    prefix: String,
}

impl Direct {
    /// A session of its own, with as many threads as the service's has.
    pub fn open(config: &OnnxConfig, settings: Settings) -> Result<Self, InferenceError> {
        let tokenizers = config.tokenizers()?;
        let encoder = Encoder::load(config, tokenizers.pad, settings)?;
        Ok(Self { encoder, tokenizer: tokenizers.cut, prefix: config.passage_prefix.clone() })
    }

    /// A passage's tokens, as the service would see them.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>, InferenceError> {
        self.tokenizer
            .encode_fast(format!("{}{text}", self.prefix), true)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| InferenceError::Tokenizer(error.to_string()))
    }

    /// One batch, padded to its longest text; a vector a text.
    pub fn run(&mut self, batch: &[&Vec<u32>]) -> Result<Vec<Vector>, InferenceError> {
        self.encoder.run(batch)
    }
}
