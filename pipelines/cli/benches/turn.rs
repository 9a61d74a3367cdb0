//! What the engine and eight operators cost a turn, without models: the plan of `hybrid.ron` with
//! a rewrite, a second fusion and a check, over the sample passages, on one worker. The model gives
//! the same vector for every text.
//!
//! `cargo bench --profile dev -p turnflow` measures it with the optimisation of the shipped binary.

use std::path::Path;
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

const PIPELINE: &str = r#"Pipeline(
    models: { "constant": Constant() },
    corpora: { "docs": Corpus(source: JsonLines(path: "passages.jsonl", watch: false), chunk: Whole()) },
    nodes: {
        "turns": Stdin(),
        "query": RuleRewrite(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs", top: 100),
        "dense": Dense(input: "query", corpus: "docs", model: "constant", top: 100),
        "fused": Rrf(inputs: ["lexical", "dense"], top: 100),
        "mixed": Hybrid(inputs: ["fused", "lexical"], top: 20),
        "answer": ExtractiveAnswer(input: "mixed", passages: 5),
        "checked": SelfCheck(input: "answer"),
        "final": IdkNormalize(input: "checked"),
    },
)"#;

#[derive(Debug)]
struct Constant;

impl Configured for Constant {}

impl ModelConfig for Constant {
    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Embed]
    }
    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        loaded_at_once(|| {
            let name = context.id();
            let name = name.to_owned();
            Ok(Model { name, fingerprint: "constant".into(), embedder: Some(Arc::new(Constant)), ..Model::default() })
        })
    }
}

impl Embedder for Constant {
    fn dimension(&self) -> usize {
        8
    }
    fn embed(
        &self,
        texts: Vec<String>,
        _: Role,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        async move { Ok(texts.iter().map(|_| vec![0.35; 8].into()).collect()) }.boxed()
    }
}

/// So many turns, a conversation each; gives how long they took together.
fn answer(engine: &Engine, turns: u64, asked: &mut u64) -> Duration {
    let before = engine.delivered();
    let begun = Instant::now();
    for _ in 0..turns {
        *asked += 1;
        let line = format!(
            r#"{{"conversation_id": "{asked}", "turn": 1, "speaker": "user", "text": "When does the ferry to the island leave on day {asked}?"}}"#
        );
        let record = TurnRecord::parse(line.as_bytes()).expect("a turn");
        assert!(engine.submit(SourcedTurn { record, position: "bench".into(), history: None, place: None }));
    }
    while engine.delivered() - before < turns as usize {
        std::thread::park_timeout(Duration::from_micros(50));
    }
    begun.elapsed()
}

turnflow::use_allocator!();

fn cost_of_a_turn(criterion: &mut Criterion) {
    turnflow::allocator::bound_arenas();
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut catalog = turnflow::catalog();
    catalog.models.push(ModelKind {
        name: "Constant",
        summary: "the same vector for every text",
        fields: Constant::fields,
        parse: |_, _| Ok(Box::new(Constant)),
    });
    let planned = plan(load_str("bench", &base, PIPELINE, &[]), &catalog);
    let plan = planned.plan.unwrap_or_else(|| panic!("{:#?}", planned.diagnostics));
    let options = Options { corpora: Mode::Once, sources: TurnSources::None, sinks: false, ..Options::default() };
    let engine = Engine::start(plan, options).expect("a pipeline that runs");
    engine.wait_ready().expect("a corpus");
    let mut asked = 0;
    let mut group = criterion.benchmark_group("turn");
    group.throughput(criterion::Throughput::Elements(1));
    group.bench_function("eight operators", |bencher| {
        bencher.iter_custom(|turns| answer(&engine, turns, &mut asked));
    });
    group.finish();
}

criterion_group!(benches, cost_of_a_turn);
criterion_main!(benches);
