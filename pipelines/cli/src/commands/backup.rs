//! The option for a backup of what models computed.

use std::sync::Arc;

use clap::Args;
use turnflow_engine::backup::BackupStore;

use super::Fault;

/// Where a backup is kept.
#[derive(Args)]
pub(super) struct BackupArgs {
    /// Keep a copy of the stored encodings, and of documents that were put into a corpus, below this URL, and restore them
    /// where they are missing: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY.
    /// Credentials come from the environment.
    #[arg(long, value_name = "URL")]
    backup: Option<String>,
}

impl BackupArgs {
    /// The URL.
    pub fn url(&self) -> Option<&str> {
        self.backup.as_deref()
    }

    /// The store for the engine; `None` without the option.
    pub fn store(&self) -> Result<Option<Arc<dyn BackupStore>>, Fault> {
        self.url().map(open).transpose()
    }
}

#[cfg(feature = "bucket")]
fn open(url: &str) -> Result<Arc<dyn BackupStore>, Fault> {
    let store = turnflow_connectors::backup::ObjectBackup::open(url);
    store.map(|store| Arc::new(store) as _).map_err(|error| Fault::Told(error.into()))
}

#[cfg(not(feature = "bucket"))]
fn open(_: &str) -> Result<Arc<dyn BackupStore>, Fault> {
    Err(Fault::Told(anyhow::anyhow!("`--backup` needs a turnflow that is built with the feature `bucket`")))
}
