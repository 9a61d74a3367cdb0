//! A chunker that cuts a document at empty lines.

use std::sync::Arc;

use serde::Deserialize;
use turnflow_engine::component::{Chunker, ChunkerConfig, ChunkerKind};
use turnflow_engine::document::{Chunk, Document};
use turnflow_engine::inference::Tokenize;
use turnflow_engine::spec::from_tree;

/// The entry for the catalog.
pub const KIND: ChunkerKind = ChunkerKind {
    name: "Paragraphs",
    summary: "one passage per paragraph",
    parse: |tree, sources| Ok(Box::new(from_tree::<ParagraphsConfig>(tree, sources)?)),
};

/// `Paragraphs` has no fields.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParagraphsConfig {}

impl ChunkerConfig for ParagraphsConfig {
    fn explain(&self) -> String {
        String::new()
    }

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
