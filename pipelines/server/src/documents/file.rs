//! Files that callers put instead of a text.

use std::sync::{Arc, LazyLock};

use tokio::sync::Semaphore;
use turnflow_engine::connector::{DocumentStore, StoredDocument};

use super::{Writable, blocking};
use crate::body::Content;
use crate::error::ApiError;

/// Files that are read at once: readers may need much memory.
static READERS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from))));

/// Reads a file, such as a PDF.
pub(super) async fn file(of: &Writable, id: String, content: Content) -> Result<StoredDocument, ApiError> {
    let Content { mime, charset, bytes, load } = content;
    let formats = of.store.formats();
    if formats.is_empty() || !matches!(&*mime, "" | "application/octet-stream") && !formats.contains(&&*mime) {
        let others = formats.iter().filter(|format| !matches!(**format, "text/plain" | "text/markdown"));
        let others: String = others.map(|format| format!(", `{format}`")).collect();
        return Err(ApiError::media_type(&format!(
            "`application/json`, `text/plain`, `text/markdown`{others}, or `application/octet-stream` with an id that \
             ends like the name of such a file"
        )));
    }
    // The semaphore is never closed. A reader cannot be stopped, so it keeps its permit when the request has ended.
    let permit = READERS.clone().acquire_owned().await.ok();
    let read = move |store: &dyn DocumentStore| {
        let _held = (permit, load);
        store.read_file(&id, &mime, charset.as_deref(), &bytes)
    };
    blocking(&of.store, read).await
}
