//! Reads rows of the query: all of them, those with certain ids, or those from a value of a column.

use turnflow_engine::connector::{ConnectorError, CorpusOutput};

use super::rows::{Row, Rows};
use crate::postgres::connect::{Calls, code};
use crate::postgres::names::quoted;

/// Rows that are fetched at once in a full read.
const FETCHED: i32 = 1000;
/// Ids that are looked up at once.
const IDS: usize = 1000;

/// The query of the pipeline file, inside of those that read it.
#[derive(Clone, Debug)]
pub(super) struct Query {
    pub(super) query: String,
    pub(super) id: String,
    /// The column whose values increase with changes.
    pub(super) column: Option<String>,
    pub(super) max_bytes: usize,
}

impl Query {
    /// The rows that meet a condition: id, JSON (or its beginning), size, and the value of the column, unless it is later
    /// than `now`.
    fn rows(&self, rest: &str, now: Option<&str>) -> String {
        let (id, most) = (quoted(&self.id), self.max_bytes);
        let value = match &self.column {
            Some(column) => format!("({})::text", reached(column, now)),
            None => "NULL::text".to_owned(),
        };
        // `OFFSET 0` keeps the JSON from being computed more than once.
        format!(
            "SELECT id, CASE WHEN octet_length(row) <= {most} THEN row ELSE left(row, 1000) END, \
             octet_length(row)::bigint, value FROM (SELECT (turnflow_q.{id})::text AS id, \
             row_to_json(turnflow_q)::text AS row, {value} AS value FROM (\n{}\n) turnflow_q {rest} OFFSET 0) turnflow_r",
            self.query
        )
    }

    /// The name of the type of a column.
    fn of_column(&self, calls: &Calls<'_>, column: &str) -> Result<String, ConnectorError> {
        let query = format!("SELECT turnflow_q.{} FROM (\n{}\n) turnflow_q", quoted(column), self.query);
        let statement = calls.get(calls.client().prepare(&query))?;
        let of = statement.columns().first().map(|column| column.type_().clone());
        Ok(of.map_or("text".to_owned(), |of| format!("{}.{}", quoted(of.schema()), quoted(of.name()))))
    }
}

/// A value of the column, or null if it is later than `now`: a row of the next year must not hide those of today.
fn reached(column: &str, now: Option<&str>) -> String {
    let column = format!("turnflow_q.{}", quoted(column));
    match now {
        Some(now) => format!("CASE WHEN {column} <= {now} THEN {column} END"),
        None => column,
    }
}

/// The time now in a type, if it is one of time. A column without a zone may have the server's time, or UTC.
fn now_in(of_column: &str) -> Option<&'static str> {
    match of_column.rsplit('.').next()?.trim_matches('"') {
        "timestamptz" => Some("clock_timestamp()"),
        "timestamp" => Some("greatest(clock_timestamp()::timestamp, timezone('UTC', clock_timestamp()))"),
        "date" => Some("greatest(clock_timestamp()::date, timezone('UTC', clock_timestamp())::date)"),
        _ => None,
    }
}

/// Reads with a connection.
pub(super) struct Reader<'a> {
    pub(super) calls: &'a Calls<'a>,
    query: &'a Query,
    output: &'a CorpusOutput,
    /// The types of the id and of the column.
    of_id: String,
    of_column: String,
    /// The time now, if the column has times.
    now: Option<&'static str>,
}

fn row_of(row: &tokio_postgres::Row) -> Row<'_> {
    Row {
        id: row.get(0),
        json: row.get::<_, Option<&str>>(1).unwrap_or_default(),
        bytes: row.get::<_, Option<i64>>(2).unwrap_or_default() as u64,
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        calls: &'a Calls<'a>,
        query: &'a Query,
        output: &'a CorpusOutput,
    ) -> Result<Self, ConnectorError> {
        let of_id = query.of_column(calls, &query.id)?;
        let of_column = query.column.as_ref().map(|column| query.of_column(calls, column)).transpose()?;
        let of_column = of_column.unwrap_or_default();
        let now = now_in(&of_column);
        Ok(Self { calls, query, output, of_id, of_column, now })
    }

    /// Reads all rows in one snapshot, and deletes those that are gone. Returns the largest value of the column.
    ///
    /// A page is in memory at a time. The transaction is open until all rows are passed on.
    pub(super) fn all(&self, rows: &mut Rows) -> Result<Option<String>, ConnectorError> {
        let client = self.calls.client();
        let declare = format!(
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL cursor_tuple_fraction = 1; \
             SET LOCAL idle_in_transaction_session_timeout = 0; \
             DECLARE turnflow_c NO SCROLL CURSOR FOR {}",
            self.query.rows("", self.now)
        );
        self.calls.get(client.batch_execute(&declare))?;
        let largest = match &self.query.column {
            Some(column) => {
                let reached = reached(column, self.now);
                let query = format!("SELECT max({reached})::text FROM (\n{}\n) turnflow_q", self.query.query);
                self.calls.get(client.query_one(&query, &[]))?.get(0)
            }
            None => None,
        };
        let fetch = self.calls.get(client.prepare(&format!("FETCH {FETCHED} FROM turnflow_c")))?;
        rows.begin();
        loop {
            let stream = self.calls.get(client.query_raw(&fetch, Vec::<&str>::new()))?;
            let count =
                self.calls.each(stream, |row| Ok::<_, ConnectorError>(rows.row(&row_of(&row), self.output)?))?;
            if count < FETCHED as usize {
                break;
            }
        }
        self.calls.get(client.batch_execute("COMMIT"))?;
        rows.delete_others(self.output)?;
        Ok(largest)
    }

    /// Reads the rows with these ids, and deletes those that do not exist.
    pub(super) fn ids(&self, rows: &mut Rows, ids: &[String]) -> Result<(), ConnectorError> {
        let id = quoted(&self.query.id);
        for ids in ids.chunks(IDS) {
            // By the type of the column, so that the server can use an index.
            let typed = format!("WHERE turnflow_q.{id} = ANY ($1::text[]::{}[])", self.of_id);
            let canonical = self.canonical(ids)?;
            let read = match self.read_ids(rows, ids, &typed) {
                // Something that is not a value of the type is the id of no row.
                Err(error) if code(&error).is_some_and(|code| code.starts_with("22")) => {
                    self.read_ids(rows, ids, &format!("WHERE (turnflow_q.{id})::text = ANY ($1::text[])"))
                }
                read => read,
            };
            read?;
            rows.delete_unfound(&canonical, self.output)?;
        }
        Ok(())
    }

    /// Ids as the query gives them: a `char(8)` comes from the log with blanks at its end, and a notification may have
    /// `017` for 17.
    fn canonical(&self, ids: &[String]) -> Result<Vec<String>, ConnectorError> {
        let query = format!("SELECT (turnflow_i::{})::text FROM unnest($1::text[]) turnflow_i", self.of_id);
        let client = self.calls.client();
        match self.calls.get(client.query(&query, &[&ids])) {
            Ok(rows) => Ok(rows.iter().filter_map(|row| row.get::<_, Option<String>>(0)).collect()),
            Err(error) if code(&error).is_some_and(|code| code.starts_with("22")) => Ok(ids.to_vec()),
            Err(error) => Err(error),
        }
    }

    fn read_ids(&self, rows: &mut Rows, ids: &[String], condition: &str) -> Result<(), ConnectorError> {
        let client = self.calls.client();
        let statement = self.calls.get(client.prepare(&self.query.rows(condition, self.now)))?;
        let stream = self.calls.get(client.query_raw(&statement, [ids]))?;
        rows.begin();
        self.calls.each(stream, |row| Ok::<_, ConnectorError>(rows.row(&row_of(&row), self.output)?))?;
        Ok(())
    }

    /// Reads the rows from a value of the column. Returns the largest value.
    pub(super) fn from(&self, rows: &mut Rows, value: Option<&str>) -> Result<Option<String>, ConnectorError> {
        let client = self.calls.client();
        let column = quoted(self.query.column.as_deref().unwrap_or_default());
        let of = &self.of_column;
        let condition = match value {
            Some(_) => format!("WHERE turnflow_q.{column} >= $1::text::{of} ORDER BY turnflow_q.{column}"),
            // No row had a value.
            None => format!("WHERE $1::text IS NULL ORDER BY turnflow_q.{column} NULLS FIRST"),
        };
        let statement = self.calls.get(client.prepare(&self.query.rows(&condition, self.now)))?;
        let stream = self.calls.get(client.query_raw(&statement, [value]))?;
        rows.begin();
        let mut largest = value.map(str::to_owned);
        self.calls.each(stream, |row| {
            if let Some(value) = row.get::<_, Option<&str>>(3) {
                largest = Some(value.to_owned());
            }
            Ok::<_, ConnectorError>(rows.row(&row_of(&row), self.output)?)
        })?;
        Ok(largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_have_a_now() {
        assert_eq!(now_in("\"pg_catalog\".\"timestamptz\""), Some("clock_timestamp()"));
        assert!(now_in("\"pg_catalog\".\"date\"").is_some());
        assert_eq!((now_in("\"pg_catalog\".\"int8\""), now_in("")), (None, None));
    }
}
