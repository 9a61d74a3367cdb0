use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use turnflow_engine::connector::Mode;
use turnflow_engine::spec::from_str;

use super::{Web, WebConfig};
use crate::testing::{Corpus, context, context_in};

/// What a site replies to a path: status, headers, body.
type Replies = BTreeMap<String, (u16, String, Vec<u8>)>;

/// A site on this machine.
#[derive(Clone)]
struct Site {
    url: String,
    replies: Arc<Mutex<Replies>>,
    /// The requests so far, as `PATH` or `PATH if HEADER`.
    asked: Arc<Mutex<Vec<String>>>,
}

impl Site {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let site = Self { url, replies: Arc::default(), asked: Arc::default() };
        let served = site.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let first = lines.next().unwrap().unwrap();
                let path = first.split(' ').nth(1).unwrap().to_owned();
                let headers: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
                let condition = headers.iter().find_map(|line| {
                    let (name, value) = line.split_once(": ")?;
                    (name.eq_ignore_ascii_case("if-none-match") || name.eq_ignore_ascii_case("if-modified-since"))
                        .then(|| value.to_owned())
                });
                let asked = condition.as_ref().map_or(path.clone(), |condition| format!("{path} if {condition}"));
                served.asked.lock().unwrap().push(asked);
                let reply = served.replies.lock().unwrap().get(&path).cloned();
                let (status, further, body) = reply.unwrap_or((404, String::new(), Vec::new()));
                let is_same = condition.is_some_and(|condition| further.contains(&condition));
                let (status, body) = if is_same { (304, Vec::new()) } else { (status, body) };
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n", body.len());
                let _ = stream.write_all(format!("{head}{further}\r\n").as_bytes());
                let _ = stream.write_all(&body);
            }
        });
        site
    }

    fn set(&self, path: &str, status: u16, headers: &str, body: impl Into<Vec<u8>>) {
        let headers = headers.lines().map(|line| format!("{line}\r\n")).collect();
        self.replies.lock().unwrap().insert(path.to_owned(), (status, headers, body.into()));
    }

    fn page(&self, path: &str, text: &str) {
        let etag = blake3::hash(text.as_bytes()).to_hex();
        let headers = format!("Content-Type: text/html; charset=utf-8\nETag: \"{etag}\"");
        self.set(path, 200, &headers, format!("<title>T</title><p>{text}"));
    }

    fn sitemap(&self, pages: &[(&str, &str)]) {
        let entry = |(path, lastmod): &(&str, &str)| {
            format!("<url><loc>{}{path}</loc><lastmod>{lastmod}</lastmod></url>", self.url)
        };
        let entries: String = pages.iter().map(entry).collect();
        self.set("/sitemap.xml", 200, "Content-Type: text/xml", format!("<urlset>{entries}</urlset>"));
    }

    fn source(&self, further: &str) -> Web {
        let ron = format!("(sitemap: Some(\"{}/sitemap.xml\"), delay_s: 0, every_s: 0.1{further})", self.url);
        from_str::<WebConfig>(&ron).unwrap().source(&context("docs"))
    }

    fn source_in(&self, state: &std::path::Path, further: &str) -> Web {
        let ron = format!("(sitemap: Some(\"{}/sitemap.xml\"), delay_s: 0, every_s: 0.1{further})", self.url);
        from_str::<WebConfig>(&ron).unwrap().source(&context_in(state, "docs"))
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Changes without the beginning of the site's URLs.
    fn short(&self, changes: Vec<String>) -> Vec<String> {
        changes.into_iter().map(|change| change.replace(&self.url, "")).collect()
    }
}

/// Waits until something holds.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + crate::testing::PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// For the cases of `conformance`.
pub(crate) fn corpus_of(texts: &[String]) -> Web {
    // One site for each list of texts, so that its URLs are the same in both runs of a test.
    static SITES: Mutex<BTreeMap<usize, Site>> = Mutex::new(BTreeMap::new());
    let mut sites = SITES.lock().unwrap();
    let site = sites.entry(texts.len()).or_insert_with(Site::start);
    let mut urls = vec![format!("\"{}/bad\"", site.url)];
    site.set("/bad", 200, "Content-Type: image/gif", "no text");
    for (number, text) in texts.iter().enumerate() {
        site.page(&format!("/{number}"), text);
        urls.push(format!("\"{}/{number}\"", site.url));
    }
    let ron = format!("(urls: [{}], delay_s: 0)", urls.join(", "));
    from_str::<WebConfig>(&ron).unwrap().source(&context("docs"))
}

#[test]
fn pages_are_asked_for_again_with_their_tags_and_sent_when_they_change() {
    let site = Site::start();
    site.page("/a", "one");
    site.set("/b.txt", 200, "Content-Type: text/plain\nLast-Modified: Wed, 25 Nov 2026 21:56:49 GMT", "two");
    site.set("/robots.txt", 200, "", "User-agent: *\nDisallow: /private");
    site.page("/private/c", "hidden");
    site.sitemap(&[("/a", ""), ("/b.txt", ""), ("/private/c", ""), ("/none", "")]);
    let running = Corpus::run(site.source(""), Mode::Follow);
    let first = running.commit();
    let page = first.iter().find(|(id, _)| id.ends_with("/a")).unwrap().1.clone().unwrap();
    assert_eq!((&*page.title, &page.metadata.to_json()["url"]), ("T", &format!("{}/a", site.url).into()));
    assert_eq!(site.short(crate::testing::told(first)), ["/a=one", "/b.txt=two"]);
    running.started();
    assert!(!site.asked().iter().any(|path| path.starts_with("/private")));
    site.page("/a", "new");
    assert_eq!(site.short(running.changes()), ["/a=new"]);
    let asked = site.asked();
    assert!(asked.iter().any(|asked| asked == "/b.txt if Wed, 25 Nov 2026 21:56:49 GMT"), "{asked:?}");
    assert!(asked.iter().any(|asked| asked.starts_with("/a if \"")), "{asked:?}");
    // A site that fails deletes nothing; a page that is gone is deleted.
    site.set("/sitemap.xml", 503, "", "");
    site.set("/a", 500, "", "");
    site.asked();
    until("the site is asked again", || site.asked().iter().any(|path| path == "/sitemap.xml"));
    site.set("/b.txt", 410, "", "");
    site.sitemap(&[("/a", ""), ("/b.txt", "")]);
    assert_eq!(site.short(running.changes()), ["-/b.txt"]);
    site.sitemap(&[]);
    assert_eq!(site.short(running.changes()), ["-/a"]);
    running.end(true).unwrap_err();
}

#[test]
fn a_page_whose_time_in_the_sitemap_is_unchanged_is_left_alone() {
    let site = Site::start();
    site.page("/a", "one");
    site.page("/b", "two");
    site.sitemap(&[("/a", "2026-01-01"), ("/b", "2026-01-01")]);
    let running = Corpus::run(site.source(", trust_lastmod: true"), Mode::Follow);
    running.commit();
    running.started();
    site.asked();
    site.page("/a", "new");
    site.page("/b", "not seen");
    site.sitemap(&[("/a", "2026-01-02"), ("/b", "2026-01-01")]);
    assert_eq!(site.short(running.changes()), ["/a=new"]);
    assert!(!site.asked().iter().any(|path| path.starts_with("/b")));
    running.end(true).unwrap_err();
}

#[test]
fn a_restart_asks_with_the_tags_of_the_last_run_and_keeps_what_it_cannot_have() {
    let (site, state) = (Site::start(), tempfile::tempdir().unwrap());
    site.page("/a", "one");
    site.page("/b", "two");
    site.set("/c", 200, "Content-Type: text/html; charset=ISO-8859-1", b"<p>F\xe4hre".as_slice());
    site.page("/d", "gone soon");
    site.page("/e", "unlisted soon");
    site.page("/f", "for others soon");
    site.sitemap(&[("/a", ""), ("/b", ""), ("/c", ""), ("/d", ""), ("/e", ""), ("/f", "")]);
    let running = Corpus::run(site.source_in(state.path(), ""), Mode::Follow);
    let all = site.short(running.start());
    assert_eq!(all, ["/a=one", "/b=two", "/c=Fähre", "/d=gone soon", "/e=unlisted soon", "/f=for others soon"]);
    running.end(true).unwrap_err();
    site.page("/b", "new");
    site.set("/c", 500, "", "");
    site.set("/d", 404, "", "");
    site.set("/f", 403, "", "");
    site.sitemap(&[("/a", ""), ("/b", ""), ("/c", ""), ("/d", ""), ("/f", "")]);
    site.asked();
    let running = Corpus::run(site.source_in(state.path(), ""), Mode::Follow);
    assert_eq!(site.short(running.start()), ["/a=one", "/b=new", "/c=Fähre"]);
    let asked = site.asked();
    assert!(asked.iter().any(|asked| asked.starts_with("/a if \"")), "{asked:?}");
    running.end(true).unwrap_err();
    let kept = walkdir(&state.path().join("components"));
    assert_eq!(kept, 3, "files of pages that are gone");
}

/// The number of files below a directory.
fn walkdir(directory: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { walkdir(&path) } else { 1 }).sum()
}

#[test]
fn a_restart_does_not_ask_for_pages_whose_time_in_the_sitemap_is_unchanged() {
    let (site, state) = (Site::start(), tempfile::tempdir().unwrap());
    site.page("/a", "one");
    site.page("/b", "two");
    site.sitemap(&[("/a", "2026-01-01"), ("/b", "2026-01-01")]);
    let source = || site.source_in(state.path(), ", trust_lastmod: true");
    let running = Corpus::run(source(), Mode::Once);
    assert_eq!(site.short(running.start()), ["/a=one", "/b=two"]);
    running.end(false).unwrap();
    site.page("/a", "new");
    site.sitemap(&[("/a", "2026-01-02"), ("/b", "2026-01-01")]);
    site.asked();
    let running = Corpus::run(source(), Mode::Once);
    assert_eq!(site.short(running.start()), ["/a=new", "/b=two"]);
    running.end(false).unwrap();
    assert!(!site.asked().iter().any(|path| path.starts_with("/b")));
}

#[test]
fn indexes_prefixes_other_hosts_and_redirects() {
    let site = Site::start();
    let url = &site.url;
    let index = format!("<sitemapindex><sitemap><loc>{url}/pages.xml</loc></sitemap></sitemapindex>");
    site.set("/sitemap.xml", 200, "", index);
    let entries: String = [
        format!("{url}/docs/a"),
        format!("{url}/other"),
        "http://example.invalid/docs/b".to_owned(),
        format!("{url}/docs/away"),
        format!("{url}/docs/here"),
        format!("{url}/docs/large"),
    ]
    .map(|url| format!("<url><loc>{url}</loc></url>"))
    .concat();
    site.set("/pages.xml", 200, "", format!("<urlset>{entries}</urlset>"));
    site.page("/docs/a", "one");
    site.page("/other", "not in the prefix");
    site.set("/docs/away", 302, "Location: http://localhost:1/x", "");
    site.set("/docs/here", 302, "Location: /docs/a", "");
    site.set("/docs/large", 200, "Content-Type: text/html", "x".repeat(5000));
    let running = Corpus::run(site.source(&format!(", prefix: Some(\"{url}/docs/\"), max_bytes: 1000")), Mode::Once);
    assert_eq!(site.short(running.changes()), ["/docs/a=one", "/docs/here=one"]);
    assert_eq!(running.dead().len(), 1, "{:?}", running.dead());
    running.end(false).unwrap();
}

/// Why it exists: a sitemap, or a redirect, could make the source read another port of the same host.
#[test]
fn another_port_of_the_host_is_another_site() {
    let (site, inner) = (Site::start(), Site::start());
    inner.page("/secret", "secret");
    inner.page("/listed", "listed");
    site.page("/a", "one");
    let secret = format!("{}/secret", inner.url);
    site.set("/moved", 302, &format!("Location: {secret}"), "");
    site.set("/chain", 302, "Location: /moved", "");
    // The scheme differs, too.
    site.set("/tls", 302, &format!("Location: {}", secret.replace("http:", "https:")), "");
    let entries: String = [format!("{}/a", site.url), format!("{}/moved", site.url), format!("{}/chain", site.url)]
        .into_iter()
        .chain([format!("{}/tls", site.url), format!("{}/listed", inner.url)])
        .map(|url| format!("<url><loc>{url}</loc></url>"))
        .collect();
    site.set("/sitemap.xml", 200, "", format!("<urlset>{entries}</urlset>"));
    let running = Corpus::run(site.source(""), Mode::Once);
    assert_eq!(site.short(running.start()), ["/a=one"]);
    running.end(false).unwrap();
    assert_eq!(inner.asked(), [""; 0]);
    let running = Corpus::run(site.source(&format!(", sites: [{:?}]", inner.url)), Mode::Once);
    let read = running.start().concat();
    assert!(
        read.contains("/moved=secret") && read.contains("/chain=secret") && read.contains("/listed=listed"),
        "{read}"
    );
    running.end(false).unwrap();
}

#[test]
fn character_sets_are_those_that_the_site_or_the_page_names() {
    let site = Site::start();
    site.set("/a", 200, "Content-Type: text/html; charset=ISO-8859-1", b"<p>F\xe4hre".as_slice());
    site.set("/b", 200, "Content-Type: text/html", b"<meta charset='shift_jis'><p>\x93\xfa\x96{".as_slice());
    site.sitemap(&[("/a", ""), ("/b", "")]);
    let running = Corpus::run(site.source(""), Mode::Once);
    assert_eq!(site.short(running.changes()), ["/a=Fähre", "/b=日本"]);
    running.end(false).unwrap();
}
