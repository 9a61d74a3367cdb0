//! turnflow's operators, chunkers and models, one file each. The tables in this file list all of them.

pub mod agent;
pub mod append;
pub mod asked_before;
mod background;
pub mod bm25;
pub mod chunk;
pub mod citations;
pub mod clean;
pub mod cleaned;
mod cleaning;
mod code;
#[cfg(test)]
mod conformance;
mod content;
mod cores;
pub mod declines;
pub mod decompose;
pub mod dense;
pub mod diversify;
pub mod evidence;
pub mod extractive_answer;
pub mod fallback;
pub mod full_conversation;
mod fusion;
mod gauges;
pub mod generate;
pub mod group_by_document;
#[cfg(test)]
mod hostile;
pub mod hybrid;
pub mod idk_normalize;
mod kmeans;
pub mod last_turn;
pub mod llm_filter;
pub mod models;
pub mod multi_vector;
pub mod nli;
mod parts;
mod passage_table;
mod passages;
mod products;
pub mod prompt;
mod prompting;
mod quote;
pub mod rank_fusion;
pub mod references;
pub mod reply;
pub mod rerank_ensemble;
mod retrieve;
pub mod rewrite;
pub mod rrf;
pub mod rule_rewrite;
pub mod self_check;
pub mod sentences;
mod shared_run;
pub mod sparse;
pub mod r#static;
pub mod template;
#[cfg(test)]
mod test_generator;
#[cfg(test)]
mod test_turn;
pub mod tree_rerank;
pub mod user_turns;
mod words;

use turnflow_engine::component::{ChunkerKind, ModelKind, OpenPassages, OperatorKind};

/// Every operator.
pub static OPERATORS: &[OperatorKind] = &[
    last_turn::KIND,
    user_turns::KIND,
    full_conversation::KIND,
    rule_rewrite::KIND,
    rewrite::KIND,
    decompose::KIND,
    bm25::KIND,
    dense::KIND,
    sparse::KIND,
    r#static::KIND,
    multi_vector::KIND,
    references::KIND,
    asked_before::KIND,
    fallback::KIND,
    append::KIND,
    rrf::KIND,
    rank_fusion::KIND,
    hybrid::KIND,
    rerank_ensemble::KIND,
    tree_rerank::KIND,
    group_by_document::KIND,
    diversify::KIND,
    clean::KIND,
    llm_filter::KIND,
    prompt::KIND,
    extractive_answer::KIND,
    generate::KIND,
    agent::KIND,
    evidence::KIND,
    idk_normalize::KIND,
    self_check::KIND,
    nli::KIND,
];

/// Every model kind.
pub static MODELS: &[ModelKind] = &[
    models::onnx::KIND,
    models::onnx_sparse::KIND,
    models::cross_encoder::KIND,
    models::onnx_trees::KIND,
    models::word_vectors::KIND,
    models::onnx_decoder::KIND,
    models::onnx_seq2_seq::KIND,
    models::open_ai::KIND,
    models::open_ai_embedder::KIND,
];

/// What keeps the published passages of a corpus.
pub const PASSAGES: OpenPassages = passage_table::open;

/// Every chunker.
pub static CHUNKERS: &[ChunkerKind] =
    &[chunk::whole::KIND, chunk::tokens::KIND, chunk::sentences::KIND, chunk::headings::KIND, cleaned::KIND];

#[cfg(test)]
mod tests {
    use super::*;

    /// A file's `snake_case` name equals the component's `PascalCase` name in RON, and every name occurs once.
    #[test]
    fn names_follow_the_files() {
        let mut names: Vec<&str> = OPERATORS.iter().map(|kind| kind.name).collect();
        names.extend(CHUNKERS.iter().map(|kind| kind.name));
        names.extend(MODELS.iter().map(|kind| kind.name));
        let files = |directory: &str| -> Vec<String> {
            std::fs::read_dir(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(directory))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().to_string_lossy().trim_end_matches(".rs").to_owned())
                .collect()
        };
        let files: Vec<String> = ["", "chunk", "models"].iter().flat_map(|directory| files(directory)).collect();
        for name in &names {
            let mut snake = String::new();
            for c in name.chars() {
                if c.is_ascii_uppercase() && !snake.is_empty() {
                    snake.push('_');
                }
                snake.push(c.to_ascii_lowercase());
            }
            assert!(files.contains(&snake), "{name} should be in a file or folder named {snake}");
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), OPERATORS.len() + CHUNKERS.len() + MODELS.len());
    }

    /// The RON snippet in each file's module documentation parses.
    #[test]
    fn the_files_snippets_are_read() {
        use turnflow_engine::spec::{Source, Sources, parse};
        let mut read = 0;
        let src = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut directories = vec![src];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
                if entry.path().is_dir() {
                    directories.push(entry.path());
                    continue;
                }
                let text = std::fs::read_to_string(entry.path()).unwrap();
                let head: String =
                    text.lines().map_while(|line| line.strip_prefix("//!")).map(|line| format!("{line}\n")).collect();
                let Some(snippet) = head.split("```ron").nth(1).and_then(|rest| rest.split("```").next()) else {
                    continue;
                };
                let mut sources = Sources::default();
                let source = sources.add(Source { name: "snippet".into(), base: "".into(), text: snippet.into() });
                let tree = parse(&sources, source).unwrap_or_else(|error| panic!("{snippet}: {error:?}"));
                let name = tree.name().unwrap().text.clone();
                let operator =
                    OPERATORS.iter().find(|kind| kind.name == name).map(|kind| (kind.parse)(&tree, &sources).err());
                let chunker =
                    CHUNKERS.iter().find(|kind| kind.name == name).map(|kind| (kind.parse)(&tree, &sources).err());
                let model =
                    MODELS.iter().find(|kind| kind.name == name).map(|kind| (kind.parse)(&tree, &sources).err());
                match operator.or(chunker).or(model) {
                    Some(None) => read += 1,
                    Some(Some(error)) => panic!("{name}: {error}"),
                    None => panic!("{name} is in no table"),
                }
            }
        }
        assert_eq!(read, OPERATORS.len() + CHUNKERS.len() + MODELS.len(), "every file has a snippet");
    }
}
