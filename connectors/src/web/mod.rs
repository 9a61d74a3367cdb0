//! `Web`: a corpus of the pages of a web site, from a sitemap or a list.
//!
//! ```ron
//! Web(sitemap: Some("https://example.org/sitemap.xml"), prefix: Some("https://example.org/help/"))
//! ```
//!
//! A page is a document; its id is its URL. Every `every_s` seconds, the sitemap is read again, and each page is asked for
//! with the `ETag` and `Last-Modified` of the last time, so a page that has not changed is not sent again. What was
//! read is kept in the state directory, also over a restart. With
//! `trust_lastmod: true`, a page whose `lastmod` in the sitemap is unchanged is not even asked for. A page that is gone (404,
//! 410), or no longer listed, is deleted. A page that cannot be had for another reason stays as it is.
//!
//! `robots.txt` is obeyed: what it forbids is not read, and its `Crawl-delay` counts if it is longer than `delay_s`. Requests
//! to a site follow one another. Only pages of the sites of `sitemap`, `urls` and `sites` are read, also after a redirect: a
//! site is a scheme, a host and a port. (A site with `http` may move to `https`, both on their usual ports.) Pages, sitemaps
//! and their number are bounded. Scripts are not run.
//!
//! ```
//! # use turnflow_connectors::web::WebConfig;
//! # let ron = r#"
//! (urls: ["https://example.org/terms.html", "https://example.org/prices.pdf"], every_s: 600)
//! # "#;
//! # let config: WebConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.urls.len(), 2);
//! ```

mod client;
mod pages;
mod robots;
mod round;
mod sitemap;
mod sites;
#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use reqwest::Url;
use turnflow_engine::component::{
    Building, Check, ComponentContext, CorpusSourceConfig, CorpusSourceKind, ModelUse, built, config,
};
use turnflow_engine::connector::{ConnectorError, CorpusOutput, CorpusSource, Mode, Stopped};

use self::round::Site;
use crate::ocr;
use crate::readers::ocr::OcrMode;
use crate::remote::{Retry, may_pass};
use crate::secret::Secret;

/// The pause after a round that has failed, in seconds, at most.
const AGAIN_S: f64 = 60.0;

/// Fields of `Web`.
#[config]
pub struct WebConfig {
    /// URL of a sitemap or of an index of sitemaps, also compressed (`.gz`). Default: none.
    pub sitemap: Option<String>,
    /// URLs of pages.
    #[field(default)]
    pub urls: Vec<String>,
    /// Further sites whose pages are read if the sitemap lists them or a page redirects to them, as in
    /// `https://docs.example.org:8443`.
    #[field(default)]
    pub sites: Vec<String>,
    /// Only pages of the sitemap whose URLs begin with this are read. Default: all.
    pub prefix: Option<String>,
    /// Seconds from the end of one round to the beginning of the next.
    #[field(default = 3600.0, range = 0.1..=1e9)]
    pub every_s: f64,
    /// Seconds between two requests to the site.
    #[field(default = 1.0, range = 0.0..=3600.0)]
    pub delay_s: f64,
    /// Whether a page whose `lastmod` in the sitemap is unchanged is left alone.
    #[field(default)]
    pub trust_lastmod: bool,
    /// Whether the pages are kept in the state directory, so that a restart need not read them again.
    #[field(default = true)]
    pub keep: bool,
    /// Maximum number of pages. Further ones are not read, with a warning.
    #[field(default = 10_000, range = 1..=10_000_000)]
    pub max_pages: usize,
    /// Maximum size of a page, in bytes. A larger page becomes a dead letter.
    #[field(default = 16 << 20)]
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
    /// Seconds that a request may take.
    #[field(default = 30.0, range = 0.1..=3600.0)]
    pub timeout_s: f64,
    /// How turnflow names itself to the site and in `robots.txt`.
    #[field(default = "turnflow")]
    pub user_agent: String,
}

/// Entry in the connector table.
pub const KIND: CorpusSourceKind = CorpusSourceKind::of::<WebConfig>("Web", "the pages of a web site");

/// A URL with `http` or `https`, without its fragment.
fn page(url: &str) -> Result<Url, String> {
    let mut parsed = Url::parse(url.trim()).map_err(|error| format!("`{url}` is not a URL: {error}"))?;
    if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
        return Err(format!("`{url}` is not a URL with http or https"));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err("a URL contains a user or a password".to_owned());
    }
    parsed.set_fragment(None);
    Ok(parsed)
}

impl CorpusSourceConfig for WebConfig {
    fn validate(&self, check: &mut Check<'_>) {
        if self.sitemap.is_none() && self.urls.is_empty() {
            check.error("wrong-value", "urls", "neither `sitemap` nor `urls` has a page".to_owned());
        }
        if let Some(Err(problem)) = self.sitemap.as_deref().map(page) {
            check.error("wrong-value", "sitemap", problem);
        }
        for url in &self.urls {
            if let Err(problem) = page(url) {
                check.error("wrong-value", "urls", problem);
            }
        }
        for site in &self.sites {
            if let Err(problem) = page(site) {
                check.error("wrong-value", "sites", problem);
            }
        }
        let agent = &self.user_agent;
        if agent.is_empty() || !agent.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            check.error("wrong-value", "user_agent", format!("`{agent}` is not a name that a request can have"));
        }
    }

    fn explain(&self) -> String {
        let from = self.sitemap.as_ref().map(|sitemap| format!("sitemap: {sitemap:?}, ")).unwrap_or_default();
        let urls = match self.urls.len() {
            0 => String::new(),
            urls => format!("urls: {urls}, "),
        };
        let prefix = self.prefix.as_ref().map(|prefix| format!("prefix: {prefix:?}, ")).unwrap_or_default();
        let sites = if self.sites.is_empty() { String::new() } else { format!("sites: {:?}, ", self.sites) };
        let Self { every_s, delay_s, trust_lastmod, keep, max_pages, max_bytes, .. } = self;
        let ocr = ocr::explain(self.ocr, self.ocr_min_confidence, &self.passwords);
        format!(
            "{from}{urls}{sites}{prefix}every_s: {every_s}, delay_s: {delay_s}, trust_lastmod: {trust_lastmod}, \
             keep: {keep}, max_pages: {max_pages}, max_bytes: {max_bytes}{ocr}"
        )
    }

    fn models(&self) -> Vec<ModelUse<'_>> {
        ocr::models(self.ocr_model.as_deref())
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(Ok(Box::new(self.source(context))))
    }
}

impl WebConfig {
    /// Builds the source. It requests nothing until it runs.
    pub fn source(&self, context: &ComponentContext) -> Web {
        Web { config: self.clone(), context: context.clone() }
    }

    /// How messages name the site.
    fn shown(&self) -> String {
        let first = self.sitemap.as_ref().or(self.urls.first());
        first.and_then(|url| page(url).ok()).map(|url| url.origin().ascii_serialization()).unwrap_or_default()
    }
}

/// Reads the pages of a site and follows their changes.
pub struct Web {
    config: WebConfig,
    context: ComponentContext,
}

impl CorpusSource for Web {
    fn run(self: Box<Self>, mode: Mode, output: CorpusOutput) -> Result<(), ConnectorError> {
        let mut retry = Retry::new(self.config.shown(), mode, &self.context);
        let mut site = Site::new(&self.config, &self.context, &output)?;
        let mut is_ready = false;
        loop {
            let has_committed = match site.round() {
                Ok(has_committed) => has_committed,
                Err(error) if may_pass(&error) => {
                    retry.failed(&error, output.stop())?;
                    // A site that has trouble is not asked for everything again at once.
                    let pause = if mode == Mode::Once { 0.0 } else { self.config.every_s.min(AGAIN_S) };
                    if output.stop().wait(Duration::from_secs_f64(pause)) {
                        return Err(Stopped.into());
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            retry.worked();
            if !is_ready {
                if !has_committed {
                    output.commit()?;
                }
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
