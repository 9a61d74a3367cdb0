//! One round over the pages of a site.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use reqwest::Url;
use tokio::runtime::Handle;
use turnflow_engine::component::ComponentContext;
use turnflow_engine::connector::{ConnectorError, CorpusOutput};

use super::client::{Reply, Requests, Validators};
use super::robots::Robots;
use super::sites::Sites;
use super::{WebConfig, page, sitemap};
use crate::fetched::Fetched;
use crate::kept_files::KeptFiles;
use crate::ocr;
use crate::remote::{lasting, passing, wait};

/// Levels of indexes of sitemaps.
const LEVELS: usize = 3;
/// Maximum number of sitemaps.
const MAX_SITEMAPS: usize = 1000;
/// Maximum number of redirects.
const REDIRECTS: usize = 5;
/// Maximum length of a URL: that of the sitemaps' protocol.
const MAX_URL: usize = 2048;
/// How often the first round is tried again because of pages that cannot be read.
const AGAIN: u32 = 4;
/// Changes in a commit.
const AT_ONCE: usize = 100;

/// What is known of a page.
#[derive(Default)]
pub(super) struct Known {
    pub(super) validators: Validators,
    pub(super) lastmod: Option<String>,
}

/// A site that is read again and again.
pub(super) struct Site<'a> {
    pub(super) config: &'a WebConfig,
    runtime: &'a Handle,
    pub(super) output: &'a CorpusOutput,
    pub(super) requests: Requests,
    pub(super) fetched: Fetched,
    pub(super) kept: KeptFiles,
    pub(super) known: HashMap<String, Known>,
    /// Pages that could not be read in the last round.
    pub(super) failing: BTreeSet<String>,
    /// How often the first round is tried again because of them.
    again: u32,
    /// Changes that were sent since the last commit.
    uncommitted: usize,
    /// Whether what is kept of pages that are gone has been removed.
    is_tidy: bool,
    sites: Sites,
    /// Whether a warning has told of pages of another site.
    is_foreign_told: bool,
}

/// The pages of a round, by URL, with the `lastmod` of the sitemap.
type Pages = BTreeMap<String, Option<String>>;

impl<'a> Site<'a> {
    pub(super) fn new(
        config: &'a WebConfig,
        context: &'a ComponentContext,
        output: &'a CorpusOutput,
    ) -> Result<Self, ConnectorError> {
        Ok(Self {
            config,
            runtime: context.runtime(),
            output,
            requests: Requests::new(config)?,
            fetched: Fetched::new(ocr::of(
                context,
                config.ocr_model.as_deref(),
                (config.ocr, config.ocr_min_confidence),
                &config.passwords,
            )?),
            kept: KeptFiles::open(context, "", config.keep),
            known: HashMap::new(),
            failing: BTreeSet::new(),
            again: AGAIN,
            uncommitted: 0,
            is_tidy: false,
            sites: Sites::of(config).map_err(lasting)?,
            is_foreign_told: false,
        })
    }

    fn request(&mut self, url: &Url, known: &Validators, limit: u64) -> Result<Reply, ConnectorError> {
        Ok(wait(self.runtime, self.output.stop(), self.requests.get(url, known, limit))?)
    }

    /// Asks for a URL, and where it has moved to on its host, if `robots.txt` lets us.
    pub(super) fn get(
        &mut self,
        url: &Url,
        known: &Validators,
        limit: u64,
        mut robots: Option<&mut Robots>,
    ) -> Result<Reply, ConnectorError> {
        let mut at = url.clone();
        for _ in 0..REDIRECTS {
            let target = match self.request(&at, known, limit)? {
                Reply::Moved(target) => target,
                reply => return Ok(reply),
            };
            if target.origin() != at.origin() && !self.sites.has(&target) {
                let to = target.origin().ascii_serialization();
                return Ok(Reply::Failed(format!("{at} redirects to another site, {to}; `sites` allows it"), None));
            }
            if let Some(robots) = robots.as_deref_mut()
                && self.may_read(&target, robots)? != Some(true)
            {
                return Ok(Reply::Failed(format!("{at} redirects to what `robots.txt` forbids"), None));
            }
            at = target;
        }
        Ok(Reply::Failed(format!("{url} redirects too often"), None))
    }

    /// Reads the sitemaps and all pages. Returns whether anything had changed, and was committed.
    ///
    /// # Errors
    ///
    /// The site does not give its `robots.txt` or its sitemap. Nothing is deleted then.
    pub(super) fn round(&mut self) -> Result<bool, ConnectorError> {
        let mut robots = Robots::new();
        let pages = self.pages(&mut robots)?;
        let mut has_committed = false;
        let gone: Vec<String> =
            self.fetched.paths().filter(|path| !pages.contains_key(&***path)).map(ToString::to_string).collect();
        for url in gone {
            self.uncommitted += self.remove(&url)?;
        }
        self.failing.retain(|url| pages.contains_key(url));
        for (url, lastmod) in pages {
            let known = self.known.get(&url);
            if self.config.trust_lastmod
                && lastmod.is_some()
                && known.is_some_and(|known| known.lastmod == lastmod)
                && !self.failing.contains(&url)
            {
                continue;
            }
            let changes = self.read(&url, lastmod, &mut robots)?;
            self.uncommitted += changes;
            if self.uncommitted >= AT_ONCE {
                has_committed = self.commit()?;
            }
        }
        // The first pages should be complete. A page that stays unreadable does not hold them up for ever.
        if self.again > 0 {
            self.again -= 1;
            if let Some(first) = self.failing.first() {
                return Err(passing(format!("{} pages cannot be read, the first is {first}", self.failing.len())));
            }
            self.again = 0;
        }
        if !std::mem::replace(&mut self.is_tidy, true) {
            self.kept.keep_only(self.fetched.paths().map(|path| &**path));
        }
        if self.uncommitted > 0 {
            has_committed = self.commit()?;
        }
        Ok(has_committed)
    }

    fn commit(&mut self) -> Result<bool, ConnectorError> {
        self.output.commit()?;
        self.uncommitted = 0;
        Ok(true)
    }

    /// The pages to read.
    fn pages(&mut self, robots: &mut Robots) -> Result<Pages, ConnectorError> {
        let mut pages: Pages = BTreeMap::new();
        for url in &self.config.urls {
            pages.insert(page(url).map_err(lasting)?.into(), None);
        }
        let mut sitemaps: Vec<(Url, usize)> = Vec::new();
        if let Some(sitemap) = &self.config.sitemap {
            sitemaps.push((page(sitemap).map_err(lasting)?, LEVELS));
        }
        let (mut seen, mut foreign, mut is_cut) = (BTreeSet::new(), None, false);
        let most = self.config.max_pages;
        while let Some((url, levels)) = sitemaps.pop() {
            if !seen.insert(url.to_string()) {
                continue;
            }
            if seen.len() + sitemaps.len() > MAX_SITEMAPS {
                return Err(passing(format!("the site has more than {MAX_SITEMAPS} sitemaps")));
            }
            match self.may_read(&url, robots)? {
                Some(true) => {}
                Some(false) => {
                    tracing::warn!(%url, "`robots.txt` forbids a sitemap; it is not read");
                    continue;
                }
                None => return Err(passing(format!("`robots.txt` of {url} cannot be read"))),
            }
            let bytes = match self.get(&url, &Validators::default(), sitemap::MAX_BYTES, Some(robots))? {
                Reply::Content(content) => content.bytes,
                Reply::TooLarge(_) => return Err(passing(format!("{url}: larger than {} bytes", sitemap::MAX_BYTES))),
                Reply::Gone if levels < LEVELS => {
                    tracing::warn!(%url, "a sitemap that is listed does not exist");
                    continue;
                }
                Reply::Gone => return Err(passing(format!("{url}: does not exist"))),
                Reply::Unchanged | Reply::Moved(_) => return Err(passing(format!("{url}: an unexpected reply"))),
                Reply::Failed(reason, _) => return Err(passing(format!("{url}: {reason}"))),
            };
            let entries = sitemap::read(&bytes).map_err(|error| passing(format!("{url}: {error}")))?;
            for entry in entries {
                let Ok(found) = page(&entry.url) else { continue };
                if found.as_str().len() > MAX_URL {
                    continue;
                }
                let found = self.sites.secured(found);
                if !self.sites.has(&found) {
                    foreign.get_or_insert_with(|| found.origin().ascii_serialization());
                } else if entry.is_sitemap {
                    if levels > 1 {
                        sitemaps.push((found, levels - 1));
                    }
                } else if self.config.prefix.as_ref().is_none_or(|prefix| found.as_str().starts_with(prefix.as_str())) {
                    pages.insert(found.into(), entry.lastmod);
                    if pages.len() > most {
                        pages.pop_last();
                        is_cut = true;
                    }
                }
            }
        }
        if let Some(site) = foreign.filter(|_| !std::mem::replace(&mut self.is_foreign_told, true)) {
            tracing::warn!(site, "the sitemap has pages of another site, which are not read; `sites` allows it");
        }
        if is_cut {
            tracing::warn!(max_pages = most, "the site has more pages than are read");
        }
        Ok(pages)
    }
}
