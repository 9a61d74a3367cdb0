//! Removes text that is noise for a language model from passages: Hits → Hits.
//!
//! ```ron
//! Clean(input: "ranked", urls: true, headers: true, markup: true)
//! ```
//!
//! Removes web addresses, header lines and markup from the passages' texts before a language model sees them. TechSSN
//! (section 3.9) removes addresses and headers from its top 3, and no markup. Ids, scores and order do not change, and
//! neither does the index. A passage
//! that would become empty keeps its text. The result is deterministic for each passage.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildFuture, Call, Check, ComponentContext, InputPort, Models, Operator, OperatorConfig, OperatorError,
    OperatorKind, ScoreUse, built_at_once, config,
};
use turnflow_engine::document::Chunk;
use turnflow_engine::record::{Hit, Hits, PortType, Value};

use crate::cleaning::Cleaning;

/// Entry in the operator table.
pub const KIND: OperatorKind = OperatorKind::of::<CleanConfig>(
    "Clean",
    &[InputPort::one(PortType::Hits)],
    PortType::Hits,
    "passages without web addresses, header lines and markup",
);

/// Fields of `Clean`.
#[config]
pub struct CleanConfig {
    /// Input node that produces hits.
    _input: String,
    /// Removes web addresses. The text of a Markdown link stays.
    #[field(default = true)]
    pub urls: bool,
    /// Removes Markdown headings, and lines at the start of the passage that have no full stop and at most eight words.
    #[field(default = true)]
    pub headers: bool,
    /// Removes headers further down too: lines that repeat the title, and short lines between blank lines, with text below,
    /// that begin with a capital letter or a digit. Needs `headers`.
    #[field(default)]
    pub all_headers: bool,
    /// Removes HTML tags, emphasis marks, table rules and similar markup.
    #[field(default = true)]
    pub markup: bool,
    /// Removes the title, so that later operators do not see it.
    #[field(default)]
    pub titles: bool,
}

impl OperatorConfig for CleanConfig {
    fn score_use(&self) -> ScoreUse {
        ScoreUse::PassedOn
    }

    fn validate(&self, check: &mut Check<'_>) {
        if !(self.urls || self.headers || self.markup || self.titles) {
            check.error("wrong-value", "urls", "there is nothing to remove: all options are off");
        }
        if self.all_headers && !self.headers {
            check.error("wrong-value", "all_headers", "`headers` is off, so no header is removed");
        }
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(Clean(self.clone()))))
    }
}

struct Clean(CleanConfig);

impl Operator for Clean {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            let Hits { query, hits } = &**call.hits(0)?;
            let hits = hits.iter().map(|hit| Hit { chunk: cleaned(&hit.chunk, &self.0), score: hit.score }).collect();
            Ok(Value::Hits(Arc::new(Hits { query: query.clone(), hits })))
        }
        .boxed()
    }

    fn weight(&self, call: &Call) -> usize {
        call.weight() + call.weight_of_passages(usize::MAX)
    }
}

/// Returns the passage with cleaned text. Its content hash is that of the cleaned text.
fn cleaned(chunk: &Arc<Chunk>, config: &CleanConfig) -> Arc<Chunk> {
    let CleanConfig { urls, headers, all_headers, markup, .. } = *config;
    let text = Cleaning { urls, headers, all_headers, markup }.once(&chunk.text, &chunk.title);
    let title: Arc<str> = if config.titles { "".into() } else { chunk.title.clone() };
    if text.is_empty() || (*text == *chunk.text && title == chunk.title) {
        return chunk.clone();
    }
    Arc::new(chunk.derived(chunk.id.clone(), title, text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> CleanConfig {
        CleanConfig {
            _input: String::new(),
            urls: true,
            headers: true,
            all_headers: false,
            markup: true,
            titles: false,
        }
    }

    #[test]
    fn what_would_be_left_empty_is_kept() {
        let chunk = Arc::new(Chunk::new("a#0".into(), "a".into(), "T".into(), "Opening hours".into()));
        assert!(Arc::ptr_eq(&cleaned(&chunk, &config()), &chunk));
        let titles = CleanConfig { titles: true, headers: false, ..config() };
        assert_eq!((&*cleaned(&chunk, &titles).title, &*cleaned(&chunk, &titles).text), ("", "Opening hours"));
    }
}
