//! `Git`: a corpus of the files of a branch of a Git repository.
//!
//! ```ron
//! Git(url: "https://github.com/example/handbook.git", pattern: "docs/**/*.md")
//! ```
//!
//! Each file that a reader knows is a document; its id is its path in the repository. The branch is fetched again every
//! `every_s` seconds. When it has a new commit, only the files that differ between the two commits are read, and all of
//! them are published in one epoch: an epoch is always one commit. A branch that was rewritten or replaced is compared in
//! the same way.
//!
//! The program `git` does the work, so all that it can fetch from works: `https`, `ssh`, and local paths, with the
//! credentials that it is configured with. It never asks for a password. The objects of the last commit are kept in the
//! state directory, so a restart fetches only what is new. Symbolic links, submodules and the contents of Git LFS are not
//! read.
//!
//! ```
//! # use turnflow_connectors::git::GitConfig;
//! # let ron = r#"
//! (url: "https://git.example.org/team/docs.git", branch: Some("main"), token: Some(Env("GIT_TOKEN")), every_s: 30)
//! # "#;
//! # let config: GitConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.every_s, 30.0);
//! ```

mod mirror;
mod pages;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use globset::{GlobBuilder, GlobMatcher};
use turnflow_engine::component::{
    Building, Check, ComponentContext, ComponentError, CorpusSourceConfig, CorpusSourceKind, ModelUse, built, config,
};
use turnflow_engine::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode, PageViews, Stopped};

use self::mirror::{Entry, Mirror};
use crate::fetched::{Fetched, File};
use crate::ocr;
use crate::readers::ocr::OcrMode;
use crate::readers::{Format, ReadError, ReadOptions};
use crate::remote::{Retry, may_pass};
use crate::secret::Secret;

/// How a file of Git LFS begins: the repository has only this in the place of its content.
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Fields of `Git`.
#[config]
pub struct GitConfig {
    /// Where `git` fetches from: an `https://` or `ssh://` URL, `user@host:path`, or the absolute path of a repository.
    pub url: String,
    /// The branch or tag. Default: the branch that the repository names as its default.
    pub branch: Option<String>,
    /// A glob that selects files by their path. `*` does not match `/`, but `**` does.
    #[field(default = "**/*")]
    pub pattern: String,
    /// Seconds between two fetches.
    #[field(default = 60.0, range = 0.1..=1e9)]
    pub every_s: f64,
    /// Where a token for `https` is: `Env("NAME")` or `File("path")`. Default: what `git` is configured with.
    pub token: Option<Secret>,
    /// The user that the token belongs to.
    #[field(default = "git")]
    pub user: String,
    /// The address of a file for people, in which `{path}` stands for its path; hits and citations get it as `url`. Default:
    /// none.
    pub link: Option<String>,
    /// Maximum size of a file, in bytes. A larger file becomes a dead letter.
    #[field(default = 64 << 20)]
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

/// Entry in the connector table.
pub const KIND: CorpusSourceKind =
    CorpusSourceKind::of::<GitConfig>("Git", "the files of a branch of a Git repository");

impl CorpusSourceConfig for GitConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.url.is_empty() || self.url.starts_with('-') {
            check.error("wrong-value", "url", format!("`{}` is not a repository", self.url));
        }
        let (scheme, rest) = self.url.split_once("://").unwrap_or_default();
        let user = rest.split(['/', '?']).next().and_then(|host| host.rsplit_once('@')).map(|(user, _)| user);
        if user.is_some_and(|user| user.contains(':') || scheme.starts_with("http")) {
            let problem = "`url` contains a user or a password: use `user` and `token`, so that the file has no secret";
            check.error("wrong-value", "url", problem.to_owned());
        }
        if self.token.is_some() && scheme != "https" {
            check.error("wrong-value", "token", "a token is sent to an `https://` URL only".to_owned());
        }
        if let Some(branch) = &self.branch
            && (branch.is_empty()
                || branch.starts_with('-')
                || branch.contains(|c: char| c.is_whitespace() || ":^~?*[\\".contains(c)))
        {
            check.error("wrong-value", "branch", format!("`{branch}` is not the name of a branch"));
        }
        if let Err(error) = self.glob() {
            check.error("wrong-value", "pattern", error.to_string());
        }
    }

    fn explain(&self) -> String {
        let branch = self.branch.as_ref().map(|branch| format!(", branch: {branch:?}")).unwrap_or_default();
        let Self { pattern, every_s, max_bytes, .. } = self;
        let ocr = ocr::explain(self.ocr, self.ocr_min_confidence, &self.passwords);
        format!(
            "url: {:?}{branch}, pattern: {pattern:?}, every_s: {every_s}, max_bytes: {max_bytes}{ocr}",
            self.shown()
        )
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        ocr::models(self.ocr_model.as_deref())
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(self.source(context).map(|source| Box::new(source) as Box<dyn CorpusSource>))
    }
}

impl GitConfig {
    fn glob(&self) -> Result<GlobMatcher, globset::Error> {
        Ok(GlobBuilder::new(&self.pattern).literal_separator(true).build()?.compile_matcher())
    }

    /// The repository without what a log must not show.
    fn shown(&self) -> String {
        match self.url.split_once("://") {
            Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host)),
            None => self.url.clone(),
        }
    }

    /// Builds the source. It fetches nothing until it runs.
    ///
    /// # Errors
    ///
    /// The pattern is not a glob, or the state directory cannot be used.
    pub fn source(&self, context: &ComponentContext) -> Result<Git, ConnectorError> {
        let pattern = self.glob().map_err(ComponentError::new)?;
        let io = |source| ConnectorError::Io { action: "create the state directory of", path: self.shown(), source };
        let state = context.state_directory().map_err(io)?;
        Ok(Git { config: self.clone(), pattern, context: context.clone(), state, published: Arc::default() })
    }
}

/// Reads the files of a branch and follows its commits.
pub struct Git {
    config: GitConfig,
    pattern: GlobMatcher,
    context: ComponentContext,
    state: Option<PathBuf>,
    published: pages::Published,
}

impl Git {
    fn reading(&self) -> Result<ReadOptions, ConnectorError> {
        let how = (self.config.ocr, self.config.ocr_min_confidence);
        ocr::of(&self.context, self.config.ocr_model.as_deref(), how, &self.config.passwords)
    }
}

impl CorpusSource for Git {
    fn page_views(&self) -> Option<Arc<dyn PageViews>> {
        let (published, max_bytes) = (self.published.clone(), self.config.max_bytes);
        Some(Arc::new(pages::Pages { published, max_bytes, reading: self.reading().ok()? }))
    }

    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let mut retry = Retry::new(self.config.shown(), mode, &self.context);
        let fetched = Fetched::new(self.reading()?);
        let mut following = Following { source: &self, output: &output, fetched, commit: None, uncommitted: 0 };
        let mut mirror = None;
        let mut is_ready = false;
        loop {
            let done = (|| -> Result<(), ConnectorError> {
                let mirror = match &mut mirror {
                    Some(mirror) => mirror,
                    none => none.insert(Mirror::open(&self.config, self.state.as_deref())?),
                };
                following.follow(mirror, !is_ready)
            })();
            match done {
                Ok(()) => retry.worked(),
                Err(error) if may_pass(&error) => {
                    // The copy may be what is at fault.
                    mirror = mirror.filter(Mirror::is_sound);
                    retry.failed(&error, output.stop())?;
                    continue;
                }
                Err(error) => return Err(error),
            }
            if !is_ready {
                output.ready()?;
                is_ready = true;
            }
            if mode == Mode::Once {
                return Ok(());
            }
            if output.stop().wait(Duration::from_secs_f64(self.config.every_s)) {
                return Err(Stopped.into());
            }
        }
    }
}

/// A source that runs.
struct Following<'a> {
    source: &'a Git,
    output: &'a CorpusOutput,
    fetched: Fetched,
    /// The commit that was last published.
    commit: Option<String>,
    /// Changes that were sent since the last commit.
    uncommitted: usize,
}

impl Following<'_> {
    /// Fetches the branch, and publishes its commit if it is another one. `always` publishes in any case.
    fn follow(&mut self, mirror: &mut Mirror, always: bool) -> Result<(), ConnectorError> {
        let stop = self.output.stop();
        let commit = mirror.fetch(&self.source.config, stop)?;
        if self.commit.as_ref() == Some(&commit) && !always {
            return Ok(());
        }
        let changed = match &self.commit {
            // The copy may have been made again, without the old commit.
            Some(old) if mirror.has(old) => mirror.between(old, &commit, stop)?,
            _ => self.all(mirror, &commit)?,
        };
        for entry in &changed {
            self.uncommitted += self.take(mirror, entry)?;
        }
        let changes = std::mem::take(&mut self.uncommitted);
        tracing::info!(corpus = self.source.context.id(), commit, files = changed.len(), changes, "read a commit");
        if changes > 0 || always {
            self.output.commit()?;
        }
        *self.source.published.lock() = Some((mirror.directory().to_owned(), commit.clone()));
        if self.commit.replace(commit).is_some() {
            mirror.tidy(stop)?;
        }
        Ok(())
    }

    /// All files of a commit, and those that it no longer has.
    fn all(&self, mirror: &Mirror, commit: &str) -> Result<Vec<Entry>, ConnectorError> {
        let mut files = mirror.files(commit, self.output.stop())?;
        let there: HashSet<Vec<u8>> = files.iter().map(|entry| entry.path.clone()).collect();
        let gone = self.fetched.paths().filter(|path| !there.contains(path.as_bytes()));
        let gone: Vec<Entry> = gone.map(|path| Entry { path: path.as_bytes().to_vec(), blob: None }).collect();
        files.extend(gone);
        Ok(files)
    }

    /// Sends what is now at a path. Returns the number of changes.
    fn take(&mut self, mirror: &mut Mirror, entry: &Entry) -> Result<usize, ConnectorError> {
        let path = match std::str::from_utf8(&entry.path) {
            Ok(path) => path,
            Err(_) if entry.blob.is_none() => return Ok(0),
            Err(_) => {
                let path = String::from_utf8_lossy(&entry.path);
                self.output.dead_letter(&path, "its name is not UTF-8 and cannot be an id", b"");
                return Ok(0);
            }
        };
        let format = Format::of(Path::new(path)).filter(|_| self.source.pattern.is_match(path));
        let format = format.filter(|format| ocr::reads(self.source.config.ocr, *format));
        let (Some(format), Some(blob)) = (format, &entry.blob) else {
            return Ok(self.fetched.remove(path, self.output)?);
        };
        if self.fetched.has(path, blob) {
            return Ok(0);
        }
        let limit = self.source.config.max_bytes;
        let Some(bytes) = mirror.content(blob, limit)? else {
            return Ok(self.fetched.fault(path, blob, &ReadError::TooLarge { limit }, b"", self.output)?);
        };
        if bytes.starts_with(LFS) {
            let changes = self.fetched.remove(path, self.output)?;
            self.output.dead_letter(path, "its content is in Git LFS, which is not read", &bytes);
            return Ok(changes);
        }
        let link = self.source.config.link.as_ref();
        let mut facts = vec![("path", path.to_owned())];
        facts.extend(link.map(|link| ("url", link.replace("{path}", path))));
        Ok(self.fetched.put(&File { path, version: blob, format, facts: &facts }, &bytes, self.output)?)
    }
}
