//! The encoder by itself, without the service: what the service is measured against.

use turnflow_engine::inference::{Backend, InferenceError, Vector};

pub use super::super::runtime::Settings;
use super::super::runtime::Tokens;
use super::super::text::Texts;
use super::super::text_encoder::encoder_session;
use super::{Encoder, OnnxConfig, Text};

/// A session that is called directly, on the caller's thread.
pub struct Direct {
    encoder: Encoder,
    texts: Texts,
}

impl Direct {
    /// A session of its own, with as many threads as the service's has.
    pub fn open(config: &OnnxConfig, settings: Settings) -> Result<Self, InferenceError> {
        let tokens = Tokens::read(&config.tokenizer.path)?;
        let session = encoder_session(&config.path.path, config.device, config.threads, settings)?;
        let encoder = Encoder::new(session, config.pooling, config.normalize, tokens.pad.unwrap_or(0));
        Ok(Self { encoder, texts: config.texts(&tokens)? })
    }

    /// A passage's tokens, as the service would see them.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>, InferenceError> {
        self.texts.passage(text)
    }

    /// One batch, padded to its longest text; a vector a text.
    pub fn run(&mut self, batch: &[&Vec<u32>]) -> Result<Vec<Vector>, InferenceError> {
        let texts: Vec<Text> = batch.iter().map(|ids| Text { ids: (*ids).clone(), states: None }).collect();
        self.encoder.run(&texts.iter().collect::<Vec<_>>())
    }
}
