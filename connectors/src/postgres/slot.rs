//! Logical replication slots: changes of tables, in the order of their commits, kept by the server until they are done.

use std::collections::BTreeSet;

use turnflow_engine::connector::ConnectorError;

use super::connect::Calls;
use super::names::{Table, quoted};
use crate::remote::passing;

/// Changes in a reading, which ends with the transaction that reaches it.
pub(super) const CHANGES: i32 = 10_000;

/// A slot and the publication that says which tables it has.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) publication: String,
    pub(super) tables: BTreeSet<Table>,
    /// What a publication that is created publishes.
    pub(super) publishes: &'static str,
}

/// A slot as it was found.
pub(super) struct Found {
    /// It was created: earlier changes are not in it.
    pub(super) is_new: bool,
    /// All transactions that committed before this position are done.
    pub(super) done: u64,
}

impl Slot {
    /// Creates the publication and the slot if they do not exist, or if the slot cannot be read any more.
    pub(super) fn ensure(&self, calls: &Calls<'_>) -> Result<Found, ConnectorError> {
        let client = calls.client();
        let exists = "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1::text)";
        let mut is_published: bool = calls.get(client.query_one(exists, &[&self.publication]))?.get(0);
        let had_publication = is_published;
        if !is_published {
            self.check_identities(calls)?;
            let tables: Vec<String> = self.tables.iter().map(Table::sql).collect();
            // A partitioned table is published under its own name.
            let create = format!(
                "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = '{}', publish_via_partition_root = true)",
                quoted(&self.publication),
                tables.join(", "),
                self.publishes
            );
            calls.get(client.batch_execute(&create))?;
            tracing::info!(publication = self.publication, "created the publication");
            is_published = true;
        }
        self.check_kinds(calls)?;
        self.tell_narrow(calls)?;
        let published = "SELECT schemaname::text, tablename::text FROM pg_publication_tables WHERE pubname = $1::text";
        let rows = calls.get(client.query(published, &[&self.publication]))?;
        let published: BTreeSet<Table> =
            rows.iter().map(|row| Table { schema: row.get(0), name: row.get(1) }).collect();
        if let Some(missing) = self.tables.iter().find(|table| is_published && !published.contains(table)) {
            let publication = &self.publication;
            return Err(passing(format!(
                "the publication `{publication}` does not have the table {missing} (ALTER PUBLICATION … ADD TABLE …; for a \
                 partitioned table also SET (publish_via_partition_root = true))"
            )));
        }
        let slot = "SELECT coalesce(plugin::text, ''), coalesce(database::text, '') = current_database(), \
                    coalesce(wal_status, '') = 'lost', (confirmed_flush_lsn - '0/0')::text \
                    FROM pg_replication_slots WHERE slot_name = $1::text";
        if let Some(row) = calls.get(client.query_opt(slot, &[&self.name]))? {
            let (plugin, is_here, is_lost): (&str, bool, bool) = (row.get(0), row.get(1), row.get(2));
            if plugin != "pgoutput" || !is_here {
                let name = &self.name;
                return Err(passing(format!("the slot `{name}` is of another database or plugin: use another name")));
            }
            // A slot cannot read what was written before its publication existed.
            if !is_lost && had_publication {
                let done = row.get::<_, Option<&str>>(3).and_then(|done| done.parse().ok()).unwrap_or_default();
                return Ok(Found { is_new: false, done });
            }
            tracing::warn!(
                slot = self.name,
                "the slot has lost changes, or is older than its publication; replacing it"
            );
            calls.get(client.execute("SELECT pg_drop_replication_slot($1::text)", &[&self.name]))?;
        }
        let create = "SELECT (lsn - '0/0')::text FROM pg_create_logical_replication_slot($1::text, 'pgoutput')";
        // It waits for all transactions that are running.
        let row = calls.get_late(client.query_one(create, &[&self.name]))?;
        tracing::info!(slot = self.name, "created the replication slot");
        Ok(Found { is_new: true, done: position(row.get(0))? })
    }

    /// Reports a table whose updates and deletes would fail once they are published: the server refuses them if nothing
    /// identifies a row.
    fn check_identities(&self, calls: &Calls<'_>) -> Result<(), ConnectorError> {
        if !self.publishes.contains("update") {
            return Ok(());
        }
        let query = "WITH RECURSIVE tables(oid) AS (SELECT to_regclass($1::text)::oid \
                     UNION SELECT inhrelid FROM pg_inherits JOIN tables ON inhparent = oid) \
                     SELECT c.oid::regclass::text FROM tables JOIN pg_class c USING (oid) \
                     WHERE c.relkind = 'r' AND c.relreplident <> 'f' AND NOT EXISTS ( \
                     SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND CASE c.relreplident \
                     WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END) LIMIT 1";
        for table in &self.tables {
            let row = calls.get(calls.client().query_opt(query, &[&table.sql()]))?;
            if let Some(row) = row {
                let without: &str = row.get(0);
                return Err(passing(format!(
                    "the table {without} has no replica identity, so its updates and deletes would fail once they are \
                     published: give it a primary key, or run ALTER TABLE … REPLICA IDENTITY FULL"
                )));
            }
        }
        Ok(())
    }

    /// Warns of a publication that leaves out rows or columns of a table: what it leaves out is never seen.
    fn tell_narrow(&self, calls: &Calls<'_>) -> Result<(), ConnectorError> {
        // Both exist from PostgreSQL 15 on.
        let query = "SELECT p.schemaname::text, p.tablename::text, to_jsonb(p) ->> 'rowfilter', \
                     coalesce(jsonb_array_length(to_jsonb(p) -> 'attnames'), 1000000) < (SELECT count(*) \
                     FROM pg_attribute WHERE attrelid = format('%I.%I', p.schemaname, p.tablename)::regclass \
                     AND attnum > 0 AND NOT attisdropped AND attgenerated = '') \
                     FROM pg_publication_tables p WHERE p.pubname = $1::text";
        for row in calls.get(calls.client().query(query, &[&self.publication]))? {
            let table = Table { schema: row.get(0), name: row.get(1) };
            if !self.tables.contains(&table) {
                continue;
            }
            let publication = self.publication.as_str();
            if let Some(filter) = row.get::<_, Option<String>>(2) {
                tracing::warn!(publication, %table, filter, "the publication leaves out rows of the table; they are not read");
            }
            if row.get(3) {
                tracing::warn!(publication, %table, "the publication leaves out columns of the table; they are not read");
            }
        }
        Ok(())
    }

    /// Reports a publication that leaves out a kind of change.
    fn check_kinds(&self, calls: &Calls<'_>) -> Result<(), ConnectorError> {
        let query = "SELECT concat_ws(', ', CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END, \
                     CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END) \
                     FROM pg_publication WHERE pubname = $1::text";
        let row = calls.get(calls.client().query_opt(query, &[&self.publication]))?;
        let published: String = row.map(|row| row.get(0)).unwrap_or_default();
        let has = |kind: &str| published.split(", ").any(|published| published == kind);
        match self.publishes.split(", ").find(|kind| !has(kind)) {
            Some(missing) => Err(passing(format!(
                "the publication `{0}` does not publish `{missing}` (ALTER PUBLICATION {0} SET (publish = '{1}'))",
                self.publication, self.publishes
            ))),
            None => Ok(()),
        }
    }

    /// The tables as they are now. Another value means that one of them was created again, or taken out of the
    /// publication.
    pub(super) fn tables_now(&self, calls: &Calls<'_>) -> Result<String, ConnectorError> {
        let query = "SELECT coalesce(string_agg(c.oid::text, ' ' ORDER BY c.oid), '') FROM pg_publication_tables p \
                     JOIN pg_namespace n ON n.nspname = p.schemaname \
                     JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename \
                     WHERE p.pubname = $1::text AND n.nspname || '.' || c.relname = ANY ($2::text[])";
        let tables: Vec<String> = self.tables.iter().map(ToString::to_string).collect();
        let row = calls.get(calls.client().query_one(query, &[&self.publication, &tables]))?;
        Ok(row.get(0))
    }

    /// Reports that the tables are no longer those that they were.
    pub(super) fn check_tables(&self, calls: &Calls<'_>, known: &str) -> Result<(), ConnectorError> {
        match self.tables_now(calls)? == known {
            true => Ok(()),
            false => Err(passing("a table was created again, renamed, or taken out of the publication")),
        }
    }

    /// The position up to which the server's log is on disk.
    pub(super) fn written(calls: &Calls<'_>) -> Result<u64, ConnectorError> {
        let row = calls.get(calls.client().query_one("SELECT (pg_current_wal_flush_lsn() - '0/0')::text", &[]))?;
        position(row.get(0))
    }

    /// Calls a function with each message of the transactions up to a position. Returns whether they are all.
    pub(super) fn peek(
        &self,
        calls: &Calls<'_>,
        up_to: u64,
        limit: i32,
        mut take: impl FnMut(&[u8]) -> Result<(), ConnectorError>,
    ) -> Result<bool, ConnectorError> {
        let peek = "SELECT data FROM pg_logical_slot_peek_binary_changes($1::text, $2::text::pg_lsn, \
                    $3::int, 'proto_version', '1', 'publication_names', $4::text)";
        let client = calls.client();
        let (up_to, publication) = (lsn(up_to), quoted(&self.publication));
        let statement = calls.get(client.prepare(peek))?;
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&self.name, &up_to, &limit, &publication];
        // The first row arrives when all are decoded.
        let stream = calls.get_late(client.query_raw(&statement, values))?;
        let count = calls.each(stream, |row| take(row.get(0)))?;
        Ok(count < limit as usize)
    }

    /// Tells the server that all transactions before a position are done.
    pub(super) fn advance(&self, calls: &Calls<'_>, to: u64) -> Result<(), ConnectorError> {
        let advance = "SELECT pg_replication_slot_advance($1::text, $2::text::pg_lsn)";
        calls.get_late(calls.client().execute(advance, &[&self.name, &lsn(to)]))?;
        Ok(())
    }
}

/// A position in the server's log.
fn position(written: &str) -> Result<u64, ConnectorError> {
    written.parse().map_err(|_| passing(format!("the server's position `{written}` is not a number")))
}

/// A position as PostgreSQL writes it.
fn lsn(position: u64) -> String {
    format!("{:X}/{:X}", position >> 32, position & 0xffff_ffff)
}

/// Which transactions a reader sees.
#[derive(Debug)]
pub(super) struct Snapshot {
    end: u64,
    running: Vec<u64>,
}

impl Snapshot {
    /// Reads PostgreSQL's form `xmin:xmax:xip,xip`.
    pub(super) fn parse(written: &str) -> Option<Self> {
        let mut parts = written.splitn(3, ':').skip(1);
        let end = parts.next()?.parse().ok()?;
        let running = parts.next()?.split(',').filter(|number| !number.is_empty());
        Some(Self { end, running: running.map(str::parse).collect::<Result<_, _>>().ok()? })
    }

    /// The snapshot of now.
    pub(super) fn now(calls: &Calls<'_>) -> Result<Self, ConnectorError> {
        let row = calls.get(calls.client().query_one("SELECT pg_current_snapshot()::text", &[]))?;
        Self::parse(row.get(0)).ok_or_else(|| passing("the server's snapshot cannot be read"))
    }

    /// Whether it sees a transaction that has committed, given the last 32 bits of its number.
    pub(super) fn sees(&self, transaction: u32) -> bool {
        const ROUND: u64 = 1 << 32;
        let mut number = (self.end & !(ROUND - 1)) | u64::from(transaction);
        // The whole number is the one that is nearest.
        if number > self.end + ROUND / 2 {
            number = number.saturating_sub(ROUND);
        } else if number + ROUND / 2 < self.end {
            number += ROUND;
        }
        number < self.end && !self.running.contains(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_what_has_ended() {
        let snapshot = Snapshot::parse("10:20:12,15").unwrap();
        assert_eq!(
            [9, 12, 13, 15, 19, 20, 30].map(|number| snapshot.sees(number)),
            [true, false, true, false, true, false, false]
        );
        assert!(Snapshot::parse("10:20:").unwrap().sees(10));
        assert!(Snapshot::parse("10").is_none() && Snapshot::parse("10:x:").is_none());
        // The numbers of transactions have 64 bits, those in the log the last 32 of them.
        let round = 1u64 << 32;
        let snapshot = Snapshot::parse(&format!("{0}:{1}:{0}", round - 2, round + 5)).unwrap();
        let seen = [u32::MAX - 1, u32::MAX, 0, 4, 5].map(|number| snapshot.sees(number));
        assert_eq!(seen, [false, true, true, true, false]);
    }
}
