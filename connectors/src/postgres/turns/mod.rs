//! `Postgres` among the sources: the rows that are inserted into a table are turns.
//!
//! ```ron
//! Postgres(url: "postgres://app@db:5432/chat", table: "public.turns", follow: Cursor(column: "id"))
//! ```
//!
//! A row has the columns `conversation_id`, `turn`, `speaker` and `text`; `collection` and `timestamp` are optional, and
//! all others are passed through. Or the row has a column `record`, of the type json or jsonb, with a whole turn, and no
//! column `conversation_id`. A time in `timestamp` becomes seconds since the Unix epoch.
//!
//! `follow` says how new rows are found:
//!
//! * `Cursor(column: "id")` reads the rows in the order of a column. It must be unique, and the insert itself must set it
//!   from a sequence with values from 1: `bigserial` or `GENERATED ALWAYS AS IDENTITY`, with the sequence's `CACHE` of 1.
//!   Transactions overlap, so a row with a smaller value may appear later. A value is therefore passed on only when no
//!   transaction is left that was writing to the table when the value was first seen. A transaction that inserts a row and
//!   stays open holds the later ones back. Rows that are updated are not read again.
//! * `Slot(name: "turnflow_turns")` reads the inserts from a replication slot, in the order of the commits. The table needs
//!   no such column. Rows that exist before the slot are not read. The server keeps its log until the turns are answered
//!   and a checkpoint covers them. A table that is created again goes on in the same slot, once it is published.
//!
//! The source resumes after the last turn that a checkpoint covers, so that a kill loses no turn. With `Cursor`,
//! a table that is dropped and created again is read from its beginning. It is recognised by the server's identifier, the
//! database and the number of the table (its OID). A `TRUNCATE … RESTART IDENTITY` is not recognised: do not restart the sequence.
//!
//! ```
//! # use turnflow_connectors::postgres::turns::PostgresConfig;
//! # let ron = r#"
//! (url: "postgres://app@db/chat", table: "public.turns", follow: Cursor(column: "id", every_s: 0.5, channel: Some("turns")))
//! # "#;
//! # let config: PostgresConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.max_bytes, 1 << 20);
//! # let ron = r#"
//! (url: "postgres://app@db/chat", table: "public.turns", follow: Slot(name: "turnflow_turns"))
//! # "#;
//! # let config: PostgresConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.timeout_s, 60.0);
//! ```

mod cursor;
mod inserts;
mod values;

use serde_json::{Map, Value};
use tokio::runtime::Handle;
use turnflow_engine::component::{Building, Check, ComponentContext, TurnSourceConfig, TurnSourceKind, built, config};
use turnflow_engine::connector::{ConnectorError, Mode, TurnOutput, TurnSource};

use super::connect::{Calls, Server, check_server};
use super::names::{Table, check_name, check_slot, check_table};
use crate::mapped::{ConversationsConfig, MapConfig, MapFields, Reads, fitting, mapped};
use crate::remote::{Retry, lasting, passing};
use crate::secret::Secret;

/// Fields of `Postgres`.
#[config]
pub struct PostgresConfig {
    /// The server and the database, as in `postgres://user@host:5432/database?sslmode=require`. Without a password.
    pub url: String,
    /// Where the password is: `Env("NAME")` or `File("path")`. Default: none.
    pub password: Option<Secret>,
    /// The table with its schema, as in `public.turns`.
    pub table: String,
    /// How new rows are found: `Cursor(…)` or `Slot(…)`.
    #[field(within)]
    pub follow: Follow,
    /// Maximum size of a row as JSON, in bytes. A larger one becomes a dead letter.
    #[field(default = 1 << 20, range = 1..=256 << 20)]
    pub max_bytes: usize,
    /// Seconds to wait for a reply of the server.
    #[field(default = 60.0, range = 0.1..=86_400.0)]
    pub timeout_s: f64,
    /// What makes messages of records in another form: `Preset("NAME")`, `Jq("PROGRAM")` or `JqFile("PATH")`. Default:
    /// records are turn records.
    pub map: Option<MapConfig>,
    /// With `map`: how messages become turns.
    #[field(default, within, hidden)]
    pub conversations: ConversationsConfig,
}

/// How new rows are found.
#[config]
#[derive(PartialEq)]
pub enum Follow {
    /// By a column with increasing values.
    Cursor {
        /// The column: unique, from 1, set by the insert from a sequence.
        column: String,
        /// Seconds between two reads.
        #[field(default = 0.5, range = 0.01..=86_400.0)]
        every_s: f64,
        /// A channel of `NOTIFY` that wakes the source before that time. Default: none.
        channel: Option<String>,
    },
    /// By a replication slot.
    Slot {
        /// The slot. It is created if it does not exist. No other pipeline may read it.
        name: String,
        /// The publication that has the table. It is created if it does not exist. Default: the name of the slot.
        publication: Option<String>,
        /// Seconds between two reads.
        #[field(default = 0.5, range = 0.01..=86_400.0)]
        every_s: f64,
    },
}

/// Entry in the connector table.
pub const KIND: TurnSourceKind =
    TurnSourceKind::of::<PostgresConfig>("Postgres", "the rows of a table of PostgreSQL, followed as it grows");

impl PostgresConfig {
    fn map_fields(&self) -> MapFields<'_> {
        MapFields {
            map: self.map.as_ref(),
            conversations: &self.conversations,
            file: None,
            reads: Reads::Rows,
            lasts: true,
        }
    }
}

impl TurnSourceConfig for PostgresConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check_server(check, &self.url);
        self.map_fields().validate(check);
        check_table(check, "table", &self.table);
        check.within("follow", |check| match &self.follow {
            Follow::Cursor { column, channel, .. } => {
                check_name(check, "column", column);
                channel.iter().for_each(|channel| check_name(check, "channel", channel));
            }
            Follow::Slot { name, publication, .. } => {
                check_slot(check, "name", name);
                publication.iter().for_each(|publication| check_name(check, "publication", publication));
            }
        });
    }

    fn explain(&self) -> String {
        let (shown, tls) = match Server::new(&self.url, None, self.timeout_s) {
            Ok(server) => (server.shown.clone(), server.protection()),
            Err(_) => Default::default(),
        };
        let Self { table, follow, max_bytes, timeout_s, .. } = self;
        format!(
            "url: {shown:?}, sslmode: {tls}, table: {table:?}, follow: {follow:?}, max_bytes: {max_bytes}, \
             timeout_s: {timeout_s}{}",
            self.map_fields().explain()
        )
    }

    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource> {
        let source = self.source(context).map(|source| Box::new(source) as Box<dyn TurnSource>);
        mapped(&self.map_fields(), context, built(source))
    }
}

impl PostgresConfig {
    /// Builds the source. It connects when it runs.
    ///
    /// # Errors
    ///
    /// A field is not valid.
    pub fn source(&self, context: &ComponentContext) -> Result<PostgresTurns, ConnectorError> {
        let server = Server::new(&self.url, self.password.as_ref(), self.timeout_s).map_err(lasting)?;
        let table = Table::parse(&self.table).map_err(lasting)?;
        let (follow, max_bytes) = (self.follow.clone(), self.max_bytes);
        Ok(PostgresTurns { server, table, follow, max_bytes, context: context.clone() })
    }
}

/// Reads the turns of a table.
pub struct PostgresTurns {
    server: Server,
    table: Table,
    follow: Follow,
    max_bytes: usize,
    context: ComponentContext,
}

/// What both ways of reading have.
struct Reading<'a> {
    source: &'a PostgresTurns,
    output: &'a TurnOutput,
    mode: Mode,
}

impl TurnSource for PostgresTurns {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let output = output.hinting(fitting);
        let mut retry = Retry::new(self.server.shown.clone(), mode, &self.context);
        let reading = Reading { source: &self, output: &output, mode };
        let mut cursor = cursor::Cursor::default();
        let mut inserts = inserts::Inserts::default();
        loop {
            let ended = match &self.follow {
                Follow::Cursor { column, every_s, channel } => {
                    reading.follow_cursor(&mut cursor, column, *every_s, channel.as_deref(), &mut retry)
                }
                Follow::Slot { name, publication, every_s } => {
                    let publication = publication.as_ref().unwrap_or(name);
                    reading.follow_slot(&mut inserts, name, publication, *every_s, &mut retry)
                }
            };
            match ended {
                Ok(()) => return Ok(()),
                Err(ConnectorError::Stopped(stopped)) => return Err(stopped.into()),
                Err(error) => retry.failed(&error, output.stop())?,
            }
        }
    }
}

impl<'a> Reading<'a> {
    fn connect(&self) -> Result<Calls<'a>, ConnectorError> {
        Calls::connect(&self.source.server, self.runtime(), self.output.stop())
    }

    fn runtime(&self) -> &'a Handle {
        self.source.context.runtime()
    }

    /// Identifies the server with the database, and the table in it. A table that is created again is another one.
    fn identity(&self, calls: &Calls<'_>) -> Result<(String, String), ConnectorError> {
        let (table, client) = (&self.source.table, calls.client());
        let query = "SELECT (SELECT oid::text FROM pg_database WHERE datname = current_database()), c.oid::text \
                     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                     WHERE n.nspname = $1::text AND c.relname = $2::text";
        let row = calls.get(client.query_opt(query, &[&table.schema, &table.name]))?;
        let row = row.ok_or_else(|| passing(format!("the table {table} does not exist")))?;
        // Not every role may read it.
        let system = calls.get(client.query_one("SELECT system_identifier::text FROM pg_control_system()", &[]));
        let system = match system {
            Ok(row) => row.get::<_, String>(0),
            Err(error) if super::connect::code(&error) == Some("42501") => "?".to_owned(),
            Err(error) => return Err(error),
        };
        Ok((format!("{system}/{}", row.get::<_, &str>(0)), row.get(1)))
    }
}

/// The record in a row: the turn, or, for a mapping, the row as it is.
fn record_of(row: Map<String, Value>, odd: &[String], position: &str, is_mapped: bool) -> Result<Vec<u8>, String> {
    match is_mapped {
        true => serde_json::to_vec(&Value::Object(row)).map_err(|error| error.to_string()),
        false => turn_of(row, odd, position),
    }
}

/// The turn in a row: its columns, or the object in `record`.
///
/// `odd` are the columns with values that JSON cannot hold.
fn turn_of(mut row: Map<String, Value>, odd: &[String], position: &str) -> Result<Vec<u8>, String> {
    if !odd.is_empty() {
        let columns = odd.join(", ");
        tracing::warn!(position, columns, "a row has values that JSON cannot hold; they were left out");
    }
    if !row.contains_key("conversation_id")
        && let Some(record) = row.remove("record")
    {
        return match record {
            Value::Object(_) => serde_json::to_vec(&record).map_err(|error| error.to_string()),
            _ => Err("`record` is not a JSON object".to_owned()),
        };
    }
    row.retain(|_, value| !value.is_null());
    if let Some(Value::String(time)) = row.get("timestamp")
        && let Some(seconds) = seconds(time)
    {
        row.insert("timestamp".to_owned(), seconds.into());
    }
    serde_json::to_vec(&Value::Object(row)).map_err(|error| error.to_string())
}

/// Seconds since the Unix epoch at a time as PostgreSQL writes it. Without a zone, it is UTC.
fn seconds(time: &str) -> Option<f64> {
    let time = time.replacen(' ', "T", 1);
    let at = chrono::DateTime::parse_from_str(&time, "%Y-%m-%dT%H:%M:%S%.f%#z").map(|time| time.to_utc());
    let at = at.or_else(|_| time.parse::<chrono::NaiveDateTime>().map(|time| time.and_utc())).ok()?;
    Some(at.timestamp_micros() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_becomes_seconds() {
        assert_eq!(seconds("2024-01-01T00:00:00.5+00:00"), Some(1_704_067_200.5));
        assert_eq!(seconds("2024-01-01 02:00:00+02"), Some(1_704_067_200.0));
        assert_eq!(seconds("2024-01-01 00:00:00"), Some(1_704_067_200.0));
        assert_eq!(seconds("yesterday"), None);
    }

    #[test]
    fn a_row_is_a_turn_or_has_one() {
        let turn = |row: Value| {
            let Value::Object(row) = row else { panic!("no object") };
            turn_of(row, &[], "").map(|turn| serde_json::from_slice::<Value>(&turn).unwrap())
        };
        let row = serde_json::json!({"id": 1, "conversation_id": "c", "collection": null, "timestamp": "1970-01-01T00:00:01"});
        assert_eq!(turn(row).unwrap(), serde_json::json!({"id": 1, "conversation_id": "c", "timestamp": 1.0}));
        assert_eq!(turn(serde_json::json!({"id": 1, "record": {"a": 1}})).unwrap(), serde_json::json!({"a": 1}));
        assert_eq!(turn(serde_json::json!({"record": "{}"})).unwrap_err(), "`record` is not a JSON object");
    }
}
