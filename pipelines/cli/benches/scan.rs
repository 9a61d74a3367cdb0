//! What an exact scan costs a turn, one turn at a time and 64 at once: 100,000 passages with vectors of 384 values. The
//! model makes a vector of each text's hash. Also what a search costs among a part of the passages, by vectors and by
//! words.
//!
//! `cargo bench --profile dev -p turnflow --bench scan` measures it with the optimisation of the shipped binary.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{
    BuildFuture, Capability, ComponentContext, Configured, Model, ModelConfig, ModelKind, loaded_at_once,
};
use turnflow_engine::connector::{Mode, SourcedTurn};
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, Vector};
use turnflow_engine::plan::plan;
use turnflow_engine::record::TurnRecord;
use turnflow_engine::run::{Engine, Options, TurnSources};
use turnflow_engine::spec::load_str;

/// A pipeline with one retriever.
fn pipeline(retriever: &str) -> String {
    format!(
        r#"Pipeline(
    models: {{ "hashed": Hashed() }},
    corpora: {{ "docs": Corpus(source: JsonLines(path: "passages.jsonl", watch: false), chunk: Whole()) }},
    nodes: {{
        "turns": Stdin(),
        "query": LastTurn(input: "turns"),
        "found": {retriever},
        "answer": ExtractiveAnswer(input: "found", passages: 1),
    }},
)"#
    )
}

const DENSE: &str = r#"Dense(input: "query", corpus: "docs", model: "hashed", top: 10)"#;
const BM25: &str = r#"Bm25(input: "query", corpus: "docs", top: 10)"#;
const PASSAGES: usize = 100_000;
const DIMENSION: usize = 384;

#[derive(Debug)]
struct Hashed;

impl Configured for Hashed {}

impl ModelConfig for Hashed {
    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Embed]
    }
    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        loaded_at_once(|| {
            let name = context.id().to_owned();
            Ok(Model { name, fingerprint: "hashed".into(), embedder: Some(Arc::new(Hashed)), ..Model::default() })
        })
    }
}

impl Embedder for Hashed {
    fn dimension(&self) -> usize {
        DIMENSION
    }
    fn embed(
        &self,
        texts: Vec<String>,
        _: Role,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        async move { Ok(texts.iter().map(|text| vector(text)).collect()) }.boxed()
    }
}

/// Values between -1 and 1 that depend on all of the text.
fn vector(text: &str) -> Vector {
    let mut state = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32) / ((1_u64 << 23) as f32) - 1.0
    };
    std::iter::repeat_with(next).take(DIMENSION).collect::<Vec<f32>>().into()
}

/// Answers so many turns, up to `at_once` at the same time; returns how long they took together. A filter may keep
/// about the first `below` passages: a few more or fewer, so that no two turns in a row have the same filter.
fn answer(engine: &Engine, turns: u64, at_once: u64, below: u64, asked: &mut u64) -> Duration {
    let begun = Instant::now();
    let mut left = turns;
    while left > 0 {
        let (before, now) = (engine.delivered(), left.min(at_once));
        left -= now;
        for _ in 0..now {
            *asked += 1;
            let (below, words) = (below + *asked % 7, format!("w{} v{} u{}", *asked % 100, *asked % 31, *asked % 7));
            let line = format!(
                r#"{{"conversation_id": "{asked}", "turn": 1, "speaker": "user", "text": "question {asked} {words}", "below": {below}}}"#
            );
            let record = TurnRecord::parse(line.as_bytes()).expect("a turn");
            assert!(engine.submit(SourcedTurn { record, position: "bench".into(), history: None, place: None }));
        }
        while engine.delivered() - before < now as usize {
            std::thread::park_timeout(Duration::from_micros(50));
        }
    }
    begun.elapsed()
}

/// Starts a pipeline over the passages in `base`.
fn start(base: &std::path::Path, retriever: &str) -> Engine {
    let mut catalog = turnflow::catalog();
    catalog.models.push(ModelKind {
        name: "Hashed",
        summary: "a vector of the text's hash",
        fields: Hashed::fields,
        parse: |_, _| Ok(Box::new(Hashed)),
    });
    let planned = plan(load_str("bench", base, &pipeline(retriever), &[]), &catalog);
    let plan = planned.plan.unwrap_or_else(|| panic!("{:#?}", planned.diagnostics));
    let options = Options { corpora: Mode::Once, sources: TurnSources::None, sinks: false, ..Options::default() };
    let engine = Engine::start(plan, options).expect("a pipeline that runs");
    engine.wait_ready().expect("a corpus");
    engine
}

turnflow::use_allocator!();

fn cost_of_a_scan(criterion: &mut Criterion) {
    turnflow::allocator::bound_arenas();
    let base = std::env::temp_dir().join(format!("turnflow-scan-{}", std::process::id()));
    std::fs::create_dir_all(&base).expect("a directory");
    let mut passages = String::new();
    for number in 0..PASSAGES {
        // The filter's field is spread over the passages.
        let (share, words) = (number * 7919 % PASSAGES, format!("w{} v{} u{}", number % 100, number % 31, number % 7));
        let row = format!(r#"{{"_id": "{number}", "text": "passage {number} {words}", "number": {share}}}"#);
        let _ = writeln!(passages, "{row}");
    }
    std::fs::write(base.join("passages.jsonl"), passages).expect("a file");
    let engine = start(&base, DENSE);
    let mut asked = 0;
    let mut group = criterion.benchmark_group("scan");
    group.throughput(criterion::Throughput::Elements(1));
    group.sample_size(10);
    for at_once in [1, 2, 64] {
        group.bench_function(format!("{at_once} at once"), |bencher| {
            bencher.iter_custom(|turns| answer(&engine, turns, at_once, 0, &mut asked));
        });
    }
    group.finish();
    drop(engine);
    for (name, retriever) in [("Dense", DENSE), ("Bm25", BM25)] {
        let mut group = criterion.benchmark_group(format!("filter of {name}"));
        group.sample_size(10);
        let engine = start(&base, retriever);
        group.bench_function("none", |bencher| {
            bencher.iter_custom(|turns| answer(&engine, turns, 1, 0, &mut asked));
        });
        drop(engine);
        let filter = r#", filter: Lt("number", FromTurn("below")))"#;
        let engine = start(&base, &retriever.replace(", top: 10)", &format!(", top: 10{filter}")));
        for (share, below) in [("100 %", 100_000), ("50 %", 50_000), ("1 %", 1_000), ("0.01 %", 10)] {
            group.bench_function(share, |bencher| {
                bencher.iter_custom(|turns| answer(&engine, turns, 1, below, &mut asked));
            });
        }
        group.finish();
    }
    let _ = std::fs::remove_dir_all(&base);
}

criterion_group!(benches, cost_of_a_scan);
criterion_main!(benches);
