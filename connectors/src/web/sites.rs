//! Which sites a source reads: scheme, host and port. A page of another port of the same host may be that of another
//! program, which is not for everybody.

use std::collections::HashSet;

use reqwest::Url;

use super::{WebConfig, page};

/// The origins that a source reads.
pub(super) struct Sites(HashSet<String>);

impl Sites {
    /// Those of the sitemap, the pages and the further sites of a configuration. A site with `http` on its usual port may
    /// move to `https` on its own.
    pub(super) fn of(config: &WebConfig) -> Result<Self, String> {
        let mut sites = HashSet::new();
        for url in config.sitemap.iter().chain(&config.urls).chain(&config.sites) {
            let url = page(url)?;
            sites.extend(secure(&url).map(|url| origin(&url)));
            sites.insert(origin(&url));
        }
        Ok(Self(sites))
    }

    /// Whether the page of this URL is one of them.
    pub(super) fn has(&self, url: &Url) -> bool {
        self.0.contains(&origin(url))
    }

    /// The same page with `https`, if the site is read so, and not with `http`.
    pub(super) fn secured(&self, url: Url) -> Url {
        let secured = secure(&url).filter(|secured| !self.has(&url) && self.has(secured));
        secured.unwrap_or(url)
    }
}

fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// A URL of `http` on its usual port, with `https` on its own.
fn secure(url: &Url) -> Option<Url> {
    let mut secured = url.clone();
    (url.scheme() == "http" && url.port().is_none() && secured.set_scheme("https").is_ok()).then_some(secured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_scheme_host_and_port() {
        let config =
            r#"(sitemap: Some("http://a.org/s.xml"), urls: ["https://b.org/x"], sites: ["https://c.org:8443"])"#;
        let sites = Sites::of(&turnflow_engine::spec::from_str(config).unwrap()).unwrap();
        let url = |url: &str| Url::parse(url).unwrap();
        for known in ["http://a.org/y", "http://a.org:80/y", "https://a.org/", "https://b.org/", "https://c.org:8443/z"]
        {
            assert!(sites.has(&url(known)), "{known}");
        }
        for other in [
            "http://a.org:8080/",
            "https://a.org:8443/",
            "http://b.org/",
            "https://b.org:444/",
            "https://www.b.org/",
            "https://c.org/",
            "http://c.org:8443/",
        ] {
            assert!(!sites.has(&url(other)), "{other}");
        }
        assert_eq!(sites.secured(url("http://b.org/x")), url("https://b.org/x"));
        assert_eq!(sites.secured(url("http://a.org/x")), url("http://a.org/x"));
        assert_eq!(sites.secured(url("http://b.org:9200/x")), url("http://b.org:9200/x"));
    }
}
