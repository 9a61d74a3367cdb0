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
use super::conditioning::Idk;
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
    asked(reply).0
}

/// The models, and the prompts that they get.
fn asked(reply: impl Fn(&str) -> Option<&'static str> + Send + Sync + 'static) -> (Models, Arc<dyn Asked>) {
    let generator = Arc::new(Scripted { reply, sampling: Sampling::default(), asked: Mutex::default() });
    let model = Model { name: "llm".into(), generator: Some(generator.clone()), ..Model::default() };
    (Models::from([("llm".to_owned(), Arc::new(model))]), generator)
}

/// What remembers prompts.
trait Asked {
    fn prompts(&self) -> Vec<String>;
}

impl<F> Asked for Scripted<F> {
    fn prompts(&self) -> Vec<String> {
        self.asked.lock().expect("a lock").clone()
    }
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
    // As the scripts count: nothing was asked back, and the greeting is no IDK answer.
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
    assert_eq!((scored[1].raw["rb_llm"], scored[1].metrics["rb_llm"]), (0.5, 0.5), "as the scripts count it");
    assert_eq!((scored[2].raw.get("rl_f"), scored[3].metrics["rb_llm"]), (None, 0.0));
    let json = report.json();
    assert_eq!(json["unjudged"]["rb_llm"]["unread"], 2, "{json:#}");
    assert_eq!(json["unjudged"]["rl_f"]["failed"], 1);
    assert!(json["unjudged"]["rl_f"]["reason"].as_str().is_some_and(|reason| reason.contains("out of order")));
    // Of four tasks, one has a rating that cannot be read, and one counts 0.
    assert_eq!(
        (json["n"]["metrics"]["rb_llm"].as_u64(), json["metrics"]["rb_llm"].as_f64()),
        (Some(4), Some(2.5 / 4.0))
    );
}

/// The published scripts give the whole conversation to the judge of IDK answers and to RL_F.
#[test]
fn judges_of_answers_get_the_whole_conversation() {
    let said = |speaker, text: &str| Utterance { speaker, text: text.into() };
    let mut task = task("a", "ANSWERABLE", "At noon.");
    task.input = vec![
        said(Speaker::User, "Is there a ferry to Iona?"),
        said(Speaker::Agent, "Yes.\nStatements: none"),
        said(Speaker::User, "When does it leave?"),
    ];
    let reply = |prompt: &str| match () {
        () if prompt.ends_with("Label:") => Some("no"),
        () if prompt.ends_with("Verdicts:") => Some("1: yes"),
        () if prompt.ends_with("Statements:") => Some("1. It leaves at noon."),
        () => Some("Rating: [[8]]"),
    };
    let (models, judge) = asked(reply);
    let (scored, _) =
        score(r#"(judge: "llm", idk: (judge: "llm"))"#, &models, &[task], &[super::tests::said("At noon.")]);
    assert_eq!((scored[0].raw["rl_f"], scored[0].raw["rb_llm"], scored[0].idk), (1.0, 0.8, Some(Idk::No)));
    let prompts = judge.prompts();
    let whole = "User: Is there a ferry to Iona?\nAssistant: Yes.\n> Statements: none\nUser: When does it leave?";
    for (end, want) in [
        ("Label:", whole.replace("> ", "")),
        ("Statements:", whole.to_owned()),
        ("The ferry leaves at noon.", "The question:\nWhen does it leave?".to_owned()),
    ] {
        let prompt = prompts.iter().find(|prompt| prompt.trim_end().ends_with(end)).unwrap_or_else(|| panic!("{end}"));
        assert!(prompt.contains(&want), "{want:?} in {prompt}");
    }
}

/// Who has the published prompts uses them, with the replies that they ask for.
#[test]
fn prompts_may_be_files() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, text) in [
        ("rating.txt", "RATE {response} BY {reference}"),
        ("statements.txt", "SPLIT {response}"),
        ("verdicts.txt", "JUDGE {statements}"),
        ("idk.txt", "KNOWS {answer}"),
        ("clarification.txt", "ASKS {answer}"),
        ("wrong.txt", "RATE {answer}"),
    ] {
        std::fs::write(directory.path().join(name), text).expect(name);
    }
    let read = |prompts: &str| {
        let text = format!(
            r#"Metrics(
                models: {{"llm": OpenAi(url: "http://127.0.0.1:1/v1", model: "m")}},
                judge: "llm", idk: (judge: "llm"), clarification: (judge: "llm"), prompts: ({prompts}),
            )"#
        );
        let path = directory.path().join("metrics.ron");
        std::fs::write(&path, text).expect("a file");
        let catalog = Catalog { models: turnflow_operators::MODELS.to_vec(), ..Catalog::default() };
        super::config::read(&path, &catalog)
    };
    let reply = |prompt: &str| match prompt.split(' ').next() {
        Some("RATE") => Some("Score: 9/10"),
        Some("SPLIT") => Some(r#"{"statements": ["a", "b"]}"#),
        Some("JUDGE") => Some(r#"{"statements": [{"verdict": 1}, {"verdict": 0}]}"#),
        Some("KNOWS") => Some("no"),
        Some("ASKS") => Some(r#"{"decision": "yes"}"#),
        _ => None,
    };
    let files = ["rating", "statements", "verdicts", "idk", "clarification"];
    let planned = read(&files.map(|name| format!("{name}: \"{name}.txt\"")).join(", "));
    let (config, _) = planned.plan.unwrap_or_else(|| panic!("{:?}", planned.diagnostics));
    let scorer = Scorer::new(&config, &models(reply), &cache()).now_or_never().expect("ready").expect("a scorer");
    let (task, response) = (task("a", "UNDERSPECIFIED", "Which?"), said("At noon."));
    let scored = scorer.score(&task, &response, &[]).now_or_never().expect("ready");
    assert_eq!((scored.raw["rb_llm"], scored.raw["rl_f"]), (0.9, 0.5), "{:?}", scored.troubles);
    assert_eq!((scored.idk, scored.clarifies), (Some(Idk::No), Some(true)));

    for (prompts, want) in [("rating: \"wrong.txt\"", "bad-prompt"), ("idk: \"none.txt\"", "no-such-path")] {
        let codes: Vec<_> = read(prompts).diagnostics.iter().map(|diagnostic| diagnostic.code.to_string()).collect();
        assert_eq!(codes, [want], "{prompts}");
    }
}

/// A rescaled value without passages is 0, and so is what is made of it, as in the published scripts.
#[test]
fn nothing_is_faithful_to_no_passages() {
    use super::reference_based::rb_alg;
    assert_eq!(rb_alg(0.5, f64::NEG_INFINITY, 0.5, true), 0.0);
    let tasks = [task("a", "ANSWERABLE", "At noon.")];
    let response = Response { passages: Vec::new(), ..said("At noon.") };
    let (scored, _) = score("(passages: 5)", &Models::new(), &tasks, &[response]);
    assert_eq!((scored[0].raw["extractiveness"], scored[0].raw["token_recall"]), (0.0, 1.0));
}

/// The values are from TechSSN, table 5.
#[test]
fn the_harmonic_mean_is_of_three_figures() {
    let mut report = Report::new(&[], &[], Vec::new());
    assert_eq!(report.harmonic_mean(), None);
    let figures = [("rb_alg", 0.2444), ("rb_llm", 0.2759), ("rl_f", 0.6011)];
    report.all.clarified.extend(figures.map(|(name, value)| (name, Mean { value, n: 1 })));
    assert!(report.harmonic_mean().is_some_and(|mean| (mean - 0.3198).abs() < 5e-5), "{:?}", report.harmonic_mean());
    report.all.clarified.insert("rl_f", Mean { value: 0.0, n: 1 });
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

/// As the published scripts count them: as partial, and as no request.
#[test]
fn labels_that_cannot_be_read_count_as_the_scripts_count_them() {
    let tasks = [task("a", "UNANSWERABLE", "I do not know."), task("b", "UNDERSPECIFIED", "Which?")];
    let config = r#"(idk: (judge: "llm"), clarification: (judge: "llm"))"#;
    let responses = [said("At noon."), said("Which ferry?")];
    let (scored, report) = score(config, &models(|_| Some("Well.")), &tasks, &responses);
    assert_eq!((scored[0].idk, scored[0].metrics["rouge_l"]), (Some(Idk::Partial), 0.0));
    assert_eq!((scored[1].clarifies, scored[1].clarified["rouge_l"]), (Some(false), 0.0));
    assert_eq!((report.unjudged["idk"].unread, report.unjudged["clarification"].unread), (2, 1));
}

#[test]
fn a_judge_that_fails_leaves_the_task_out() {
    let tasks = [task("a", "UNANSWERABLE", "I do not know.")];
    let (scored, report) = score(r#"(idk: (judge: "llm"))"#, &models(|_| None), &tasks, &[said("At noon.")]);
    assert_eq!((scored[0].idk, scored[0].metrics.len()), (None, 0));
    assert_eq!((report.unjudged["idk"].failed, report.labelled), (1, 1));
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
