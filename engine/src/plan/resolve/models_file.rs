//! Files that are not pipelines but define models, such as an evaluation's metrics.

use std::collections::BTreeMap;

use super::{Resolver, head};
use crate::component::{Catalog, Check, Configured, ModelUse, Parse, Texts};
use crate::plan::PlannedModel;
use crate::spec::{Diagnostic, Sources, Span, Tree};

/// The configuration in a file with `models`. The type must declare the field `models` as
/// `IgnoredAny`; the planner reads it.
pub trait ModelsFile: Configured {
    /// Reports invalid values, besides those outside of the ranges of their fields.
    fn validate(&self, check: &mut Check<'_>);
    /// The models that it uses. A nested field is written `outer.inner`.
    fn models(&self) -> Vec<ModelUse<'_>>;
}

/// Resolves the configuration and the models of a file that contains `name(…)`.
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
        let message = format!("this file must contain `{name}(…)`, not {}", tree.describe());
        let label = format!("expected `{name}(…)`");
        resolver.diagnostics.push(Diagnostic::new("wrong-type", head(tree), message).label(label));
        return None;
    }
    let typed = resolver.config(name, tree, parse);
    let models = resolver.models(tree, false);
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

/// The span of a field, or of the innermost existing field around it.
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
