//! A query adapter: a linear map on the query vectors of a bi-encoder, learned from labelled questions.
//!
//! Passages keep their vectors, so an index needs no change. The file is in the safetensors format: the tensor `weight`
//! of shape `[dimension, dimension]`, f32, which maps a query vector `q` to `weight · q`; the result gets the length of
//! `q`. The entry `model` of the file's metadata is the fingerprint of the model that it was learned for. `turnflow tune`
//! writes such files.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use ndarray::{Array2, ArrayView1};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use turnflow_engine::component::{Check, Model};
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role, Vector};
use turnflow_engine::spec::FilePath;

/// Largest size of a file, in bytes: 8,192 dimensions.
const LARGEST: u64 = 300 << 20;
/// The tensor of the map.
const WEIGHT: &str = "weight";
/// The metadata entry with the model's fingerprint.
const MODEL: &str = "model";

/// A query adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The map, of shape `[dimension, dimension]`.
    pub weight: Array2<f32>,
    /// The file's metadata: the fingerprint of its `model`, and what it was learned from.
    pub about: HashMap<String, String>,
}

impl Adapter {
    /// Reads a file. Also returns the hash of its bytes.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has no such tensor.
    pub fn read(path: &Path) -> Result<(Self, blake3::Hash), InferenceError> {
        let unreadable = |reason: String| InferenceError::File { path: path.to_owned(), reason };
        let length = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
        if length > LARGEST {
            return Err(unreadable(format!("a query adapter has at most {} MiB", LARGEST >> 20)));
        }
        let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        let adapter = Self::parse(&bytes).map_err(|reason| unreadable(format!("not a query adapter: {reason}")))?;
        Ok((adapter, blake3::hash(&bytes)))
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
        let tensor = tensors.tensor(WEIGHT).map_err(|_| format!("it has no tensor `{WEIGHT}`"))?;
        let &[rows, columns] = tensor.shape() else { return Err(format!("`{WEIGHT}` is not a matrix")) };
        if tensor.dtype() != Dtype::F32 || rows != columns {
            return Err(format!("`{WEIGHT}` is not a square matrix of 32-bit floats"));
        }
        let (numbers, _) = tensor.data().as_chunks::<4>();
        let numbers: Vec<f32> = numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err(format!("`{WEIGHT}` has a value that is not a number"));
        }
        let weight = Array2::from_shape_vec((rows, columns), numbers).map_err(|error| error.to_string())?;
        Ok(Self { weight, about: header.metadata().clone().unwrap_or_default() })
    }

    /// The bytes of its file.
    ///
    /// # Errors
    ///
    /// The metadata is too long.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let data: Vec<u8> = self.weight.iter().flat_map(|number| number.to_le_bytes()).collect();
        let tensor = TensorView::new(Dtype::F32, self.weight.shape().to_vec(), &data);
        let tensor = tensor.map_err(|error| error.to_string())?;
        safetensors::serialize([(WEIGHT, tensor)], Some(self.about.clone())).map_err(|error| error.to_string())
    }

    /// The adapted form of a query vector.
    pub fn apply(&self, vector: &[f32]) -> Vector {
        let mut mapped = self.weight.dot(&ArrayView1::from(vector));
        let length = |numbers: &[f32]| numbers.iter().map(|number| number * number).sum::<f32>().sqrt();
        let scale = length(vector) / length(mapped.as_slice().unwrap_or_default()).max(f32::MIN_POSITIVE);
        mapped *= scale;
        mapped.to_vec().into()
    }
}

/// Checks the field `adapter` of a model.
pub(super) fn validate(check: &mut Check<'_>, adapter: Option<&FilePath>) {
    if let Some(file) = adapter {
        check.exists("adapter", file);
    }
}

/// The model with the adapter of its field `adapter`, if any.
pub(super) fn adapted(model: Model, file: Option<&FilePath>) -> Result<Model, InferenceError> {
    let (Some(file), Some(embedder)) = (file, &model.embedder) else { return Ok(model) };
    let (adapter, hash) = Adapter::read(&file.path)?;
    let unfit = |reason: String| InferenceError::File { path: file.path.clone(), reason };
    let (own, needed) = (adapter.weight.nrows(), embedder.dimension());
    if own != needed {
        return Err(unfit(format!("the adapter is for vectors of {own} values, but the model's have {needed}")));
    }
    if adapter.about.get(MODEL).is_none_or(|of| *of != model.fingerprint) {
        return Err(unfit(
            "the adapter was learned for another model, or for other settings of it: learn it again with `turnflow \
             tune`"
                .to_owned(),
        ));
    }
    let both = blake3::Hasher::new().update(model.fingerprint.as_bytes()).update(hash.as_bytes()).finalize();
    let embedder = Adapted { inner: embedder.clone(), adapter: Arc::new(adapter) };
    Ok(Model {
        passages: Some(model.fingerprint),
        fingerprint: both.to_hex().to_string(),
        embedder: Some(Arc::new(embedder)),
        ..model
    })
}

/// An embedder with adapted queries.
struct Adapted {
    inner: Arc<dyn Embedder>,
    adapter: Arc<Adapter>,
}

impl Embedder for Adapted {
    fn dimension(&self) -> usize {
        self.inner.dimension()
    }

    fn is_remote(&self) -> bool {
        self.inner.is_remote()
    }

    fn embed(
        &self,
        texts: Vec<String>,
        role: Role,
        priority: Priority,
    ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
        let vectors = self.inner.embed(texts, role, priority);
        if role == Role::Passage {
            return vectors;
        }
        let adapter = self.adapter.clone();
        async move { Ok(vectors.await?.iter().map(|vector| adapter.apply(vector)).collect()) }.boxed()
    }
}

/// An adapter for a model, with what it was learned from.
pub fn adapter(weight: Array2<f32>, model: &Model, about: impl IntoIterator<Item = (String, String)>) -> Adapter {
    let mut about: HashMap<String, String> = about.into_iter().collect();
    about.insert(MODEL.to_owned(), model.passages.as_ref().unwrap_or(&model.fingerprint).clone());
    Adapter { weight, about }
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    struct Fixed;

    impl Embedder for Fixed {
        fn dimension(&self) -> usize {
            2
        }
        fn embed(
            &self,
            texts: Vec<String>,
            _: Role,
            _: Priority,
        ) -> BoxFuture<'static, Result<Vec<Vector>, InferenceError>> {
            async move { Ok(texts.iter().map(|_| Vector::from([0.6, 0.8])).collect()) }.boxed()
        }
    }

    fn model(fingerprint: &str) -> Model {
        Model { fingerprint: fingerprint.to_owned(), embedder: Some(Arc::new(Fixed)), ..Model::default() }
    }

    fn file(directory: &Path, bytes: &[u8]) -> FilePath {
        let path = directory.join("adapter.safetensors");
        std::fs::write(&path, bytes).unwrap();
        FilePath { written: "adapter.safetensors".to_owned(), path }
    }

    #[test]
    fn queries_are_mapped_and_passages_stay() {
        let directory = tempfile::tempdir().unwrap();
        let weight = array![[0.0, 3.0], [3.0, 0.0]];
        let written = adapter(weight, &model("m"), [("questions".to_owned(), "7".to_owned())]);
        let file = file(directory.path(), &written.to_bytes().unwrap());
        let (read, _) = Adapter::read(&file.path).unwrap();
        assert_eq!((&read, &*read.about["questions"]), (&written, "7"));
        let adapted = adapted(model("m"), Some(&file)).unwrap();
        assert_eq!(adapted.passages.as_deref(), Some("m"));
        assert_ne!(adapted.fingerprint, "m");
        let embed = |role| {
            let future = adapted.embedder.as_ref().unwrap().embed(vec!["a".into()], role, Priority::Turn);
            futures::executor::block_on(future).unwrap()
        };
        assert_eq!(embed(Role::Passage), [Vector::from([0.6, 0.8])]);
        // The length stays 1.
        let query = &embed(Role::Query)[0];
        assert!((query[0] - 0.8).abs() < 1e-6 && (query[1] - 0.6).abs() < 1e-6, "{query:?}");
        // The adapter of an adapted model belongs to the model itself.
        assert_eq!(adapter(array![[1.0]], &adapted, []).about[MODEL], "m");
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let refused = |bytes: &[u8]| {
            let error = adapted(model("m"), Some(&file(directory.path(), bytes))).map(|_| ()).unwrap_err();
            error.to_string()
        };
        let of = |weight: Array2<f32>, fingerprint: &str| adapter(weight, &model(fingerprint), []).to_bytes().unwrap();
        assert!(refused(b"").contains("not a query adapter"));
        assert!(refused(&[255; 100]).contains("not a query adapter"));
        assert!(refused(&of(array![[1.0]], "m")).contains("vectors of 1 values, but the model's have 2"));
        assert!(refused(&of(Array2::eye(2), "other")).contains("learned for another model"));
        assert!(refused(&of(array![[1.0, f32::NAN], [0.0, 1.0]], "m")).contains("not a number"));
        assert!(refused(&of(array![[1.0, 2.0, 3.0]], "m")).contains("not a square matrix"));
        let whole = of(Array2::eye(2), "m");
        for length in 0..whole.len() {
            assert!(refused(&whole[..length]).contains("not a query adapter"), "{length}");
        }
    }
}
