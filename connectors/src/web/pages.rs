//! A page of a site: it is asked for, kept and sent.

use std::path::Path;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use turnflow_engine::connector::ConnectorError;

use super::client::{Content, Reply, Validators};
use super::page;
use super::robots::Robots;
use super::round::{Known, Site};
use crate::fetched::File;
use crate::readers::{Format, ReadError, charset};
use crate::remote::lasting;

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

impl Site<'_> {
    /// Reads a page. Returns the number of changes.
    pub(super) fn read(
        &mut self,
        url: &str,
        lastmod: Option<String>,
        robots: &mut Robots,
    ) -> Result<usize, ConnectorError> {
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
                if is_refused {
                    self.kept.remove(url);
                }
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

    pub(super) fn remove(&mut self, url: &str) -> Result<usize, ConnectorError> {
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
