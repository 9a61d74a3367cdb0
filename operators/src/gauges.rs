//! Metrics of approximate indexes.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use turnflow_engine::component::{ComponentContext, Measured};
use turnflow_engine::metrics::Gauge;

/// What is measured when an approximate index is made.
pub(crate) struct Gauges {
    recall: Gauge,
    parts: [Gauge; 2],
    /// What a search does with its parts: "reads", "lists".
    words: [&'static str; 2],
    measured: Measured,
    /// What was shown. A node that searches several corpora shows each of them once.
    shown: Mutex<BTreeSet<(u32, usize, usize)>>,
}

impl Gauges {
    /// Those of an index of lists: how many there are, and how many a search reads.
    pub fn of_lists(context: &ComponentContext, settings: &str) -> Self {
        Self::new(
            context,
            settings,
            [
                ("lists", "Lists of the approximate index"),
                ("lists_read", "Lists that a search reads if every passage is permitted"),
            ],
            ["reads", "lists"],
        )
    }

    /// Those of an index of centroids: how many passages it has, and of how many a search computes the exact score.
    pub fn of_passages(context: &ComponentContext, settings: &str) -> Self {
        Self::new(
            context,
            settings,
            [
                ("passages", "Passages of the approximate index"),
                ("passages_scored", "Passages of which a search computes the exact score"),
            ],
            ["scores", "passages"],
        )
    }

    fn new(context: &ComponentContext, settings: &str, parts: [(&str, &str); 2], words: [&'static str; 2]) -> Self {
        let gauge = |name: &str, help| context.gauge(&format!("approximate_index_{name}"), help);
        Self {
            recall: gauge("recall_per_mille", "Share of the ten nearest passages that the approximate index finds"),
            parts: parts.map(|(name, help)| gauge(name, help)),
            words,
            measured: context.measured(settings),
            shown: Mutex::default(),
        }
    }

    /// Shows the recall, of how many parts the index is, and how many of them a search reads.
    pub fn show(&self, measured: (f32, usize, usize)) {
        let (recall, parts, read) = measured;
        let mut shown = self.shown.lock();
        if !shown.insert((recall.to_bits(), parts, read)) {
            return;
        }
        self.recall.set((f64::from(recall) * 1000.0).round() as i64);
        for (gauge, value) in self.parts.iter().zip([parts, read]) {
            gauge.set(value as i64);
        }
        let [reads, lists] = self.words;
        self.measured.keep(&format!("recall@10 {recall:.3}; a search {reads} {read} of {parts} {lists}"));
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;
    use turnflow_engine::component::measured;
    use turnflow_engine::metrics::Metrics;

    use super::*;

    #[test]
    fn a_measurement_is_kept_for_explain() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let state = tempfile::tempdir().unwrap();
        let components = Some(state.path().join("components"));
        let (handle, metrics) = (runtime.handle().clone(), Metrics::default());
        let context = ComponentContext::new("found", handle, CancellationToken::new(), metrics, components);
        Gauges::of_lists(&context, "index: Ivf(from: 9)").show((0.98906, 2000, 12));
        let kept = measured(state.path(), "found", "top: 10, index: Ivf(from: 9)");
        assert_eq!(kept.as_deref(), Some("recall@10 0.989; a search reads 12 of 2000 lists"));
        Gauges::of_passages(&context, "index: Centroids(from: 9)").show((1.0, 12_988, 154));
        let kept = measured(state.path(), "found", "index: Centroids(from: 9), top: 10");
        assert_eq!(kept.as_deref(), Some("recall@10 1.000; a search scores 154 of 12988 passages"));
    }
}
