//! `Directory`: a corpus of the readable files in a directory and its subdirectories.
//!
//! ```ron
//! Directory(path: "docs", pattern: "**/*.md", watch: true)
//! ```
//!
//! Reads these files:
//!
//! - `.md`, `.txt`, `.html` and `.htm`, `.pdf`
//! - `.docx` and `.docm`, `.pptx` and `.pptm`, `.xlsx` and `.xlsm`
//! - `.csv`, `.tsv`, `.epub`, `.eml`
//! - `.jsonl`
//! - `.png`, `.jpg` and `.jpeg`, `.tif` and `.tiff`, `.webp`, unless `ocr` is `Never`
//!
//! Each is one document, whose id is the path relative to the directory, with `/`. Only a `.jsonl` file has one document
//! for each row, whose id is the path, `#` and the row's `_id`. Skips names that start with a dot or with `~$`, and all
//! other extensions, which include those of editors' backups and temporary files.
//!
//! The metadata of a document is what the file says about itself, such as the front matter of Markdown or the author of
//! an office file, and these fields, unless the file itself has a field of the name:
//!
//! - `path`: the path relative to the directory, as in the id
//! - `mime`: the media type, such as `text/markdown`
//! - `modified`: when the file was modified, in UTC, such as `2026-11-25T21:56:49Z`
//!
//! Rows of a `.jsonl` file do not get these fields.
//!
//! With `watch`, the source follows every change of the tree. Events only indicate where to look: the source compares
//! the files with what it has sent, so it does not matter how a change was made (an edit, a write-and-rename, a moved
//! directory). A burst of events becomes one commit. A file that is touched but unchanged is sent again if `modified`
//! differs. A file that is being written is read when it is closed, or after a second. If the directory itself disappears, its documents are
//! deleted, and the source waits for the directory to return.
//!
//! A file that cannot be read becomes a dead letter with its relative path as position, and its former documents are
//! deleted. If the error may be temporary (too many open files, a drive that does not respond), they are kept, and the
//! file is read again.
//!
//! Links to files are followed if they lead to a file inside the directory, as the links of a ConfigMap do. Whoever can
//! put a link into the directory could otherwise show any file of the machine. A link that leads out of it becomes a dead
//! letter; with `links: Anywhere` it is followed. Links to directories are not followed. Pipes, devices and the files of
//! the operating system (`/proc`) are never read.
//!
//! Some changes are reported by no event: those of a link's target, of a file with several names, of other machines on a
//! shared file system (NFS, SMB, FUSE, 9p). The targets of links and files with several names are checked once a second,
//! and so are all files of a shared file system; all files of others every ten seconds.
//!
//! ```
//! # use turnflow_connectors::directory::DirectoryConfig;
//! # let ron = r#"
//! (path: "docs", pattern: "guides/**/*.md")
//! # "#;
//! # let config: DirectoryConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert!(config.watch);
//! ```

mod pages;
mod tree;
mod waiting;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;
use turnflow_engine::component::fields::{Kind, Setting};
use turnflow_engine::component::{
    Building, Check, ComponentContext, CorpusSourceConfig, CorpusSourceKind, ModelUse, built, config,
};
use turnflow_engine::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode, PageViews, Stopped};
use turnflow_engine::spec::FilePath;

use crate::jsonl_corpus::TORN;
use crate::ocr;
use crate::readers::ocr::OcrMode;
use crate::readers::{Format, ReadOptions};
use crate::secret::Secret;
use crate::watch::{TICK, Watch, identity};
pub(crate) use tree::{PASSING, may_pass};
use tree::{Polls, Tree};
use waiting::Waiting;

/// Number of times that a start retries what cannot be read, before it continues without it.
pub(crate) const PASSING_TRIES: u32 = 5;

/// Fields of `Directory`.
#[config]
pub struct DirectoryConfig {
    /// Path of the directory, relative to the pipeline file.
    pub path: FilePath,
    /// Glob that selects files by their path relative to the directory; `*` does not match `/`, `**` does. Default:
    /// `**/*`.
    #[field(default)]
    pub pattern: Pattern,
    /// Whether to follow changes of the directory.
    #[field(default = true)]
    pub watch: bool,
    /// Which links to files are followed: `Inside` (those that lead to a file in the directory) or `Anywhere`. Default:
    /// `Inside`.
    #[field(default)]
    pub links: Links,
    /// Maximum size of a file, and of a line of a `.jsonl` file, in bytes. A larger file or line becomes a dead letter.
    #[field(default = 64 << 20, range = 1..)]
    pub max_bytes: u64,
    /// When the text in pictures is read, by OCR: `Auto` (pictures, and pages of a PDF without text or with letters that are
    /// not known), `Never`, or `Always` (every page of a PDF, too). Default: `Auto`.
    #[field(default)]
    pub ocr: OcrMode,
    /// A page of which OCR is less sure, from 0 to 1, is left out, and a document with no other page becomes a dead letter.
    /// Default: 0.5.
    #[field(default = ocr::least(), range = 0.0..=1.0)]
    pub ocr_min_confidence: f64,
    /// The model of the kind `Ocr` that reads pictures. Default: the one that `turnflow models fetch ocr` brings, on the CPU.
    pub ocr_model: Option<String>,
    /// Passwords of encrypted PDF files, each tried in turn: `[Env("NAME")]` or `[File("PATH")]`.
    #[field(default)]
    pub passwords: Vec<Secret>,
}

/// Which links to files are followed.
#[config]
#[derive(Copy, Default, PartialEq, Eq)]
pub enum Links {
    /// Those that lead to a file in the directory.
    #[default]
    Inside,
    /// All. Whoever can put a link into the directory can then show any file that the process can read.
    Anywhere,
}

/// A valid glob.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern(GlobMatcher);

impl Pattern {
    /// Whether a relative path matches.
    pub fn matches(&self, path: &Path) -> bool {
        self.0.is_match(path)
    }
}

impl TryFrom<String> for Pattern {
    type Error = globset::Error;

    fn try_from(glob: String) -> Result<Self, Self::Error> {
        Ok(Self(GlobBuilder::new(&glob).literal_separator(true).build()?.compile_matcher()))
    }
}

impl Setting for Pattern {
    fn kind() -> Kind {
        Kind::plain("pattern")
    }

    fn shown(&self) -> Option<String> {
        Some(format!("{:?}", self.0.glob().glob()))
    }
}

impl Default for Pattern {
    fn default() -> Self {
        Self(globset::Glob::new("**/*").expect("a valid glob").compile_matcher())
    }
}

impl DirectoryConfig {
    /// Builds the source. It accesses no file until it runs.
    pub fn source(&self, base: &Path) -> Directory {
        Directory {
            root: base.join(&self.path.path),
            pattern: self.pattern.clone(),
            watch: self.watch,
            links: self.links,
            max_bytes: self.max_bytes,
            reading: ReadOptions::new(self.ocr, self.ocr_min_confidence),
            torn: TORN,
            passing: PASSING,
        }
    }
}

/// Entry in the connector table.
pub const KIND: CorpusSourceKind =
    CorpusSourceKind::of::<DirectoryConfig>("Directory", "the readable files of a directory, watched for changes");

impl CorpusSourceConfig for DirectoryConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check.exists("path", &self.path);
        if self.path.path.is_file() {
            check.error("no-such-path", "path", format!("`{}` is a file, not a directory", self.path.written));
        }
    }

    fn explain(&self) -> String {
        let Self { path, pattern, watch, links, max_bytes, .. } = self;
        let ocr = ocr::explain(self.ocr, self.ocr_min_confidence, &self.passwords);
        let links = if *links == Links::Inside { "" } else { ", links: Anywhere" };
        format!(
            "path: {:?}, pattern: {:?}, watch: {watch}{links}, max_bytes: {max_bytes}{ocr}",
            path.written,
            pattern.0.glob().glob()
        )
    }

    fn reads(&self, file: &Path) -> bool {
        let Ok(root) = self.path.path.canonicalize() else { return false };
        let inside = file.strip_prefix(root).ok();
        let is_read = |format| ocr::reads(self.ocr, format);
        inside.is_some_and(|inside| Format::of(inside).is_some_and(is_read) && self.pattern.matches(inside))
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        ocr::models(self.ocr_model.as_deref())
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        let how = (self.ocr, self.ocr_min_confidence);
        let reading = ocr::of(context, self.ocr_model.as_deref(), how, &self.passwords);
        built(
            reading
                .map(|reading| Box::new(Directory { reading, ..self.source(Path::new("")) }) as Box<dyn CorpusSource>),
        )
    }
}

/// Reads a directory and follows its changes.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    pattern: Pattern,
    watch: bool,
    links: Links,
    max_bytes: u64,
    reading: ReadOptions,
    /// How long to wait for the rest of an unfinished last line of a `.jsonl` file.
    torn: Duration,
    /// The pause before what could not be read is read again.
    passing: Duration,
}

impl CorpusSource for Directory {
    fn page_views(&self) -> Option<Arc<dyn PageViews>> {
        Some(Arc::new(pages::Pages::of(self)))
    }

    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let mut tree = Tree::new(&self, &output);
        if !self.watch || mode == Mode::Once {
            tree.at(self.canonical()?);
            tree.look(Path::new(""), true)?;
            self.try_again(&mut tree, &output)?;
            tree.read_whatever_fails()?;
            tree.publish()?;
            output.ready()?;
            return Ok(());
        }
        self.start(&mut tree)?;
        // Documents that cannot be read now may have been served before.
        self.try_again(&mut tree, &output)?;
        tree.tell_failing();
        tree.publish()?;
        output.ready()?;
        loop {
            self.follow(&mut tree, &output)?;
            // The directory was removed or replaced.
            loop {
                match self.start(&mut tree) {
                    Ok(()) => {
                        output.settled(&self.root.display().to_string());
                        break;
                    }
                    Err(ConnectorError::Stopped(stopped)) => return Err(stopped.into()),
                    Err(ConnectorError::Io { source, .. }) if may_pass(&source) => {}
                    // It exists, but cannot be watched at the moment.
                    Err(_) if self.canonical().is_ok() => {}
                    Err(error) => {
                        if tree.forget(Path::new(""))? > 0 {
                            let root = self.root.display().to_string();
                            output.dead_letter(&root, &format!("the directory is gone: {error}"), b"");
                        }
                    }
                }
                tree.commit()?;
                if output.stop().wait(TICK) {
                    return Err(Stopped.into());
                }
            }
            tree.commit()?;
        }
    }
}

impl Directory {
    fn canonical(&self) -> Result<PathBuf, ConnectorError> {
        // The operating system may report events under the real path.
        let root = self.root.canonicalize().and_then(|root| match fs::metadata(&root)?.is_dir() {
            true => Ok(root),
            false => Err(io::ErrorKind::NotADirectory.into()),
        });
        root.map_err(|source| ConnectorError::Io { action: "read", path: self.root.display().to_string(), source })
    }

    /// Reads again, after pauses, what could not be read because of an error that may pass.
    fn try_again(&self, tree: &mut Tree<'_>, output: &CorpusOutput) -> Result<(), ConnectorError> {
        for _ in 0..PASSING_TRIES {
            if !tree.is_failing() {
                break;
            }
            if output.stop().wait(self.passing) {
                return Err(Stopped.into());
            }
            for (path, _, last) in tree.take_again() {
                tree.look(&path, last)?;
            }
        }
        Ok(())
    }

    /// Starts watching, then reads everything.
    fn start(&self, tree: &mut Tree<'_>) -> Result<(), ConnectorError> {
        let root = self.canonical()?;
        let mut watch = Watch::new(&root)?;
        let identity = identity(&root);
        watch.add_root(&root)?;
        tree.watch_with(root, identity, watch);
        tree.look(Path::new(""), false)?;
        Ok(())
    }

    /// Follows changes until the path no longer leads to the watched directory.
    fn follow(&self, tree: &mut Tree<'_>, output: &CorpusOutput) -> Result<(), Stopped> {
        let mut waiting = Waiting::default();
        let mut tick = Instant::now() + TICK;
        let mut polls = Polls::of(tree);
        loop {
            waiting.again(tree);
            let Some(burst) = tree.burst(output.stop(), waiting.next(tick))? else { return Ok(()) };
            let root_touched = burst.touched.contains_key(tree.root());
            let ticked = Instant::now() >= tick;
            if ticked {
                tick = Instant::now() + TICK;
            }
            if burst.dead || ((root_touched || ticked) && !tree.root_stands()) {
                return Ok(());
            }
            let mut look = waiting.sort(burst, tree);
            if ticked {
                look.extend(tree.moved_links().into_iter().map(|path| (path, false)));
            }
            // Parents sort before their content, and checking a directory covers all of its content.
            let mut looked: Option<PathBuf> = None;
            for (path, last) in look {
                if looked.as_ref().is_some_and(|looked| path.starts_with(looked)) {
                    continue;
                }
                tree.look(&path, last)?;
                looked = Some(path);
            }
            polls.poll(tree)?;
            tree.commit()?;
        }
    }
}

#[cfg(test)]
mod tests;
