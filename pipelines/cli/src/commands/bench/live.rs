//! A corpus that is changed while it is watched: a copy of a pipeline's corpus and state, in a
//! temporary directory that is deleted after the measurement.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use turnflow_connectors::directory::DirectoryConfig;
use turnflow_connectors::jsonl_corpus::JsonLinesConfig;
use turnflow_engine::spec::{Override, Sources, Tree, from_tree};

/// Candidates for the name of a directory's new file; its pattern must match the name.
const NAMES: [&str; 3] = ["benchmark.md", "benchmark.txt", "benchmark.html"];
/// The id of the passage that is added and deleted.
const ID: &str = "benchmark";

/// A temporary directory of this process; deleted when dropped.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new() -> io::Result<Self> {
        let path = std::env::temp_dir().join(format!("turnflow-bench-{}", std::process::id()));
        // This fails if the directory exists: then it belongs to another process.
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, path = %self.0.display(), "cannot remove the copies");
        }
    }
}

/// Copies files and directories; skips everything else.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if from.is_file() {
        return fs::copy(from, to).map(drop);
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.path().is_dir() || entry.path().is_file() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// The copy of a corpus.
pub(super) enum Live {
    /// A file of rows; `rows` is the original's content.
    Rows { file: PathBuf, staged: PathBuf, rows: String, config: Box<JsonLinesConfig> },
    /// A directory of files.
    Files { root: PathBuf, name: &'static str },
}

impl Live {
    /// Copies the files that this source reads.
    pub(super) fn new(source: &Tree, sources: &Sources, scratch: &Scratch) -> anyhow::Result<Self> {
        match source.name().map(|name| name.text.as_str()) {
            Some("JsonLines") => {
                let config: Box<JsonLinesConfig> = Box::new(from_tree(source, sources)?);
                let mut rows = fs::read_to_string(&config.path)?;
                if !rows.is_empty() && !rows.ends_with('\n') {
                    rows.push('\n');
                }
                fs::create_dir(scratch.path("corpus"))?;
                let file = scratch.path("corpus").join("corpus.jsonl");
                fs::write(&file, &rows)?;
                Ok(Self::Rows { file, staged: scratch.path("staged.jsonl"), rows, config })
            }
            Some("Directory") => {
                let config: DirectoryConfig = from_tree(source, sources)?;
                let name = NAMES.into_iter().find(|name| config.pattern.matches(Path::new(name)));
                let name = name.ok_or_else(|| anyhow::anyhow!("the corpus's pattern matches none of {NAMES:?}"))?;
                let root = scratch.path("corpus");
                copy(config.path.as_ref(), &root)?;
                Ok(Self::Files { root, name })
            }
            _ => anyhow::bail!("--freshness needs a JsonLines or a Directory corpus"),
        }
    }

    /// Points a pipeline's corpus at the copy.
    pub(super) fn overrides(&self, corpus: &str) -> [Override; 2] {
        let path = match self {
            Self::Rows { file, .. } => file,
            Self::Files { root, .. } => root,
        };
        let set = |field: &str, value: String| Override { path: format!("corpora.{corpus}.source.{field}"), value };
        [set("path", format!("{:?}", path.display().to_string())), set("watch", "true".into())]
    }

    /// Sentences to ask about.
    pub(super) fn texts(&self) -> io::Result<Vec<String>> {
        match self {
            Self::Rows { rows, config, .. } => {
                let rows = rows.lines().filter_map(|row| serde_json::from_str::<serde_json::Value>(row).ok());
                Ok(rows.filter_map(|row| Some(row.get(&config.text)?.as_str()?.to_owned())).collect())
            }
            Self::Files { root, .. } => {
                let mut texts = Vec::new();
                let mut open = vec![root.clone()];
                while let Some(directory) = open.pop() {
                    for entry in fs::read_dir(directory)? {
                        let path = entry?.path();
                        match path.is_dir() {
                            true => open.push(path),
                            // Skip files that are not text.
                            false => {
                                texts.extend(fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned))
                            }
                        }
                    }
                }
                texts.sort_unstable();
                Ok(texts)
            }
        }
    }

    /// Adds the passage; returns the time just before the write.
    pub(super) fn add(&self, text: &str) -> io::Result<Instant> {
        match self {
            Self::Rows { file, .. } => {
                let row = self.row(text);
                let begun = Instant::now();
                OpenOptions::new().append(true).open(file)?.write_all(row.as_bytes())?;
                Ok(begun)
            }
            Self::Files { .. } => self.edit(text),
        }
    }

    /// Changes the text of the passage; returns the time just before the write. A new file of rows is
    /// written beforehand, and the time is that of the renaming.
    pub(super) fn edit(&self, text: &str) -> io::Result<Instant> {
        match self {
            Self::Rows { .. } => self.replace(&self.row(text)),
            Self::Files { root, name } => {
                let begun = Instant::now();
                fs::write(root.join(name), format!("# Benchmark\n\n{text}\n"))?;
                Ok(begun)
            }
        }
    }

    /// Deletes the passage; returns the time just before the write.
    pub(super) fn delete(&self) -> io::Result<Instant> {
        match self {
            Self::Rows { .. } => self.replace(""),
            Self::Files { root, name } => {
                let begun = Instant::now();
                fs::remove_file(root.join(name))?;
                Ok(begun)
            }
        }
    }

    fn row(&self, text: &str) -> String {
        match self {
            Self::Rows { config, .. } => format!("{}\n", json!({ &config.id: ID, &config.text: text })),
            Self::Files { .. } => String::new(),
        }
    }

    fn replace(&self, last: &str) -> io::Result<Instant> {
        let Self::Rows { file, staged, rows, .. } = self else { return Ok(Instant::now()) };
        let mut new = File::create(staged)?;
        new.write_all(rows.as_bytes())?;
        new.write_all(last.as_bytes())?;
        drop(new);
        let begun = Instant::now();
        fs::rename(staged, file)?;
        Ok(begun)
    }
}
