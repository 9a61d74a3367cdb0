//! Boosted trees in ONNX, which score rows of features.
//!
//! ```ron
//! OnnxTrees(path: "models/trees/trees.onnx")
//! ```
//!
//! The input has the shape `[rows, features]`, the output `[rows, 1]` or `[rows]`, both in 32-bit floats. The file's
//! metadata entry `columns` names the features as a JSON list. `pipelines/convert/trees.py` learns trees with LightGBM
//! and writes such a file, with ONNX Runtime's operator `TreeEnsembleRegressor`. The same rows give the same scores to
//! the bit: they are summed on one thread, in the trees' order.

use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ort::session::Session;
use ort::value::Tensor;
use turnflow_engine::component::{
    BuildFuture, Capability, Check, ComponentContext, Model, ModelConfig, ModelKind, config,
};
use turnflow_engine::inference::{Backend, InferenceError, Limits, Priority, RowScorer, Service};
use turnflow_engine::spec::FilePath;

use super::load_model;
use super::runtime::{Device, Settings, hash_file, session};

/// Entry in the model table.
pub const KIND: ModelKind =
    ModelKind::of::<OnnxTreesConfig>("OnnxTrees", "boosted trees in ONNX, which score rows of features");

/// The metadata entry that names the features.
const COLUMNS: &str = "columns";

/// Fields of `OnnxTrees`.
#[config]
pub struct OnnxTreesConfig {
    /// ONNX model file, whose metadata names the features.
    pub path: FilePath,
}

impl ModelConfig for OnnxTreesConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.exists("path", &self.path);
    }

    fn capabilities(&self) -> &'static [Capability] {
        &[Capability::ScoreRows]
    }

    fn load<'a>(&'a self, context: &'a ComponentContext) -> BuildFuture<'a, Model> {
        load_model(context, |name| self.open(name))
    }
}

impl OnnxTreesConfig {
    fn open(&self, name: &str) -> Result<Model, InferenceError> {
        let mut hasher = blake3::Hasher::new();
        hash_file(&mut hasher, &self.path.path)?;
        let path = self.path.path.clone();
        let load = move || {
            let session = session(&path, Device::Cpu, Some(1), Settings::Service)?;
            let columns = columns(&session, &path)?;
            let mut trees = Trees { session, columns: columns.len() };
            // Finds a wrong number of features before the first turn.
            trees.run(&[&vec![0.0; columns.len()]])?;
            Ok((trees, columns))
        };
        let (service, columns) = Service::start(name, Limits::default(), load)?;
        let shared = Arc::new(Shared { service: Arc::new(service), columns });
        let counted = shared.service.clone();
        Ok(Model {
            name: name.to_owned(),
            fingerprint: hasher.finalize().to_hex().to_string(),
            rows: Some(shared),
            meter: Some(Arc::new(move || counted.usage())),
            ..Model::default()
        })
    }
}

/// The names of the features.
fn columns(session: &Session, path: &Path) -> Result<Vec<String>, InferenceError> {
    let wrong = |what: &str| InferenceError::Shape(format!("`{}` {what}", path.display()));
    let metadata = session.metadata().map_err(|error| InferenceError::Failed(error.to_string()))?;
    let names = metadata.custom(COLUMNS).ok_or_else(|| {
        wrong("does not name its features: it has no metadata entry `columns`; `pipelines/convert/trees.py` writes one")
    })?;
    let names: Vec<String> = serde_json::from_str(&names)
        .map_err(|_| wrong("has a metadata entry `columns` that is no JSON list of names"))?;
    if names.is_empty() { Err(wrong("has no features")) } else { Ok(names) }
}

struct Trees {
    session: Session,
    columns: usize,
}

impl Trees {
    fn infer(&mut self, rows: &[f32]) -> ort::Result<Vec<f32>> {
        let shape = [rows.len() / self.columns, self.columns];
        let outputs = self.session.run(ort::inputs![Tensor::from_array((shape, rows.to_vec()))?])?;
        Ok(outputs[0].try_extract_tensor::<f32>()?.1.to_vec())
    }
}

impl Backend for Trees {
    type Input = Vec<f32>;
    type Output = Vec<f32>;

    fn cost(rows: &Vec<f32>) -> usize {
        rows.len()
    }

    fn run(&mut self, batch: &[&Vec<f32>]) -> Result<Vec<Vec<f32>>, InferenceError> {
        let one = |rows: &&Vec<f32>| {
            if rows.is_empty() {
                return Ok(Vec::new());
            }
            let scores = self.infer(rows).map_err(|error| InferenceError::Failed(error.to_string()))?;
            let wanted = rows.len() / self.columns;
            if scores.len() == wanted {
                Ok(scores)
            } else {
                Err(InferenceError::Shape(format!("returned {} scores for {wanted} rows", scores.len())))
            }
        };
        batch.iter().map(one).collect()
    }
}

struct Shared {
    service: Arc<Service<Trees>>,
    columns: Vec<String>,
}

impl RowScorer for Shared {
    fn columns(&self) -> &[String] {
        &self.columns
    }

    fn score(&self, rows: Vec<f32>, priority: Priority) -> BoxFuture<'static, Result<Vec<f32>, InferenceError>> {
        let service = self.service.clone();
        async move { Ok(service.call(vec![rows], priority).await?.pop().unwrap_or_default()) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use turnflow_engine::component::load_alone;

    use super::*;

    /// The trees of `pipelines/convert/tiny_trees.py`, if ONNX Runtime has been fetched.
    #[test]
    fn rows_with_missing_values_are_scored() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let runtime = here.join("../models/onnxruntime/libonnxruntime.so");
        if !runtime.exists() && std::env::var_os("ORT_DYLIB_PATH").is_none() {
            assert!(std::env::var_os("TURNFLOW_TESTS_MUST_RUN").is_none(), "{} is not there", runtime.display());
            println!("skipped: {} is not there; `turnflow models fetch` brings it", runtime.display());
            return;
        }
        assert!(super::super::runtime::environment(&runtime).is_ok());
        let path = FilePath::from(here.join("tests-data/trees/trees.onnx").as_path());
        let model = load_alone(&OnnxTreesConfig { path }, "tiny").unwrap();
        let trees = model.rows.unwrap();
        assert_eq!(trees.columns(), ["two.rank", "one.score"]);
        // The first tree gives 2 for ranks up to 1.5 and -1 otherwise; the second 0.5 for scores above 0.25.
        let rows = vec![1.0, 0.5, 2.0, 0.5, f32::NAN, 0.25, 1.5, f32::NAN];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert_eq!(runtime.block_on(trees.score(rows, Priority::Turn)).unwrap(), [2.5, -0.5, -1.0, 2.0]);
        assert_eq!(runtime.block_on(trees.score(Vec::new(), Priority::Turn)).unwrap(), [0.0_f32; 0]);
    }
}
