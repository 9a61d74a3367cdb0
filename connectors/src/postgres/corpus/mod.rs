//! `Postgres` among the corpora: each row of a query is a document.
//!
//! ```ron
//! Postgres(
//!     url: "postgres://app@db:5432/wiki",
//!     query: "SELECT id, title, body AS text, lang FROM articles WHERE published",
//!     changes: Notify(channel: "articles"),
//! )
//! ```
//!
//! The query may be any SELECT. Its columns `id`, `title` and `text` (or those that the fields with these names say) make
//! the document, and all others are its metadata. The server writes each row as JSON, so columns may have any type. All
//! documents are read at the start, in one transaction with one snapshot, by a cursor of the server. `changes` says how
//! later changes are found:
//!
//! * `Poll(every_s: 60)`: the whole query is read again, and compared.
//! * `Cursor(column: "updated_at")`: rows with a later value in a column are read. The value must be that of the time when
//!   the transaction began or later (`now()`, `clock_timestamp()`) or a number of a sequence. Transactions that commit late
//!   are not missed: rows are read again from the value that was reached when the oldest running transaction began. Rows
//!   that are gone are found by a full read every `compare_s`; with `deleted`, a column says that a row is deleted.
//! * `Notify(channel: "articles")`: a trigger tells the ids of changed rows, and these are read again. After a new
//!   connection, everything is read again, because notifications are not kept.
//! * `Slot(name: "turnflow_docs", tables: {"public.articles": "id"})`: a replication slot tells the ids of changed rows,
//!   without a trigger, and keeps them while turnflow does not run. The server needs `wal_level = logical`.
//!
//! Changes that are found are always read again by the query, in their current state. Only rows whose JSON has changed are
//! passed on. For this, the id and a hash of each row are kept in memory (about 100 bytes for each row).
//!
//! A row without an id or a text, a second row with the same id, and a row larger than `max_bytes` become dead letters,
//! once each. A document whose row can no longer be read is deleted.
//!
//! ```
//! # use turnflow_connectors::postgres::corpus::PostgresConfig;
//! # for changes in [
//! #     "Poll()", "Poll(every_s: 60)", "Cursor(column: \"updated_at\", deleted: Some(\"deleted\"))", "Notify(channel: \"articles\")",
//! #     "Slot(name: \"turnflow_docs\", tables: {\"public.articles\": \"id\"})",
//! # ] {
//! # let ron = format!("(url: \"postgres://app@db/wiki\", query: \"SELECT 1\", changes: {changes})");
//! # let config: PostgresConfig = turnflow_engine::spec::from_str(&ron).unwrap();
//! # assert_eq!(config.max_bytes, 16 << 20);
//! # }
//! ```

mod changes;
mod cursor;
mod follow;
mod read;
mod rows;

use std::collections::BTreeMap;

use turnflow_engine::component::{
    Building, Check, ComponentContext, CorpusSourceConfig, CorpusSourceKind, built, config,
};
use turnflow_engine::connector::{ConnectorError, CorpusSource};

pub use self::follow::PostgresCorpus;
use self::read::Query;
use super::connect::{Server, check_server};
use super::names::{check_name, check_slot, check_table, inner};
use crate::mapped::{KeyMap, MapConfig, RowMap};
use crate::readers::jsonl::Fields;
use crate::remote::lasting;
use crate::secret::Secret;

/// Fields of `Postgres`.
#[config]
pub struct PostgresConfig {
    /// The server and the database, as in `postgres://user@host:5432/database?sslmode=require`. Without a password.
    pub url: String,
    /// Where the password is: `Env("NAME")` or `File("path")`. Default: none.
    pub password: Option<Secret>,
    /// The query whose rows are documents: a SELECT.
    pub query: String,
    /// The column with the id, which no two rows share.
    #[field(default = "id")]
    pub id: String,
    /// The column with the title. It may be null or missing.
    #[field(default = "title")]
    pub title: String,
    /// The column with the text.
    #[field(default = "text")]
    pub text: String,
    /// How changes are found: `Poll(…)`, `Cursor(…)`, `Notify(…)` or `Slot(…)`. Default: `Poll()`.
    #[field(default = Changes::Poll { every_s: 60.0 }, within)]
    pub changes: Changes,
    /// Maximum size of a row as JSON, in bytes. A larger one becomes a dead letter.
    #[field(default = 16 << 20, range = 1..=256 << 20)]
    pub max_bytes: usize,
    /// Seconds to wait for a reply of the server, such as the first rows of the query.
    #[field(default = 300.0, range = 0.1..=86_400.0)]
    pub timeout_s: f64,
    /// What makes documents of rows in another form: `Jq("PROGRAM")` or `JqFile("PATH")`. Default: a row is a document.
    pub map: Option<MapConfig>,
}

/// How changes are found.
#[config]
#[derive(PartialEq)]
pub enum Changes {
    /// By reading everything again.
    Poll {
        /// Seconds between two reads.
        #[field(default = 60.0, range = 0.01..=1e9)]
        every_s: f64,
    },
    /// By a column of the query with increasing values.
    Cursor {
        /// The column, such as `updated_at` or `version`. It should have an index.
        column: String,
        /// Seconds between two reads.
        #[field(default = 1.0, range = 0.01..=1e9)]
        every_s: f64,
        /// A column that is true, or not null, if the row counts as deleted. Default: none.
        deleted: Option<String>,
        /// Seconds between two reads of everything, which find rows that are gone. 0 for never.
        #[field(default = 3600.0, range = 0.0..=1e9)]
        compare_s: f64,
    },
    /// By notifications with the ids of changed rows.
    Notify {
        /// The channel. The payload of a notification is an id or a JSON list of ids. If it is empty, everything is read.
        channel: String,
    },
    /// By a replication slot.
    Slot {
        /// The slot. It is created if it does not exist. No other pipeline may read it.
        name: String,
        /// The tables that the query reads, each with the column that has the document's id.
        tables: BTreeMap<String, String>,
        /// The publication that has these tables. It is created if it does not exist. Default: the name of the slot.
        publication: Option<String>,
        /// Seconds between two reads.
        #[field(default = 1.0, range = 0.01..=1e9)]
        every_s: f64,
    },
}

/// Entry in the connector table.
pub const KIND: CorpusSourceKind =
    CorpusSourceKind::of::<PostgresConfig>("Postgres", "the rows of a query of PostgreSQL, and their changes");

impl CorpusSourceConfig for PostgresConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check_server(check, &self.url);
        if let Err(problem) = inner(&self.query) {
            check.error("wrong-value", "query", problem);
        }
        for (field, column) in [("id", &self.id), ("title", &self.title), ("text", &self.text)] {
            check_name(check, field, column);
        }
        RowMap::validate(self.map.as_ref(), check);
        check.within("changes", |check| match &self.changes {
            Changes::Poll { .. } => {}
            Changes::Cursor { column, deleted, .. } => {
                check_name(check, "column", column);
                deleted.iter().for_each(|deleted| check_name(check, "deleted", deleted));
            }
            Changes::Notify { channel } => check_name(check, "channel", channel),
            Changes::Slot { name, tables, publication, .. } => {
                check_slot(check, "name", name);
                publication.iter().for_each(|publication| check_name(check, "publication", publication));
                if tables.is_empty() {
                    check.error("wrong-value", "tables", "`tables` must name the tables that the query reads");
                }
                for (table, column) in tables {
                    check_table(check, "tables", table);
                    check_name(check, "tables", column);
                }
            }
        });
    }

    fn explain(&self) -> String {
        let (shown, tls) = match Server::new(&self.url, None, self.timeout_s) {
            Ok(server) => (server.shown.clone(), server.protection()),
            Err(_) => Default::default(),
        };
        let Self { query, id, title, text, changes, max_bytes, timeout_s, .. } = self;
        let query = query.split_whitespace().collect::<Vec<_>>().join(" ");
        format!(
            "url: {shown:?}, sslmode: {tls}, query: {query:?}, id: {id:?}, title: {title:?}, text: {text:?}, \
             changes: {changes:?}, max_bytes: {max_bytes}, timeout_s: {timeout_s}"
        )
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn CorpusSource> {
        built(self.source(context).map(|source| Box::new(source) as Box<dyn CorpusSource>))
    }
}

impl PostgresConfig {
    /// Builds the source. It connects when it runs.
    ///
    /// # Errors
    ///
    /// A field is not valid.
    pub fn source(&self, context: &ComponentContext) -> Result<PostgresCorpus, ConnectorError> {
        let server = Server::new(&self.url, self.password.as_ref(), self.timeout_s).map_err(lasting)?;
        let fields = Fields { id: self.id.clone(), title: self.title.clone(), text: self.text.clone() };
        let (column, deleted) = match &self.changes {
            Changes::Cursor { column, deleted, .. } => (Some(column.clone()), deleted.clone()),
            _ => (None, None),
        };
        let query = inner(&self.query).map_err(lasting)?.to_owned();
        let query = Query { query, id: self.id.clone(), column, max_bytes: self.max_bytes };
        let map = self.map.as_ref().map(|map| RowMap::of(map, server.database())).transpose();
        let map = map.map_err(|reason| ConnectorError::Refused { reason })?.map(KeyMap::new);
        Ok(PostgresCorpus::new(server, query, fields, deleted, &self.changes, context)?.mapped(map))
    }
}
