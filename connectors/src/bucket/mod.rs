//! `Bucket`: a corpus of the objects in an object store: S3 and what speaks its protocol, Google Cloud Storage, Azure Blob
//! Storage.
//!
//! ```ron
//! Bucket(url: "s3://handbook/docs", options: {"region": "eu-central-1"})
//! ```
//!
//! Each object that a reader knows is a document; its id is its key below the prefix in `url`. Every `every_s` seconds, the
//! objects are listed. An object whose `ETag` has changed is read again, a new one is read, and one that is gone is deleted;
//! a round is published in one epoch. A round without changes costs the listing, one request for each 1000 objects. What was
//! read is kept in the state directory, so a restart reads only what has changed meanwhile.
//!
//! Credentials come from the environment as the store's own tools read it (`AWS_ACCESS_KEY_ID` and others, the roles of
//! machines and containers), or from `secrets`. They are read again for each round, so those that expire can be replaced.
//! An object that cannot be read stays as it is, with a warning, and is tried again in the next round. A store that has a
//! key with an empty part (`a//b`), a part `.` or `..`, or a control character cannot be listed: choose a prefix without
//! such keys.
//!
//! ```
//! # use turnflow_connectors::bucket::BucketConfig;
//! # let ron = r#"
//! (
//!     url: "s3://handbook",
//!     options: {"endpoint": "http://localhost:9000", "allow_http": "true", "access_key_id": "minio"},
//!     secrets: {"secret_access_key": File("minio.key")},
//! )
//! # "#;
//! # let config: BucketConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.options.len(), 3);
//! ```

mod http;
mod pages;
mod round;
pub(crate) mod store;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use globset::{GlobBuilder, GlobMatcher};
use turnflow_engine::component::{
    Building, Check, ComponentContext, ComponentError, CorpusSourceConfig, CorpusSourceKind, ModelUse, built, config,
};
use turnflow_engine::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode, PageViews, Stopped};

use self::round::Following;
use crate::ocr;
use crate::readers::ocr::OcrMode;
use crate::remote::{Retry, may_pass};
use crate::secret::Secret;

/// Fields of `Bucket`.
#[config]
pub struct BucketConfig {
    /// The bucket and a prefix of keys: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`.
    pub url: String,
    /// Settings of the store's client, such as `endpoint`, `region`, `allow_http`, `virtual_hosted_style_request`,
    /// `skip_signature`; for Azure, `account_name`. Default: what the environment says.
    #[field(default)]
    pub options: BTreeMap<String, String>,
    /// Settings that are secret, such as `secret_access_key`, as `Env("NAME")` or `File("path")`.
    #[field(default)]
    pub secrets: BTreeMap<String, Secret>,
    /// A glob that selects objects by their key below the prefix. `*` does not match `/`, but `**` does.
    #[field(default = "**/*")]
    pub pattern: String,
    /// Seconds between two listings.
    #[field(default = 60.0, range = 0.1..=1e9)]
    pub every_s: f64,
    /// The address of an object for people, in which `{path}` stands for its key below the prefix; hits and citations get it
    /// as `url`. Default: none.
    pub link: Option<String>,
    /// Whether the objects are kept in the state directory, so that a restart need not read them again.
    #[field(default = true)]
    pub keep: bool,
    /// Maximum size of an object, in bytes. A larger one becomes a dead letter.
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
    CorpusSourceKind::of::<BucketConfig>("Bucket", "the objects in S3, Google Cloud Storage or Azure Blob Storage");

impl CorpusSourceConfig for BucketConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if let Err(error) = self.glob() {
            check.error("wrong-value", "pattern", error.to_string());
        }
        match store::Place::of(&self.url) {
            Err(problem) => check.error("wrong-value", "url", problem),
            Ok(place) => {
                for name in self.options.keys() {
                    if let Some(problem) = place.problem(name, false) {
                        check.error("wrong-value", "options", problem);
                    }
                }
                for name in self.secrets.keys() {
                    if let Some(problem) = place.problem(name, true) {
                        check.error("wrong-value", "secrets", problem);
                    }
                }
            }
        }
    }

    fn explain(&self) -> String {
        let options = match self.options.is_empty() {
            true => String::new(),
            false => format!(", options: {:?}", self.options),
        };
        let Self { url, pattern, every_s, keep, max_bytes, .. } = self;
        let ocr = ocr::explain(self.ocr, self.ocr_min_confidence, &self.passwords);
        format!(
            "url: {url:?}{options}, pattern: {pattern:?}, every_s: {every_s}, keep: {keep}, max_bytes: {max_bytes}{ocr}"
        )
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        ocr::models(self.ocr_model.as_deref())
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(self.source(context).map(|source| Box::new(source) as Box<dyn CorpusSource>))
    }
}

impl BucketConfig {
    /// Where an object with the same key may be another one.
    fn place(&self) -> String {
        let named = [
            "AWS_ENDPOINT_URL_S3",
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT",
            "AZURE_STORAGE_ACCOUNT_NAME",
            "AZURE_STORAGE_ENDPOINT",
            "AZURE_ENDPOINT",
            "GOOGLE_BASE_URL",
        ];
        let named = named.map(std::env::var_os);
        format!("{} {:?} {:?} {named:?}", self.url, self.options, self.secrets)
    }

    fn glob(&self) -> Result<GlobMatcher, globset::Error> {
        Ok(GlobBuilder::new(&self.pattern).literal_separator(true).build()?.compile_matcher())
    }

    /// Builds the source. It connects when it runs.
    ///
    /// # Errors
    ///
    /// The pattern is not a glob.
    pub fn source(&self, context: &ComponentContext) -> Result<Bucket, ConnectorError> {
        let pattern = self.glob().map_err(ComponentError::new)?;
        Ok(Bucket { config: self.clone(), pattern, context: context.clone() })
    }
}

/// Reads the objects of a bucket and follows their changes.
pub struct Bucket {
    config: BucketConfig,
    pattern: GlobMatcher,
    context: ComponentContext,
}

impl CorpusSource for Bucket {
    fn page_views(&self) -> Option<Arc<dyn PageViews>> {
        let BucketConfig { ocr, ocr_min_confidence, ocr_model, passwords, .. } = &self.config;
        let how = (*ocr, *ocr_min_confidence);
        let reading = ocr::of(&self.context, ocr_model.as_deref(), how, passwords).ok()?;
        Some(Arc::new(pages::Pages { config: self.config.clone(), context: self.context.clone(), reading }))
    }

    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let mut retry = Retry::new(self.config.url.clone(), mode, &self.context);
        let mut following = Following::new(&self, &output)?;
        let mut is_ready = false;
        loop {
            match following.round(!is_ready) {
                Ok(()) => retry.worked(),
                Err(error) if may_pass(&error) => {
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
