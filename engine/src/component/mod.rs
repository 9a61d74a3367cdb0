//! Components of pipelines: the tables of kinds, their configurations, and the traits of what
//! configurations build.
//!
//! The engine itself has no operator and no connector: it gets a [`Catalog`].

mod alias;
mod alone;
mod catalog;
mod check;
mod chunker;
mod connectors;
mod context;
mod corpus_ref;
mod errors;
pub mod fields;
mod function;
mod index;
mod inventory;
mod maintain;
mod measured;
mod model;
mod operator;
mod passage_store;
mod passages;
mod query_join;
pub mod reference;
mod snapshot;
mod watch;

pub use alias::{Alias, Aliases};
pub use alone::{build_alone, load_alone};
pub use catalog::{
    Catalog, ChunkerKind, CorpusSourceKind, DuplicateName, InputPort, ModelKind, OperatorKind, Parse, SinkKind,
    TurnSourceKind,
};
pub use check::Check;
pub(crate) use check::Texts;
pub use chunker::{Chunker, ChunkerConfig};
pub use connectors::{
    BuildFuture, Building, CorpusSourceConfig, SinkConfig, SinkMode, TurnSourceConfig, built, built_at_once,
    loaded_at_once,
};
pub use context::ComponentContext;
pub(crate) use context::new_run;
pub use corpus_ref::CorpusRef;
pub use errors::{BuildError, ComponentError, IndexError, OperatorError};
pub use fields::Configured;
pub use function::Function;
pub use index::{BackedUp, Delta, Elsewhere, Index, IndexDefinition, Prepare, Prepared};
pub use inventory::{Encoding, Encodings, IntegrityError, Inventory, Passage, Words, digest};
pub use maintain::{DiskUsage, Maintained, MaintenanceLimits};
pub use measured::{Measured, measured};
pub use model::{Capability, Model, ModelConfig, ModelUse, Models};
pub use operator::{Call, Inner, Operator, OperatorConfig, ScoreUse, TextEffect, Warnings, call_inner};
pub use passage_store::{OpenPassages, PassageStore, Upkeep};
pub use passages::{Paged, Passages, Permitted};
pub use query_join::{QueryJoin, Sums, Weights};
pub(crate) use snapshot::less;
pub use snapshot::{CorpusSnapshot, Snapshot};
pub use turnflow_config::config;
pub use watch::{OfDocuments, StandingDocuments, StandingQueries, Watch, WatchSlot};
