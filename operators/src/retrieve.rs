//! Shared by the retrievers: the path from a query's texts to one list of hits, and the settings of retrievers that use
//! a model. Retrievers differ in their index and in how they search it.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Deserialize;
use turnflow_engine::cluster::OtherParts;
use turnflow_engine::component::fields::Fields;
use turnflow_engine::component::{
    BuildError, BuildFuture, Call, Capability, Check, ComponentContext, Configured, CorpusRef, IndexDefinition,
    ModelUse, Models, Operator, OperatorConfig, OperatorError, Permitted, StandingQueries, Warnings, WatchSlot,
    built_at_once,
};
use turnflow_engine::filter::Filter;
use turnflow_engine::record::{Hit, Hits, Value};
use turnflow_engine::wording::count;

use crate::parts::merge;

/// An index of which other processes may have parts.
pub(crate) struct Divided<'a, R> {
    /// The index, or the part of this process.
    pub reader: &'a Arc<R>,
    /// The parts of other processes.
    pub others: Option<&'a OtherParts>,
}

impl<R> Clone for Divided<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Divided<'_, R> {}

#[cfg(test)]
impl<'a, R> Divided<'a, R> {
    pub fn whole(reader: &'a Arc<R>) -> Self {
        Self { reader, others: None }
    }
}

/// Lists with more hits are merged off the worker: those of other processes have the passages' texts.
const MOST_HITS: usize = 200;

/// How an index is searched.
pub(crate) trait Search: Send + Sync + 'static {
    /// The index at an epoch.
    type Reader: Send + Sync + 'static;
    /// Cost of a search for these texts in the units of [`Operator::weight`], without the texts themselves.
    fn weight(&self, reader: &Self::Reader, texts: &[Arc<str>]) -> usize;
    /// Number of passages that the index lacks because a model is away; `None` if it needs no model.
    fn missing(&self, _: &Self::Reader) -> Option<usize> {
        None
    }
    /// The best of the permitted passages for each of the texts: one list per text, of at most `top` hits. Their scores
    /// are those that they have without a restriction. `permitted` is about the part of this process.
    fn search(
        &self,
        index: Divided<'_, Self::Reader>,
        texts: Vec<String>,
        top: usize,
        permitted: &Permitted,
        notes: Notes<'_>,
    ) -> impl Future<Output = Result<Vec<Vec<Hit>>, OperatorError>> + Send;
    /// A list of the searches of standing turns; see [`Operator::standing`]. `index` is the key of the index.
    fn standing(&self, _index: &str, _scores_matter: bool) -> Option<Box<dyn StandingQueries>> {
        None
    }
}

/// What a search says besides its hits.
#[derive(Clone, Copy)]
pub(crate) struct Notes<'a> {
    pub warnings: &'a Warnings,
    /// Which changes can reach the hits, if all of the index is here.
    pub watch: &'a WatchSlot,
}

/// A built retriever: Queries → Hits.
pub(crate) struct Retriever<S> {
    pub corpus: CorpusRef,
    /// Key of the index in its corpus.
    pub key: String,
    pub top: usize,
    pub filter: Option<Filter>,
    pub search: S,
}

impl<S: Search> Operator for Retriever<S> {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let query = call.query(0)?.clone();
            let corpus = self.corpus.resolve(&call.turn, &call.snapshot)?;
            let reader = corpus.part::<S::Reader>(&self.key)?;
            let others = corpus.other_parts(&self.key, self.filter.as_ref(), &call.turn);
            let index = Divided { reader: &reader, others: others.as_ref() };
            let missing = self.search.missing(&reader);
            let missing = missing.map_or(0, |missing| missing + others.as_ref().map_or(0, OtherParts::missing));
            if missing > 0 {
                call.warnings.add(format!("{} missing: the model is away", plural(missing)));
            }
            let permitted = corpus.permitted(self.filter.as_ref(), &call.turn);
            let texts = query.searches().iter().map(ToString::to_string).collect();
            let (warnings, none) = (&call.warnings, WatchSlot::default());
            let watch = if others.is_some() { &none } else { &call.watch };
            let notes = Notes { warnings, watch };
            let lists = self.search.search(index, texts, self.top, &permitted, notes).await?;
            self.corpus.found(&call.turn, &call.snapshot, lists.iter().flatten().map(|hit| &hit.chunk));
            Ok(Value::Hits(Arc::new(Hits { query, hits: merge(lists, self.top) })))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        let of_index = || -> Result<usize, OperatorError> {
            let corpus = self.corpus.resolve(&call.turn, &call.snapshot)?;
            let reader = corpus.part::<S::Reader>(&self.key)?;
            let filter = corpus.weight_of_filter(self.filter.as_ref(), &call.turn);
            Ok(self.search.weight(&reader, call.query(0)?.searches()).saturating_add(filter))
        };
        call.weight().saturating_add(of_index().unwrap_or(0))
    }

    fn standing(&self, scores_matter: bool) -> Option<Box<dyn StandingQueries>> {
        self.search.standing(&self.key, scores_matter)
    }

    /// It waits for a model or for other processes, and then merges lists. Long searches run elsewhere.
    fn continues_here(&self, call: &Call) -> bool {
        call.query(0).is_ok_and(|query| self.top.saturating_mul(query.searches().len()) <= MOST_HITS)
    }
}

fn plural(passages: usize) -> String {
    let verb = if passages == 1 { "is" } else { "are" };
    format!("{} {verb}", count(passages, "passage"))
}

/// Settings that every model-based retriever has.
pub(crate) struct Settings<'a> {
    pub corpus: &'a CorpusRef,
    pub model: &'a str,
    pub top: usize,
    pub filter: Option<&'a Filter>,
}

/// Configuration of a model-based retriever.
pub(crate) trait ModelRetriever: Configured + Debug + Send + Sync {
    /// The capability that it needs of its model.
    const CAPABILITY: Capability;
    /// Definition of its index.
    type Definition: IndexDefinition + 'static;
    /// How it searches the index.
    type Search: Search;
    /// Whether its search asks the other processes of a cluster.
    const ASKS_OTHER_PARTS: bool;

    fn settings(&self) -> Settings<'_>;
    /// Reports invalid values of its own fields.
    fn validate(&self, _: &mut Check<'_>) {}
    fn definition(&self, models: &Models) -> Result<Self::Definition, BuildError>;
    fn search(&self, context: &ComponentContext, models: &Models) -> Result<Self::Search, BuildError>;
}

/// Adapts a [`ModelRetriever`] to an operator configuration.
#[derive(Debug, Deserialize)]
pub(crate) struct ByModel<C>(pub C);

impl<C: ModelRetriever> Configured for ByModel<C> {
    fn fields() -> &'static Fields {
        C::fields()
    }

    fn check_ranges(&self, check: &mut Check<'_>) {
        self.0.check_ranges(check);
    }

    fn effective(&self) -> String {
        self.0.effective()
    }
}

impl<C: ModelRetriever> OperatorConfig for ByModel<C> {
    fn validate(&self, check: &mut Check<'_>) {
        self.0.validate(check);
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        vec![ModelUse { field: "model", name: self.0.settings().model, capability: C::CAPABILITY }]
    }

    fn corpus(&self) -> Option<&CorpusRef> {
        Some(self.0.settings().corpus)
    }

    fn filter(&self) -> Option<&Filter> {
        self.0.settings().filter
    }

    fn asks_other_parts(&self) -> bool {
        C::ASKS_OTHER_PARTS
    }

    fn indexes(&self, models: &Models) -> Result<Vec<Arc<dyn IndexDefinition>>, BuildError> {
        Ok(vec![Arc::new(self.0.definition(models)?)])
    }

    fn build<'a>(&'a self, context: &'a ComponentContext, models: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| {
            let Settings { corpus, top, filter, .. } = self.0.settings();
            let filter = filter.cloned();
            let key = self.0.definition(models)?.key();
            Ok(Arc::new(Retriever {
                corpus: corpus.clone(),
                key,
                top,
                filter,
                search: self.0.search(context, models)?,
            }))
        })
    }
}
