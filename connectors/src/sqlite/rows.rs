//! The database, and its rows as JSON.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags, Statement};
use serde_json::{Map, Value};
use turnflow_engine::connector::Stopped;

use crate::watch::identity_of;

/// How long a locked database is waited for at once.
const LOCKED: Duration = Duration::from_secs(5);
/// Most rows, and about the most bytes, that are read at once.
const PAGE: usize = 500;
const PAGE_BYTES: usize = 16 << 20;
/// Bytes of a row that is too large which a dead letter shows.
const SHOWN: usize = 1000;

/// Why nothing was read.
pub(super) enum Fault {
    Stopped(Stopped),
    /// It may pass: the database is locked, or not there yet.
    Passing(String),
    /// The query is wrong.
    Lasting(String),
}

impl From<Stopped> for Fault {
    fn from(stopped: Stopped) -> Self {
        Self::Stopped(stopped)
    }
}

/// What SQLite says of a table that is not there.
const NO_TABLE: &str = "no such table";

impl Fault {
    /// What is wrong with the query.
    pub fn of_the_query(self) -> Option<String> {
        match self {
            Self::Lasting(reason) => Some(reason),
            Self::Passing(reason) => Some(reason).filter(|reason| reason.contains(NO_TABLE)),
            Self::Stopped(_) => None,
        }
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // The other program may create it later.
            Some(ErrorCode::Unknown) if error.to_string().contains(NO_TABLE) => Self::Passing(error.to_string()),
            Some(ErrorCode::Unknown | ErrorCode::ApiMisuse | ErrorCode::AuthorizationForStatementDenied) | None => {
                Self::Lasting(error.to_string())
            }
            Some(_) => Self::Passing(error.to_string()),
        }
    }
}

/// A row of the query.
pub(super) struct Row {
    /// Its number.
    pub number: i64,
    /// Its record, or why it has none, and the beginning of the row.
    pub record: Result<Vec<u8>, (String, Vec<u8>)>,
}

/// What the values of the column of `cursor` are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbers {
    /// Whole numbers.
    Whole,
    /// Times as texts, such as `2026-03-05 11:23:40.5`.
    Times,
}

/// A text that begins with a date.
const DATE: &str = "'[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]*'";

impl Numbers {
    /// The number of a row, and the condition that it has one, in SQL.
    fn sql(self, cursor: &str) -> (String, String) {
        match self {
            Self::Whole => (cursor.to_owned(), format!("typeof({cursor}) = 'integer' AND {cursor} >= 0")),
            // Milliseconds since 1970.
            Self::Times => {
                let number = format!("CAST(round((julianday({cursor}) - 2440587.5) * 86400000) AS INTEGER)");
                let has_it = format!("typeof({cursor}) = 'text' AND {cursor} GLOB {DATE} AND {number} >= 0");
                (number, has_it)
            }
        }
    }
}

/// The rows of a query: how many have no number, and what the numbers of the others are; `None` if no row has one.
pub(super) struct Counted {
    pub numbers: Option<Numbers>,
    pub without: u64,
}

/// A database that is open for reading.
pub(super) struct Database {
    connection: Connection,
    identity: (u64, u64),
    query: String,
    cursor: String,
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Database {
    pub fn open(path: &Path, query: &str, cursor: Option<&str>) -> Result<Self, Fault> {
        let passing = |error: std::io::Error| Fault::Passing(error.to_string());
        let identity = identity_of(&fs::metadata(path).map_err(passing)?);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(LOCKED)?;
        let query = query.trim().trim_end_matches(';').to_owned();
        let statement = connection.prepare(&query)?;
        if !statement.readonly() {
            return Err(Fault::Lasting("the query changes the database".to_owned()));
        }
        let names = statement.column_names();
        if let Some(cursor) = cursor.filter(|cursor| !names.iter().any(|name| name.eq_ignore_ascii_case(cursor))) {
            let names = names.join("`, `");
            return Err(Fault::Lasting(format!("the query has no column `{cursor}` for `cursor`; it has `{names}`")));
        }
        drop(statement);
        Ok(Self { connection, identity, query, cursor: cursor.unwrap_or_default().to_owned() })
    }

    /// Identifies the file.
    pub fn log(&self) -> String {
        format!("{}-{}", self.identity.0, self.identity.1)
    }

    /// Whether this is still the database at the path.
    pub fn is_at(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|there| identity_of(&there) == self.identity)
    }

    /// A number that changes when another program has written.
    pub fn version(&self) -> Result<i64, Fault> {
        Ok(self.connection.query_row("PRAGMA data_version", [], |row| row.get(0))?)
    }

    /// All rows as JSON, in the order of the query.
    pub fn all(&self, each: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> Result<(), Fault> {
        let mut statement = self.connection.prepare(&self.query)?;
        let names: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let fields = Value::Object(fields(row, &names)?);
            each(fields.to_string().as_bytes()).map_err(|error| Fault::Passing(error.to_string()))?;
        }
        Ok(())
    }

    /// Counts rows by what they have in the column of `cursor`.
    pub fn counted(&self) -> Result<Counted, Fault> {
        let cursor = quoted(&self.cursor);
        let [whole, times] = [Numbers::Whole, Numbers::Times].map(|numbers| numbers.sql(&cursor).1);
        let query = format!("SELECT count(*), count({cursor}), total({whole}), total({times}) FROM ({}\n)", self.query);
        let count = |row: &rusqlite::Row<'_>| {
            let [all, there] = [row.get::<_, i64>(0)?, row.get::<_, i64>(1)?];
            let [whole, times] = [row.get::<_, f64>(2)?, row.get::<_, f64>(3)?];
            Ok((all, there, whole as i64, times as i64))
        };
        let (all, there, whole, times) = self.connection.query_row(&query, [], count)?;
        if there > 0 && whole == 0 && times == 0 {
            return Err(Fault::Lasting(format!(
                "no row has a whole number from 0 on, or a time such as `2026-03-05 11:23:40`, in the column `{}` of `cursor`",
                self.cursor
            )));
        }
        let numbers = if times > whole { Numbers::Times } else { Numbers::Whole };
        let without = u64::try_from(all - whole.max(times)).unwrap_or_default();
        Ok(Counted { numbers: (there > 0).then_some(numbers), without })
    }

    /// The next rows after a number, or from it on if those with the number are read `again`: all of one number, or up to
    /// the size of a page. The lock on the database is released before this returns.
    pub fn page(&self, numbers: Numbers, last: Option<i64>, again: bool, max_bytes: usize) -> Result<Vec<Row>, Fault> {
        let (number, has_it) = numbers.sql(&quoted(&self.cursor));
        let than = if again { ">=" } else { ">" };
        let query = format!(
            "SELECT *, {number} FROM ({}\n) WHERE {has_it} AND (?1 IS NULL OR {number} {than} ?1) ORDER BY {number}",
            self.query
        );
        let mut statement = self.connection.prepare(&query)?;
        let mut names: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
        names.pop();
        read(&mut statement, last, &names, max_bytes)
    }
}

fn read(
    statement: &mut Statement<'_>,
    last: Option<i64>,
    names: &[String],
    max_bytes: usize,
) -> Result<Vec<Row>, Fault> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    let mut rows = statement.query([last])?;
    while let Some(row) = rows.next()? {
        let number: i64 = row.get(names.len())?;
        // Rows with one number are read together: the next page begins behind them, or with them.
        let is_full = found.len() >= PAGE || bytes >= PAGE_BYTES;
        if is_full && found.last().is_some_and(|row: &Row| row.number != number && Some(row.number) != last) {
            break;
        }
        let fields = fields(row, names)?;
        let record = match fields.get("record") {
            Some(Value::String(record)) if !fields.contains_key("conversation_id") => record.clone().into_bytes(),
            _ => Value::Object(fields).to_string().into_bytes(),
        };
        bytes += record.len();
        let record = match record.len() <= max_bytes {
            true => Ok(record),
            false => {
                let reason = format!("the row has {} bytes as JSON, more than {max_bytes}", record.len());
                Err((reason, record[..record.len().min(SHOWN)].to_vec()))
            }
        };
        found.push(Row { number, record });
    }
    Ok(found)
}

/// The columns of a row that are not null.
fn fields(row: &rusqlite::Row<'_>, names: &[String]) -> rusqlite::Result<Map<String, Value>> {
    let mut fields = Map::new();
    for (column, name) in names.iter().enumerate() {
        match value(row.get_ref(column)?) {
            Value::Null => {}
            value => drop(fields.insert(name.clone(), value)),
        }
    }
    Ok(fields)
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null | ValueRef::Blob(_) => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned().into(),
    }
}
