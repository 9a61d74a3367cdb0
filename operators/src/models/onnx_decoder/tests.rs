//! Tests the decoder on the real model, if `turnflow models fetch` has installed it.

use std::path::Path;

use futures::future::join_all;
use turnflow_engine::inference::{InferenceError, Priority};
use turnflow_engine::language::{ChatRole, Finish, Generation, Message, Part, Prompt, Sampling, SamplingFields};

use super::*;

/// The model; `None`, with a message, if it is not installed.
fn smollm2(context: usize, batch: usize) -> Option<Model> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let directory = models.join("smollm2");
    if !directory.join("model.onnx").exists() || !models.join("onnxruntime/libonnxruntime.so").exists() {
        assert!(std::env::var_os("TURNFLOW_TESTS_MUST_RUN").is_none(), "{} is not there", directory.display());
        println!("skipped: {} is not there; `turnflow models fetch` brings it", directory.display());
        return None;
    }
    let file = |name: &str| FilePath::from(directory.join(name).as_path());
    let config = OnnxDecoderConfig {
        path: file("model.onnx"),
        tokenizer: file("tokenizer.json"),
        template: Template::File(file("chat_template.jinja")),
        eos: None,
        bos: String::new(),
        device: Device::Cpu,
        threads: None,
        context,
        batch,
        sampling: SamplingFields { max_tokens: Some(24), ..Default::default() },
    };
    Some(turnflow_engine::component::load_alone(&config, "smollm2").unwrap())
}

fn block<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn ask(text: &str) -> Prompt {
    Prompt { messages: vec![Message::fixed(ChatRole::User, text)] }
}

const QUESTIONS: [&str; 5] = [
    "What is the capital of France?",
    "Rome is the capital of Italy. Madrid is the capital of Spain. Berlin is the capital of Germany, and Vienna of \
     Austria. What is the capital of Italy? Answer in one sentence.",
    "Write one sentence about the sea.",
    "What is 2 + 2?",
    "Say hello in three languages, and then tell me which of them is spoken in Spain, and why.",
];

fn generate(model: &Model, prompts: &[Prompt], fields: &SamplingFields) -> Vec<Generation> {
    let generator = model.generator.as_ref().unwrap();
    let sampling = fields.over(generator.sampling());
    let calls = prompts.iter().map(|prompt| generator.generate(prompt.clone(), sampling.clone()));
    block(join_all(calls)).into_iter().map(Result::unwrap).collect()
}

#[test]
fn texts_do_not_depend_on_what_else_is_decoded() {
    let Some(model) = smollm2(1024, 4) else { return };
    let prompts = QUESTIONS.map(ask);
    let greedy = SamplingFields::default();
    let sampled = SamplingFields { temperature: Some(0.8), top_p: Some(0.9), seed: Some(7), ..Default::default() };
    let beams = SamplingFields { beams: Some(3), no_repeat_ngram: Some(3), ..Default::default() };
    for fields in [&greedy, &sampled, &beams] {
        let alone: Vec<Generation> =
            prompts.iter().flat_map(|prompt| generate(&model, std::slice::from_ref(prompt), fields)).collect();
        let together = generate(&model, &prompts, fields);
        for (alone, together) in alone.iter().zip(&together) {
            println!("{:?}", together.text);
            assert_eq!(alone, together);
        }
    }
    let other = SamplingFields { seed: Some(8), ..sampled.clone() };
    assert_ne!(generate(&model, &prompts, &sampled), generate(&model, &prompts, &other));
    let usage = model.usage();
    assert!(usage.inputs >= 32 && usage.batches > 0 && usage.tokens > 500 && usage.busy_us > 0, "{usage:?}");
}

/// Even a small model can answer from a passage.
#[test]
fn an_answer_is_in_the_passage() {
    let Some(model) = smollm2(1024, 4) else { return };
    let [generation] = &generate(&model, &[ask(QUESTIONS[1])], &SamplingFields::default())[..] else { panic!() };
    assert!(generation.text.contains("Rome"), "{generation:?}");
    assert_eq!(generation.finish, Finish::Stop);
    assert!(generation.prompt_tokens > 40 && generation.tokens > 2);
}

#[test]
fn texts_end_at_stop_strings_and_at_the_limit() {
    let Some(model) = smollm2(1024, 4) else { return };
    let prompt = [ask("Count from one to twenty in digits.")];
    let eight = SamplingFields { max_tokens: Some(8), ..Default::default() };
    let whole = &generate(&model, &prompt, &eight)[0];
    assert_eq!((whole.finish, whole.tokens), (Finish::Length, 8));
    let stop = whole.text.chars().skip(5).take(3).collect::<String>();
    let fields = SamplingFields { stop: Some(vec!["never this".into(), stop.clone()]), ..eight };
    let cut = &generate(&model, &prompt, &fields)[0];
    assert_eq!(cut.finish, Finish::Stop);
    assert_eq!(cut.text, whole.text[..whole.text.find(&stop).unwrap()]);
    assert!(cut.tokens < 8);
}

#[test]
fn passages_are_cut_and_questions_are_not() {
    let Some(model) = smollm2(256, 4) else { return };
    let prompt = |may_be_cut| {
        let passage = "The river Rhine rises in the Alps. ".repeat(60);
        let parts = vec![
            Part { text: passage, may_be_cut },
            Part { text: "\nWhere does the Rhine rise?".into(), may_be_cut: false },
        ];
        Prompt { messages: vec![Message { role: ChatRole::User, parts }] }
    };
    let generation = &generate(&model, &[prompt(true)], &SamplingFields::default())[0];
    assert!(generation.prompt_tokens <= 256 - 24 && generation.prompt_tokens > 200, "{generation:?}");
    let generator = model.generator.as_ref().unwrap();
    let error = block(generator.generate(prompt(false), generator.sampling().clone())).unwrap_err();
    assert!(matches!(error, InferenceError::TooLong { limit: 232, .. }), "{error}");
}

#[test]
fn likely_texts_are_more_likely() {
    let Some(model) = smollm2(512, 4) else { return };
    let likelihood = model.likelihood.as_ref().unwrap();
    let ask = |contexts: &[&str], text: &str| {
        let contexts = contexts.iter().map(|context| (*context).to_owned()).collect();
        block(likelihood.log_likelihood(contexts, text.to_owned(), Priority::Turn)).unwrap()
    };
    let rhine = "The Rhine is a river that rises in the Swiss Alps and flows to the North Sea. Question:";
    let bread = "Bread is made of flour, water, salt and yeast, and baked in an oven until it is brown. Question:";
    let long = format!("{}{rhine}", "Fish swim in water. ".repeat(150));
    let query = " Where does the river Rhine rise?";
    let together = ask(&[bread, rhine, &long, "", rhine], query);
    println!("{together:?}");
    assert!(together[1] > together[0] + 0.3 && together[2] > together[0] && together[3] < together[1]);
    assert!(together.iter().all(|mean| *mean < 0.0 && *mean > -10.0));
    for (context, value) in [bread, rhine, &long].into_iter().zip(&together) {
        assert_eq!(ask(&[context], query)[0].to_bits(), value.to_bits());
    }
    assert_eq!(ask(&[rhine], ""), [0.0]);
}

#[test]
fn labels_have_probabilities() {
    let Some(model) = smollm2(512, 4) else { return };
    let generator = model.generator.as_ref().unwrap();
    let ask = |labels: &[&str]| {
        let message = Message::fixed(ChatRole::User, "Is water wet? Reply with one word.");
        let sampling = generator.sampling().clone().of_labels(labels);
        block(generator.generate(Prompt { messages: vec![message] }, sampling)).unwrap()
    };
    let said = ask(&["Yes", "Cathedrals of northern Spain", "No"]);
    println!("{said:?}");
    assert!((said.labels.iter().sum::<f32>() - 1.0).abs() < 1e-5 && said.labels.len() == 3);
    assert!(["Yes", "No"].contains(&&*said.text) && said.labels[1] < 1e-3, "labels of other lengths are comparable");
    let again = ask(&["No", "Yes"]);
    assert_eq!(again.text, said.text);
    assert!((again.expected([0.0, 1.0]).unwrap() - f64::from(again.labels[1])).abs() < 1e-9);
}

/// The same model behind OpenAI's protocol, served by llama.cpp's server if it is installed.
#[test]
fn a_server_of_llama_cpp_answers() {
    use std::process::{Command, Stdio};
    let python = |code: &str| Command::new("python3").args(["-c", code]).stderr(Stdio::null()).output();
    if !python("import llama_cpp.server").is_ok_and(|output| output.status.success()) {
        println!("skipped: python3 has no llama_cpp.server; `pip install llama-cpp-python[server]` brings it");
        return;
    }
    let Some(gguf) = std::env::var_os("TURNFLOW_GGUF") else {
        println!("skipped: $TURNFLOW_GGUF names no model for llama.cpp");
        return;
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = Command::new("python3")
        .args(["-m", "llama_cpp.server", "--host", "127.0.0.1", "--port", &port.to_string(), "--model"])
        .arg(gguf)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let config: super::super::open_ai::OpenAiConfig = serde_json::from_value(serde_json::json!({
        // Retries until the server listens.
        "url": format!("http://127.0.0.1:{port}/v1"), "model": "local", "retries": 60, "pause_s": 0.5, "context": 2048,
    }))
    .unwrap();
    let model = turnflow_engine::component::load_alone(&config, "server").unwrap();
    let generator = model.generator.as_ref().unwrap();
    let result = block(generator.generate(ask(QUESTIONS[1]), Sampling { max_tokens: 24, ..Sampling::default() }));
    let _ = server.kill();
    let _ = server.wait();
    let generation = result.unwrap();
    println!("{generation:?}");
    assert!(generation.text.contains("Rome"), "{generation:?}");
}

/// A schema as client libraries make them of classes: with definitions that are referred to.
fn form(schema: serde_json::Value) -> Sampling {
    let format = serde_json::json!({ "type": "json_schema", "json_schema": { "name": "reply", "schema": schema } });
    Sampling { format: Some(format), max_tokens: 120, ..Sampling::default() }
}

fn city() -> serde_json::Value {
    serde_json::json!({
        "$defs": { "Place": {
            "type": "object",
            "properties": { "name": { "type": "string", "maxLength": 12 }, "kind": { "enum": ["city", "river"] } },
            "required": ["name", "kind"], "additionalProperties": false,
        } },
        "type": "object",
        "properties": {
            "sure": { "type": "boolean" },
            "people": { "anyOf": [{ "type": "integer", "minimum": 0, "maximum": 99 }, { "type": "null" }] },
            "places": { "type": "array", "items": { "$ref": "#/$defs/Place" }, "minItems": 1, "maxItems": 2 },
        },
        "required": ["sure", "people", "places"], "additionalProperties": false,
    })
}

#[test]
fn a_reply_has_the_form_that_is_asked_for() {
    let Some(model) = smollm2(512, 4) else { return };
    let generator = model.generator.as_ref().unwrap();
    let plain = SamplingFields::default();
    let alone = generate(&model, &[ask(QUESTIONS[0])], &plain);
    let prompt = || ask("What is the capital of France?");
    for (temperature, seed) in [(0.0, 0), (1.5, 1), (1.5, 2)] {
        // Rules against repetition, beams and stop strings would break the form.
        let sampling = Sampling {
            temperature,
            seed,
            no_repeat_ngram: 1,
            beams: if temperature > 0.0 { 1 } else { 3 },
            stop: vec!["\"".into()],
            ..form(city())
        };
        let formed = generator.generate(prompt(), sampling);
        let other = generator.generate(ask(QUESTIONS[0]), plain.over(generator.sampling()));
        let (formed, other) = block(async { futures::join!(formed, other) });
        assert_eq!(other.unwrap().text, alone[0].text, "who asks for text gets what it got alone");
        let formed = formed.unwrap();
        let reply: serde_json::Value = serde_json::from_str(&formed.text).unwrap_or_else(|_| panic!("{}", formed.text));
        assert_eq!(formed.finish, Finish::Stop, "{reply}");
        let names: Vec<&String> = reply.as_object().unwrap().keys().collect();
        assert_eq!(names, ["sure", "people", "places"], "{reply}");
        assert!(
            reply["sure"].is_boolean() && (reply["people"].is_null() || reply["people"].as_u64() < Some(100)),
            "{reply}"
        );
        for place in reply["places"].as_array().unwrap() {
            assert!(["city", "river"].contains(&place["kind"].as_str().unwrap()), "{reply}");
            assert!(place["name"].as_str().unwrap().chars().count() <= 12, "{reply}");
        }
    }
    let cut = block(generator.generate(prompt(), Sampling { max_tokens: 5, ..form(city()) })).unwrap();
    assert_eq!((cut.finish, cut.tokens), (Finish::Length, 5));
}

/// A pattern of a size that no grammar has.
const LARGE: &str = "^((a|b|[a-z]{1,50}){1,50}){1,50}$";

#[test]
fn a_form_that_no_reply_can_be_held_to_is_an_error() {
    let Some(model) = smollm2(512, 4) else { return };
    let generator = model.generator.as_ref().unwrap();
    for (schema, reason) in [
        (serde_json::json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/none" } } }), "none"),
        (serde_json::json!({ "type": "string", "pattern": "(" }), "JSON schema"),
        (serde_json::json!({ "type": "text" }), "text"),
        (serde_json::json!({ "$ref": "#" }), "its form"),
        (serde_json::json!({ "type": "string", "pattern": LARGE }), "its form"),
        (serde_json::json!({ "type": "array", "uniqueItems": true }), "`uniqueItems`"),
        (serde_json::json!({ "oneOf": [{ "type": "string" }, { "minLength": 3 }] }), "`anyOf`"),
        (serde_json::json!({ "$ref": "https://example.org/a.json" }), "only references to parts"),
        (serde_json::json!({ "type": "integer", "minimum": 3, "maximum": 1 }), "JSON schema"),
    ] {
        let is_found_before = generator.check_form(form(schema.clone()).format.as_ref().unwrap()).is_err();
        // Whether a pattern is too large may turn out with a later token.
        assert!(is_found_before || schema["pattern"] == LARGE, "{schema}");
        let error = block(generator.generate(ask("Hello"), form(schema))).unwrap_err().to_string();
        assert!(error.contains(reason) && error.len() < 600, "{error}");
    }
}

/// A chain of references is followed on a stack that has room for it, or is refused: an overflow would end the process.
#[test]
fn references_overflow_no_stack() {
    let Some(model) = smollm2(512, 4) else { return };
    let generator = model.generator.as_ref().unwrap();
    let chain = |length: usize| {
        let link = |n: usize| {
            let next = serde_json::json!({ "$ref": format!("#/$defs/{}", n + 1) });
            (n.to_string(), serde_json::json!({ "type": "object", "properties": { "next": next } }))
        };
        let mut parts: serde_json::Map<_, _> = (0..length).map(link).collect();
        parts.insert(length.to_string(), serde_json::json!({ "type": "string" }));
        form(serde_json::json!({ "$defs": parts, "$ref": "#/$defs/0" })).format.unwrap()
    };
    generator.check_form(&chain(1000)).unwrap();
    assert!(generator.check_form(&chain(1500)).unwrap_err().to_string().contains("too many levels"));
    let long = form(serde_json::json!({ "type": "string", "pattern": "(".repeat(10_000) })).format.unwrap();
    assert!(generator.check_form(&long).unwrap_err().to_string().len() < 500);
}

#[test]
fn a_format_that_is_not_known_is_an_annotation() {
    let Some(model) = smollm2(512, 4) else { return };
    let generator = model.generator.as_ref().unwrap();
    let text = |format: &str| serde_json::json!({ "type": "string", "format": format, "maxLength": 9 });
    let fields =
        serde_json::json!({ "a": text("path"), "b": text("binary"), "format": { "const": { "format": "path" } } });
    let schema = serde_json::json!({
        "type": "object", "properties": fields, "required": ["a", "b", "format"], "additionalProperties": false,
    });
    let said = block(generator.generate(ask("Where is the cat?"), form(schema))).unwrap();
    let reply: serde_json::Value = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{said:?}"));
    assert!(reply["a"].is_string() && reply["format"]["format"] == "path", "{reply}");
    let many: serde_json::Map<_, _> = (0..30).map(|n| (n.to_string(), text(&format!("own-{n}")))).collect();
    let many = form(serde_json::json!({ "type": "object", "properties": many })).format.unwrap();
    assert!(generator.check_form(&many).unwrap_err().to_string().contains("too many formats"));
}

#[test]
fn any_object_is_a_form() {
    let Some(model) = smollm2(512, 4) else { return };
    let generator = model.generator.as_ref().unwrap();
    let format = serde_json::json!({ "type": "json_object" });
    generator.check_form(&format).unwrap();
    for seed in 0..3 {
        let sampling =
            Sampling { format: Some(format.clone()), temperature: 1.0, seed, max_tokens: 80, ..Sampling::default() };
        let said = block(generator.generate(ask("Describe a cat as a JSON object."), sampling)).unwrap();
        let is_whole = serde_json::from_str::<serde_json::Map<_, serde_json::Value>>(&said.text).is_ok();
        assert!(said.text.starts_with('{') && (is_whole || said.finish == Finish::Length), "{said:?}");
    }
}
