//! A whole pipeline with a language model in it, as it is shipped.

use turnflow::CATALOG;
use turnflow_engine::component::Model;
use turnflow_engine::connector::Mode;
use turnflow_engine::plan::{Plan, plan_file};
use turnflow_engine::record::{Status, Value};
use turnflow_engine::run::Options;

use crate::support::{Asked, model, root};

fn shipped() -> Plan {
    let planned = plan_file(&root().join("pipelines/generate.ron"), &[], &CATALOG);
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    planned.plan.unwrap()
}

/// What all models were asked for.
fn asked(pipeline: &Asked) -> u64 {
    pipeline.engine.models().values().map(|model: &std::sync::Arc<Model>| model.usage().inputs).sum()
}

/// A log that is read again asks no model anything, and gives the same answers.
#[test]
fn a_second_run_makes_no_model_call() {
    if model("minilm-int8").is_none() || model("smollm2").is_none() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let options = Options { state: Some(state.path().to_owned()), corpora: Mode::Once, ..Options::default() };
    let questions = ["How are lists of hits fused?", "Where do dead letters go?"];
    let run = || {
        let mut pipeline = Asked::start(shipped(), options.clone());
        let answers: Vec<(String, Status)> = questions
            .iter()
            .map(|question| match pipeline.ask(question).last.unwrap().value {
                Value::Answer(answer) => (answer.text.to_string(), answer.status),
                other => panic!("{other:?}"),
            })
            .collect();
        (answers, asked(&pipeline))
    };
    let (first, calls) = run();
    assert!(calls > 0 && first.iter().all(|(text, _)| !text.is_empty()), "{first:?}");
    assert_eq!(run(), (first, 0));
}
