//! The numbers of a pipeline, from two reads of its status.

use std::time::Instant;

use serde_json::Value;
use turnflow_engine::activity::Durations;

/// The numbers of a node, since the previous read or else since the start.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub id: String,
    pub kind: String,
    pub rate: f64,
    pub running: i64,
    pub p50_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub calls: u64,
    pub failures: u64,
}

/// The last two reads.
pub(super) struct Numbers {
    now: Value,
    before: Option<Value>,
    /// Seconds between them.
    between: f64,
    at: Instant,
}

impl Numbers {
    pub fn new(first: Value) -> Self {
        Self { now: first, before: None, between: 0.0, at: Instant::now() }
    }

    pub fn update(&mut self, new: Value) {
        self.between = self.at.elapsed().as_secs_f64();
        self.at = Instant::now();
        let uptime = |value: &Value| value["status"]["uptime_s"].as_f64().unwrap_or_default();
        // After a restart, the counts start from 0.
        let is_same = uptime(&new) >= uptime(&self.now);
        let old = std::mem::replace(&mut self.now, new);
        self.before = is_same.then_some(old);
    }

    pub fn status(&self) -> &Value {
        &self.now["status"]
    }

    pub fn name(&self) -> &str {
        self.now["pipeline"]["name"].as_str().unwrap_or_default()
    }

    /// The period of the rates, in seconds.
    fn seconds(&self) -> f64 {
        match &self.before {
            Some(_) => self.between,
            None => self.status()["uptime_s"].as_f64().unwrap_or_default(),
        }
        .max(0.001)
    }

    /// The increase of a count per second.
    pub fn rate(&self, of: impl Fn(&Value) -> Option<f64>) -> f64 {
        let before = self.before.as_ref().and_then(|before| of(&before["status"])).unwrap_or_default();
        (of(self.status()).unwrap_or_default() - before).max(0.0) / self.seconds()
    }

    pub fn nodes(&self) -> Vec<Node> {
        let list = |value: &Value| value["nodes"].as_array().cloned().unwrap_or_default();
        let before = self.before.as_ref().map(|before| list(&before["status"])).unwrap_or_default();
        let node = |value: Value| {
            let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
            let id = text("id");
            let all = durations(&value);
            let earlier = before.iter().find(|of| of["id"] == value["id"]).map(durations).unwrap_or_default();
            let since = all.since(&earlier);
            // Without recent calls, show the numbers since the start.
            let shown = if since.count > 0 { &since } else { &all };
            let quantile = |share| shown.quantile(share).map(|seconds: f64| seconds * 1000.0);
            Node {
                rate: since.count as f64 / self.seconds(),
                running: value["running"].as_i64().unwrap_or_default(),
                p50_ms: quantile(0.5),
                p95_ms: quantile(0.95),
                calls: all.count,
                failures: value["failures"].as_u64().unwrap_or_default(),
                kind: text("kind"),
                id,
            }
        };
        list(self.status()).into_iter().map(node).collect()
    }
}

fn durations(node: &Value) -> Durations {
    let of = &node["durations"];
    let classes = of["classes"].as_array().into_iter().flatten().map(|class| class.as_u64().unwrap_or_default());
    Durations {
        count: of["count"].as_u64().unwrap_or_default(),
        sum_s: of["sum_s"].as_f64().unwrap_or_default(),
        classes: classes.collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(uptime_s: f64, counts: [u64; 2]) -> Value {
        let count: u64 = counts.iter().sum();
        let durations = json!({ "count": count, "sum_s": 1.0, "classes": counts });
        let node = json!({ "id": "a", "kind": "Bm25", "running": 1, "failures": 0, "durations": durations });
        json!({ "pipeline": { "name": "p" }, "status": { "uptime_s": uptime_s, "nodes": [node] } })
    }

    #[test]
    fn rates_are_those_between_two_looks() {
        let mut numbers = Numbers::new(status(10.0, [20, 0]));
        assert_eq!(numbers.nodes()[0].rate, 2.0);
        numbers.update(status(11.0, [20, 5]));
        let node = &numbers.nodes()[0];
        assert!(node.rate > 0.0 && node.calls == 25);
        // Only the new calls count: all of them are in the second class.
        assert!(node.p50_ms.unwrap() > 0.1, "{node:?}");
        // A restart.
        numbers.update(status(1.0, [3, 0]));
        assert_eq!((numbers.nodes()[0].rate, numbers.nodes()[0].calls), (3.0, 3));
    }
}
