//! Hostile inputs, as large as the limits admit: how much time and memory they take. Prints each measurement, for
//! BENCHMARKS.md: `cargo nextest run -p turnflow-operators -p turnflow-examples --lib --no-capture hostile::` (nextest
//! runs each test in its own process, whose peak memory the kernel reports). The assertions check sizes, and a time
//! limit that only quadratic behaviour exceeds.

use std::time::{Duration, Instant};

use turnflow_engine::component::{ChunkerConfig, Models, OperatorConfig};
use turnflow_engine::document::{Chunk, Document, Markup};
use turnflow_engine::inference::{InferenceError, Tokenize};
use turnflow_engine::record::{Query, Value};

use crate::test_generator::{answer, call, hits, operator};
use crate::test_turn::turn;

/// Peak memory of the process, in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn measured<T>(name: &str, bytes: usize, body: impl FnOnce() -> T) -> T {
    let (before, begun) = (peak(), Instant::now());
    let value = body();
    let took = begun.elapsed();
    let more = (peak() - before) >> 20;
    println!("hostile {name}: {bytes} bytes of input, {:.3} s, {more} MiB more at the peak", took.as_secs_f64());
    if std::env::var_os("TURNFLOW_HOSTILE_UNBOUNDED").is_none() {
        assert!(took < Duration::from_secs(60), "{name} took {took:?}");
        assert!(more < 512, "{name} took {more} MiB");
    }
    value
}

fn document(text: String, markup: Markup) -> Document {
    Document { id: "d".into(), title: "T".into(), text: text.into(), markup, metadata: Default::default() }
}

fn size(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|chunk| chunk.title.len() + chunk.text.len()).sum()
}

/// One megabyte of 145,000 distinct words.
fn words() -> String {
    (0..145_000).map(|n| format!("w{n:05x}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_long_heading_over_many_sections() {
    let sections: String = (0..16_000).map(|n| format!("## {n}\n\nt\n")).collect();
    let document = document(format!("# {}\n\n{sections}", "h".repeat(289_000 - sections.len())), Markup::Markdown);
    let chunker = crate::chunk::headings::HeadingsConfig { max_words: 200 }.build(None);
    let chunks = measured("Headings", document.text.len(), || chunker.chunk(&document));
    println!("{} chunks of {} bytes", chunks.len(), size(&chunks));
    drop(measured("Headings indexed", document.text.len(), || {
        chunks.iter().map(Chunk::indexed_text).collect::<Vec<_>>()
    }));
}

/// The Markdown parser used fifty times the size of such a file.
#[test]
fn a_file_of_marks_in_headings() {
    let chunker = crate::chunk::headings::HeadingsConfig { max_words: 200 }.build(None);
    for (name, part) in [("emphasis", "*a_ "), ("lines", "a\n")] {
        let document = document(part.repeat((20 << 20) / part.len()), Markup::Markdown);
        measured(&format!("Headings, {name}"), document.text.len(), || chunker.chunk(&document));
    }
}

#[test]
fn texts_without_blanks_in_tokens() {
    struct Letters;
    impl Tokenize for Letters {
        fn offsets(&self, text: &str) -> Result<Vec<(usize, usize)>, InferenceError> {
            Ok(text.char_indices().map(|(at, c)| (at, at + c.len_utf8())).collect())
        }
    }
    let config = crate::chunk::tokens::TokensConfig { size: 150, overlap: 50, model: None };
    let chunker = config.build(Some(std::sync::Arc::new(Letters)));
    for (name, text) in [("Chinese", "山中有川天空是蓝色的".repeat(10_000)), ("base64", "QUJDREVG".repeat(37_500))]
    {
        let document = document(text, Markup::Plain);
        let bytes = document.text.len();
        let chunks = measured(&format!("Tokens, {name}"), bytes, || chunker.chunk(&document));
        println!("{} chunks of {} bytes", chunks.len(), size(&chunks));
        drop(measured(&format!("Tokens, {name}, stored"), bytes, || {
            chunks.iter().map(Chunk::indexed_text).collect::<Vec<_>>()
        }));
    }
}

#[test]
fn a_full_stop_with_a_long_trail_in_sentences() {
    let document = document(format!("One.{}Two.", ")".repeat(300_000)), Markup::Plain);
    let chunker = crate::chunk::sentences::SentencesConfig { size: 5, overlap: 1 }.build(None);
    measured("Sentences", document.text.len(), || chunker.chunk(&document));
}

fn on_turn<C>(name: &str, config: &str, history: &[&str], text: &str, input: Value)
where
    C: OperatorConfig + serde::de::DeserializeOwned,
{
    let operator = operator::<C>(config, &Models::new());
    let bytes = history.iter().map(|line| line.len()).sum::<usize>() + text.len();
    let turn = turn(history, text);
    let (_, warnings) = measured(name, bytes, || call(&operator, turn, input));
    println!("warnings: {warnings:?}");
}

#[test]
fn a_message_of_many_words_in_rule_rewrite() {
    let config = r#"(input: "turns")"#;
    let long = format!("user: {}", words());
    on_turn::<crate::rule_rewrite::RuleRewriteConfig>(
        "RuleRewrite, words said before",
        config,
        &[&long],
        "And that?",
        Value::Turn,
    );
}

#[test]
fn a_message_of_many_names_in_rule_rewrite() {
    let names: Vec<String> = (0..60_000).map(|n| format!("Name{n:05} said")).collect();
    let long = format!("user: {}", names.join(" "));
    let asked = "it and he and they and ".repeat(8_000);
    let config = r#"(input: "turns")"#;
    on_turn::<crate::rule_rewrite::RuleRewriteConfig>(
        "RuleRewrite, names and references",
        config,
        &[&long],
        &asked,
        Value::Turn,
    );
}

#[test]
fn many_questions_in_decompose() {
    let asked = "what is a? ".repeat(5_000);
    on_turn::<crate::decompose::DecomposeConfig>(
        "Decompose",
        r#"(input: "query")"#,
        &[],
        &asked,
        Value::Query(Query::new(asked.as_str())),
    );
}

#[test]
fn many_sentences_in_extractive_answer() {
    let text: String = (0..40_000).map(|n| format!("The value of w{n} is {n}. ")).collect();
    let input = hits("the value of w7", &[&text]);
    on_turn::<crate::extractive_answer::ExtractiveAnswerConfig>(
        "ExtractiveAnswer",
        r#"(input: "hits")"#,
        &[],
        &text,
        input,
    );
}

#[test]
fn a_long_answer_in_self_check() {
    let (text, passage) = (words(), words());
    let said = &text[..200_000];
    on_turn::<crate::self_check::SelfCheckConfig>(
        "SelfCheck",
        r#"(input: "answer")"#,
        &[],
        &passage,
        answer("q", said, &[&passage]),
    );
}

#[test]
fn brackets_in_citations() {
    let text = "[".repeat(1_000_000);
    measured("citations", text.len(), || crate::citations::check(&text, 5));
}

/// Regression: each word was read up to the end of the run that follows it.
#[test]
fn a_message_of_one_long_name_in_rule_rewrite() {
    let long = format!("user: {}", "Boss ".repeat(200_000));
    on_turn::<crate::rule_rewrite::RuleRewriteConfig>(
        "RuleRewrite, a long name",
        r#"(input: "turns")"#,
        &[&long],
        "Who is he?",
        Value::Turn,
    );
}

/// Regression: an unclosed mark was searched for up to the end of the line.
#[test]
fn a_line_of_marks_in_clean() {
    let line = "  _x  __b__ ".repeat(40_000);
    on_turn::<crate::clean::CleanConfig>("Clean", r#"(input: "hits")"#, &[], "x", hits("x", &[&line]));
}

/// Regression: each removed passage was searched for among all passages of its document.
#[test]
fn a_document_of_many_passages_in_references() {
    use std::sync::Arc;
    use turnflow_engine::component::{Delta, IndexDefinition};
    let chunk = |n: usize| Arc::new(Chunk::new(format!("d#{n}").into(), "d".into(), "".into(), n.to_string().into()));
    let chunks: Vec<Arc<Chunk>> = (0..80_000).map(chunk).collect();
    measured("References", 80_000, || {
        futures::executor::block_on(async {
            let mut index = crate::references::Definition.open(None).await.unwrap();
            let added = Delta { added: chunks.clone(), removed: vec![], whole: true };
            index.apply(&added).await.unwrap();
            index.apply(&Delta { added: vec![], removed: chunks, whole: false }).await.unwrap();
        });
    });
}
