//! Tests of the whole scorer: which metrics are computed, how they count, and how unreadable judge
//! replies are reported.

use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::cache::InferenceCache;
use turnflow_engine::component::{Catalog, Model, Models};
use turnflow_engine::inference::InferenceError;
use turnflow_engine::language::{Generation, Generator, Prompt, Sampling, TextStream};
use turnflow_engine::spec::from_str;

use super::bert_score::BertScore;
use super::config::MetricsConfig;
use super::report::{Mean, Report};
use super::scorer::{Scored, Scorer};
use super::{Response, Status};
use crate::tasks::{Speaker, Task, Utterance};

/// A model whose reply is a function of the prompt.
struct Scripted<F> {
    reply: F,
    sampling: Sampling,
    asked: Mutex<Vec<String>>,
}

impl<F: Fn(&str) -> Option<&'static str> + Send + Sync> Generator for Scripted<F> {
    fn sampling(&self) -> &Sampling {
        &self.sampling
    }
    fn generate_streamed(
        &self,
        prompt: Prompt,
        _: Sampling,
        _: TextStream,
    ) -> BoxFuture<'static, Result<Generation, InferenceError>> {
        let prompt = prompt.plain();
        let reply = (self.reply)(&prompt).ok_or(InferenceError::Failed("out of order".into()));
        self.asked.lock().expect("a lock").push(prompt);
        let whole = |text: &str| Generation { text: text.to_owned(), ..Generation::default() };
        async move { reply.map(whole) }.boxed()
    }
    fn count(&self, text: &str) -> usize {
        text.len()
    }
}

fn models(reply: impl Fn(&str) -> Option<&'static str> + Send + Sync + 'static) -> Models {
    let generator = Arc::new(Scripted { reply, sampling: Sampling::default(), asked: Mutex::default() });
    let model = Model { name: "llm".into(), generator: Some(generator), ..Model::default() };
    Models::from([("llm".to_owned(), Arc::new(model))])
}

fn cache() -> Arc<InferenceCache> {
    InferenceCache::open(None).expect("a store in memory")
}

fn task(id: &str, answerability: &str, target: &str) -> Task {
    Task {
        id: id.to_owned(),
        conversation_id: id.to_owned(),
        turn: 1,
        collection: None,
        input: vec![Utterance { speaker: Speaker::User, text: "When does the ferry leave?".into() }],
        answerability: Some(answerability.to_owned()),
        question_types: Vec::new(),
        multi_turn: Vec::new(),
        standalone: None,
        contexts: Vec::new(),
        target: Some(target.to_owned()),
        other_targets: Vec::new(),
    }
}

fn said(text: &str) -> Response {
    Response { text: text.to_owned(), status: Status::Answered, passages: vec!["The ferry leaves at noon.".to_owned()] }
}

fn score(config: &str, models: &Models, tasks: &[Task], responses: &[Response]) -> (Vec<Scored>, Report) {
    let config: MetricsConfig = from_str(config).expect("a configuration");
    let scorer = Scorer::new(&config, models, &cache()).now_or_never().expect("ready").expect("a scorer");
    let left_out = scorer.left_out(tasks);
    let each = tasks.iter().zip(responses);
    let scored: Vec<Scored> =
        each.map(|(task, response)| scorer.score(task, response, &left_out).now_or_never().expect("ready")).collect();
    let report = Report::new(tasks, &scored, left_out);
    (scored, report)
}

#[test]
fn without_models_there_are_rouge_and_abstentions() {
    let tasks = [
        task("a", "ANSWERABLE", "The ferry leaves at noon."),
        task("b", "ANSWERABLE", "At noon."),
        task("c", "UNANSWERABLE", "I do not know."),
        task("d", "UNANSWERABLE", "I do not know."),
        task("e", "UNDERSPECIFIED", "Which one?"),
        task("f", "CONVERSATIONAL", "Bye."),
        task("g", "PARTIAL", "At noon."),
    ];
    let responses = [
        said("The ferry leaves at noon."),
        said("I do not know."),
        said("I do not know."),
        said("At noon."),
        said("At noon."),
        said("Bye."),
        Response::failed(),
    ];
    let (scored, report) = score("(passages: 5)", &Models::new(), &tasks, &responses);
    let conditioned: Vec<_> = scored.iter().map(|scored| scored.metrics.get("rouge_l").copied()).collect();
    assert_eq!(conditioned, [Some(1.0), Some(0.0), Some(1.0), Some(0.0), None, None, Some(0.0)]);
    assert_eq!(scored[5].raw["rouge_l"], 1.0);
    let json = report.json();
    let (mean, n) = (json["metrics"]["rouge_l"].as_f64(), json["n"]["metrics"]["rouge_l"].as_u64());
    assert_eq!((mean, n), (Some(0.4), Some(5)), "{json:#}");
    assert_eq!((json["n"]["raw"]["rouge_l"].as_u64(), json["failed"].as_u64()), (Some(6), Some(1)));
    assert_eq!(json["abstention"]["over_abstention"]["count"], 1);
    assert_eq!(json["abstention"]["over_abstention"]["of"], 2);
    assert_eq!(json["abstention"]["under_abstention_underspecified"]["rate"], 1.0);
    assert_eq!(json["by"]["answerability"]["UNANSWERABLE"]["metrics"]["rouge_l"], 0.5);
    // As MTRAG-UN's scripts count: nothing was asked back, and the greeting is no IDK answer.
    assert_eq!(json["clarification"]["asked"]["of"], 1);
    assert_eq!(json["clarification"]["asked"]["rate"], 0.0);
    assert_eq!(json["clarification"]["metrics"]["rouge_l"].as_f64(), Some(2.0 / 7.0), "{json:#}");
    assert_eq!(json["not_counted"]["CONVERSATIONAL"], 1);
    let spans = ["exact_match", "token_f1"].map(|name| json["metrics"][name].as_f64());
    assert_eq!(spans, [Some(0.4), Some(0.4)], "{json:#}");
    let lengths = ["words", "characters"].map(|name| json["raw"][name].as_f64());
    assert_eq!(lengths, [Some(18.0 / 6.0), Some(73.0 / 6.0)], "of the answers, and not of the failed task");
    assert!(json["metrics"].get("words").is_none());
    assert_eq!(json["left_out"]["rb_alg"], "no `encoder` is declared");
    assert!(json["metrics"].get("rb_llm").is_none() && json["left_out"].get("rouge_l").is_none(), "{json:#}");
}

#[test]
fn judges_rate_and_what_cannot_be_read_is_told() {
    let reply = |prompt: &str| match () {
        () if prompt.contains("Label:") => {
            Some(if prompt.contains("Response: I am at a loss") { "yes" } else { "No." })
        }
        () if prompt.contains("Grade the assistant") => {
            Some(if prompt.contains("at dusk") { "Hm." } else { "Good. Rating: [[10]]" })
        }
        () if prompt.contains("Statements:\n1. ") && prompt.contains("Verdicts:") => Some("1: yes\n2: no"),
        () if prompt.contains("at dawn") => None,
        () => Some("1. The ferry leaves at noon.\n2. It is blue."),
    };
    let tasks = ["a", "b", "c", "d"].map(|id| task(id, "ANSWERABLE", "At noon."));
    let responses = [said("At noon."), said("It leaves at dusk."), said("It leaves at dawn."), said("I am at a loss.")];
    let config = r#"(judge: ["llm", "llm"], idk: (judge: "llm"))"#;
    let (scored, report) = score(config, &models(reply), &tasks, &responses);
    assert_eq!((scored[0].raw["rb_llm"], scored[0].raw["rl_f"]), (1.0, 0.5));
    assert_eq!((scored[1].raw.get("rb_llm"), scored[1].metrics.get("rb_llm")), (None, None));
    assert_eq!((scored[2].raw.get("rl_f"), scored[3].metrics["rb_llm"]), (None, 0.0));
    let json = report.json();
    assert_eq!(json["unjudged"]["rb_llm"]["unread"], 2, "{json:#}");
    assert_eq!(json["unjudged"]["rl_f"]["failed"], 1);
    assert!(json["unjudged"]["rl_f"]["reason"].as_str().is_some_and(|reason| reason.contains("out of order")));
    // Of four tasks, one has no rating and one counts 0.
    assert_eq!(
        (json["n"]["metrics"]["rb_llm"].as_u64(), json["metrics"]["rb_llm"].as_f64()),
        (Some(3), Some(2.0 / 3.0))
    );
}

/// The values are from TechSSN, table 5.
#[test]
fn the_harmonic_mean_is_of_three_figures() {
    let mut report = Report::new(&[], &[], Vec::new());
    assert_eq!(report.harmonic_mean(), None);
    let figures = [("rb_alg", 0.2444), ("rb_llm", 0.2759), ("rl_f", 0.6011)];
    report.all.metrics.extend(figures.map(|(name, value)| (name, Mean { value, n: 1 })));
    assert!(report.harmonic_mean().is_some_and(|mean| (mean - 0.3198).abs() < 5e-5), "{:?}", report.harmonic_mean());
    report.all.metrics.insert("rl_f", Mean { value: 0.0, n: 1 });
    assert_eq!(report.harmonic_mean(), Some(0.0));
}

/// FusionRAG counts the answers that its filter left out (section 4.3), on tasks that have no answerability.
#[test]
fn idk_answers_are_counted_without_an_answerability_too() {
    let tasks = ["a", "b", "c"].map(|id| Task { answerability: None, ..task(id, "", "At noon.") });
    let responses = [said("At noon."), said("I do not know."), Response::failed()];
    let (_, report) = score("(passages: 5)", &Models::new(), &tasks, &responses);
    assert!(report.abstention.is_empty());
    let json = report.json();
    assert_eq!(json["abstention"]["unlabelled"], serde_json::json!({"no": 1, "yes": 1}), "{json:#}");
}

/// Citations would count as words that no reference has.
#[test]
fn citations_are_not_scored() {
    let tasks = [task("a", "ANSWERABLE", "The ferry leaves at noon.")];
    let (scored, _) = score("(passages: 5)", &Models::new(), &tasks, &[said("The ferry [1] leaves at noon [2, 3].")]);
    assert_eq!(scored[0].raw["rouge_l"], 1.0);
}

#[test]
fn a_label_that_cannot_be_read_leaves_the_task_out() {
    let tasks = [task("a", "UNANSWERABLE", "I do not know.")];
    let (scored, report) = score(r#"(idk: (judge: "llm"))"#, &models(|_| Some("Well.")), &tasks, &[said("At noon.")]);
    assert_eq!((scored[0].idk, scored[0].metrics.len()), (None, 0));
    assert_eq!(report.unjudged["idk"].unread, 1);
    assert!(report.abstention.is_empty());
}

#[test]
fn models_that_are_not_what_they_should_be_are_told() {
    let config: MetricsConfig = from_str(r#"(encoder: "llm")"#).expect("a configuration");
    let models = models(|_| None);
    let error =
        Scorer::new(&config, &models, &cache()).now_or_never().expect("ready").err().expect("no encoder").to_string();
    assert_eq!(error, "model `llm`: it lacks the required capability");
}

/// Compares with the formula of the package `bert_score` in numpy, on the states that the same file
/// gives in ONNX Runtime (`tests/data/generation/make_golden.py`). The package itself was not run,
/// since it needs PyTorch.
#[test]
fn bert_score_equals_the_packages_formula() {
    #[derive(serde::Deserialize)]
    struct Golden {
        cases: Vec<Case>,
        passages: Vec<String>,
        k_precision: Vec<KPrecision>,
    }
    #[derive(serde::Deserialize)]
    struct Case {
        response: String,
        reference: String,
        /// Precision and recall.
        expected: [f64; 2],
    }
    #[derive(serde::Deserialize)]
    struct KPrecision {
        response: String,
        expected: f64,
        joined: f64,
    }
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
    let directory = models.join("minilm");
    if !directory.exists() || !models.join("onnxruntime").exists() {
        assert!(std::env::var_os("TURNFLOW_TESTS_MUST_RUN").is_none(), "there is no {}", directory.display());
        println!("skipped: {} is missing; `turnflow models fetch` downloads it", directory.display());
        return;
    }
    let golden: Golden =
        serde_json::from_str(include_str!("../../tests/data/generation/bert_score.json")).expect("bert_score.json");
    let file = |name: &str| directory.join(name).display().to_string();
    let text = format!(
        "Metrics(models: {{\"minilm\": Onnx(path: {:?}, tokenizer: {:?}, max_tokens: 512, threads: 1)}}, encoder: \"minilm\")",
        file("model.onnx"),
        file("tokenizer.json")
    );
    let path = std::env::temp_dir().join(format!("turnflow-{}-metrics.ron", std::process::id()));
    std::fs::write(&path, text).expect("a temporary file");
    let catalog = Catalog { models: turnflow_operators::MODELS.to_vec(), ..Catalog::default() };
    let planned = super::config::read(&path, &catalog);
    std::fs::remove_file(&path).expect("the temporary file");
    let (_, models) = planned.plan.unwrap_or_else(|| panic!("{:?}", planned.diagnostics));
    let model = turnflow_engine::component::load_alone(&*models["minilm"].config, "minilm").expect("minilm");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let encoder = model.token_embedder.expect("token states");
        let bert = BertScore::new(encoder, &model.fingerprint, &cache()).await.expect("an encoder");
        let near = |ours: f64, theirs: f64| assert!((ours - theirs).abs() < 1e-5, "{ours}, not {theirs}");
        for Case { response, reference, expected } in golden.cases {
            let alike = bert.compare(&response, &[reference]).await.expect("figures")[0];
            near(alike.precision, expected[0]);
            near(alike.recall, expected[1]);
        }
        for KPrecision { response, expected, joined } in golden.k_precision {
            let texts = [golden.passages.clone(), vec![golden.passages.join("\n")]].concat();
            let alike = bert.compare(&response, &texts).await.expect("figures");
            let (all, passages) = alike.split_last().expect("figures");
            near(passages.iter().map(|alike| alike.precision).fold(0.0, f64::max), expected);
            near(all.precision, joined);
        }
    });
}
