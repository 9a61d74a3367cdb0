//! Shows the pages of the PDF files of the commit that was last published.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use parking_lot::Mutex;
use turnflow_engine::connector::{ConnectorError, PageViews};

use super::mirror::git;
use crate::page_views::draw;
use crate::readers::ReadOptions;
use crate::remote::passing;

/// The copy of the repository and the commit.
pub(super) type Published = Arc<Mutex<Option<(PathBuf, String)>>>;

/// Reads the files of the commit.
pub(super) struct Pages {
    pub(super) published: Published,
    pub(super) max_bytes: u64,
    pub(super) reading: ReadOptions,
}

impl Pages {
    fn content(&self, document: &str) -> Result<Option<Vec<u8>>, ConnectorError> {
        let Some((directory, commit)) = self.published.lock().clone() else { return Ok(None) };
        let failed = |error: std::io::Error| passing(format!("cannot read the copy of the repository: {error}"));
        let mut command = git();
        command.arg("--git-dir").arg(directory).args(["cat-file", "blob", &format!("{commit}:{document}")]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(failed)?;
        let mut bytes = Vec::new();
        let read = child.stdout.take().map(|out| out.take(self.max_bytes.saturating_add(1)).read_to_end(&mut bytes));
        let is_too_large = bytes.len() as u64 > self.max_bytes;
        if is_too_large {
            let _ = child.kill();
        }
        let status = child.wait().map_err(failed)?;
        read.transpose().map_err(failed)?;
        Ok((status.success() && !is_too_large).then_some(bytes))
    }
}

impl PageViews for Pages {
    fn picture(&self, document: &str, page: u32, passage: &str) -> Result<Option<Vec<u8>>, ConnectorError> {
        draw(document, (page, passage), &self.reading, || self.content(document))
    }
}
