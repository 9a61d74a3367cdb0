//! Metrics of components and of the engine: counters, gauges and histograms by component, in OpenMetrics text; and which
//! components cannot reach their servers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
pub use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The component of a metric.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    component: String,
}

/// The classes of a histogram.
#[derive(Clone)]
struct Bounds(Arc<[f64]>);

impl MetricConstructor<Histogram> for Bounds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

#[derive(Default)]
struct State {
    registry: Registry,
    counters: HashMap<String, Family<Labels, Counter>>,
    gauges: HashMap<String, Family<Labels, Gauge>>,
    histograms: HashMap<String, Family<Labels, Histogram, Bounds>>,
    absences: BTreeMap<String, Absence>,
}

/// A server that a component cannot reach.
#[derive(Clone, Debug)]
pub struct Absence {
    /// Why.
    pub reason: String,
    since: Instant,
}

impl Absence {
    /// How long it has been away.
    pub fn lasts(&self) -> Duration {
        self.since.elapsed()
    }
}

/// All metrics of a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<State>>, Arc<AtomicUsize>);

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// The counter with this name and component, registered on the first call. In the text it is
    /// called `turnflow_NAME_total`. `help` is one sentence without a full stop. A name that a gauge has
    /// returns a counter that is not in the text.
    pub fn counter(&self, component: &str, name: &str, help: &str) -> Counter {
        let State { registry, counters, gauges, histograms, .. } = &mut *self.0.lock();
        if gauges.contains_key(name) || histograms.contains_key(name) {
            tracing::error!(component, name, "another metric has this name; the counter is not shown");
            return Counter::default();
        }
        let family = counters.entry(name.to_owned()).or_insert_with(|| {
            let family = Family::default();
            registry.register(format!("turnflow_{name}"), help, family.clone());
            family
        });
        family.get_or_create(&Labels { component: component.to_owned() }).clone()
    }

    /// The gauge with this name and component, called `turnflow_NAME` in the text.
    pub fn gauge(&self, component: &str, name: &str, help: &str) -> Gauge {
        let State { registry, counters, gauges, histograms, .. } = &mut *self.0.lock();
        if counters.contains_key(name) || histograms.contains_key(name) {
            tracing::error!(component, name, "another metric has this name; the gauge is not shown");
            return Gauge::default();
        }
        let family = gauges.entry(name.to_owned()).or_insert_with(|| {
            let family = Family::default();
            registry.register(format!("turnflow_{name}"), help, family.clone());
            family
        });
        family.get_or_create(&Labels { component: component.to_owned() }).clone()
    }

    /// The histogram with this name and component, called `turnflow_NAME` in the text. `bounds` are the
    /// upper bounds of its classes, ascending; the first call for a name sets them.
    pub fn histogram(&self, component: &str, name: &str, help: &str, bounds: &[f64]) -> Histogram {
        let State { registry, counters, gauges, histograms, .. } = &mut *self.0.lock();
        if counters.contains_key(name) || gauges.contains_key(name) {
            tracing::error!(component, name, "another metric has this name; the histogram is not shown");
            return Histogram::new(bounds.iter().copied());
        }
        let family = histograms.entry(name.to_owned()).or_insert_with(|| {
            let family = Family::new_with_constructor(Bounds(bounds.into()));
            registry.register(format!("turnflow_{name}"), help, family.clone());
            family
        });
        family.get_or_create(&Labels { component: component.to_owned() }).clone()
    }

    /// Says why a component cannot reach its server, or that it can.
    pub fn set_away(&self, component: &str, reason: Option<String>) {
        let absences = &mut self.0.lock().absences;
        match reason {
            None => drop(absences.remove(component)),
            Some(reason) => match absences.get_mut(component) {
                Some(absence) => absence.reason = reason,
                None => drop(absences.insert(component.to_owned(), Absence { reason, since: Instant::now() })),
            },
        }
        self.1.store(absences.len(), Ordering::Release);
    }

    /// The server that a component cannot reach.
    pub fn away(&self, component: &str) -> Option<Absence> {
        // Every call of an operator asks, and hardly ever is a server away.
        if self.1.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.0.lock().absences.get(component).cloned()
    }

    /// The components that cannot reach their servers.
    pub fn all_away(&self) -> Vec<(String, Absence)> {
        self.0.lock().absences.iter().map(|(component, absence)| (component.clone(), absence.clone())).collect()
    }

    /// All metrics as OpenMetrics text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = encode(&mut text, &self.0.lock().registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absence_lasts_until_the_server_is_reached() {
        let metrics = Metrics::default();
        metrics.set_away("a", Some("refused".to_owned()));
        let first = metrics.away("a").unwrap();
        metrics.clone().set_away("a", Some("silent".to_owned()));
        metrics.set_away("b", Some("refused".to_owned()));
        metrics.set_away("b", None);
        let all = metrics.all_away();
        assert_eq!((all.len(), &*all[0].0, &*all[0].1.reason), (1, "a", "silent"));
        assert_eq!(all[0].1.since, first.since);
    }

    #[test]
    fn components_share_names_and_not_values() {
        let metrics = Metrics::default();
        metrics.counter("a", "records", "Records read").inc_by(2);
        metrics.counter("b", "records", "Records read").inc();
        metrics.clone().counter("a", "records", "Records read").inc();
        metrics.gauge("a", "lag", "Records behind").set(7);
        // A name is either a counter or a gauge.
        metrics.gauge("a", "records", "Records read").set(9);
        metrics.counter("a", "lag", "Records behind").inc();
        metrics.histogram("a", "seconds", "Durations", &[1.0, 2.0]).observe(1.5);
        metrics.histogram("a", "lag", "Records behind", &[1.0]).observe(1.0);
        let text = metrics.to_text();
        for line in [
            "# HELP turnflow_records Records read.",
            "turnflow_records_total{component=\"a\"} 3",
            "turnflow_records_total{component=\"b\"} 1",
            "turnflow_lag{component=\"a\"} 7",
            "turnflow_seconds_bucket{le=\"2.0\",component=\"a\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
