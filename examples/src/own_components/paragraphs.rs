//! A chunker that cuts a document at empty lines.

use std::sync::Arc;

use turnflow_engine::component::{Chunker, ChunkerConfig, ChunkerKind, config};
use turnflow_engine::document::{Chunk, Document};
use turnflow_engine::inference::Tokenize;

/// The entry for the catalog.
pub const KIND: ChunkerKind = ChunkerKind::of::<ParagraphsConfig>("Paragraphs", "one passage per paragraph");

/// `Paragraphs` has no fields.
#[config]
pub struct ParagraphsConfig {}

impl ChunkerConfig for ParagraphsConfig {
    fn build(&self, _: Option<Arc<dyn Tokenize>>) -> Arc<dyn Chunker> {
        Arc::new(self.clone())
    }
}

impl Chunker for ParagraphsConfig {
    fn chunk(&self, document: &Document) -> Vec<Chunk> {
        let paragraphs = document.text.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty());
        let chunk = |(number, text): (usize, &str)| {
            let id = format!("{}#{number}", document.id);
            Chunk::new(id.into(), document.id.clone(), document.title.clone(), text.into())
        };
        paragraphs.enumerate().map(chunk).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnflow_engine::document::Markup;

    #[test]
    fn empty_lines_part_paragraphs() {
        let text = "One\nline.\n\n\n\nTwo.\n".into();
        let document =
            Document { id: "d".into(), title: "T".into(), text, markup: Markup::Plain, metadata: Default::default() };
        let chunks = ParagraphsConfig {}.chunk(&document);
        let chunks: Vec<(&str, &str)> = chunks.iter().map(|chunk| (&*chunk.id, &*chunk.text)).collect();
        assert_eq!(chunks, [("d#0", "One\nline."), ("d#1", "Two.")]);
    }
}
