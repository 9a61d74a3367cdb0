//! Rows of a database.

use std::path::Path;

use rusqlite::Connection;
use serde_json::Value;

use super::{Log, PROGRAM};

/// A database that another program has open.
pub(super) struct Database(Connection);

impl Database {
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let database = Connection::open(dir.join("chat.db"))?;
        database.pragma_update(None, "journal_mode", "WAL")?;
        database.execute_batch("CREATE TABLE said (n INTEGER PRIMARY KEY, record TEXT)")?;
        Ok(Self(database))
    }
}

impl Log for Database {
    fn source(&self) -> String {
        let query = "SELECT n, record FROM said";
        format!(
            "Sqlite(path: \"chat.db\", query: {query:?}, cursor: \"n\", every_s: 0.05, map: Jq({PROGRAM:?}), \
             conversations: (settle_s: 0.2))"
        )
    }

    fn write(&mut self, records: &[Value]) -> anyhow::Result<()> {
        let transaction = self.0.transaction()?;
        for record in records {
            transaction.execute("INSERT INTO said (record) VALUES (?1)", [record.to_string()])?;
        }
        Ok(transaction.commit()?)
    }
}
