//! turnflow's operators, chunkers and models, one file each. The tables in this file list all of them.
//!
//! # The folders
//!
//! Each operator is one file or folder in `src/`, and so is each chunker and each model. The tables in `src/lib.rs`
//! list them. An operator's file contains its configuration, its `KIND`, the pure computation, the call, and the tests.
//!
//! **Operators by their ports**
//!
//! - Turns to queries: `last_turn.rs`, `user_turns.rs`, `full_conversation.rs`, `rule_rewrite/` (resolves references
//!   and adds words by rules; `sentence.rs` says the question as a person would) and `rewrite/` (a query rewrite by a
//!   language model).
//! - Queries to queries: `decompose/`.
//! - Queries to answers: `agent/`, which contains retrievers itself (`search.rs`), reads the model's actions
//!   (`action.rs`) and keeps what it has found (`transcript.rs`). The engine plans the operators inside it
//!   (`OperatorConfig::inner`) like nodes.
//! - Queries to hits: `bm25/`, `dense/`, `sparse/` (learned term weights), `static/` (means of word vectors),
//!   `references.rs` (the passages that a turn's record names), `asked_before.rs` (the passages that answered similar
//!   questions) and `multi_vector/` (late interaction, which takes queries or hits). `bm25/`, `dense/`, `sparse/` and
//!   `static/` share the call in `retrieve.rs`.
//! - Hits to hits: `rrf.rs`, `rank_fusion.rs`, `hybrid.rs`, `fallback.rs`, `append.rs`, `rerank_ensemble/`
//!   (`members.rs` implements each kind of member), `tree_rerank/` (boosted trees over features of several lists;
//!   `features.rs` computes them), `diversify.rs`, `group_by_document.rs`, `clean.rs`, and `llm_filter.rs` with a
//!   language model.
//! - Hits to prompts: `prompt.rs`. Hits or prompts to answers: `generate.rs`. Hits to answers: `extractive_answer.rs`.
//! - Answers to answers: `evidence.rs` measures the evidence for an answer; `idk_normalize/` decides whether the text
//!   is an answer or an IDK, by what it says (`declines/`, where `grammar.txt` has the patterns of refusals and
//!   questions back, and `head.rs` the learned label; the metrics of `eval` use it too), by the words that it shares
//!   with its passages (`shared.rs`), by evidence (`confidence.rs`) or with a judge; `self_check.rs` and `nli.rs` check
//!   it against the passages.
//!
//! **Indexes**
//!
//! - `bm25/` scores tantivy's postings itself. `search.rs` reads them in windows and skips what cannot be among the
//!   best; the result is that of scoring every passage, to the bit. `terms.rs` keeps, for each segment, bounds of the
//!   scores in each block of postings, and in how many live passages a term occurs. `entries.rs` is what the index
//!   knows of each passage, and `reader.rs` is the index at an epoch. A large change is written by several threads;
//!   `separated.rs` hands terms to tantivy as text. `directory.rs` skips tantivy's waits for the disk. `remember.rs`
//!   reads what is stored, `change.rs` compares it with a change, and `view.rs` finds the passages of each segment, all
//!   on all cores; nothing is committed if nothing differs. `open.rs` moves a damaged index aside and rebuilds it, and
//!   reopens the index after a failed change.
//! - `content/` is the index by content that `dense/`, `sparse/`, `multi_vector/` and `static/` share. They differ in
//!   the encoding and in how they search a block.
//!   - `contents.rs` computes the encoding of each content once, and `store.rs` stores it in Lance. `read.rs` reads the
//!     stored ones on all cores, `rows.rs` checks each row, `salvage.rs` saves the readable rows of a damaged dataset,
//!     and `faults.rs` distinguishes damage from a disk that does not respond.
//!   - `placed.rs` finds vectors in the data files, where they lie one after another; after a compaction, `index.rs`
//!     goes on with the new files. `index.rs` serves encodings in blocks of passages, from memory or, for vectors, from
//!     mapped files; a new epoch copies only the blocks that have changed (`blocks.rs`). A large change derives what a
//!     search needs, such as codes, at once. `unused.rs` removes encodings that no passage uses. `claims.rs` protects
//!     contents that are prepared and not yet published from removal.
//!   - `dense/codes.rs` has 8-bit codes of each block's vectors. They bound the exact scores, so most passages are
//!     ruled out without reading their vectors, and the result is still exact. `dense/ivf.rs` is the approximate index:
//!     it is made in the background from one epoch, and serves all of them, because members are checked by number and
//!     content, and passages outside its lists are compared exactly. `dense/ivf/bits.rs` has 1-bit codes of the vectors
//!     of its lists, by which most are passed over.
//!   - `multi_vector/centroids.rs` is the approximate index of late interaction: centroids of tokens, made in the
//!     background (`background.rs`), choose the passages whose tokens are compared. `kmeans.rs` learns centroids, and
//!     `products.rs` multiplies codes.
//!   - `static/` keeps the words of each passage. Weights of words change with every passage, so `measures.rs` bounds
//!     scores with the frequencies of an earlier time, the base, and only what may be among the best has its exact
//!     score computed. With each change, some blocks of passages move on to a later base.
//!   - `scan.rs` computes inner products and selects the top k, and `scans.rs` runs scans that are ready together in
//!     one pass.
//! - `tables/`, beside `src/`, is a separate crate, `turnflow-tables`, and the only one that calls Lance. It writes and
//!   reads datasets in Lance's format with Lance's data files, manifests and transactions (`lance-file`, `lance-table`,
//!   `lance-io`), and without its query engine, which is most of Lance. `commit.rs` opens and commits versions,
//!   `write.rs` and `read.rs` handle data files, `delete.rs`, `compact.rs`, `clean.rs` and `tags.rs` are one operation
//!   each, `file.rs` reads a data file by itself, and `places.rs` says where uncompressed values lie in the data files.
//!   Other programs may open, change and search the tables; a test does so with `pylance` and LanceDB. Lance's
//!   asynchronous functions are compiled in every crate that awaits them, so this crate returns boxed futures and takes
//!   no type parameters.
//!
//! **Passages**
//!
//! - `passage_table/` is the table of the published passages of a corpus: id, document, title, text, metadata as JSON,
//!   content hash. A removed passage is a row too, and the last row of an id counts, so a publication is one small data
//!   file whatever it changes. `rows.rs` writes the rows as they are, without compression. `read.rs` finds the values
//!   in the data files without Lance's decoders, and leaves texts where they lie, in the mapped files. After some
//!   publications, the last files are merged; when most rows are not needed, the table is written anew.
//!
//! **Shared parts**
//!
//! - `fusion.rs` normalises the scores of lists and adds them up; `parts.rs` merges the lists found for the parts of a
//!   question.
//! - `prompts/*.txt`, beside `src/`, are the built-in prompts, which are compiled in. `template.rs` reads them and a
//!   pipeline's own templates, and `check` reports placeholders that an operator does not fill.
//! - `prompting.rs` and `passages.rs` build prompts from numbered passages, the only parts that may be cut. `quote.rs`
//!   escapes text in a passage that could pass for the prompt's own. `reply.rs` and `citations.rs` parse the replies of
//!   models, and `code.rs` finds the code in them. `generate/draft.rs` streams the certain part of an answer.
//! - `sentences.rs` splits text into sentences, `words.rs` into words, and `shared_run.rs` finds the longest run of
//!   words that two texts share.
//! - `hostile.rs` tests inputs as large and as hostile as the limits admit, and measures time and memory.
//!
//! **Chunkers and models**
//!
//! - `chunk/` contains the chunkers. Its `cut.rs` cuts text without blanks or paragraphs. `cleaned.rs` cleans documents
//!   for another chunker; it is outside because it shares `cleaning.rs` with `clean.rs`, and `chunk/` depends on no
//!   operator.
//! - `models/` contains the kinds of models: `onnx.rs` (encoders), `onnx_sparse.rs`, `cross_encoder.rs`,
//!   `onnx_trees.rs` (boosted trees), `ocr/` (text in pictures), `word_vectors.rs`, `onnx_decoder/` and `onnx_seq2_seq/` (language models in the
//!   process), `open_ai/` (a language model on a server) and `open_ai_embedder.rs`.
//! - The two kinds on servers share `open_ai/client.rs` and `open_ai/server.rs`. `open_ai/bounded.rs` decides by the
//!   bytes whether a response is a stream, `stream.rs` parses it whatever the types are, and `refused.rs` changes
//!   fields that a server refuses. Models in ONNX Runtime share `runtime.rs`. Text encoders share `text.rs`
//!   (tokenization, batches), `text_encoder.rs` (settings, loading) and `runner.rs` (a session that continues on the
//!   CPU when its GPU fails). Generators share `search.rs` (greedy, sampled and beam search) and `control.rs` (control
//!   tokens in messages stay text).

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
pub mod recorded;
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
pub mod words;

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
    recorded::KIND,
    nli::KIND,
];

/// Every model kind.
pub static MODELS: &[ModelKind] = &[
    models::onnx::KIND,
    models::onnx_sparse::KIND,
    models::cross_encoder::KIND,
    models::onnx_trees::KIND,
    models::ocr::KIND,
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
