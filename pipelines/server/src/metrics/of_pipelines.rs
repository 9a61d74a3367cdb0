//! What is counted of a pipeline's corpora, sources and sinks. It is taken from the engines when somebody looks, so a part
//! that a reload has removed is gone.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use turnflow_engine::run::EngineStatus;

use crate::served::Served;

/// A part of a pipeline: a corpus, a source or a sink.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Part {
    pipeline: String,
    component: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reload {
    pipeline: String,
    outcome: &'static str,
}

/// A rule that watches the answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Rule {
    pipeline: String,
    component: String,
    rule: String,
}

type Gauges = Family<Part, Gauge>;
type Counters = Family<Part, Counter>;

/// Families with a sample for each part.
#[derive(Default)]
pub(super) struct PipelineMetrics {
    documents: Gauges,
    passages: Gauges,
    read: Gauges,
    empty: Gauges,
    unreadable: Counters,
    preparing: Gauges,
    embedded: Counters,
    dead: Counters,
    waiting: Gauges,
    lag: Family<Part, Gauge<f64, AtomicU64>>,
    unanswered: Gauges,
    pending: Gauges,
    delivered: Counters,
    refused: Counters,
    failing: Gauges,
    reloads: Family<Reload, Counter>,
    alerts_firing: Family<Rule, Gauge>,
    alerts_pending: Family<Rule, Gauge>,
    alert_values: Family<Rule, Gauge<f64, AtomicU64>>,
}

fn number(of: u64) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

impl PipelineMetrics {
    pub fn register(&self, registry: &mut Registry) {
        for (name, help, gauges) in [
            ("documents", "Documents with passages in the newest epoch", &self.documents),
            ("passages", "Passages in the newest epoch", &self.passages),
            ("documents_read", "Documents that the source of the corpus has, as far as they are read", &self.read),
            ("documents_empty", "Documents without text", &self.empty),
            ("passages_preparing", "Passages that wait to be embedded", &self.preparing),
            ("source_waiting", "Records of the source that are read and not started", &self.waiting),
            ("source_unanswered_bytes", "Bytes of the log after the last record that is answered", &self.unanswered),
            ("sink_pending", "Answers that the sink has not acknowledged", &self.pending),
            ("sink_failing", "1 if the last delivery to the sink has failed", &self.failing),
        ] {
            registry.register(format!("turnflow_{name}"), help, gauges.clone());
        }
        for (name, help, counters) in [
            ("documents_unreadable", "Dead letters of the corpus", &self.unreadable),
            ("passages_embedded", "Passages that a model has embedded, once for each index", &self.embedded),
            ("dead_letters", "Dead letters", &self.dead),
            ("sink_delivered", "Answers that the sink has acknowledged", &self.delivered),
            ("sink_refused", "Answers that the sink has refused", &self.refused),
        ] {
            registry.register(format!("turnflow_{name}"), help, counters.clone());
        }
        let help = "How long the first record of the source has waited";
        registry.register("turnflow_source_lag_seconds", help, self.lag.clone());
        let help = "1 while the alert of the rule fires";
        registry.register("turnflow_alert_firing", help, self.alerts_firing.clone());
        let help = "1 while the rule is beyond its threshold, but not for long enough";
        registry.register("turnflow_alert_pending", help, self.alerts_pending.clone());
        registry.register("turnflow_alert_value", "What the rule measures", self.alert_values.clone());
        registry.register("turnflow_reloads", "Reloads of the pipeline", self.reloads.clone());
    }

    /// Forgets what was taken before.
    pub fn clear(&self) {
        let Self { documents, passages, read, empty, preparing, waiting, unanswered, pending, failing, .. } = self;
        for gauges in [documents, passages, read, empty, preparing, waiting, unanswered, pending, failing] {
            gauges.clear();
        }
        for counters in [&self.unreadable, &self.embedded, &self.dead, &self.delivered, &self.refused] {
            counters.clear();
        }
        self.lag.clear();
        self.alerts_firing.clear();
        self.alerts_pending.clear();
        self.alert_values.clear();
        self.reloads.clear();
    }

    /// Takes the numbers of a pipeline. The others must have been forgotten.
    pub fn take(&self, served: &Served) {
        let (pipeline, status) = (served.name().to_string(), served.engine().status());
        let part = |component: &str| Part { pipeline: pipeline.clone(), component: component.to_owned() };
        let set = |gauges: &Gauges, component: &str, value| {
            gauges.get_or_create(&part(component)).set(number(value));
        };
        let count = |counters: &Counters, component: &str, value| {
            counters.get_or_create(&part(component)).inc_by(value);
        };
        let EngineStatus { corpora, sources, sinks, alerts, .. } = status;
        let dead = served.engine().dead_letters_of();
        let letters = |component: &str| dead.get(component).copied().unwrap_or_default();
        for corpus in &corpora {
            set(&self.documents, &corpus.name, corpus.documents as u64);
            set(&self.passages, &corpus.name, corpus.passages as u64);
            set(&self.read, &corpus.name, corpus.read);
            set(&self.empty, &corpus.name, corpus.empty);
            set(&self.preparing, &corpus.name, corpus.preparing);
            count(&self.embedded, &corpus.name, corpus.embedded);
            count(&self.unreadable, &corpus.name, letters(&corpus.name));
        }
        for source in &sources {
            set(&self.waiting, &source.id, source.queued as u64);
            self.lag.get_or_create(&part(&source.id)).set(source.behind_s);
            source.unanswered_bytes.iter().for_each(|bytes| set(&self.unanswered, &source.id, *bytes));
        }
        for sink in &sinks {
            set(&self.pending, &sink.id, sink.pending as u64);
            set(&self.failing, &sink.id, u64::from(sink.fault.is_some()));
            count(&self.delivered, &sink.id, sink.delivered);
            count(&self.refused, &sink.id, sink.refused);
        }
        for alert in alerts {
            let (component, is) = (alert.node.to_string(), |state: &str| i64::from(alert.state == state));
            let labels = Rule { pipeline: pipeline.clone(), component, rule: alert.rule.clone() };
            self.alerts_firing.get_or_create(&labels).set(is("firing"));
            self.alerts_pending.get_or_create(&labels).set(is("pending"));
            if let Some(value) = alert.value {
                self.alert_values.get_or_create(&labels).set(value);
            }
        }
        // Those without letters too: a rate needs a sample before the first one.
        let known = corpora.iter().map(|corpus| &*corpus.name).chain(sources.iter().map(|source| &*source.id));
        let known = known.chain(sinks.iter().map(|sink| &*sink.id)).filter(|name| !dead.contains_key(*name));
        for component in dead.keys().map(String::as_str).chain(known) {
            count(&self.dead, component, letters(component));
        }
        for (outcome, reloads) in ["ok", "failed"].into_iter().zip(served.reloads()) {
            let labels = Reload { pipeline: pipeline.clone(), outcome };
            self.reloads.get_or_create(&labels).inc_by(reloads);
        }
    }
}
