//! Tests with a server.

mod corpus;
mod faults;
mod sink;
mod slots;
mod turns;

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use turnflow_engine::component::ComponentContext;
use turnflow_engine::spec::from_str;

use super::corpus::{PostgresConfig, PostgresCorpus};
use super::sink::{PostgresSink, PostgresSinkConfig};
use super::turns::{PostgresConfig as TurnsConfig, PostgresTurns};
use crate::servers::{POSTGRES, Server};
use crate::testing::PATIENCE;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());

/// A server of a test, and a connection to look at it.
pub(crate) struct Database {
    pub(crate) server: Server,
}

/// A connection.
pub(crate) struct Admin(tokio_postgres::Client);

impl Admin {
    /// Runs statements.
    pub(crate) fn run(&self, sql: &str) {
        RUNTIME.block_on(self.0.batch_execute(sql)).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The values of the first column, as text.
    pub(crate) fn all(&self, sql: &str) -> Vec<String> {
        let messages = RUNTIME.block_on(self.0.simple_query(sql)).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let rows = messages.into_iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
            _ => None,
        });
        rows.collect()
    }

    /// The first value.
    pub(crate) fn one(&self, sql: &str) -> String {
        self.all(sql).remove(0)
    }

    /// Waits until the first value is this.
    pub(crate) fn until(&self, sql: &str, wanted: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let value = self.one(sql);
            if value == wanted {
                return;
            }
            assert!(Instant::now() < until, "{sql} is {value} and not {wanted}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Database {
    /// Starts a server with these tables; `None` if the program is missing.
    pub(crate) fn start(sql: &str) -> Option<Self> {
        let database = Self { server: Server::start(POSTGRES)? };
        database.admin().run(sql);
        Some(database)
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.server.port)
    }

    /// A new connection.
    pub(crate) fn admin(&self) -> Admin {
        let (client, connection) =
            RUNTIME.block_on(tokio_postgres::connect(&self.url(), tokio_postgres::NoTls)).unwrap();
        RUNTIME.spawn(connection);
        Admin(client)
    }

    pub(crate) fn corpus(&self, fields: &str) -> PostgresCorpus {
        let config = format!("(url: {:?}, {fields})", self.url());
        from_str::<PostgresConfig>(&config).unwrap().source(&context()).unwrap()
    }

    pub(crate) fn turns(&self, fields: &str) -> PostgresTurns {
        let config = format!("(url: {:?}, {fields})", self.url());
        from_str::<TurnsConfig>(&config).unwrap().source(&context()).unwrap()
    }

    pub(crate) fn sink(&self, fields: &str) -> PostgresSink {
        let config = format!("(input: \"a\", url: {:?}, {fields})", self.url());
        from_str::<PostgresSinkConfig>(&config).unwrap().sink().unwrap()
    }
}

pub(crate) fn context() -> ComponentContext {
    ComponentContext::alone("postgres", RUNTIME.handle().clone())
}

/// A table of turns.
pub(crate) const TURNS: &str = "CREATE TABLE turns (id bigserial PRIMARY KEY, conversation_id text, turn bigint, \
                                speaker text, text text, collection text, timestamp timestamptz, record jsonb)";

/// Inserts a turn with this text.
pub(crate) fn insert(text: &str) -> String {
    format!("INSERT INTO turns (conversation_id, turn, speaker, text) VALUES ('c', 1, 'user', '{text}')")
}

/// Calls a function with the server of a directory, which is started with these tables and ends with the test's thread.
/// Also tells whether it is new.
pub(crate) fn with_server<T>(base: &std::path::Path, tables: &str, call: impl FnOnce(&Database, bool) -> T) -> T {
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::collections::hash_map::Entry;

    thread_local!(static SERVERS: RefCell<HashMap<std::path::PathBuf, Database>> = RefCell::default());
    SERVERS.with_borrow_mut(|servers| {
        let is_new = !servers.contains_key(base);
        let database = match servers.entry(base.to_owned()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Database::start(tables).unwrap()),
        };
        call(database, is_new)
    })
}

/// Whether the program of the server exists.
pub(crate) fn is_there() -> bool {
    crate::servers::is_there(POSTGRES)
}

/// A source of turns with these lines, for the conformance tests.
pub(crate) fn turns_of_lines(base: &std::path::Path, lines: &[u8]) -> PostgresTurns {
    let table = "CREATE TABLE turns (id bigserial PRIMARY KEY, record jsonb)";
    with_server(base, table, |database, is_new| {
        if is_new {
            let admin = database.admin();
            for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                // What is no JSON cannot be in the table: a string is not a turn either.
                let record: serde_json::Value =
                    serde_json::from_slice(line).unwrap_or_else(|_| String::from_utf8_lossy(line).into());
                admin.run(&format!("INSERT INTO turns (record) VALUES ('{}')", record.to_string().replace('\'', "''")));
            }
        }
        database.turns("table: \"public.turns\", follow: Cursor(column: \"id\")")
    })
}

/// A corpus with these texts and a row without a text, for the conformance tests.
pub(crate) fn corpus_of_texts(base: &std::path::Path, texts: &[String]) -> PostgresCorpus {
    with_server(base, "CREATE TABLE articles (id int, text text)", |database, is_new| {
        if is_new {
            let admin = database.admin();
            for (number, text) in texts.iter().enumerate() {
                admin.run(&format!("INSERT INTO articles VALUES ({number}, '{text}')"));
            }
            admin.run("INSERT INTO articles VALUES (-1, NULL)");
        }
        database.corpus("query: \"SELECT * FROM articles\"")
    })
}

/// Reads back what a sink has written.
type ReadBack = Box<dyn Fn() -> Vec<u8>>;

/// A sink, and what its table has, for the conformance tests. U+FFFD is read back as the character that it replaces.
pub(crate) fn sink_of(base: &std::path::Path) -> (PostgresSink, ReadBack) {
    with_server(base, "", |database, _| {
        let admin = database.admin();
        let read_back = move || {
            let rows = admin.all("SELECT record FROM answers ORDER BY ctid");
            let rows = rows.into_iter().map(|row| row.replace('\u{fffd}', "\\u0000") + "\n");
            rows.collect::<String>().into_bytes()
        };
        let read_back: ReadBack = Box::new(read_back);
        (database.sink("table: \"public.answers\", create: true"), read_back)
    })
}
