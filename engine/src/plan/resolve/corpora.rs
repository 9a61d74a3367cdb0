//! Resolves the corpora of a pipeline: their sources and chunkers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::Resolver;
use super::models::PlannedModels;
use super::typed::{Typed, head};
use crate::component::{Alias, Capability};
use crate::plan::{PlannedCorpus, PlannedModel};
use crate::schema::{FieldType, Schema};
use crate::spec::{Diagnostic, Entry, Kind, Sources, Span, SpecError, Tree, from_tree};

/// The corpora by name; `None` for an invalid one.
pub(super) type PlannedCorpora = BTreeMap<String, Option<PlannedCorpus>>;

impl Resolver<'_> {
    pub(super) fn corpora(&mut self, tree: &Tree, models: &PlannedModels) -> PlannedCorpora {
        let mut corpora = BTreeMap::new();
        for entry in self.members(tree, "corpora") {
            let planned = self.corpus(entry, models);
            corpora.insert(entry.key.text.clone(), planned);
        }
        self.aliases(tree, &corpora);
        corpora
    }

    /// Reports aliases that are the name of another corpus, or that clash with an alias of another one.
    fn aliases(&mut self, tree: &Tree, corpora: &PlannedCorpora) {
        let entries = tree.get("corpora").and_then(Tree::entries).unwrap_or_default();
        let mut seen: Vec<(&str, &Alias, Span)> = Vec::new();
        for entry in entries {
            let name = entry.key.text.as_str();
            let Some(Some(corpus)) = corpora.get(name) else { continue };
            let Some(Kind::Seq(items)) = entry.value.get("aliases").map(|list| &list.kind) else { continue };
            for (alias, item) in corpus.aliases.iter().zip(items) {
                let named = entries
                    .iter()
                    .find(|other| other.key.text != *name && !alias.is_pattern() && alias.matches(&other.key.text));
                let clash = seen.iter().find(|(other, earlier, _)| *other != name && earlier.clashes(alias));
                let first = match (named, clash) {
                    (Some(other), _) => (other.key.span, "the name of this corpus".to_owned()),
                    (None, Some((other, earlier, place))) => (*place, format!("`{earlier}` is an alias of `{other}`")),
                    (None, None) => {
                        seen.push((name, alias, item.span));
                        continue;
                    }
                };
                let message = format!("corpus `{name}`: the alias `{alias}` is ambiguous");
                self.diagnostics.push(
                    Diagnostic::new("ambiguous-alias", item.span, message)
                        .label("a turn's `collection` could mean two corpora")
                        .related(first.0, first.1),
                );
            }
        }
    }

    fn corpus(&mut self, entry: &Entry, models: &PlannedModels) -> Option<PlannedCorpus> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Corpus {
            #[serde(rename = "source")]
            _source: serde::de::IgnoredAny,
            #[serde(rename = "chunk")]
            _chunk: serde::de::IgnoredAny,
            #[serde(default)]
            aliases: Vec<Alias>,
            #[serde(default)]
            access: Option<String>,
            #[serde(default)]
            fields: BTreeMap<String, FieldType>,
        }
        let (name, tree) = (&entry.key.text, &entry.value);
        let owner = format!("corpus `{name}`");
        let catalog = self.catalog;
        match self.kind(&owner, tree, "Corpus")? {
            kind if kind.text == "Corpus" => {}
            kind => {
                self.unknown("unknown-corpus-kind", "kind of corpus", kind, ["Corpus"].into_iter());
                return None;
            }
        }
        let parse: fn(&Tree, &Sources) -> Result<Box<Corpus>, SpecError> =
            |tree, sources| from_tree(tree, sources).map(Box::new);
        let shape = self.config(&owner, tree, parse).and_then(Typed::whole);
        let source = tree.get("source").and_then(|source| {
            let example = catalog.corpus_sources.first().map_or("Kind", |kind| kind.name);
            let kind_name = self.kind(&format!("the source of {owner}"), source, example)?;
            let Some(kind) = catalog.corpus_sources.iter().find(|kind| kind.name == kind_name.text) else {
                self.unknown(
                    "unknown-source",
                    "corpus source",
                    kind_name,
                    catalog.corpus_sources.iter().map(|kind| kind.name),
                );
                return None;
            };
            let typed = self.config(&owner, source, kind.parse)?;
            self.validate(&owner, source, &typed, |config, check| config.validate(check));
            for used in typed.config.models().iter().filter(|used| typed.has(used.field)) {
                let place = source.get(used.field).map_or(source.span, |tree| tree.span);
                self.model(&owner, place, used.name, used.capability, models);
            }
            Some((kind.name, typed.whole()?))
        });
        let chunker = tree.get("chunk").and_then(|chunk| {
            let example = catalog.chunkers.first().map_or("Kind", |kind| kind.name);
            let kind_name = self.kind(&format!("the chunker of {owner}"), chunk, example)?;
            let Some(kind) = catalog.chunkers.iter().find(|kind| kind.name == kind_name.text) else {
                self.unknown("unknown-chunker", "chunker", kind_name, catalog.chunkers.iter().map(|kind| kind.name));
                return None;
            };
            let typed = self.config(&owner, chunk, kind.parse)?;
            self.validate(&owner, chunk, &typed, |config, check| config.validate(check));
            let tokenizer = match typed.config.tokenizer().filter(|_| typed.has("model")) {
                None => None,
                Some(wanted) => Some(self.tokenizer(&owner, chunk, wanted, models)?),
            };
            Some((kind.name, typed.whole()?, tokenizer))
        });
        let Corpus { aliases, access, fields, .. } = *shape?;
        if access.as_deref().is_some_and(str::is_empty) {
            let place = tree.get("access").map_or(tree.span, |access| access.span);
            let message = format!("{owner}: `access` is empty");
            self.diagnostics
                .push(Diagnostic::new("out-of-range", place, message).label("expected the name of a field"));
        }
        let fields = fields.into_iter().map(|(name, of)| (name.into(), of)).collect();
        let schema = Arc::new(Schema { access: access.map(Into::into), fields });
        let ((source_name, source), (chunker_name, chunker, tokenizer)) = (source?, chunker?);
        // A new alias does not change what is indexed.
        let definition = self.definition(&owner, tree, &["aliases"]);
        let name = name.as_str().into();
        let passages = self.catalog.passages;
        Some(PlannedCorpus {
            name,
            definition,
            source_name,
            source,
            chunker_name,
            chunker,
            tokenizer,
            aliases,
            passages,
            schema,
        })
    }

    fn tokenizer(&mut self, owner: &str, chunk: &Tree, wanted: Option<&str>, models: &PlannedModels) -> Option<String> {
        if let Some(name) = wanted {
            // A chunker that contains another one takes its model from there.
            let place = chunk.get("model").or_else(|| chunk.get("chunk")?.get("model"));
            let place = place.map_or(chunk.span, |tree| tree.span);
            if models.get(name).and_then(Option::as_ref).is_some_and(|model| model.optional) {
                let message = format!("{owner}: model `{name}` is optional, but without it no document can be cut");
                let diagnostic = Diagnostic::new("no-fallback", place, message).label("an optional model");
                self.diagnostics.push(diagnostic.help("use the tokenizer of a model that is not optional"));
                return None;
            }
            return self.model(owner, place, name, Capability::Tokenize, models).then(|| name.to_owned());
        }
        let able =
            |model: &PlannedModel| model.config.capabilities().contains(&Capability::Tokenize) && !model.optional;
        // An invalid model may be the intended one, so it is not reported as missing.
        let found = models.iter().find(|(_, model)| model.as_ref().is_none_or(able)).map(|(name, _)| name.clone());
        if found.is_none() {
            let message = format!("{owner}: cutting by tokens needs a model with a tokenizer");
            let is_optional = |model: &PlannedModel| model.config.capabilities().contains(&Capability::Tokenize);
            let help = if models.values().flatten().any(is_optional) {
                "the models with a tokenizer are optional, and without a model no document can be cut"
            } else {
                "add one to `models`"
            };
            self.diagnostics.push(Diagnostic::new("unknown-model", head(chunk), message).help(help));
        }
        found
    }
}
