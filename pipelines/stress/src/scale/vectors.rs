//! Vectors for any number of passages: those of the given passages by a real encoder, and mixtures of them for the
//! others. NumPy compares the same vectors in a process of its own.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::RwLock;
use turnflow::CATALOG;
use turnflow_engine::component::{
    BuildFuture, Capability, ComponentContext, Configured, Model, ModelConfig, ModelKind, load_alone, loaded_at_once,
};
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, SparseEmbedder, SparseVector, Vector};
use turnflow_engine::plan::plan;
use turnflow_engine::spec::load_str;

use super::growth::{Grown, Random};

/// Share of a new passage's vector that is random.
const NOISE: f32 = 0.3;
/// Texts in a call of the encoder.
const TEXTS: usize = 256;

/// The vectors of the given texts, of equal length.
pub(super) struct Given {
    pub dimension: usize,
    values: Vec<f32>,
}

impl Given {
    /// Reads the vectors from a file, or computes them with the encoder in `model` (`model.onnx`, `tokenizer.json`) and
    /// writes them there.
    pub fn open(file: &Path, model: Option<&Path>, passages: &[String], questions: &[String]) -> anyhow::Result<Self> {
        let count = passages.len() + questions.len();
        if !file.exists() {
            let model = model.context("--model is required: the encoder of the given passages")?.canonicalize()?;
            let mut values = embed(&model, passages, Role::Passage)?;
            values.extend(embed(&model, questions, Role::Query)?);
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            fs::write(file, bytes)?;
        }
        let bytes = fs::read(file)?;
        let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let dimension = values.len() / count.max(1);
        anyhow::ensure!(
            dimension > 0 && values.len() == dimension * count,
            "`{}` does not have the vectors of {count} texts",
            file.display()
        );
        Ok(Self { dimension, values })
    }

    pub fn of(&self, number: usize) -> &[f32] {
        &self.values[number * self.dimension..(number + 1) * self.dimension]
    }

    /// The vector of a passage: that of a given one, or the mean of its parents with noise.
    pub fn grown(&self, number: usize, passage: &Grown) -> Vector {
        if let [parent] = passage.parents[..]
            && parent as usize == number
        {
            return self.of(number).into();
        }
        let mut random = Random::new(number as u64);
        let noise = NOISE / (self.dimension as f32 / 3.0).sqrt();
        let share = 1.0 / passage.parents.len().max(1) as f32;
        let mut sum: Vec<f32> =
            (0..self.dimension).map(|_| noise * ((random.next() >> 40) as f32 / (1 << 23) as f32 - 1.0)).collect();
        for parent in &passage.parents {
            sum.iter_mut().zip(self.of(*parent as usize)).for_each(|(sum, value)| *sum += share * value);
        }
        let length = sum.iter().map(|value| value * value).sum::<f32>().sqrt();
        sum.into_iter().map(|value| value / length).collect()
    }
}

/// Loads the encoder in a directory, of this kind of model.
pub(super) fn load(model: &Path, kind: &str) -> anyhow::Result<Model> {
    let file = format!(
        r#"Pipeline(
    models: {{ "encoder": {kind}(path: {:?}, tokenizer: {:?}) }},
    nodes: {{ "turns": Stdin() }},
)"#,
        model.join("model.onnx"),
        model.join("tokenizer.json")
    );
    let planned = plan(load_str("encoder", Path::new("."), &file, &[]), &CATALOG);
    let models = planned.plan.map(|plan| plan.models).unwrap_or_default();
    let config =
        models.get("encoder").with_context(|| format!("cannot load the encoder: {:#?}", planned.diagnostics))?;
    Ok(load_alone(&*config.config, "encoder")?)
}

fn embed(model: &Path, texts: &[String], role: Role) -> anyhow::Result<Vec<f32>> {
    let embedder = load(model, "Onnx")?.embedder.context("the model cannot embed texts")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut values = Vec::new();
    for part in texts.chunks(TEXTS) {
        let vectors = runtime.block_on(embedder.embed(part.to_vec(), role, Priority::Corpus))?;
        values.extend(vectors.iter().flat_map(|vector| vector.iter().copied()));
    }
    Ok(values)
}

/// The vectors that the model `Known` knows, by the hash of the text.
static KNOWN: OnceLock<RwLock<HashMap<u64, Vector>>> = OnceLock::new();

fn known() -> &'static RwLock<HashMap<u64, Vector>> {
    KNOWN.get_or_init(RwLock::default)
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// The weighted terms that it knows.
static TERMS: OnceLock<RwLock<HashMap<u64, SparseVector>>> = OnceLock::new();

fn terms() -> &'static RwLock<HashMap<u64, SparseVector>> {
    TERMS.get_or_init(RwLock::default)
}

/// Makes the model `Known` know the weighted terms of these texts, and no others.
pub(super) fn know_terms<'a>(of_texts: impl Iterator<Item = (&'a str, SparseVector)>) {
    *terms().write() = of_texts.map(|(text, of_text)| (hash(text), of_text)).collect();
}

/// Makes the model `Known` know the vectors of these texts, and no others.
pub(super) fn know<'a>(vectors: impl Iterator<Item = (&'a str, Vector)>) {
    *known().write() = vectors.map(|(text, vector)| (hash(text), vector)).collect();
}

/// A model that looks vectors up.
#[derive(Debug)]
struct Known;

/// Entry in the table of models.
pub(super) const KIND: ModelKind = ModelKind {
    name: "Known",
    summary: "vectors and terms that were computed before",
    fields: Known::fields,
    parse: |_, _| Ok(Box::new(Known)),
};

impl Configured for Known {}

impl ModelConfig for Known {
    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::Embed, Capability::EmbedSparse]
    }
    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        loaded_at_once(|| {
            let name = context.id().to_owned();
            let known = Arc::new(Known);
            let (embedder, sparse) = (Some(known.clone() as Arc<dyn Embedder>), Some(known as Arc<dyn SparseEmbedder>));
            Ok(Model { name, fingerprint: "known".into(), embedder, sparse, ..Model::default() })
        })
    }
}

impl Embedder for Known {
    fn dimension(&self) -> usize {
        known().read().values().next().map_or(0, |vector| vector.len())
    }
    fn embed(
        &self,
        texts: Vec<String>,
        _: Role,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        let known = known().read();
        let vectors = texts.iter().map(|text| known.get(&hash(text)).cloned().unwrap_or_else(|| Vector::from([])));
        let vectors: Vec<Vector> = vectors.collect();
        async move { Ok(vectors) }.boxed()
    }
}

impl SparseEmbedder for Known {
    fn embed_sparse(
        &self,
        texts: Vec<String>,
        _: Role,
        _: Priority,
    ) -> BoxFuture<'static, Result<Vec<SparseVector>, InferenceError>> {
        let known = terms().read();
        let of_texts = texts.iter().map(|text| known.get(&hash(text)).cloned().unwrap_or_else(|| Arc::from([])));
        let of_texts: Vec<SparseVector> = of_texts.collect();
        async move { Ok(of_texts) }.boxed()
    }
}

/// NumPy in a process of its own.
pub(super) struct NumPy {
    child: Child,
    replies: BufReader<std::process::ChildStdout>,
}

/// Questions per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    pub one_by_one: f64,
    /// 64 queries in a matrix product, and with the selection of the best.
    pub tiled: f64,
    pub tiled_and_selected: f64,
}

impl NumPy {
    /// `vectors` and `queries` are files of 32-bit floats, row by row.
    pub fn start(python: &Path, vectors: &Path, queries: &Path, dimension: usize) -> anyhow::Result<Self> {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/compare/matrix.py");
        let mut child = Command::new(python)
            .arg(script)
            .args([vectors, queries])
            .arg(dimension.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start `{}`", python.display()))?;
        let replies = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, replies })
    }

    pub fn measure(&mut self, top: usize) -> anyhow::Result<Rates> {
        let input = self.child.stdin.as_mut().context("no input")?;
        writeln!(input, "{top}")?;
        input.flush()?;
        let mut reply = String::new();
        self.replies.read_line(&mut reply)?;
        let rates: Vec<f64> = reply.split_whitespace().filter_map(|rate| rate.parse().ok()).collect();
        let [one_by_one, tiled, tiled_and_selected] = rates[..] else {
            anyhow::bail!("NumPy has not answered: {reply}")
        };
        Ok(Rates { one_by_one, tiled, tiled_and_selected })
    }
}

impl Drop for NumPy {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
