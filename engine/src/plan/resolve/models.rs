//! Resolves the models of a pipeline and checks their capabilities.

use std::collections::BTreeMap;

use super::Resolver;
use crate::component::Capability;
use crate::plan::PlannedModel;
use crate::spec::{Diagnostic, Span, Tree};

/// The models by name; `None` for an invalid one.
pub(super) type PlannedModels = BTreeMap<String, Option<PlannedModel>>;

impl Resolver<'_> {
    pub(super) fn models(&mut self, tree: &Tree) -> PlannedModels {
        let mut models = BTreeMap::new();
        for entry in self.members(tree, "models") {
            let name = &entry.key.text;
            let owner = format!("model `{name}`");
            let example = self.catalog.models.first().map_or("Kind", |kind| kind.name);
            let planned = self.kind(&owner, &entry.value, example).and_then(|kind_name| {
                let Some(kind) = self.catalog.models.iter().find(|kind| kind.name == kind_name.text) else {
                    self.unknown(
                        "unknown-model-kind",
                        "kind of model",
                        kind_name,
                        self.catalog.models.iter().map(|kind| kind.name),
                    );
                    return None;
                };
                let typed = self.config(&owner, &entry.value, kind.parse)?;
                self.validate(&owner, &entry.value, &typed, |config, check| config.validate(check));
                let definition = self.definition(&owner, &entry.value, &[]);
                Some(PlannedModel { kind_name: kind.name, definition, config: typed.whole()? })
            });
            models.insert(name.clone(), planned);
        }
        models
    }

    /// Whether the model exists and has the capability; reports a diagnostic if not.
    pub(super) fn model(
        &mut self,
        owner: &str,
        place: Span,
        name: &str,
        capability: Capability,
        models: &PlannedModels,
    ) -> bool {
        match models.get(name) {
            Some(Some(model)) if !model.config.capabilities().contains(&capability) => {
                let what = capability.verb();
                let message = format!("{owner}: model `{name}` is {} and cannot {what}", model.kind_name);
                let able = models.iter().filter_map(|(name, model)| {
                    let able = model.as_ref()?.config.capabilities().contains(&capability);
                    able.then(|| format!("`{name}`"))
                });
                let able = able.collect::<Vec<_>>().join(", ");
                let mut diagnostic =
                    Diagnostic::new("wrong-model", place, message).label(format!("expected a model that can {what}"));
                if !able.is_empty() {
                    diagnostic = diagnostic.help(format!("models that can: {able}"));
                }
                self.diagnostics.push(diagnostic);
                false
            }
            Some(_) => true,
            None => {
                let message = format!("{owner}: unknown model `{name}`");
                let mut diagnostic = Diagnostic::new("unknown-model", place, message).label("no such model");
                if models.is_empty() {
                    diagnostic = diagnostic.help("the file has no `models`");
                }
                self.diagnostics.push(diagnostic.choices(name, models.keys().map(String::as_str)));
                false
            }
        }
    }
}
