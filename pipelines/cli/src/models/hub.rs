//! Downloads files of a model hub (Hugging Face, or `$HF_ENDPOINT`) with `hf-hub`.
//!
//! Large files are checked against the hub's own SHA-256, and also against the manifest's, if it has
//! one. `$HF_TOKEN` is the token for gated models.

use std::path::{Path, PathBuf};

use hf_hub::api::tokio::ApiBuilder;
use hf_hub::{Repo, RepoType};

use super::{ModelsError, checksum};

/// A model hub.
pub(super) struct Hub {
    /// An endpoint in place of the environment's; for tests.
    pub endpoint: Option<String>,
    /// The directory of downloads until they are moved into place.
    pub cache: PathBuf,
}

impl Hub {
    /// Downloads a file of a repository; returns its path.
    pub fn download(&self, repo: &str, revision: &str, file: &str) -> Result<PathBuf, ModelsError> {
        let fault = |reason: String| ModelsError::Hub { repo: repo.to_owned(), file: file.to_owned(), reason };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| fault(error.to_string()))?;
        let token = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty());
        let mut builder =
            ApiBuilder::from_env().with_progress(false).with_cache_dir(self.cache.clone()).with_token(token);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let api = builder.build().map_err(|error| fault(error.to_string()))?;
        let files = api.repo(Repo::with_revision(repo.to_owned(), RepoType::Model, revision.to_owned()));
        let path = runtime.block_on(files.download(file)).map_err(|error| fault(chain(&error)))?;
        check(&path, file)?;
        Ok(path)
    }
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !line.contains(&more) {
            line = format!("{line}: {more}");
        }
        cause = error.source();
    }
    match line.contains("401") || line.contains("403") {
        true => format!("{line} (a gated model needs a token in $HF_TOKEN)"),
        false => line,
    }
}

/// Checks a download against its name in the cache: for large files, this is the hub's SHA-256.
fn check(path: &Path, file: &str) -> Result<(), ModelsError> {
    let blob = path.canonicalize().map_err(|source| ModelsError::Io { path: path.to_owned(), source })?;
    let Some(expected) = blob.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
    if expected.len() != 64 || !expected.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    let found = checksum(&blob)?;
    if found == expected {
        return Ok(());
    }
    let (file, expected) = (file.to_owned(), expected.to_owned());
    Err(ModelsError::Checksum { file, expected, found })
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    const CONTENT: &[u8] = b"weights of a model";

    /// A hub that has one file; answers until the test ends.
    fn hub(etag: String) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let etag = etag.clone();
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
                    let mut head = String::new();
                    while reader.read_line(&mut head).is_ok_and(|read| read > 2) {}
                    let mut stream = stream;
                    let asked = head.split_whitespace().nth(1).unwrap_or_default();
                    if asked != "/org/model/resolve/v1/onnx/model.onnx" {
                        let _ = stream
                            .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                        return;
                    }
                    let range = head.to_lowercase();
                    let range = range.split("bytes=").nth(1).and_then(|rest| rest.lines().next()).unwrap_or("0-");
                    let (from, to) = range.split_once('-').unwrap_or(("0", ""));
                    let from: usize = from.trim().parse().unwrap_or(0);
                    let to = to.trim().parse().unwrap_or(CONTENT.len() - 1).min(CONTENT.len() - 1);
                    let body = &CONTENT[from..=to];
                    let head = format!(
                        "HTTP/1.1 206 Partial Content\r\netag: \"{etag}\"\r\nx-repo-commit: 0123\r\n\
                         content-range: bytes {from}-{to}/{}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                        CONTENT.len(),
                        body.len()
                    );
                    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
                });
            }
        });
        format!("http://{address}")
    }

    fn download(etag: String, file: &str) -> Result<Vec<u8>, ModelsError> {
        let cache = tempfile::tempdir().expect("a directory");
        let hub = Hub { endpoint: Some(hub(etag)), cache: cache.path().to_owned() };
        hub.download("org/model", "v1", file).map(|path| std::fs::read(path).expect("the file"))
    }

    #[test]
    fn a_file_is_downloaded_and_checked() {
        let right: String = Sha256::digest(CONTENT).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(download(right, "onnx/model.onnx").expect("the file"), CONTENT);
        // Small files have another kind of hash, which is not checked.
        assert_eq!(download("0a1b".to_owned(), "onnx/model.onnx").expect("the file"), CONTENT);
        let wrong = download("0".repeat(64), "onnx/model.onnx").expect_err("another content");
        assert!(matches!(&wrong, ModelsError::Checksum { file, .. } if file == "onnx/model.onnx"), "{wrong}");
    }

    #[test]
    fn what_is_not_there_is_told() {
        let error = download("0a1b".to_owned(), "nothing").expect_err("no file").to_string();
        assert!(error.contains("org/model") && error.contains("nothing") && error.contains("404"), "{error}");
        let nobody = Hub { endpoint: Some("http://127.0.0.1:9".to_owned()), cache: std::env::temp_dir() };
        let error = nobody.download("org/model", "v1", "x").expect_err("nobody answers").to_string();
        assert!(error.contains("org/model"), "{error}");
    }
}
