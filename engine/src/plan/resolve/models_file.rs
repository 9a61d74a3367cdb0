//! Files that are no pipelines and use models all the same: an evaluation's metrics.

use std::collections::BTreeMap;

use super::{Resolver, head};
use crate::component::{Catalog, Check, ModelUse, Parse, Texts};
use crate::plan::PlannedModel;
use crate::spec::{Diagnostic, Sources, Span, Tree};

/// What a file with `models` says besides. It reads the field `models` too, and leaves it
/// (`IgnoredAny`) to the planner.
pub trait ModelsFile {
    /// Reports values that cannot be.
    fn validate(&self, check: &mut Check<'_>);
    /// The models that it uses; a field within a field is `outer.inner`.
    fn models(&self) -> Vec<ModelUse<'_>>;
}

/// The configuration and the models of a file that holds `name(…)`.
pub(in crate::plan) fn resolve<C: ModelsFile>(
    name: &str,
    parse: Parse<C>,
    tree: &Tree,
    sources: &Sources,
    catalog: &Catalog,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<(C, BTreeMap<String, PlannedModel>)> {
    let mut resolver = Resolver { sources, catalog, diagnostics, texts: Texts::new() };
    if tree.name().is_none_or(|found| found.text != name) || tree.entries().is_none() {
        let message = format!("this file holds `{name}(…)`, not {}", tree.describe());
        let label = format!("expected `{name}(…)`");
        resolver.diagnostics.push(Diagnostic::new("wrong-type", head(tree), message).label(label));
        return None;
    }
    let typed = resolver.config(name, tree, parse);
    let models = resolver.models(tree);
    let typed = typed?;
    resolver.validate(name, tree, &typed, ModelsFile::validate);
    for used in typed.config.models() {
        let outer = used.field.split('.').next().unwrap_or_default();
        if typed.has(outer) {
            resolver.model(name, place(tree, used.field), used.name, used.capability, &models);
        }
    }
    let config = *typed.whole()?;
    Some((config, models.into_iter().filter_map(|(name, model)| Some((name, model?))).collect()))
}

/// Where a field stands, or what it would stand in.
fn place(tree: &Tree, field: &str) -> Span {
    let mut at = tree;
    for name in field.split('.') {
        match at.get(name) {
            Some(inner) => at = inner,
            None => break,
        }
    }
    at.span
}
