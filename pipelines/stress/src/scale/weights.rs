//! Weighted terms for any number of passages: those of the given passages by a real encoder, and mixtures of them for the
//! others.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use turnflow_engine::inference::{Priority, Role, SparseVector};

use super::growth::Grown;
use super::vectors::load;

/// Texts in a call of the encoder.
const TEXTS: usize = 64;

/// The terms of the given texts.
pub(super) struct Weights(Vec<SparseVector>);

impl Weights {
    /// Reads the terms from a file, or computes them with the encoder in `model` (`model.onnx`, `tokenizer.json`) and
    /// writes them there.
    pub fn open(file: &Path, model: Option<&Path>, passages: &[String], questions: &[String]) -> anyhow::Result<Self> {
        if !file.exists() {
            let model = model.context("--model is required: the encoder of the given passages")?.canonicalize()?;
            let mut all = embed(&model, passages, Role::Passage)?;
            all.extend(embed(&model, questions, Role::Query)?);
            fs::write(file, bincode::serialize(&all)?)?;
        }
        let all: Vec<SparseVector> = bincode::deserialize(&fs::read(file)?)
            .with_context(|| format!("`{}` does not have weighted terms", file.display()))?;
        let count = passages.len() + questions.len();
        anyhow::ensure!(all.len() == count, "`{}` does not have the terms of {count} texts", file.display());
        Ok(Self(all))
    }

    pub fn of(&self, number: usize) -> &SparseVector {
        &self.0[number]
    }

    /// The terms of a passage: those of a given one, or the strongest of the mean of its parents, as many as they have.
    pub fn grown(&self, number: usize, passage: &Grown) -> SparseVector {
        if let [parent] = passage.parents[..]
            && parent as usize == number
        {
            return self.of(number).clone();
        }
        let parents: Vec<&SparseVector> = passage.parents.iter().map(|parent| self.of(*parent as usize)).collect();
        let mut sums: BTreeMap<u32, f32> = BTreeMap::new();
        for (term, weight) in parents.iter().flat_map(|parent| parent.iter()) {
            *sums.entry(*term).or_default() += weight / parents.len() as f32;
        }
        let mut terms: Vec<(u32, f32)> = sums.into_iter().collect();
        let count = parents.iter().map(|parent| parent.len()).sum::<usize>() / parents.len().max(1);
        terms.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        terms.truncate(count);
        terms.sort_by_key(|(term, _)| *term);
        terms.into()
    }
}

fn embed(model: &Path, texts: &[String], role: Role) -> anyhow::Result<Vec<SparseVector>> {
    let embedder = load(model, "OnnxSparse")?.sparse.context("the model does not weight terms")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut all = Vec::new();
    for part in texts.chunks(TEXTS) {
        all.extend(runtime.block_on(embedder.embed_sparse(part.to_vec(), role, Priority::Corpus))?);
    }
    Ok(all)
}
