//! Shows the pages of the bucket's PDF files.

use std::time::Duration;

use futures::TryStreamExt as _;
use object_store::path::Path as Key;
use object_store::{Attribute, ObjectStoreExt as _};
use turnflow_engine::component::ComponentContext;
use turnflow_engine::connector::{ConnectorError, PageViews};

use super::{BucketConfig, round, store};
use crate::page_views::draw;
use crate::readers::ReadOptions;
use crate::remote::passing;

/// How long an object may take: somebody waits for its picture.
const PATIENCE: Duration = Duration::from_secs(30);

/// Fetches objects as they are now.
pub(super) struct Pages {
    pub(super) config: BucketConfig,
    pub(super) context: ComponentContext,
    pub(super) reading: ReadOptions,
}

impl Pages {
    fn content(&self, document: &str) -> Result<Option<Vec<u8>>, ConnectorError> {
        let (store, prefix) = store::open(&self.config.url, &self.config.options, &self.config.secrets)?;
        let fetched = async {
            let key = Key::parse(format!("{prefix}/{document}")).map_err(|error| passing(error.to_string()))?;
            let found = store.get(&key).await.map_err(store::failed)?;
            let packed =
                found.attributes.get(&Attribute::ContentEncoding).map(|packed| packed.as_ref().to_ascii_lowercase());
            let (mut content, mut parts) = (Vec::new(), found.into_stream());
            while let Some(part) = parts.try_next().await.map_err(store::failed)? {
                content.extend_from_slice(&part);
                if content.len() as u64 > self.config.max_bytes {
                    return Ok(None);
                }
            }
            Ok(round::unpacked(content, packed.as_deref(), self.config.max_bytes).ok())
        };
        let late = |_| passing("the store takes too long".to_owned());
        self.context.runtime().block_on(async { tokio::time::timeout(PATIENCE, fetched).await.map_err(late)? })
    }
}

impl PageViews for Pages {
    fn picture(&self, document: &str, page: u32, passage: &str) -> Result<Option<Vec<u8>>, ConnectorError> {
        draw(document, (page, passage), &self.reading, || self.content(document))
    }
}
