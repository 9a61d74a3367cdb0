//! Links to the documents that answers cite. They work in any browser: a server with tokens signs them, so that whoever
//! was given the answer can open its documents without a token.
//!
//! A signed link names its caller and those of the caller's groups by which he may read the passage. It opens one document,
//! until it expires, and only what the caller may still read.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value as Json, json};
use turnflow_engine::document::Readers;
use turnflow_engine::principal::{Present, Principals};
use turnflow_engine::record::{Found, HitRecord, KnownCorpus};

use crate::app::{App, now};
use crate::auth::Principal;
use crate::config::ServeConfig;
use crate::served::Served;

/// The characters to encode in a query.
pub(crate) const IN_QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The characters to encode in a path: the same, except slashes.
const IN_PATH: &AsciiSet = &IN_QUERY.remove(b'/');

/// The secret that signs links, 32 bytes.
pub type LinkKey = [u8; 32];

/// A signature's length in bytes.
const SIGNATURE: usize = 16;

/// Makes the links of a request.
#[derive(Clone, Debug)]
pub struct Links {
    /// The server's URL as the caller knows it, without a slash at its end; empty if it is not known.
    base: String,
    pipeline: Arc<str>,
    signer: Option<Signer>,
}

#[derive(Clone, Debug)]
struct Signer {
    key: LinkKey,
    caller: Arc<str>,
    groups: Vec<Arc<str>>,
    /// When its links expire, in seconds since the Unix epoch.
    until: u64,
}

impl Signer {
    /// What a link says: the caller, groups of the caller, and when it expires.
    fn claims(&self, groups: &[&Arc<str>]) -> Json {
        json!([self.caller, groups, self.until])
    }
}

impl Links {
    /// The links for a caller.
    pub fn of(app: &App, headers: Option<&HeaderMap>, principal: &Principal, served: &Served) -> Self {
        // To the end of a day, so that an answer has the same links all day.
        let until = now().saturating_add((app.config().link_days * 86_400.0) as u64) / 86_400 * 86_400 + 86_399;
        let until = principal.until.map_or(until, |ends| ends.max(now()).min(until));
        let signer = principal.extra.is_some().then(|| Signer {
            key: *served.link_key(),
            caller: principal.name.clone(),
            groups: principal.groups(),
            until,
        });
        Self { base: base(app.config(), headers), pipeline: served.name().clone(), signer }
    }

    /// Links without a server's name and without a signature.
    #[cfg(test)]
    pub(crate) fn relative(pipeline: &str) -> Self {
        Self { base: String::new(), pipeline: pipeline.into(), signer: None }
    }

    /// When signed links end, in seconds since the Unix epoch; `None` if they do not.
    pub fn until(&self) -> Option<u64> {
        self.signer.as_ref().map(|signer| signer.until)
    }

    /// The link to a shared turn; `key` signs it. The groups of its caller are kept with the turn.
    pub fn shared(&self, key: &LinkKey, id: &str) -> String {
        let pipeline = utf8_percent_encode(&self.pipeline, IN_QUERY);
        let signed = self.signer.as_ref().map(|signer| signed(key, &signer.claims(&[]), &self.pipeline, id));
        let signed = signed.map_or(String::new(), |signed| format!("&key={signed}"));
        format!("{}/shared/{id}?pipeline={pipeline}{signed}", self.base)
    }

    /// The link to a passage in its document. Without `readers`, who may read it is not known, and the link has all groups of
    /// the caller. The corpus is in the link if others may have a document of the same id.
    pub fn passage(&self, hit: &HitRecord) -> String {
        let HitRecord { document, passage, corpus: KnownCorpus(corpus), found: Found { readers, text }, .. } = hit;
        let of = |text: &str| utf8_percent_encode(text, IN_QUERY).to_string();
        let path = utf8_percent_encode(document, IN_PATH);
        let key = self.signer.as_ref().map_or(String::new(), |signer| {
            let counts = |group: &&Arc<str>| match readers {
                None => true,
                Some(Readers::All) => false,
                Some(Readers::Groups(named)) => named.contains(group),
            };
            let groups: Vec<&Arc<str>> = signer.groups.iter().filter(counts).collect();
            let opens = opens(document, corpus.as_deref());
            format!("&key={}", signed(&signer.key, &signer.claims(&groups), &self.pipeline, &opens))
        });
        let (base, pipeline, passage) = (&self.base, of(&self.pipeline), of(passage));
        let corpus = corpus.as_ref().map_or(String::new(), |corpus| format!("&corpus={}", of(corpus)));
        let text = text.map_or(String::new(), |text| format!("&text={text:08x}"));
        format!("{base}/documents/{path}?pipeline={pipeline}{corpus}&passage={passage}{text}{key}#passage")
    }
}

/// The address of a document elsewhere, as a field of its metadata says it; `None` if it is none of the web. Characters at
/// which a URL ends in Markdown and in texts are encoded.
pub(crate) fn address(field: &str) -> Option<String> {
    let field = field.trim();
    let begins = |scheme: &str| field.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    ["https://", "http://"].into_iter().find(|scheme| begins(scheme))?;
    let mut address = String::with_capacity(field.len());
    for one in field.chars() {
        match one.is_whitespace() || one.is_control() || "\"<>\\^`{|}".contains(one) {
            true => address.extend(utf8_percent_encode(one.encode_utf8(&mut [0; 4]), NON_ALPHANUMERIC)),
            false => address.push(one),
        }
    }
    Some(address)
}

/// What a link to a document opens, as its signature covers it.
pub(crate) fn opens<'a>(document: &'a str, corpus: Option<&str>) -> Cow<'a, str> {
    corpus.map_or(Cow::Borrowed(document), |corpus| format!("\n{corpus}\n{document}").into())
}

/// Whether a URL is a link to a document that opens it with a caller's rights.
pub(crate) fn is_signed(url: &str) -> bool {
    url.contains("/documents/") && url.contains("&key=")
}

/// The server's URL as the caller knows it: from the setting `public_url`, or from the request.
fn base(config: &ServeConfig, headers: Option<&HeaderMap>) -> String {
    if let Some(url) = &config.public_url {
        return url.trim_end_matches('/').to_owned();
    }
    let text = |name: &str| {
        let all = headers?.get(name)?.to_str().ok()?;
        // Of several proxies, the first is the caller's.
        all.split(',').next().map(str::trim).filter(|first| !first.is_empty()).map(str::to_owned)
    };
    let is_host = |host: &String| host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b));
    let host = text("x-forwarded-host").or_else(|| text(header::HOST.as_str())).filter(is_host);
    let scheme = text("x-forwarded-proto").filter(|scheme| scheme == "http" || scheme == "https");
    let own = if config.tls.is_some() { "https" } else { "http" };
    host.map_or(String::new(), |host| format!("{}://{host}", scheme.as_deref().unwrap_or(own)))
}

fn signature(key: &LinkKey, claims: &[u8], pipeline: &str, document: &str) -> [u8; SIGNATURE] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in [claims, pipeline.as_bytes(), document.as_bytes()] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut first = [0; SIGNATURE];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..SIGNATURE]);
    first
}

fn signed(key: &LinkKey, claims: &Json, pipeline: &str, document: &str) -> String {
    let claims = claims.to_string();
    let signature = signature(key, claims.as_bytes(), pipeline, document);
    format!("{}.{}", URL_SAFE_NO_PAD.encode(claims), URL_SAFE_NO_PAD.encode(signature))
}

/// The claims of a link that this key has signed for the document: the caller, the groups, and when it expires.
fn verified(key: &LinkKey, text: &str, pipeline: &str, document: &str) -> Option<(String, Vec<Arc<str>>, u64)> {
    let (claims, given) = text.split_once('.')?;
    let (claims, given) = (URL_SAFE_NO_PAD.decode(claims).ok()?, URL_SAFE_NO_PAD.decode(given).ok()?);
    let given: [u8; SIGNATURE] = given.try_into().ok()?;
    // The comparison takes the same time for every difference.
    let differing = signature(key, &claims, pipeline, document).iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b));
    if differing != 0 {
        return None;
    }
    serde_json::from_slice(&claims).ok()
}

/// The groups with which a link opens a document; `None` if it does not.
pub(crate) fn groups(app: &App, served: &Served, key: Option<&str>, document: &str) -> Option<Vec<Arc<str>>> {
    let (caller, groups) = opened(app, served, served.link_key(), key, document)?;
    present(app, &caller, groups)
}

/// The caller for whom a link opens something, and the groups that it names; `None` if it does not: it is not signed by this
/// server with this key for it, has expired, or its caller may use the pipeline no more.
pub(crate) fn opened(
    app: &App,
    served: &Served,
    signer: &LinkKey,
    key: Option<&str>,
    of: &str,
) -> Option<(String, Vec<Arc<str>>)> {
    if app.tokens().is_empty() {
        return Some(("anybody".to_owned(), Vec::new()));
    }
    let pipeline = &**served.name();
    let (name, then, until) = verified(signer, key?, pipeline, of)?;
    if now() > until {
        return None;
    }
    let mut token = app.config().tokens.iter().filter(|token| token.name == name);
    let allowed = token.next().and_then(|token| token.pipelines.as_ref());
    if allowed.is_some_and(|allowed| !allowed.iter().any(|of| of == pipeline)) {
        return None;
    }
    Some((name, then))
}

/// Those of a caller's groups of an earlier time that the caller still has; `None` if the caller is gone.
pub(crate) fn present(app: &App, caller: &str, then: Vec<Arc<str>>) -> Option<Vec<Arc<str>>> {
    if app.tokens().is_empty() {
        return Some(then);
    }
    let mut fields = Map::new();
    fields.insert("name".to_owned(), caller.into());
    fields.insert("groups".to_owned(), json!(then));
    match app.tokens().callers().now(&fields) {
        Present::Gone => None,
        Present::Unknown => Some(then),
        Present::Is(fields) => {
            let now: Vec<&str> = match fields.get("groups") {
                Some(Json::String(group)) => vec![group],
                Some(Json::Array(groups)) => groups.iter().filter_map(Json::as_str).collect(),
                _ => Vec::new(),
            };
            Some(then.into_iter().filter(|group| now.contains(&&**group)).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_opens_its_document_only() {
        let (key, claims) = ([7; 32], json!(["web", ["staff"], 9]));
        let text = signed(&key, &claims, "p", "d");
        assert_eq!(verified(&key, &text, "p", "d"), Some(("web".to_owned(), vec!["staff".into()], 9)));
        for (key, pipeline, document) in [(key, "p", "e"), (key, "q", "d"), ([8; 32], "p", "d")] {
            assert_eq!(verified(&key, &text, pipeline, document), None);
        }
        let (_, signature) = text.split_once('.').unwrap();
        let forged = format!("{}.{signature}", URL_SAFE_NO_PAD.encode(json!(["web", ["boss"], 9]).to_string()));
        for wrong in [&*forged, "", ".", "a.b", &text[..text.len() - 1]] {
            assert_eq!(verified(&key, wrong, "p", "d"), None, "{wrong}");
        }
    }

    #[test]
    fn a_link_names_the_groups_that_open_its_passage() {
        let signer = Signer {
            key: [7; 32],
            caller: "ann".into(),
            groups: (0..3000).map(|n| format!("group {n}").into()).collect(),
            until: 9,
        };
        let links = Links { base: String::new(), pipeline: "p".into(), signer: Some(signer) };
        let groups = |readers: Option<&Readers>| {
            let mut hit = crate::citations::tests::hit("d");
            hit.found.readers = readers.cloned();
            let link = links.passage(&hit);
            let key = link.split_once("&key=").unwrap().1.split('#').next().unwrap();
            let (caller, groups, until) = verified(&[7; 32], key, "p", "d").unwrap();
            assert_eq!((caller.as_str(), until), ("ann", 9));
            (groups.iter().map(ToString::to_string).collect::<Vec<_>>(), link.len())
        };
        let named = |names: &[&str]| Readers::Groups(names.iter().map(|name| Arc::from(*name)).collect());
        let (some, length) = groups(Some(&named(&["group 7", "board", "group 2999"])));
        assert_eq!(some, ["group 7", "group 2999"]);
        assert!(length < 200, "{length}");
        assert!(groups(Some(&Readers::All)).0.is_empty() && groups(Some(&named(&["*"]))).0.is_empty());
        assert_eq!(groups(None).0.len(), 3000, "a record that was read does not say who may read it");
        assert!(links.shared(&[8; 32], "id").len() < 200);
    }

    #[test]
    fn the_url_is_the_one_that_the_caller_knows() {
        let headers = |pairs: &[(&'static str, &str)]| -> HeaderMap {
            pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
        };
        let config = ServeConfig::default();
        assert_eq!(base(&config, Some(&headers(&[("host", "localhost:8100")]))), "http://localhost:8100");
        let proxied = headers(&[
            ("host", "10.0.0.1"),
            ("x-forwarded-host", "chat.example.org, inner"),
            ("x-forwarded-proto", "https"),
        ]);
        assert_eq!(base(&config, Some(&proxied)), "https://chat.example.org");
        for odd in ["a b", "x/../y", "h\"", "<x>"] {
            assert_eq!(base(&config, Some(&headers(&[("host", odd)]))), "", "{odd}");
        }
        assert_eq!(base(&config, None), "");
        let config = ServeConfig { public_url: Some("https://x.org/rag/".to_owned()), ..config };
        assert_eq!(base(&config, Some(&proxied)), "https://x.org/rag");
    }
}
