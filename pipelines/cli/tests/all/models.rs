//! Real models, against what Python's onnxruntime and tokenizers make of the same files.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use turnflow_engine::component::Model;
use turnflow_engine::inference::{Priority, Role};

use crate::support::{model, plan_of};

#[derive(Deserialize)]
struct Golden {
    texts: Vec<String>,
    models: BTreeMap<String, Dense>,
    splade: Vec<BTreeMap<u32, f32>>,
}

#[derive(Deserialize)]
struct Dense {
    max_tokens: usize,
    prefix: String,
    vectors: Vec<Vec<f32>>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../data/embedding/golden.json")).unwrap()
}

/// Loads a model as a pipeline file has it.
fn load(path: &Path, kind: &str, fields: &str) -> Model {
    let text = format!(
        r#"Pipeline(
    models: {{ "m": {kind}(path: {:?}, tokenizer: {:?}{fields}) }},
    nodes: {{ "turns": Stdin(), "query": LastTurn(input: "turns") }},
)"#,
        path.join("model.onnx"),
        path.join("tokenizer.json")
    );
    turnflow_engine::component::load_alone(&*plan_of(path, &text).models["m"].config, "m").unwrap()
}

#[tokio::test]
async fn embeddings_equal_the_python_reference() {
    let golden = golden();
    for (name, expected) in &golden.models {
        let Some(path) = model(name) else { continue };
        let fields = format!(", max_tokens: {}, passage_prefix: {:?}", expected.max_tokens, expected.prefix);
        let embedder = load(&path, "Onnx", &fields).embedder.unwrap();
        let vectors = embedder.embed(golden.texts.clone(), Role::Passage, Priority::Turn).await.unwrap();
        for ((text, vector), expected) in golden.texts.iter().zip(&vectors).zip(&expected.vectors) {
            let cosine: f32 = vector.iter().zip(expected).map(|(a, b)| a * b).sum();
            let apart = vector.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0_f32, f32::max);
            if name == "minilm" {
                assert!(apart < 1e-5, "{name}, {text:?}: {apart} apart");
            } else {
                // Without instructions for sums of 8-bit products (VNNI), ONNX Runtime's sums saturate at 16 bits.
                let least = if has_vnni() { 0.9999 } else { 0.98 };
                assert!(cosine > least, "{name}, {text:?}: cosine {cosine}");
            }
        }
    }
}

/// Whether 8-bit models compute on this processor as they did for the reference.
fn has_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512vnni") || std::arch::is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[tokio::test]
async fn sparse_terms_equal_the_python_reference() {
    let golden = golden();
    let Some(path) = model("splade") else { return };
    let encoder = load(&path, "OnnxSparse", "").sparse.unwrap();
    let vectors = encoder.embed_sparse(golden.texts.clone(), Role::Passage, Priority::Turn).await.unwrap();
    for (vector, expected) in vectors.iter().zip(&golden.splade) {
        let got: BTreeMap<u32, f32> = vector.iter().copied().collect();
        for (term, weight) in expected {
            assert!((got.get(term).copied().unwrap_or(0.0) - weight).abs() < 1e-3, "term {term}");
        }
    }
}

/// Token vectors are of length 1, one for each token but the special ones of passages.
#[tokio::test]
async fn token_vectors_leave_special_tokens_out_of_passages() {
    let Some(path) = model("minilm-int8") else { return };
    let loaded = load(&path, "Onnx", "");
    let encoder = loaded.token_embedder.unwrap();
    let texts = vec!["records are kept".to_owned()];
    let passage = encoder.embed_tokens(texts.clone(), Role::Passage, Priority::Turn).await.unwrap();
    let query = encoder.embed_tokens(texts.clone(), Role::Query, Priority::Turn).await.unwrap();
    let tokens = loaded.tokenizer.unwrap().offsets(&texts[0]).unwrap().len();
    assert_eq!((passage[0].rows().len(), query[0].rows().len()), (tokens, tokens + 2));
    for row in passage[0].rows() {
        assert!((row.iter().map(|value| value * value).sum::<f32>() - 1.0).abs() < 1e-5);
    }
}
