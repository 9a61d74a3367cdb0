//! Tests on a tiny model that copies its input (made by `pipelines/convert/tiny_seq2seq.py`), if ONNX Runtime has been
//! fetched.

use std::path::Path;

use futures::future::join_all;
use turnflow_engine::language::{ChatRole, Message, Part};

use super::*;

fn config(sampling: SamplingFields) -> OnnxSeq2SeqConfig {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests-data/seq2seq");
    let file = |name: &str| FilePath::from(directory.join(name).as_path());
    OnnxSeq2SeqConfig {
        encoder: file("encoder.onnx"),
        decoder: file("decoder.onnx"),
        tokenizer: file("tokenizer.json"),
        start: OnnxSeq2SeqConfig::default_start(),
        eos: OnnxSeq2SeqConfig::default_eos(),
        max_input: 12,
        min_tokens: 0,
        device: Device::Cpu,
        threads: Some(1),
        batch: 4,
        sampling,
    }
}

fn load(sampling: SamplingFields) -> Option<Model> {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/onnxruntime/libonnxruntime.so");
    if !runtime.exists() && std::env::var_os("ORT_DYLIB_PATH").is_none() {
        assert!(std::env::var_os("TURNFLOW_TESTS_MUST_RUN").is_none(), "{} is not there", runtime.display());
        println!("skipped: {} is not there; `turnflow models fetch` brings it", runtime.display());
        return None;
    }
    // The runtime is searched for next to models; these have none.
    let found = super::super::runtime::environment(&runtime);
    assert!(found.is_ok(), "{:?}", found.err());
    Some(turnflow_engine::component::load_alone(&config(sampling), "tiny").unwrap())
}

fn generate(model: &Model, texts: &[&str], fields: &SamplingFields) -> Vec<Generation> {
    let generator = model.generator.as_ref().unwrap();
    let sampling = fields.over(generator.sampling());
    let prompt = |text: &str| Prompt { messages: vec![Message::fixed(ChatRole::User, text)] };
    let calls = texts.iter().map(|text| generator.generate(prompt(text), sampling.clone()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(join_all(calls)).into_iter().map(Result::unwrap).collect()
}

fn texts(generations: &[Generation]) -> Vec<&str> {
    generations.iter().map(|generation| generation.text.as_str()).collect()
}

const SENTENCES: [&str; 3] = ["the cat sat on a mat", "a dog saw a red bird and a blue house", "bird"];

#[test]
fn what_is_read_is_written() {
    let Some(model) = load(SamplingFields::default()) else { return };
    for beams in [1, 3] {
        let fields = SamplingFields { beams: Some(beams), ..Default::default() };
        let together = generate(&model, &SENTENCES, &fields);
        assert_eq!(texts(&together), SENTENCES, "{beams} beams");
        assert!(together.iter().all(|generation| generation.finish == Finish::Stop));
        assert_eq!((together[2].prompt_tokens, together[2].tokens), (2, 1));
        for (sentence, generation) in SENTENCES.iter().zip(&together) {
            assert_eq!(&generate(&model, &[sentence], &fields)[0], generation, "alone and together");
        }
    }
    let usage = model.usage();
    assert!(usage.inputs >= 12 && usage.tokens > 0 && usage.busy_us > 0, "{usage:?}");
}

#[test]
fn the_rules_of_generation_are_kept() {
    let fields =
        SamplingFields { max_tokens: Some(60), beams: Some(3), no_repeat_ngram: Some(3), ..Default::default() };
    let Some(model) = load(fields) else { return };
    let repeated = "the cat sat the cat sat";
    let ruled = &generate(&model, &[repeated], &SamplingFields::default())[0];
    let words: Vec<&str> = ruled.text.split(' ').collect();
    let mut runs: Vec<&[&str]> = words.windows(3).collect();
    runs.sort_unstable();
    assert!(runs.windows(2).all(|two| two[0] != two[1]), "{ruled:?}");
    let free = SamplingFields { no_repeat_ngram: Some(0), ..Default::default() };
    assert_eq!(generate(&model, &[repeated], &free)[0].text, repeated);
    let short = SamplingFields { max_tokens: Some(2), beams: Some(1), ..Default::default() };
    let cut = &generate(&model, &["the dog sat"], &short)[0];
    assert_eq!((cut.text.as_str(), cut.finish, cut.tokens), ("the dog", Finish::Length, 2));
    let stop = SamplingFields { stop: Some(vec![" on".into()]), ..Default::default() };
    assert_eq!(generate(&model, &SENTENCES[..1], &stop)[0].text, "the cat sat");
    let sampled = SamplingFields { temperature: Some(4.0), beams: Some(1), seed: Some(1), ..Default::default() };
    let (one, two) = (generate(&model, &SENTENCES, &sampled), generate(&model, &SENTENCES, &sampled));
    assert_eq!(one, two);
    assert_ne!(texts(&one), SENTENCES);
}

#[test]
fn no_text_is_shorter_than_it_may_be() {
    if load(SamplingFields::default()).is_none() {
        return;
    }
    let sampling = SamplingFields { max_tokens: Some(9), ..Default::default() };
    let model =
        turnflow_engine::component::load_alone(&OnnxSeq2SeqConfig { min_tokens: 4, ..config(sampling) }, "tiny")
            .unwrap();
    let generation = &generate(&model, &["bird"], &SamplingFields::default())[0];
    assert!(generation.tokens >= 4 && generation.text.starts_with("bird"), "{generation:?}");
}

#[test]
fn prompts_are_cut_where_they_allow_it_and_wrong_files_are_told() {
    let Some(model) = load(SamplingFields::default()) else { return };
    let parts = vec![
        Part { text: "red blue ".repeat(20), may_be_cut: true },
        Part { text: "the cat".into(), may_be_cut: false },
    ];
    let prompt = Prompt { messages: vec![Message { role: ChatRole::User, parts }] };
    let generator = model.generator.as_ref().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let generation = runtime.block_on(generator.generate(prompt, generator.sampling().clone())).unwrap();
    assert!(generation.prompt_tokens <= 12 && generation.text.ends_with("cat"), "{generation:?}");
    let whole = config(SamplingFields::default());
    let swapped = OnnxSeq2SeqConfig { decoder: whole.encoder.clone(), ..whole.clone() };
    let error = turnflow_engine::component::load_alone(&swapped, "tiny").err().unwrap().to_string();
    assert!(error.contains("has no input `encoder_attention_mask`"), "{error}");
    let error = turnflow_engine::component::load_alone(&OnnxSeq2SeqConfig { start: "<s>".into(), ..whole }, "tiny")
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("no token \"<s>\""), "{error}");
}
