//! Inference back ends, one module each.

pub mod onnx;
pub mod onnx_decoder;
pub mod onnx_seq2_seq;
pub mod open_ai;
mod runtime;
mod search;

use std::sync::Arc;

use turnflow_engine::component::{Ability, BuildError, Models};
use turnflow_engine::inference::Embedder;

/// The embedder of a model, for an operator of the kind `by`.
pub(crate) fn embedder(models: &Models, model: &str, by: &str) -> Result<Arc<dyn Embedder>, BuildError> {
    models.get(model).and_then(|model| model.embedder.clone()).ok_or_else(|| BuildError::Ability {
        by: by.to_owned(),
        model: model.to_owned(),
        ability: Ability::Embed,
    })
}
