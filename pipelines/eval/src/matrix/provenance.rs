//! What a row's result depends on. A stored result with the same provenance is not computed again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use turnflow_engine::plan::Plan;
use turnflow_engine::spec::{Kind, Sources, Tree, load};

use super::config::Conditioning;

/// The provenance of a result. The hashes are BLAKE3, in hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The version of turnflow.
    pub version: String,
    /// Hash of the pipeline, with its settings and prompts.
    pub pipeline: String,
    /// The node whose hits are scored; empty if there is none.
    pub hits: String,
    /// Whether only the hits are computed.
    pub only_hits: bool,
    /// Hashes of the files that each model names; models without files are not listed.
    pub models: BTreeMap<String, String>,
    /// Hashes of the documents of each corpus.
    pub corpora: BTreeMap<String, String>,
    /// Hash of the tasks that run.
    pub tasks: String,
    /// Hash of their judgements.
    pub qrels: Option<String>,
    /// Hash of the file of metrics, of its models and of its prompts.
    pub metrics: Option<String>,
    /// How the metrics of answers are conditioned.
    #[serde(default)]
    pub conditioning: Conditioning,
}

impl Provenance {
    /// Adds the files that the models and the corpora of a plan name.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn add_files(&mut self, plan: &Plan, tree: &Tree, sources: &Sources, hashes: &mut Hashes) -> io::Result<()> {
        for name in plan.models.keys() {
            let model = tree.get("models").and_then(|models| models.get(name));
            self.models.extend(hashes.named(model, sources)?.map(|hash| (name.clone(), hash)));
        }
        for corpus in &plan.corpora {
            let source = tree.get("corpora").and_then(|corpora| corpora.get(&corpus.name)?.get("source"));
            self.corpora.extend(hashes.named(source, sources)?.map(|hash| (corpus.name.to_string(), hash)));
        }
        Ok(())
    }

    /// The hash of a file of metrics and of the files of its models and prompts.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn of_metrics(path: &Path, hashes: &mut Hashes) -> io::Result<String> {
        let loaded = load(path, &[]);
        let tree = loaded.tree.ok_or_else(|| io::Error::other("it is not a file of metrics"))?;
        let mut parts = vec![tree.canonical()];
        for part in ["models", "prompts", "idk"] {
            parts.extend(hashes.named(tree.get(part), &loaded.sources)?);
        }
        Ok(hash(parts.iter().map(String::as_bytes)))
    }
}

/// The hash of several texts.
fn hash<'t>(texts: impl IntoIterator<Item = &'t [u8]>) -> String {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text);
    }
    hasher.finalize().to_hex().to_string()
}

/// Hashes of files and directories; each is read once.
#[derive(Default)]
pub struct Hashes(BTreeMap<PathBuf, String>);

impl Hashes {
    /// The hash of a value as JSON.
    ///
    /// # Errors
    ///
    /// The value cannot be written as JSON.
    pub fn of_json<T: Serialize>(value: &T) -> serde_json::Result<String> {
        Ok(hash([serde_json::to_vec(value)?.as_slice()]))
    }

    /// The hash of all files and directories that a part of a pipeline file names; `None` if it names none.
    fn named(&mut self, tree: Option<&Tree>, sources: &Sources) -> io::Result<Option<String>> {
        let mut paths = BTreeSet::new();
        if let Some(tree) = tree {
            collect(tree, sources, &mut paths);
        }
        let hashes: Vec<String> = paths.into_iter().map(|path| self.of(&path)).collect::<io::Result<_>>()?;
        Ok((!hashes.is_empty()).then(|| hash(hashes.iter().map(String::as_bytes))))
    }

    /// The hash of a file, or of the files of a directory with their paths in it.
    fn of(&mut self, path: &Path) -> io::Result<String> {
        if let Some(known) = self.0.get(path) {
            return Ok(known.clone());
        }
        let found = if path.is_dir() {
            let mut files = Vec::new();
            list(path, Path::new(""), &mut files)?;
            files.sort();
            let mut parts = Vec::new();
            for file in files {
                parts.push(file.to_string_lossy().into_owned());
                parts.push(of_file(&path.join(&file))?);
            }
            hash(parts.iter().map(String::as_bytes))
        } else {
            of_file(path)?
        };
        self.0.insert(path.to_owned(), found.clone());
        Ok(found)
    }
}

fn of_file(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut fs::File::open(path)?, &mut hasher)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot read `{}`: {error}", path.display())))?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Maximum depth of directories, which links may make endless.
const DEPTH: usize = 32;

/// The files of a directory, relative to `root`.
fn list(root: &Path, below: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if below.components().count() > DEPTH {
        return Ok(());
    }
    for entry in fs::read_dir(root.join(below))? {
        let name = below.join(entry?.file_name());
        let path = root.join(&name);
        if path.is_dir() {
            list(root, &name, files)?;
        } else if path.is_file() {
            files.push(name);
        }
    }
    Ok(())
}

/// The existing files and directories among the texts of a tree.
fn collect(tree: &Tree, sources: &Sources, paths: &mut BTreeSet<PathBuf>) {
    match &tree.kind {
        Kind::Map(entries) | Kind::Struct(_, entries) => {
            entries.iter().for_each(|entry| collect(&entry.value, sources, paths));
        }
        Kind::Seq(items) | Kind::Tuple(_, items) => items.iter().for_each(|item| collect(item, sources, paths)),
        Kind::Scalar(ron::Value::String(text)) if !text.trim().is_empty() => {
            let path = sources.get(tree.span.source).base.join(text);
            if path.is_file() || path.is_dir() {
                paths.insert(path);
            }
        }
        Kind::Scalar(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_the_hash_of_its_files() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let hash = || Hashes::default().of(directory.path()).unwrap();
        write("a.md", "one");
        let first = hash();
        assert_eq!(first, hash());
        write("b/c.md", "two");
        let second = hash();
        write("b/c.md", "three");
        let third = hash();
        fs::rename(directory.path().join("b/c.md"), directory.path().join("b/d.md")).unwrap();
        let mut all = vec![first, second, third, hash()];
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn only_existing_files_count() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("model.onnx"), "weights").unwrap();
        let text = "(path: \"model.onnx\", url: \"http://localhost\", list: [\"gone\", \"model.onnx\"])";
        let loaded = turnflow_engine::spec::load_str("m.ron", directory.path(), text, &[]);
        let mut hashes = Hashes::default();
        assert!(hashes.named(loaded.tree.as_ref(), &loaded.sources).unwrap().is_some());
        assert_eq!(hashes.0.len(), 1);
        assert_eq!(hashes.named(None, &loaded.sources).unwrap(), None);
    }
}
