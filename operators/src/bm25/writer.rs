//! A tantivy writer that waits for its merges when it is dropped.

use tantivy::IndexWriter;

/// A writer that no longer writes once it is dropped. tantivy's own writer leaves its merges to threads that may still
/// write when the directory is opened again.
pub(super) struct Writer(Option<IndexWriter>);

impl Writer {
    pub fn new(writer: IndexWriter) -> Self {
        Self(Some(writer))
    }

    /// Ends the writer after its merges.
    pub fn end(&mut self) -> Result<(), tantivy::TantivyError> {
        self.0.take().map_or(Ok(()), IndexWriter::wait_merging_threads)
    }
}

impl std::ops::Deref for Writer {
    type Target = IndexWriter;
    fn deref(&self) -> &IndexWriter {
        self.0.as_ref().expect("present until it is dropped")
    }
}

impl std::ops::DerefMut for Writer {
    fn deref_mut(&mut self) -> &mut IndexWriter {
        self.0.as_mut().expect("present until it is dropped")
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(writer) = self.0.take()
            && let Err(error) = writer.wait_merging_threads()
        {
            tracing::warn!(%error, "waiting for merges failed");
        }
    }
}
