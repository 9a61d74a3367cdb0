//! One round over the pages of a site.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use texting_robots::Robot;
use tokio::runtime::Handle;
use turnflow_engine::component::ComponentContext;
use turnflow_engine::connector::{ConnectorError, CorpusOutput};

use super::client::{Content, Reply, Requests, Validators};
use super::{WebConfig, page, sitemap};
use crate::fetched::{Fetched, File};
use crate::kept_files::KeptFiles;
use crate::readers::{Format, ReadError, charset};
use crate::remote::{lasting, passing, wait};

/// Levels of indexes of sitemaps.
const LEVELS: usize = 3;
/// Maximum number of sitemaps.
const MAX_SITEMAPS: usize = 1000;
/// Maximum size of a `robots.txt`, in bytes: that of RFC 9309.
const MAX_ROBOTS: u64 = 500 << 10;
/// The longest `Crawl-delay` that is kept.
const LONGEST_DELAY: f32 = 60.0;
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
struct Known {
    validators: Validators,
    lastmod: Option<String>,
}

/// What is kept of a page, beside its content.
#[derive(Deserialize, Serialize)]
struct KeptPage {
    validators: Validators,
    lastmod: Option<String>,
    kind: String,
    charset: Option<String>,
}

impl KeptPage {
    fn content(self, bytes: Vec<u8>) -> Content {
        let Self { validators, lastmod: _, kind, charset } = self;
        Content { bytes, kind, charset, validators }
    }
}

/// A site that is read again and again.
pub(super) struct Site<'a> {
    config: &'a WebConfig,
    runtime: &'a Handle,
    output: &'a CorpusOutput,
    requests: Requests,
    fetched: Fetched,
    kept: KeptFiles,
    known: HashMap<String, Known>,
    /// Pages that could not be read in the last round.
    failing: BTreeSet<String>,
    /// How often the first round is tried again because of them.
    again: u32,
    /// Changes that were sent since the last commit.
    uncommitted: usize,
    /// Whether what is kept of pages that are gone has been removed.
    is_tidy: bool,
}

/// The pages of a round, by URL, with the `lastmod` of the sitemap.
type Pages = BTreeMap<String, Option<String>>;

/// The rules of each site, by its origin; `None` if they cannot be read for now.
type Robots = HashMap<String, Option<Rules>>;

/// What a site lets us read.
enum Rules {
    All,
    Nothing,
    Some(Box<Robot>),
}

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
            fetched: Fetched::default(),
            kept: KeptFiles::open(context, "", config.keep),
            known: HashMap::new(),
            failing: BTreeSet::new(),
            again: AGAIN,
            uncommitted: 0,
            is_tidy: false,
        })
    }

    fn request(&mut self, url: &Url, known: &Validators, limit: u64) -> Result<Reply, ConnectorError> {
        Ok(wait(self.runtime, self.output.stop(), self.requests.get(url, known, limit))?)
    }

    /// Asks for a URL, and where it has moved to on its host, if `robots.txt` lets us.
    fn get(
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
            let is_same = target.host_str() == at.host_str()
                && (target.port_or_known_default() == at.port_or_known_default() || target.scheme() != at.scheme());
            let is_safe = target.scheme() == at.scheme() || target.scheme() == "https";
            if !is_same || !is_safe {
                return Ok(Reply::Failed(format!("{at} redirects to another site"), None));
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
        let mut hosts = BTreeSet::new();
        for url in &self.config.urls {
            let url = page(url).map_err(lasting)?;
            hosts.extend(url.host_str().map(str::to_owned));
            pages.insert(url.into(), None);
        }
        let mut sitemaps: Vec<(Url, usize)> = Vec::new();
        if let Some(sitemap) = &self.config.sitemap {
            let url = page(sitemap).map_err(lasting)?;
            hosts.extend(url.host_str().map(str::to_owned));
            sitemaps.push((url, LEVELS));
        }
        let (mut seen, mut foreign, mut is_cut) = (BTreeSet::new(), 0, false);
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
                if !found.host_str().is_some_and(|host| hosts.contains(host)) {
                    foreign += 1;
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
        if foreign > 0 {
            tracing::debug!(entries = foreign, "the sitemap has pages on other hosts, which are not read");
        }
        if is_cut {
            tracing::warn!(max_pages = most, "the site has more pages than are read");
        }
        Ok(pages)
    }

    /// Whether `robots.txt` lets us read the URL; `None` if it cannot be read for now.
    fn may_read(&mut self, url: &Url, robots: &mut Robots) -> Result<Option<bool>, ConnectorError> {
        let origin = url.origin().ascii_serialization();
        if !robots.contains_key(&origin) {
            let rules = self.rules(&origin)?;
            robots.insert(origin.clone(), rules);
        }
        Ok(robots.get(&origin).and_then(Option::as_ref).map(|rules| match rules {
            Rules::All => true,
            Rules::Nothing => false,
            Rules::Some(robot) => robot.allowed(url.as_str()),
        }))
    }

    /// The rules of a site, as RFC 9309 says.
    fn rules(&mut self, origin: &str) -> Result<Option<Rules>, ConnectorError> {
        let address = page(&format!("{origin}/robots.txt")).map_err(lasting)?;
        let text = match self.get(&address, &Validators::default(), MAX_ROBOTS, None)? {
            Reply::Content(content) => content.bytes,
            // Only its beginning counts.
            Reply::TooLarge(bytes) => bytes,
            Reply::Failed(_, Some(status)) if status.is_client_error() && status.as_u16() != 429 => {
                return Ok(Some(Rules::All));
            }
            Reply::Gone | Reply::Unchanged => return Ok(Some(Rules::All)),
            Reply::Failed(reason, _) => {
                tracing::warn!(%address, reason, "cannot read the rules of a site; its pages are left as they were");
                return Ok(None);
            }
            Reply::Moved(_) => return Ok(None),
        };
        // The name in the rules has no version.
        let agent = self.config.user_agent.split(['/', ' ']).next().unwrap_or_default();
        let Ok(robot) = Robot::new(agent, &text) else { return Ok(Some(Rules::Nothing)) };
        let asked = Duration::from_secs_f32(robot.delay.unwrap_or_default().clamp(0.0, LONGEST_DELAY));
        self.requests.delay = self.requests.delay.max(asked);
        Ok(Some(Rules::Some(Box::new(robot))))
    }

    /// Reads a page. Returns the number of changes.
    fn read(&mut self, url: &str, lastmod: Option<String>, robots: &mut Robots) -> Result<usize, ConnectorError> {
        let address = page(url).map_err(lasting)?;
        match self.may_read(&address, robots)? {
            Some(true) => {}
            Some(false) => return self.remove(url),
            None => {
                self.failing.insert(url.to_owned());
                let kept = self.kept_of(url);
                return self.send_kept(url, &address, kept);
            }
        }
        let kept = self.kept_of(url);
        if let Some((page, _)) = &kept
            && self.config.trust_lastmod
            && lastmod.is_some()
            && page.lastmod == lastmod
        {
            return self.send_kept(url, &address, kept);
        }
        let known = match (self.known.get(url), &kept) {
            (Some(known), _) => known.validators.clone(),
            (None, Some((page, _))) => page.validators.clone(),
            (None, None) => Validators::default(),
        };
        let limit = self.config.max_bytes;
        let reply = self.get(&address, &known, limit, Some(robots))?;
        if !matches!(reply, Reply::Failed(..)) {
            self.failing.remove(url);
        }
        let (changes, validators) = match reply {
            Reply::Unchanged | Reply::Moved(_) => match kept {
                Some((mut page, bytes)) => {
                    if page.lastmod != lastmod {
                        page.lastmod.clone_from(&lastmod);
                        self.kept.write(url, &page, &bytes);
                    }
                    self.take(url, &address, page.content(bytes))?
                }
                None => (0, known),
            },
            Reply::Gone => return self.remove(url),
            // The page stays as it is.
            Reply::Failed(reason, status) => {
                if self.failing.insert(url.to_owned()) {
                    tracing::warn!(url, reason, "cannot read a page; it is left as it was");
                }
                // Who may no longer read it gets no copy.
                let is_refused = status.is_some_and(|status| matches!(status.as_u16(), 401 | 403));
                return self.send_kept(url, &address, kept.filter(|_| !is_refused));
            }
            Reply::TooLarge(bytes) => {
                self.kept.remove(url);
                let changes = self.fetched.fault(url, "large", &ReadError::TooLarge { limit }, &bytes, self.output)?;
                (changes, Validators::default())
            }
            Reply::Content(content) => {
                if !self.fetched.has(url, &version_of(&content)) {
                    let Content { kind, charset, validators, .. } = &content;
                    let (kind, charset, validators) = (kind.clone(), charset.clone(), validators.clone());
                    let page = KeptPage { validators, lastmod: lastmod.clone(), kind, charset };
                    // What has no reader may get another type without another content.
                    match format_of(&content.kind, &address) {
                        Some(_) => self.kept.write(url, &page, &content.bytes),
                        None => self.kept.remove(url),
                    }
                }
                self.take(url, &address, content)?
            }
        };
        self.known.insert(url.to_owned(), Known { validators, lastmod });
        Ok(changes)
    }

    /// What an earlier run has kept of a page, if this one has sent nothing of it.
    fn kept_of(&self, url: &str) -> Option<(KeptPage, Vec<u8>)> {
        if self.fetched.knows(url) {
            return None;
        }
        self.kept.read(url).filter(|(_, bytes): &(_, Vec<u8>)| bytes.len() as u64 <= self.config.max_bytes)
    }

    /// Sends what an earlier run has kept of a page, if there is anything. Returns the number of changes.
    fn send_kept(
        &mut self,
        url: &str,
        address: &Url,
        kept: Option<(KeptPage, Vec<u8>)>,
    ) -> Result<usize, ConnectorError> {
        let Some((page, bytes)) = kept else { return Ok(0) };
        let lastmod = page.lastmod.clone();
        let (changes, validators) = self.take(url, address, page.content(bytes))?;
        self.known.insert(url.to_owned(), Known { validators, lastmod });
        Ok(changes)
    }

    fn remove(&mut self, url: &str) -> Result<usize, ConnectorError> {
        self.known.remove(url);
        self.kept.remove(url);
        Ok(self.fetched.remove(url, self.output)?)
    }

    fn take(&mut self, url: &str, address: &Url, content: Content) -> Result<(usize, Validators), ConnectorError> {
        let version = version_of(&content);
        let Content { bytes, kind, charset, validators } = content;
        if self.fetched.has(url, &version) {
            return Ok((0, validators));
        }
        let format = format_of(&kind, address);
        let changes = match format {
            None => {
                let reason = format!("there is no reader for `{kind}`");
                let error = ReadError::Broken { format: "page", reason };
                self.fetched.fault(url, &version, &error, b"", self.output)?
            }
            Some(format) => {
                let bytes = charset::in_utf8(bytes, charset.as_deref(), format);
                let facts = [("url", url.to_owned())];
                self.fetched.put(&File { path: url, version: &version, format, facts: &facts }, &bytes, self.output)?
            }
        };
        Ok((changes, validators))
    }
}

fn version_of(content: &Content) -> String {
    blake3::hash(&content.bytes).to_hex().to_string()
}

/// The format of a page: by its media type, or else by the extension of its path.
fn format_of(kind: &str, url: &Url) -> Option<Format> {
    let by_path = || Format::of(Path::new(url.path())).filter(|format| !format.has_rows());
    match kind {
        "application/xhtml+xml" => Some(Format::Html),
        // Some sites name every file so.
        "" | "application/octet-stream" => by_path(),
        "text/plain" => by_path().or(Some(Format::Text)),
        kind => Format::of_mime(kind),
    }
}
