//! Checks the settings of the answer cache.

use super::Resolver;
use super::models::PlannedModels;
use crate::component::Capability;
use crate::spec::{Diagnostic, Tree};

impl Resolver<'_> {
    /// Checks which questions get the answers of others: the bound, and the encoder.
    pub(super) fn answer_cache(
        &mut self,
        tree: &Tree,
        (similar, model): (Option<f32>, Option<&str>),
        models: &PlannedModels,
    ) {
        let cache = tree.get("cache").unwrap_or(tree);
        let place = |field: &str| cache.get(field).unwrap_or(cache).span;
        if let Some(least) = similar.filter(|least| !(0.0..=1.0).contains(least)) {
            let message = format!("the answer cache: `similar` is {least}, out of range");
            let diagnostic = Diagnostic::new("out-of-range", place("similar"), message);
            self.diagnostics.push(diagnostic.label("expected 0 to 1, such as 0.97"));
        }
        match model {
            Some(model) => {
                self.model("the answer cache", place("model"), model, Capability::Embed, models);
            }
            None if similar.is_some() => {
                let message = "the answer cache: `similar` needs an encoder".to_owned();
                let diagnostic = Diagnostic::new("missing-field", place("similar"), message);
                self.diagnostics.push(diagnostic.label("expected `model` beside it"));
            }
            None => {}
        }
    }
}
