//! Arbitrary text as a pipeline file: it gives a plan, or diagnostics with places.

use std::path::Path;

use turnflow_engine::component::Catalog;
use turnflow_engine::plan::{Planned, plan};
use turnflow_engine::spec::{Override, load_str};

/// Plans a pipeline file; overrides (`PATH=RON`) follow after zero bytes.
pub fn spec(data: &[u8], catalog: &Catalog) -> Option<Planned> {
    let text = std::str::from_utf8(data).ok()?;
    let mut parts = text.split('\0');
    let file = parts.next().unwrap_or_default();
    let sets: Vec<Override> = parts.take(8).filter_map(|set| set.parse().ok()).collect();
    let planned = plan(load_str("fuzz.ron", Path::new("/nowhere"), file, &sets), catalog);
    assert!(planned.plan.is_some() || !planned.diagnostics.is_empty(), "neither a plan nor a diagnostic");
    for diagnostic in &planned.diagnostics {
        assert!(!diagnostic.message.is_empty());
        for span in diagnostic.span.iter().chain(diagnostic.related.as_ref().map(|(span, _)| span)) {
            let text = &planned.sources.get(span.source).text;
            assert!(text.get(span.start..span.end).is_some(), "{diagnostic:?} is not in the text");
            let (line, column) = planned.sources.line_column(*span);
            assert!(line >= 1 && column >= 1);
        }
    }
    for node in planned.plan.iter().flat_map(|plan| &plan.nodes) {
        let _ = node.explain();
    }
    Some(planned)
}
