//! Inference back ends, one module each.

pub mod cross_encoder;
pub mod onnx;
pub mod onnx_decoder;
pub mod onnx_seq2_seq;
pub mod onnx_sparse;
pub mod open_ai;
mod runtime;
mod search;
mod text;
pub mod word_vectors;

use std::sync::Arc;

use turnflow_engine::component::{Ability, BuildError, Model, Models};
use turnflow_engine::inference::Embedder;

/// What a model is asked for, for an operator of the kind `by`; `check` has found out already
/// whether its kind can do it.
pub(crate) fn able<T: ?Sized>(
    models: &Models,
    model: &str,
    by: &str,
    ability: Ability,
    part: impl Fn(&Model) -> Option<Arc<T>>,
) -> Result<Arc<T>, BuildError> {
    models.get(model).and_then(|model| part(model)).ok_or_else(|| BuildError::Ability {
        by: by.to_owned(),
        model: model.to_owned(),
        ability,
    })
}

/// The embedder of a model, for an operator of the kind `by`.
pub(crate) fn embedder(models: &Models, model: &str, by: &str) -> Result<Arc<dyn Embedder>, BuildError> {
    able(models, model, by, Ability::Embed, |model| model.embedder.clone())
}

/// The fingerprint of a model, cut for a directory's name.
pub(crate) fn short_fingerprint(models: &Models, model: &str) -> String {
    models.get(model).map(|model| model.fingerprint.chars().take(16).collect()).unwrap_or_default()
}
