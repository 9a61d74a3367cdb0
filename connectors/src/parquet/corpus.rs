//! `Parquet`: a corpus of one Parquet or Arrow file, one document for each row.
//!
//! ```ron
//! Parquet(path: "articles.parquet", id: "article_id", text: "body")
//! ```
//!
//! Columns other than the id, the title and the text are metadata; dates and times are written as text in RFC 3339. A file
//! whose name ends with `.arrow` or `.feather` is read as an Arrow file. Changes are followed as for `JsonLines`: when the
//! file is replaced, it is read again, and only the rows that differ change. While a file is incomplete, its former rows
//! are kept. Rows that are not documents become dead letters `file:row`.
//!
//! ```
//! # use turnflow_connectors::parquet::corpus::ParquetConfig;
//! # let ron = r#"
//! (path: "articles.parquet", text: "body")
//! # "#;
//! # let config: ParquetConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.id, "_id");
//! ```

use std::path::Path;

use turnflow_engine::component::{
    Building, Check, ComponentContext, CorpusSourceConfig, CorpusSourceKind, built, config,
};
use turnflow_engine::connector::CorpusSource;
use turnflow_engine::spec::FilePath;

use crate::jsonl_corpus::{JsonLines, JsonLinesConfig};
use crate::mapped::{MapConfig, RowMap};
use crate::readers::Format;
use crate::readers::jsonl::Fields;

/// Fields of `Parquet`.
#[config]
pub struct ParquetConfig {
    /// Path of the file, relative to the pipeline file.
    pub path: FilePath,
    /// Whether to follow changes of the file.
    #[field(default = true)]
    pub watch: bool,
    /// Column that holds a row's id: text or whole numbers.
    #[field(default = Fields::default().id)]
    pub id: String,
    /// Column that holds a row's title; may be missing.
    #[field(default = Fields::default().title)]
    pub title: String,
    /// Column that holds a row's text.
    #[field(default = Fields::default().text)]
    pub text: String,
    /// Maximum size of a row as JSON, in bytes. A larger row becomes a dead letter.
    #[field(default = 16 << 20, range = 1..)]
    pub max_row_bytes: usize,
    /// What makes documents of rows in another form: `Jq("PROGRAM")` or `JqFile("PATH")`. Default: rows are documents.
    pub map: Option<MapConfig>,
}

/// Entry in the connector table.
pub const KIND: CorpusSourceKind =
    CorpusSourceKind::of::<ParquetConfig>("Parquet", "a Parquet or Arrow file with one document for each row");

impl ParquetConfig {
    fn rows(&self) -> JsonLinesConfig {
        let Self { path, watch, id, title, text, max_row_bytes, map } = self.clone();
        JsonLinesConfig { path, watch, id, title, text, max_line_bytes: max_row_bytes, map }
    }

    /// Builds the source. It accesses no file until it runs.
    pub fn source(&self, base: &Path) -> JsonLines {
        let format = match Format::of(&self.path.path) {
            Some(Format::Arrow) => Format::Arrow,
            _ => Format::Parquet,
        };
        self.rows().source(base).of(format)
    }
}

impl CorpusSourceConfig for ParquetConfig {
    fn validate(&self, check: &mut Check<'_>) {
        self.rows().check_path(check);
        RowMap::validate(self.map.as_ref(), check);
    }

    fn explain(&self) -> String {
        self.rows().explain()
    }

    fn reads(&self, file: &Path) -> bool {
        self.rows().reads(file)
    }

    fn build(&self, _: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(Ok(Box::new(self.source(Path::new("")))))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use parquet::basic::Compression;
    use turnflow_engine::connector::Mode;
    use turnflow_engine::spec::from_str;

    use super::*;
    use crate::readers::columnar::tests::{as_parquet, table};
    use crate::testing::Corpus;

    #[test]
    fn rows_are_documents_and_a_new_file_changes_those_that_differ() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.parquet");
        let write = |rows: usize| {
            let new = directory.path().join("new");
            fs::write(&new, as_parquet(&table().slice(0, rows), Compression::SNAPPY)).unwrap();
            fs::rename(new, &path).unwrap();
        };
        write(3);
        let config: ParquetConfig = from_str("(path: \"t.parquet\")").unwrap();
        let running = Corpus::run(config.source(directory.path()), Mode::Follow);
        let first = running.commit();
        running.started();
        let metadata = first[0].1.as_ref().unwrap().metadata.to_json();
        assert_eq!(metadata["date"], "2026-11-25T21:56:49Z");
        assert_eq!(crate::testing::told(first), ["1=one \"ü\"\n", "2=two"]);
        assert!(running.dead()[0].contains("t.parquet:3: `text` is missing"), "{:?}", running.dead());
        write(1);
        assert_eq!(running.changes(), ["-2"]);
        // A file that is being written keeps its rows.
        fs::write(&path, b"PAR1").unwrap();
        write(2);
        assert_eq!(running.changes(), ["2=two"]);
        running.end(true).unwrap_err();
    }
}
