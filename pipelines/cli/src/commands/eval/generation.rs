//! Scores answers: the file of metrics, its models, and the table.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use futures::StreamExt as _;
use serde_json::{Map, Value as Json};
use turnflow_engine::cache::InferenceCache;
use turnflow_engine::component::{Model, Models};
use turnflow_engine::plan::{ModelsFile as _, PlannedModel};
use turnflow_engine::record;
use turnflow_engine::state::StateDirectory;
use turnflow_engine::wording::count;

use crate::commands::answering::Answered;
use crate::commands::{Fault, catalog, progress, say_what_fetches, told};
use turnflow_eval::generation::conditioning::{Answerability, Idk, Share};
use turnflow_eval::generation::config::{self, MetricsConfig};
use turnflow_eval::generation::report::{Mean, Report, task_json};
use turnflow_eval::generation::scorer::{Scored, Scorer};
use turnflow_eval::generation::{METRICS, Response, Status};
use turnflow_eval::tasks::Task;

/// Number of tasks judged at once; a model's server may have a lower limit.
const AT_ONCE: usize = 8;

/// The metrics and their models, not yet loaded.
#[derive(Default)]
pub(super) struct Metrics {
    config: MetricsConfig,
    models: BTreeMap<String, PlannedModel>,
}

/// The metrics and their loaded models.
pub(super) struct Loaded {
    config: MetricsConfig,
    models: Models,
    runtime: tokio::runtime::Runtime,
}

impl Metrics {
    /// Reads a file of metrics.
    pub fn read(path: &Path) -> Result<Self, Fault> {
        let mut planned = config::read(path, catalog());
        say_what_fetches(&mut planned.diagnostics);
        let (config, models) = planned.plan.ok_or_else(|| told(&planned.diagnostics, &planned.sources))?;
        Ok(Self { config, models })
    }

    /// Loads the models that are used, and checks their capabilities.
    pub fn load(self) -> Result<Loaded, Fault> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let used: Vec<&str> = self.config.models().iter().map(|used| used.name).collect();
        let mut models = Models::new();
        for (name, model) in self.models.iter().filter(|(name, _)| used.contains(&name.as_str())) {
            models.insert(name.clone(), Arc::new(turnflow_engine::component::load_alone(&*model.config, name)?));
        }
        runtime
            .block_on(Scorer::new(&self.config, &models, &InferenceCache::open(None)?))
            .map_err(|error| Fault::Told(error.into()))?;
        Ok(Loaded { config: self.config, models, runtime })
    }
}

/// The responses to the tasks. The passages are those of the answer, or otherwise the hits of the node.
pub(super) fn responses(tasks: &[Task], results: &HashMap<Arc<str>, Answered>, node: &str) -> Vec<Response> {
    let response = |task: &Task| {
        let Some((result, answer)) = results.get(task.id.as_str()).and_then(|one| Some((one, one.answer.as_ref()?)))
        else {
            return Response::failed();
        };
        let hits = if answer.hits.is_empty() { result.hits(node) } else { &answer.hits };
        let status = match answer.status {
            record::Status::Answered => Status::Answered,
            record::Status::Idk => Status::Idk,
            record::Status::Failed => Status::Failed,
        };
        let passages = hits.iter().map(|hit| hit.chunk.text.to_string()).collect();
        Response { text: answer.text.to_string(), status, passages }
    };
    tasks.iter().map(response).collect()
}

impl Loaded {
    /// Scores every response, and adds the results to the figures. The outputs of judges are cached in the
    /// state directory, like those of turns.
    pub fn score(
        self,
        tasks: &[Task],
        responses: &[Response],
        state: Option<&Path>,
        figures: &mut Map<String, Json>,
    ) -> Result<Report, Fault> {
        let state = state.map(StateDirectory::open).transpose()?;
        let cache = InferenceCache::open(state.as_ref().map(StateDirectory::path))?;
        let remembering = |(name, model): (String, Arc<Model>)| {
            // The check of the models has ended, so nothing else shares them.
            Arc::into_inner(model).map(|model| (name, Arc::new(model.remembering(&cache))))
        };
        let models: Models = self.models.into_iter().filter_map(remembering).collect();
        let bar = progress::bar(tasks.len() as u64, "scoring answers");
        let (scored, left_out) = self.runtime.block_on(async {
            let scorer = Scorer::new(&self.config, &models, &cache).await?;
            let left_out = scorer.left_out(tasks);
            let one = async |(at, (task, response)): (usize, (&Task, &Response))| {
                let scored = scorer.score(task, response, &left_out).await;
                bar.inc(1);
                (at, scored)
            };
            let all = futures::stream::iter(tasks.iter().zip(responses).enumerate()).map(one);
            let mut scored: Vec<(usize, Scored)> = all.buffer_unordered(AT_ONCE).collect().await;
            scored.sort_by_key(|(at, _)| *at);
            let scored: Vec<Scored> = scored.into_iter().map(|(_, scored)| scored).collect();
            Ok::<_, turnflow_eval::generation::scorer::ScorerError>((scored, left_out))
        })?;
        bar.finish_and_clear();
        let report = Report::new(tasks, &scored, left_out);
        figures.insert("generation".to_owned(), report.json());
        let each = tasks.iter().zip(&scored).map(|(task, scored)| (task.id.clone(), task_json(scored)));
        figures.insert("tasks".to_owned(), Json::Object(each.collect()));
        Ok(report)
    }
}

/// Prints the results.
pub(super) fn print(report: &Report) {
    let failed = if report.failed > 0 { format!(", {} of them failed", report.failed) } else { String::new() };
    println!("{}{failed}", count(report.all.tasks, "answer"));
    // The two ways of conditioning differ only on tasks that one of them leaves out.
    let differ = !report.not_counted.is_empty();
    let by_scripts = if differ { format!("{:>12}{:>7}", "by scripts", "n") } else { String::new() };
    println!("{:22}{:>12}{:>7}{by_scripts}{:>12}{:>7}", "", "conditioned", "n", "as is", "n");
    let cell = |mean: Option<&Mean>| match mean {
        Some(Mean { value, n }) => format!("{value:12.4}{n:7}"),
        None => format!("{:>12}{:7}", "", ""),
    };
    for metric in METRICS {
        let [counted, scripts, raw] =
            [&report.all.metrics, &report.all.clarified, &report.all.raw].map(|means| means.get(metric.name));
        if counted.is_some() || scripts.is_some() || raw.is_some() {
            let scripts = if differ { cell(scripts) } else { String::new() };
            println!("{}", format!("{:22}{}{scripts}{}", metric.name, cell(counted), cell(raw)).trim_end());
        }
    }
    if let Some(mean) = report.harmonic_mean() {
        let how = if differ { ", by scripts" } else { "" };
        println!("{:22}{mean:12.4}  (harmonic mean of rb_alg, rb_llm and rl_f{how})", "hm");
    }
    if !report.left_out.is_empty() {
        let mut reasons: Vec<&str> = report.left_out.iter().map(|(_, why)| *why).collect();
        reasons.dedup();
        for reason in reasons {
            let names = report.left_out.iter().filter(|(_, why)| *why == reason).map(|(name, _)| *name);
            println!("not computed, since {reason}: {}", names.collect::<Vec<_>>().join(", "));
        }
    }
    let names = |kind| Answerability::ALL.iter().find(|(other, _)| *other == kind).map_or("", |(_, name)| name);
    for (kind, tasks) in &report.not_counted {
        let those = count(*tasks, &format!("{} task", names(*kind)));
        println!("excluded from the conditioned means, but counted by the scripts of MTRAG: {those}");
    }
    for (figure, unjudged) in &report.unjudged {
        if unjudged.unread > 0 {
            // As the published scripts count them.
            let instead = match *figure {
                "rb_llm" => "counted as 0.5",
                "idk" => "counted as partial",
                "clarification" => "counted as no request",
                _ => "not counted",
            };
            println!("{figure}: {} could not be parsed, and {instead}", count(unjudged.unread, "reply"));
        }
        if let Some(reason) = &unjudged.reason {
            println!("{figure}: {} failed, the first with: {reason}", count(unjudged.failed, "call"));
        }
    }
    print_abstentions(report, names);
}

fn print_abstentions(report: &Report, name: impl Fn(Answerability) -> &'static str) {
    let abstention = &report.abstention;
    if report.labelled == 0 {
        println!("no task has an `answerability`, so nothing is conditioned");
    } else if abstention.is_empty() {
        println!("no answer could be labelled as an IDK answer or not, so no metric is conditioned");
    }
    let unlabelled = Some(("no answerability", &abstention.unlabelled)).filter(|(_, labels)| !labels.is_empty());
    let rows: Vec<_> = abstention.labels.iter().map(|(kind, labels)| (name(*kind), labels)).chain(unlabelled).collect();
    if !rows.is_empty() {
        println!("\n{:22}{:>9}{:>9}{:>9}", "does not know", "yes", "partial", "no");
    }
    for (kind, labels) in rows {
        let count = |idk| labels.get(&idk).copied().unwrap_or(0);
        println!("{kind:22}{:9}{:9}{:9}", count(Idk::Yes), count(Idk::Partial), count(Idk::No));
    }
    let line = |what: &str, share: &Share| {
        if let Some(rate) = share.rate() {
            println!("{what:22}{rate:9.4}  ({} of {})", share.count, share.of);
        }
    };
    line("over-abstention", &abstention.over_abstention);
    line("under-abstention", &abstention.under_abstention);
    line("  unanswerable", &abstention.under_abstention_unanswerable);
    line("  underspecified", &abstention.under_abstention_underspecified);
    line("clarification asked", &report.clarification);
    line("answerability right", &abstention.answerability_accuracy);
}
