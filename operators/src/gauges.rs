//! Metrics of approximate indexes.

use turnflow_engine::component::ComponentContext;
use turnflow_engine::metrics::Gauge;

/// What is measured when an approximate index is made.
pub(crate) struct Gauges {
    recall: Gauge,
    parts: [Gauge; 2],
}

impl Gauges {
    /// Those of an index of lists: how many there are, and how many a search reads.
    pub fn of_lists(context: &ComponentContext) -> Self {
        Self::new(
            context,
            [
                ("lists", "Lists of the approximate index"),
                ("lists_read", "Lists that a search reads if every passage is permitted"),
            ],
        )
    }

    /// Those of an index of centroids: how many passages it has, and of how many a search computes the exact score.
    pub fn of_passages(context: &ComponentContext) -> Self {
        Self::new(
            context,
            [
                ("passages", "Passages of the approximate index"),
                ("passages_scored", "Passages of which a search computes the exact score"),
            ],
        )
    }

    fn new(context: &ComponentContext, parts: [(&str, &str); 2]) -> Self {
        let gauge = |name: &str, help| context.gauge(&format!("approximate_index_{name}"), help);
        Self {
            recall: gauge("recall_per_mille", "Share of the ten nearest passages that the approximate index finds"),
            parts: parts.map(|(name, help)| gauge(name, help)),
        }
    }

    /// Shows the recall, of how many parts the index is, and how many of them a search reads.
    pub fn show(&self, (recall, parts, read): (f32, usize, usize)) {
        self.recall.set((f64::from(recall) * 1000.0).round() as i64);
        for (gauge, value) in self.parts.iter().zip([parts, read]) {
            gauge.set(value as i64);
        }
    }
}
