//! Resolves the models of a pipeline and checks their capabilities.

use std::collections::BTreeMap;

use super::Resolver;
use crate::component::Capability;
use crate::plan::{Plan, PlannedModel};
use crate::spec::{Diagnostic, Kind, Span, Tree};

/// The models by name; `None` for an invalid one.
pub(super) type PlannedModels = BTreeMap<String, Option<PlannedModel>>;

impl Resolver<'_> {
    /// Resolves the models of a file. `may_lack`: whether they may be optional.
    pub(super) fn models(&mut self, tree: &Tree, may_lack: bool) -> PlannedModels {
        let mut models = BTreeMap::new();
        for entry in self.members(tree, "models") {
            let name = &entry.key.text;
            let owner = format!("model `{name}`");
            let example = self.catalog.models.first().map_or("Kind", |kind| kind.name);
            let (tree, optional) =
                if may_lack { self.optional(&owner, &entry.value) } else { (entry.value.clone(), false) };
            let planned = self.kind(&owner, &tree, example).and_then(|kind_name| {
                let Some(kind) = self.catalog.models.iter().find(|kind| kind.name == kind_name.text) else {
                    self.unknown(
                        "unknown-model-kind",
                        "kind of model",
                        kind_name,
                        self.catalog.models.iter().map(|kind| kind.name),
                    );
                    return None;
                };
                let typed = self.config(&owner, &tree, kind.parse)?;
                let before = self.diagnostics.len();
                self.validate(&owner, &tree, &typed, |config, check| config.validate(check));
                // An optional model may lack its files.
                let mut missing = Vec::new();
                if optional {
                    let found = self.diagnostics.split_off(before);
                    let (lacking, wrong): (Vec<_>, Vec<_>) = found.into_iter().partition(|one| one.missing.is_some());
                    self.diagnostics.extend(wrong);
                    missing.extend(lacking.into_iter().filter_map(|one| one.missing));
                }
                let definition = self.definition(&owner, &tree, &[]);
                let config = typed.whole()?;
                Some(PlannedModel { kind_name: kind.name, definition, config, optional, missing })
            });
            models.insert(name.clone(), planned);
        }
        models
    }

    /// Splits the field `optional` of a model from the fields of its kind.
    fn optional(&mut self, owner: &str, tree: &Tree) -> (Tree, bool) {
        let mut rest = tree.clone();
        let Some(entries) = rest.entries_mut() else { return (rest, false) };
        let Some(at) = entries.iter().position(|entry| entry.key.text == "optional") else { return (rest, false) };
        let value = entries.remove(at).value;
        let optional = match &value.kind {
            Kind::Scalar(ron::Value::Bool(optional)) => *optional,
            _ => {
                let message = format!("{owner}: `optional` cannot be {}", value.describe());
                self.diagnostics
                    .push(Diagnostic::new("wrong-type", value.span, message).label("expected true or false"));
                false
            }
        };
        (rest, optional)
    }

    /// Reports optional models without which a sink gets no answers, unless the pipeline has no sinks.
    pub(super) fn optional_models(&mut self, tree: &Tree, plan: &Plan) {
        for name in plan.models.iter().filter(|(_, model)| model.optional).map(|(name, _)| name) {
            let without = plan.without(&|model| model == name);
            let Some(sink) = plan.nodes.iter().find(|node| node.output.is_none() && without.fails(&node.id)) else {
                continue;
            };
            let place = tree.get("models").and_then(|models| models.get(name)).and_then(|model| model.get("optional"));
            let message = format!("model `{name}` is optional, but without it every turn fails at sink `{}`", sink.id);
            self.diagnostics.push(
                Diagnostic::new("no-fallback", place.map(|place| place.span), message)
                    .label("nothing replaces what it gives")
                    .help("give the hits to a `Fallback` whose other input needs no such model, or remove `optional`"),
            );
        }
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
