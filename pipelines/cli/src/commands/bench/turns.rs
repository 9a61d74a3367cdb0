//! `turnflow bench --turns`: measures throughput, latency, and the share of time outside the models.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::anyhow;
use serde_json::json;
use turnflow_connectors::jsonl_turns::JsonLinesConfig;
use turnflow_engine::connector::{Mode, SourcedTurn};
use turnflow_engine::record::{Item, Speaker, TurnRecord, Value};
use turnflow_engine::run::{Options, TurnSources};
use turnflow_engine::spec::{from_tree, load};
use turnflow_engine::wording::count;

use super::super::{node_map, progress, start};
use super::{BenchArgs, Fault, Outcome, percentile, told, usage};

/// Default number of turns.
const LIMIT: usize = 1000;

/// The turns of a log, up to `limit` user turns.
pub(super) fn turns(args: &BenchArgs, path: &Path, limit: usize) -> Result<Vec<SourcedTurn>, Fault> {
    let mapping = if is_own(path) { None } else { node_map::of_first(&args.pipeline.file)? };
    let mut turns = match mapping {
        Some(mapping) => node_map::turns(&mapping, path)?.turns,
        None => read(path)?,
    };
    let asked = turns.iter().scan(0, |asked, turn| {
        *asked += usize::from(turn.record.speaker == Speaker::User);
        (*asked <= limit).then_some(())
    });
    let keep = asked.count();
    turns.truncate(keep);
    Ok(turns)
}

/// Whether a log has turns or queries as they are.
fn is_own(path: &Path) -> bool {
    let is_query =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).is_ok_and(|row| row.get("_id").is_some());
    let first = std::fs::File::open(path).ok().and_then(|file| BufReader::new(file).lines().next()?.ok());
    node_map::is_own(path) || first.is_some_and(|line| is_query(&line))
}

/// The turns or queries of a log.
fn read(path: &Path) -> Result<Vec<SourcedTurn>, Fault> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| told(format!("cannot read `{name}`: {error}")))?;
    let mut turns = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let position = format!("{name}:{}", at + 1);
        let query: Option<(String, String)> = serde_json::from_str::<serde_json::Value>(line)
            .ok()
            .and_then(|row| Some((row.get("_id")?.as_str()?.to_owned(), row.get("text")?.as_str()?.to_owned())));
        let record = match query {
            Some((id, text)) => TurnRecord {
                conversation_id: id.into(),
                turn: 1,
                speaker: Speaker::User,
                text: text.into(),
                collection: None,
                timestamp: None,
                extra: serde_json::Map::new(),
            },
            None => TurnRecord::parse(line.as_bytes()).map_err(|error| told(format!("{position}: {error}")))?,
        };
        turns.push(SourcedTurn { record, position, history: None, place: None });
    }
    Ok(turns)
}

pub(super) fn run(args: &BenchArgs) -> Outcome {
    let plan = args.pipeline.plan()?.running();
    let path = match &args.turns {
        Some(path) => path.clone(),
        None => own_log(args).ok_or_else(|| told("the pipeline reads no log: give one with --turns"))?,
    };
    let turns = turns(args, &path, args.limit.unwrap_or(LIMIT))?;
    let asked = turns.iter().filter(|turn| turn.record.speaker == Speaker::User).count();
    let Some(last) = plan.nodes.iter().rev().find(|node| node.output.is_some()).map(|node| node.id.clone()) else {
        return Err(told("the pipeline has no node with an output"));
    };
    let latencies: Arc<Mutex<(Vec<u64>, usize)>> = Arc::default();
    let recorded = latencies.clone();
    // All turns are submitted at once: the latency of a turn counts from its start.
    let begun: Mutex<HashMap<Arc<str>, Instant>> = Mutex::default();
    let observer = move |node: &str, item: &Item| {
        let Ok(mut begun) = begun.lock() else { return };
        if *node == *item.turn.source {
            begun.insert(item.turn.key.clone(), Instant::now());
        }
        if *node == *last
            && let (Some(begun), Ok(mut latencies)) = (begun.remove(&item.turn.key), recorded.lock())
        {
            latencies.0.push(begun.elapsed().as_micros() as u64);
            latencies.1 += usize::from(matches!(item.value, Value::Failed(_)));
        }
    };
    let options = Options {
        corpora: Mode::Once,
        sources: TurnSources::None,
        sinks: false,
        observer: Some(Arc::new(observer)),
        ..args.engine.options(&plan)
    };
    let indexing = Instant::now();
    let engine = start(plan, options)?;
    let index_s = indexing.elapsed().as_secs_f64();
    let indexed = usage(&engine);
    if !args.format.is_json() {
        println!(
            "index: {index_s:.1} s, {} embedded in {}",
            count(indexed.inputs, "text"),
            count(indexed.batches, "batch")
        );
    }
    let begun = Instant::now();
    let bar = progress::bar(asked as u64, "answering");
    for turn in turns {
        if !engine.submit(turn) {
            engine.check()?;
        }
        bar.set_position(engine.delivered() as u64);
    }
    engine.end_turns();
    while !engine.has_ended() {
        engine.check()?;
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
    bar.finish_and_clear();
    let seconds = begun.elapsed().as_secs_f64();
    let used = usage(&engine);
    let approximate = approximate(&engine.metrics().to_text());
    engine.join()?;
    let (latencies, failed) = latencies.lock().map_err(|_| anyhow!("a worker panicked"))?.clone();
    let mut latencies: Vec<f64> = latencies.into_iter().map(|latency| latency as f64 / 1000.0).collect();
    let (inputs, batches) = (used.inputs - indexed.inputs, used.batches - indexed.batches);
    let (tokens, busy) = (used.tokens - indexed.tokens, (used.busy_us - indexed.busy_us) as f64 / 1e6);
    let turns = latencies.len().max(1) as f64;
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| percentile(&mut latencies, share));
    let outside = (1.0 - busy / seconds).max(0.0);
    if args.format.is_json() {
        let report = json!({
            "index": {"seconds": index_s, "embedded": indexed.inputs, "batches": indexed.batches},
            "turns": latencies.len(),
            "failed": failed,
            "seconds": seconds,
            "turns_per_s": turns / seconds,
            "latency_ms": {"p50": p50, "p95": p95, "p99": p99},
            "models": {"inputs": inputs, "batches": batches, "tokens": tokens, "padded_tokens": used.padded - indexed.padded, "busy_s": busy},
            "outside_models": outside,
            "approximate_indexes": approximate.iter().map(Approximate::to_json).collect::<Vec<_>>(),
        });
        println!("{report:#}");
        return Ok(());
    }
    println!("turns: {} in {seconds:.2} s, {:.1} per second, {failed} failed", latencies.len(), turns / seconds);
    println!("latency ms: p50 {p50:.1}, p95 {p95:.1}, p99 {p99:.1}");
    match used.padded - indexed.padded {
        0 => println!("models: no calls"),
        padded => println!(
            "models: {:.2} inputs per turn, {:.1} inputs per batch, {:.0} tokens per busy second, {:.1} % padding",
            inputs as f64 / turns,
            inputs as f64 / batches.max(1) as f64,
            tokens as f64 / busy.max(1e-9),
            100.0 * (1.0 - tokens as f64 / padded as f64)
        ),
    }
    println!("outside the models: {:.1} % of the time", 100.0 * outside);
    for Approximate { node, recall_per_mille, parts: (part, done), all, read } in &approximate {
        println!(
            "approximate index of `{node}`: {:.1} % of the ten nearest passages found, {read} of {} {done}",
            *recall_per_mille as f64 / 10.0,
            count(*all, part)
        );
    }
    Ok(())
}

/// What a node's approximate index measured when it was made.
#[derive(Debug, PartialEq)]
struct Approximate {
    node: String,
    recall_per_mille: u64,
    /// What the index has many of, and what a search does with some of them.
    parts: (&'static str, &'static str),
    all: u64,
    read: u64,
}

/// The parts of each kind of index. The metrics are named after them.
const PARTS: [(&str, &str); 2] = [("list", "read"), ("passage", "scored")];

impl Approximate {
    fn to_json(&self) -> serde_json::Value {
        let recall = self.recall_per_mille as f64 / 1000.0;
        let (part, done) = self.parts;
        json!({"node": self.node, "recall": recall, format!("{part}s"): self.all, format!("{part}s_{done}"): self.read})
    }
}

/// The approximate indexes in the text of the metrics. One that is not made yet is left out.
fn approximate(metrics: &str) -> Vec<Approximate> {
    let values = |name: &str| -> HashMap<String, u64> {
        let start = format!("turnflow_approximate_index_{name}{{component=\"");
        let of_node = |line: &str| {
            let (node, value) = line.strip_prefix(&start)?.split_once("\"} ")?;
            Some((node.to_owned(), value.parse().ok()?))
        };
        metrics.lines().filter_map(of_node).collect()
    };
    let recalls = values("recall_per_mille");
    let mut found: Vec<Approximate> = Vec::new();
    for parts in PARTS {
        let (all, read) = (values(&format!("{}s", parts.0)), values(&format!("{}s_{}", parts.0, parts.1)));
        for (node, all) in all.into_iter().filter(|(_, all)| *all > 0) {
            let of = |values: &HashMap<String, u64>| values.get(&node).copied().unwrap_or_default();
            let (recall_per_mille, read) = (of(&recalls), of(&read));
            found.push(Approximate { node, recall_per_mille, parts, all, read });
        }
    }
    found.sort_by(|a, b| a.node.cmp(&b.node));
    found
}

/// The log that the pipeline's first `JsonLines` source reads.
fn own_log(args: &BenchArgs) -> Option<PathBuf> {
    let loaded = load(&args.pipeline.file, &args.pipeline.set);
    let nodes = loaded.tree.as_ref()?.get("nodes")?.entries()?;
    let node = nodes.iter().find(|node| node.value.name().is_some_and(|name| name.text == "JsonLines"))?;
    let config: JsonLinesConfig = from_tree(&node.value, &loaded.sources).ok()?;
    Some(AsRef::<Path>::as_ref(&config.path).to_owned())
}

#[cfg(test)]
mod tests {
    use turnflow_engine::metrics::Metrics;

    use super::*;

    #[test]
    fn approximate_indexes_are_read_from_the_metrics() {
        let metrics = Metrics::default();
        for (node, recall, lists, read) in [("dense", 981, 2000, 39), ("other", 0, 0, 0)] {
            metrics.gauge(node, "approximate_index_recall_per_mille", "Recall").set(recall);
            metrics.gauge(node, "approximate_index_lists", "Lists").set(lists);
            metrics.gauge(node, "approximate_index_lists_read", "Lists read").set(read);
        }
        metrics.gauge("late", "approximate_index_recall_per_mille", "Recall").set(984);
        metrics.gauge("late", "approximate_index_passages", "Passages").set(13_000);
        metrics.gauge("late", "approximate_index_passages_scored", "Passages scored").set(140);
        let found = approximate(&metrics.to_text());
        let of = |node: &str, recall_per_mille, parts, all, read| Approximate {
            node: node.into(),
            recall_per_mille,
            parts,
            all,
            read,
        };
        assert_eq!(found, [of("dense", 981, PARTS[0], 2000, 39), of("late", 984, PARTS[1], 13_000, 140)]);
        assert_eq!(found[1].to_json()["passages_scored"], 140);
    }
}
