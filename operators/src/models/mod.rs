//! Inference back ends, one module each.

pub mod onnx;

use std::sync::Arc;

use turnflow_engine::component::{Ability, BuildError, Models};
use turnflow_engine::inference::{Embedder, PairScorer, Tokenize};
use turnflow_engine::language::Generator;

/// The embedder of a model, for an operator of the kind `by`.
pub(crate) fn embedder(models: &Models, model: &str, by: &str) -> Result<Arc<dyn Embedder>, BuildError> {
    models.get(model).and_then(|model| model.embedder.clone()).ok_or_else(|| BuildError::Ability {
        by: by.to_owned(),
        model: model.to_owned(),
        ability: Ability::Embed,
    })
}

/// The language model of that name, for an operator of the kind `by`.
pub(crate) fn generator(models: &Models, model: &str, by: &str) -> Result<Arc<dyn Generator>, BuildError> {
    models.get(model).and_then(|model| model.generator.clone()).ok_or_else(|| BuildError::Ability {
        by: by.to_owned(),
        model: model.to_owned(),
        ability: Ability::Generate,
    })
}

/// The tokenizer of a model, for an operator of the kind `by`.
pub(crate) fn tokenizer(models: &Models, model: &str, by: &str) -> Result<Arc<dyn Tokenize>, BuildError> {
    models.get(model).and_then(|model| model.tokenizer.clone()).ok_or_else(|| BuildError::Ability {
        by: by.to_owned(),
        model: model.to_owned(),
        ability: Ability::Tokenize,
    })
}

/// What scores pairs, for an operator of the kind `by`.
pub(crate) fn pairs(models: &Models, model: &str, by: &str) -> Result<Arc<dyn PairScorer>, BuildError> {
    models.get(model).and_then(|model| model.pairs.clone()).ok_or_else(|| BuildError::Ability {
        by: by.to_owned(),
        model: model.to_owned(),
        ability: Ability::ScorePairs,
    })
}
