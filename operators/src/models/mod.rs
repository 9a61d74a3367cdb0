//! Inference back ends, one module each.

pub mod adapter;
mod control;
pub mod cross_encoder;
mod grammar;
pub mod ocr;
pub mod onnx;
pub mod onnx_decoder;
pub mod onnx_seq2_seq;
pub mod onnx_sparse;
pub mod onnx_trees;
pub mod open_ai;
pub mod open_ai_embedder;
mod runner;
mod runtime;
mod search;
mod streamed;
mod text;
mod text_encoder;
pub mod word_vectors;

use std::sync::Arc;

use turnflow_engine::component::{
    BuildError, BuildFuture, Capability, ComponentContext, Model, Models, loaded_at_once,
};
use turnflow_engine::inference::{Embedder, InferenceError, PairScorer, Tokenize};
use turnflow_engine::language::Generator;

/// Loads a model by a function of its name.
fn load_model<'a>(
    context: &ComponentContext,
    open: impl FnOnce(&str) -> Result<Model, InferenceError>,
) -> BuildFuture<'a, Model> {
    let model = context.id();
    loaded_at_once(|| open(model).map_err(|source| BuildError::Model { model: model.to_owned(), source }))
}

/// A capability of a model, for an operator of the kind `by`. `check` has already verified that the model's kind has
/// it.
pub(crate) fn able<T: ?Sized>(
    models: &Models,
    model: &str,
    by: &str,
    capability: Capability,
    part: impl Fn(&Model) -> Option<Arc<T>>,
) -> Result<Arc<T>, BuildError> {
    models.get(model).and_then(|model| part(model)).ok_or_else(|| BuildError::Capability {
        by: by.to_owned(),
        model: model.to_owned(),
        capability,
    })
}

/// The embedder of a model, for an operator of the kind `by`.
pub(crate) fn embedder(models: &Models, model: &str, by: &str) -> Result<Arc<dyn Embedder>, BuildError> {
    able(models, model, by, Capability::Embed, |model| model.embedder.clone())
}

/// The fingerprint of a model's passages, shortened for a directory name.
pub(crate) fn short_fingerprint(models: &Models, model: &str) -> String {
    let fingerprint = |model: &Arc<Model>| model.passages.as_ref().unwrap_or(&model.fingerprint).clone();
    models.get(model).map(|model| fingerprint(model).chars().take(16).collect()).unwrap_or_default()
}

/// The text generator of a model, for an operator of the kind `by`.
pub(crate) fn generator(models: &Models, model: &str, by: &str) -> Result<Arc<dyn Generator>, BuildError> {
    able(models, model, by, Capability::Generate, |model| model.generator.clone())
}

/// The tokenizer of a model, for an operator of the kind `by`.
pub(crate) fn tokenizer(models: &Models, model: &str, by: &str) -> Result<Arc<dyn Tokenize>, BuildError> {
    able(models, model, by, Capability::Tokenize, |model| model.tokenizer.clone())
}

/// The pair scorer of a model, for an operator of the kind `by`.
pub(crate) fn pairs(models: &Models, model: &str, by: &str) -> Result<Arc<dyn PairScorer>, BuildError> {
    able(models, model, by, Capability::ScorePairs, |model| model.pairs.clone())
}
