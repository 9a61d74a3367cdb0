//! Follows a table by a column with increasing values.
//!
//! A sequence hands out values when rows are inserted, and rows appear when their transactions commit, in another order.
//! An insert locks its table before it takes a value from the sequence, and the lock is released after the row can be
//! seen. So the reader looks up the largest value, then lists the transactions that hold such a lock, and waits until each
//! of them has ended: then no row up to that value can still appear.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio_postgres::Row;
use turnflow_engine::connector::{ConnectorError, Mode, SourceOffset};
use turnflow_engine::odd_json;

use super::Reading;
use crate::postgres::connect::Calls;
use crate::postgres::names::quoted;
use crate::remote::{Retry, passing};

/// Pause while transactions that may insert smaller values are running.
const PAUSE: Duration = Duration::from_millis(50);
/// Rows in a page.
const PAGE: i64 = 1000;

/// Where the reader is; survives the connection.
#[derive(Default)]
pub(super) struct Cursor {
    place: Option<Place>,
    /// The largest value that existed at the start, which `caught_up` waits for.
    at_start: Option<i64>,
    is_caught_up: bool,
}

struct Place {
    log: String,
    generation: u64,
    /// All rows up to this value are sent.
    last: i64,
}

/// A value whose rows are not all visible yet.
struct Waiting {
    value: i64,
    /// The transactions that may insert smaller values.
    running: BTreeSet<String>,
}

impl Reading<'_> {
    /// Connects and follows the table. `Ok` with [`Mode::Once`] only.
    pub(super) fn follow_cursor(
        &self,
        cursor: &mut Cursor,
        column: &str,
        every_s: f64,
        channel: Option<&str>,
        retry: &mut Retry,
    ) -> Result<(), ConnectorError> {
        let calls = self.connect()?;
        calls.check_primary()?;
        if let Some(channel) = channel {
            calls.get(calls.client().batch_execute(&format!("LISTEN {}", quoted(channel))))?;
        }
        let (server, of_table) = self.identity(&calls)?;
        self.resume(cursor, format!("{server}/{of_table}"));
        let (table, column) = (self.source.table.sql(), quoted(column));
        let largest = format!("SELECT max({column})::bigint, $1::text::regclass::oid::text FROM {table}");
        let mut oid: Option<String> = None;
        let mut waiting: Option<Waiting> = None;
        loop {
            calls.session.inbox.take();
            let Some(place) = &mut cursor.place else { return Ok(()) };
            if waiting.is_none() {
                let row = calls.get(calls.client().query_one(&largest, &[&table]))?;
                let (largest, now): (Option<i64>, String) = (row.get(0), row.get(1));
                if *oid.get_or_insert_with(|| now.clone()) != now {
                    return Err(passing("the table was created again"));
                }
                let at_start = *cursor.at_start.get_or_insert(largest.unwrap_or(0));
                // With `Once`, rows that are inserted later do not count.
                let largest = if self.mode == Mode::Once { Some(at_start) } else { largest };
                if let Some(value) = largest.filter(|value| *value > place.last) {
                    waiting = Some(Waiting { value, running: self.writers(&calls)? });
                }
            }
            if let Some(Waiting { value, running }) = &mut waiting {
                if !running.is_empty() {
                    let now = self.writers(&calls)?;
                    running.retain(|transaction| now.contains(transaction));
                }
                if running.is_empty() {
                    self.send_rows(&calls, place, &column, *value)?;
                    waiting = None;
                }
            }
            retry.worked();
            if !cursor.is_caught_up && cursor.at_start.is_some_and(|at_start| place.last >= at_start) {
                cursor.is_caught_up = true;
                self.output.caught_up();
            }
            if cursor.is_caught_up && self.mode == Mode::Once {
                return Ok(());
            }
            let every = Duration::from_secs_f64(every_s);
            match waiting {
                Some(_) => calls.idle(PAUSE.min(every), false)?,
                None => calls.idle(every, channel.is_some())?,
            }
        }
    }

    /// Finds the place where an earlier process, or the last connection, has stopped.
    fn resume(&self, cursor: &mut Cursor, log: String) {
        let known = match &cursor.place {
            Some(place) => Some((place.log.clone(), place.generation, place.last)),
            None => self.output.resume().map(|offset| {
                (offset.log.to_string(), offset.generation, i64::try_from(offset.end).unwrap_or(i64::MAX))
            }),
        };
        let (generation, last) = match known {
            Some((known, generation, last)) if known == log => (generation, last),
            Some((_, generation, _)) => {
                tracing::warn!(table = %self.source.table, "the table was replaced; reading it from its beginning");
                // Its values may be below those of the former one.
                cursor.at_start = None;
                (generation + 1, 0)
            }
            None => {
                let log = log.as_str().into();
                self.output.begins(SourceOffset { log, ..SourceOffset::default() });
                (0, 0)
            }
        };
        cursor.place = Some(Place { log, generation, last });
    }

    /// The transactions that may be inserting rows into the table or its partitions.
    fn writers(&self, calls: &Calls<'_>) -> Result<BTreeSet<String>, ConnectorError> {
        let query = "WITH RECURSIVE tables(oid) AS ( \
                     SELECT $1::text::regclass::oid \
                     UNION SELECT inhrelid FROM pg_inherits JOIN tables ON inhparent = oid) \
                     SELECT DISTINCT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted \
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
                     AND relation IN (SELECT oid FROM tables) AND mode = 'RowExclusiveLock'";
        let rows = calls.get(calls.client().query(query, &[&self.source.table.sql()]))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Sends the rows after the last one, up to this value.
    fn send_rows(&self, calls: &Calls<'_>, place: &mut Place, column: &str, to: i64) -> Result<(), ConnectorError> {
        let (table, most) = (self.source.table.sql(), self.source.max_bytes);
        let query = format!(
            "SELECT number, CASE WHEN octet_length(row) <= {most} THEN row ELSE left(row, 1000) END, \
             octet_length(row)::bigint FROM (SELECT turnflow_t.{column}::bigint AS number, \
             row_to_json(turnflow_t)::text AS row FROM {table} turnflow_t \
             WHERE turnflow_t.{column} > $1::bigint AND turnflow_t.{column} <= $2::bigint \
             ORDER BY turnflow_t.{column} LIMIT {PAGE}) turnflow_r ORDER BY number"
        );
        let statement = calls.get(calls.client().prepare(&query))?;
        while place.last < to {
            let stream = calls.get(calls.client().query_raw(&statement, [place.last, to]))?;
            let count = calls.each(stream, |row| self.send_row(place, &row))?;
            if (count as i64) < PAGE {
                place.last = to;
            }
        }
        Ok(())
    }

    fn send_row(&self, place: &mut Place, row: &Row) -> Result<(), ConnectorError> {
        let (number, text, bytes): (i64, &str, i64) = (row.get(0), row.get(1), row.get(2));
        let position = format!("{}: {number}", self.source.table);
        if bytes > self.source.max_bytes as i64 {
            let reason = format!("the row has {bytes} bytes, more than `max_bytes` ({})", self.source.max_bytes);
            self.output.dead_beginning(&position, &reason, text.as_bytes());
        } else {
            let parsed = odd_json::read::<Map<String, Value>>(text).map_err(|error| error.to_string());
            let mapped = self.output.is_mapped();
            match parsed.and_then(|(row, odd)| super::record_of(row, &odd, &position, mapped)) {
                Ok(turn) => {
                    let end = number as u64;
                    let (log, generation) = (place.log.as_str().into(), place.generation);
                    let offset = SourceOffset { log, generation, end, line: end, ..SourceOffset::default() };
                    self.output.line(&turn, &position, Some(offset))?;
                }
                Err(reason) => self.output.dead_letter(&position, &reason, text.as_bytes()),
            }
        }
        place.last = number;
        Ok(())
    }
}
