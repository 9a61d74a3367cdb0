//! `PostgresSink`: each answer becomes a row of a table.
//!
//! ```ron
//! PostgresSink(input: "final", url: "postgres://app@db:5432/chat", password: Some(Env("DB_PASSWORD")), table: "public.answers")
//! ```
//!
//! The table must have these columns, and a primary key or a unique index on `key`. With `create: true`, the sink creates
//! the table if it does not exist.
//!
//! | column | type | has |
//! |---|---|---|
//! | `key` | text | the key of the delivery: the same each time the answer is sent, and another one for each revision |
//! | `conversation_id` | text | the conversation |
//! | `turn` | bigint | the number of the turn |
//! | `revision` | bigint | 0 for the first answer |
//! | `retracted` | boolean | whether it takes the answer back |
//! | `status` | text | `answered`, `idk` or `failed` |
//! | `query` | text | the query |
//! | `answer` | text | the answer |
//! | `record` | jsonb | the whole record |
//! | `delivered_at` | timestamptz | `DEFAULT now()`; optional, as are further columns with defaults |
//!
//! A row with a known key is not inserted again, so each answer is in the table exactly once, whatever is killed and
//! repeated. The answers of a delivery are inserted together, in their order.
//!
//! PostgreSQL cannot keep the character U+0000: U+FFFD takes its place. If the table refuses an answer (a SQLSTATE of the
//! classes 22 and 23, such as a constraint, or 54, such as a key that is too long for an index), that answer becomes a dead
//! letter, and the others are inserted. Any other error is tried again until it passes.
//!
//! ```
//! # use turnflow_connectors::postgres::sink::PostgresSinkConfig;
//! # let ron = r#"
//! (input: "final", url: "postgres://app@db/chat", table: "public.answers", create: true)
//! # "#;
//! # let config: PostgresSinkConfig = turnflow_engine::spec::from_str(ron).unwrap();
//! # assert_eq!(config.timeout_s, 30.0);
//! ```

use futures::FutureExt;
use futures::future::BoxFuture;
use turnflow_engine::component::{Building, Check, ComponentContext, Models, SinkConfig, SinkKind, SinkMode, config};
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery};
use turnflow_engine::record::AnswerRecord;

use super::connect::{Server, Session, check_server, code};
use super::names::{Table, check_table};
use crate::remote::{lasting, passing};
use crate::secret::Secret;
use crate::shape::{Shape, When};

/// Answers in a delivery.
const BATCH: usize = 128;
/// Bytes of records in a statement; it ends with the record that reaches it.
const STATEMENT_BYTES: usize = 8 << 20;

/// Fields of `PostgresSink`.
#[config]
pub struct PostgresSinkConfig {
    /// Input node, which outputs Answers, Hits or Queries. The records of Hits and Queries have no answer text.
    pub input: String,
    /// The server and the database, as in `postgres://user@host:5432/database?sslmode=require`. Without a password.
    pub url: String,
    /// Where the password is: `Env("NAME")` or `File("path")`. Default: none.
    pub password: Option<Secret>,
    /// The table with its schema, as in `public.answers`.
    pub table: String,
    /// Whether to create the table if it does not exist.
    #[field(default)]
    pub create: bool,
    /// Seconds to wait for a reply of the server.
    #[field(default = 30.0, range = 0.1..=86_400.0)]
    pub timeout_s: f64,
    /// Which answers the sink gets: `Answered`, `Idk`, `Failed`, `Any([…])` of these, or `Jq("…")`, a program over the
    /// answer's record whose value is true. Default: all.
    pub when: Option<When>,
    /// Whether the sink receives revisions: `Live` (yes) or `Once` (no). Default: the pipeline's `mode`.
    pub mode: Option<SinkMode>,
}

/// Entry in the connector table.
pub const KIND: SinkKind =
    SinkKind::of::<PostgresSinkConfig>("PostgresSink", "answers as rows of a table of PostgreSQL, each exactly once");

impl SinkConfig for PostgresSinkConfig {
    fn validate(&self, check: &mut Check<'_>) {
        check_server(check, &self.url);
        check_table(check, "table", &self.table);
        self.shape().validate(check);
    }

    fn explain(&self) -> String {
        let (shown, tls) = match Server::new(&self.url, None, self.timeout_s) {
            Ok(server) => (server.shown.clone(), server.protection()),
            Err(_) => Default::default(),
        };
        let mode = self.mode.map(|mode| format!(", mode: {mode:?}")).unwrap_or_default();
        let Self { table, create, timeout_s, .. } = self;
        let shape = self.shape().explain();
        format!(
            "url: {shown:?}, sslmode: {tls}, table: {table:?}, create: {create}, timeout_s: {timeout_s}{shape}{mode}"
        )
    }

    fn mode(&self) -> Option<SinkMode> {
        self.mode
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        self.shape().chosen(self.sink())
    }
}

impl PostgresSinkConfig {
    fn shape(&self) -> Shape<'_> {
        Shape { when: self.when.as_ref(), body: None }
    }

    /// Builds the sink. It connects with the first answer.
    ///
    /// # Errors
    ///
    /// A field is not valid.
    pub fn sink(&self) -> Result<PostgresSink, ConnectorError> {
        let server = Server::new(&self.url, self.password.as_ref(), self.timeout_s).map_err(lasting)?;
        let table = Table::parse(&self.table).map_err(lasting)?;
        let create = self.create.then(|| create(&table));
        Ok(PostgresSink { server, insert: insert(&table), table: table.sql(), create, session: None })
    }
}

/// Inserts rows that arrive as arrays of columns, in their order.
fn insert(table: &Table) -> String {
    let columns = "key, conversation_id, turn, revision, retracted, status, query, answer, record";
    format!(
        "INSERT INTO {} ({columns}) SELECT key, conversation_id, turn, revision, retracted, status, query, answer, \
         record::jsonb FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::boolean[], $6::text[], \
         $7::text[], $8::text[], $9::text[]) WITH ORDINALITY AS answers ({columns}, number) ORDER BY number \
         ON CONFLICT (key) DO NOTHING",
        table.sql()
    )
}

fn create(table: &Table) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {} (key text PRIMARY KEY, conversation_id text, turn bigint, revision bigint, \
         retracted boolean, status text, query text, answer text, record jsonb, \
         delivered_at timestamptz DEFAULT now())",
        table.sql()
    )
}

/// Inserts answers into a table.
pub struct PostgresSink {
    server: Server,
    table: String,
    insert: String,
    create: Option<String>,
    session: Option<Session>,
}

impl AnswerSink for PostgresSink {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        async move {
            let mut rows = Vec::with_capacity(delivery.answers().len());
            for answer in delivery.answers() {
                rows.push(Row::of(answer));
            }
            let mut rest = rows.iter().map(Option::as_ref).peekable();
            while let Some(row) = rest.next() {
                let Some(row) = row else {
                    return Err(ConnectorError::Refused { reason: "the record cannot be written as JSON".to_owned() });
                };
                let mut part = vec![row];
                let mut bytes = row.bytes();
                while bytes < STATEMENT_BYTES
                    && let Some(Some(next)) = rest.next_if(|next| next.is_some())
                {
                    bytes += next.bytes();
                    part.push(next);
                }
                self.insert_part(&part, &delivery).await?;
            }
            Ok(())
        }
        .boxed()
    }

    fn batch(&self) -> usize {
        BATCH
    }
}

impl PostgresSink {
    /// Inserts rows together; if one of them is refused, those before it.
    async fn insert_part(&mut self, part: &[&Row], delivery: &Delivery<'_>) -> Result<(), ConnectorError> {
        match self.insert(part).await {
            Ok(()) => {
                delivery.took(part.len());
                Ok(())
            }
            Err(error) if is_of_a_row(&error) => {
                for row in part {
                    match self.insert(&[row]).await {
                        Ok(()) => delivery.took(1),
                        Err(error) if is_of_a_row(&error) => {
                            return Err(ConnectorError::Refused { reason: format!("the table refuses it: {error}") });
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn insert(&mut self, rows: &[&Row]) -> Result<(), ConnectorError> {
        // Is put back after success only: after an error or an abort, the next try has a new connection.
        let session = match self.session.take().filter(|session| !session.client.is_closed()) {
            Some(session) => session,
            None => self.connect().await?,
        };
        let text = |of: fn(&Row) -> &str| rows.iter().map(|row| of(row)).collect::<Vec<&str>>();
        let number = |of: fn(&Row) -> i64| rows.iter().map(|row| of(row)).collect::<Vec<i64>>();
        let retracted: Vec<bool> = rows.iter().map(|row| row.retracted).collect();
        let (keys, conversations) = (text(|row| &row.key), text(|row| &row.conversation_id));
        let (turns, revisions) = (number(|row| row.turn), number(|row| row.revision));
        let (status, queries) = (text(|row| &row.status), text(|row| &row.query));
        let (answers, records) = (text(|row| &row.answer), text(|row| &row.record));
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 9] =
            [&keys, &conversations, &turns, &revisions, &retracted, &status, &queries, &answers, &records];
        let done = session.call(session.client.execute(&self.insert, &values)).await;
        if done.as_ref().err().is_none_or(is_of_a_row) {
            self.session = Some(session);
        }
        done.map(drop)
    }

    async fn connect(&self) -> Result<Session, ConnectorError> {
        let session = self.server.connect().await?;
        if let Some(create) = &self.create {
            // The table may exist, and the role need not be one that creates tables.
            let exists = "SELECT to_regclass($1::text) IS NOT NULL";
            if !session.call(session.client.query_one(exists, &[&self.table])).await?.get::<_, bool>(0) {
                let created = session.call(session.client.batch_execute(create)).await;
                // Another one may create it at the same time. No answer is at fault.
                created.map_err(|error| passing(format!("cannot create the table: {error}")))?;
            }
        }
        Ok(session)
    }
}

/// Whether the values of a row are at fault.
fn is_of_a_row(error: &ConnectorError) -> bool {
    code(error).is_some_and(|code| ["22", "23", "54"].iter().any(|class| code.starts_with(class)))
}

/// An answer as a row.
struct Row {
    key: String,
    conversation_id: String,
    turn: i64,
    revision: i64,
    retracted: bool,
    status: String,
    query: String,
    answer: String,
    record: String,
}

impl Row {
    fn of(answer: &AnswerRecord) -> Option<Self> {
        let mut record = serde_json::to_value(answer).ok()?;
        replace_nul(&mut record);
        let text = |text: &str| text.replace('\0', "\u{fffd}");
        let key = AnswerRecord::delivery_key(&answer.key, answer.revision.into(), answer.retracted);
        Some(Self {
            key: text(&key),
            conversation_id: text(&answer.conversation_id),
            turn: answer.turn.into(),
            revision: answer.revision.into(),
            retracted: answer.retracted,
            status: record.get("status").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned(),
            query: text(&answer.query),
            answer: text(&answer.answer),
            record: record.to_string(),
        })
    }

    fn bytes(&self) -> usize {
        self.key.len() + self.conversation_id.len() + self.query.len() + self.answer.len() + self.record.len()
    }
}

/// Replaces the characters that PostgreSQL cannot keep.
fn replace_nul(value: &mut serde_json::Value) {
    use serde_json::Value;

    let has = |text: &str| text.contains('\0');
    match value {
        Value::String(text) if has(text) => *text = text.replace('\0', "\u{fffd}"),
        Value::Array(values) => values.iter_mut().for_each(replace_nul),
        Value::Object(fields) => {
            if fields.keys().any(|name| has(name)) {
                let all = std::mem::take(fields);
                fields.extend(all.into_iter().map(|(name, value)| (name.replace('\0', "\u{fffd}"), value)));
            }
            fields.values_mut().for_each(replace_nul);
        }
        _ => {}
    }
}
