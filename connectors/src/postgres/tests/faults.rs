//! What happens when tables, publications and servers are not as the pipeline expects.

use std::sync::atomic::AtomicUsize;

use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery, Mode, Stop};

use super::*;
use crate::postgres::connect::Calls;
use crate::postgres::names::Table;
use crate::postgres::slot::Slot;
use crate::remote::may_pass;
use crate::testing::{Corpus, Turns, answer};

const CURSOR: &str = "table: \"public.turns\", follow: Cursor(column: \"id\", every_s: 0.02)";
const QUEUE: &str = "table: \"public.turns\", follow: Slot(name: \"turns\", every_s: 0.02)";

/// Calls a function with a connection.
fn connected<T>(database: &Database, call: impl FnOnce(&Calls<'_>) -> T) -> T {
    let server = super::super::connect::Server::new(&database.url(), None, 30.0).unwrap();
    let (_handle, stop) = Stop::new();
    let calls = Calls::connect(&server, RUNTIME.handle(), &stop).unwrap();
    call(&calls)
}

fn slot(publishes: &'static str, table: &str) -> Slot {
    let tables = [Table::parse(table).unwrap()].into();
    Slot { name: "s".to_owned(), publication: "p".to_owned(), tables, publishes }
}

fn ensure(database: &Database, slot: &Slot) -> Result<(), String> {
    connected(database, |calls| slot.ensure(calls).map(drop).map_err(|error| error.to_string()))
}

#[test]
fn a_table_that_is_created_again_while_a_cursor_follows_it_is_read_from_its_beginning() {
    let Some(database) = Database::start(TURNS) else { return };
    let admin = database.admin();
    (0..5).for_each(|number| admin.run(&insert(&format!("old{number}"))));
    let running = Turns::run(database.turns(CURSOR), Mode::Follow);
    let mut last = running.take();
    for _ in 1..5 {
        last = running.take();
    }
    // The new table's values are smaller than those that were read.
    admin.run(&format!("BEGIN; DROP TABLE turns; {TURNS}; {}; COMMIT", insert("new")));
    let new = running.take();
    assert_eq!(&*new.record.text, "new");
    assert!(new.place.unwrap().order() > last.place.unwrap().order());
    running.end(true).unwrap_err();
}

#[test]
fn a_table_that_is_created_again_while_a_slot_follows_it_is_read_once_it_is_published() {
    let Some(database) = Database::start(TURNS) else { return };
    let admin = database.admin();
    let running = Turns::run(database.turns(QUEUE), Mode::Follow);
    admin.until("SELECT count(*) FROM pg_replication_slots", "1");
    admin.run(&insert("one"));
    let one = running.take();
    admin.run(&format!("DROP TABLE turns; {TURNS}; ALTER PUBLICATION turns ADD TABLE turns"));
    admin.run(&insert("two"));
    let two = running.take();
    assert_eq!(&*two.record.text, "two");
    assert!(two.place.unwrap().order() > one.place.unwrap().order());
    running.end(true).unwrap_err();
}

#[test]
fn a_publication_that_would_make_updates_fail_is_not_created() {
    let Some(database) = Database::start("CREATE TABLE a (id int, text text); INSERT INTO a VALUES (1, 'One.')") else {
        return;
    };
    let admin = database.admin();
    let slot = slot("insert, update, delete, truncate", "public.a");
    let refused = ensure(&database, &slot).unwrap_err();
    assert!(refused.contains("a has no replica identity"), "{refused}");
    assert_eq!(admin.one("SELECT count(*) FROM pg_publication"), "0");
    admin.run("UPDATE a SET text = 'More.'");
    // A partition without a key is found, too.
    admin.run("CREATE TABLE parts (id int, text text) PARTITION BY LIST (id)");
    admin.run("CREATE TABLE part PARTITION OF parts FOR VALUES IN (1)");
    let parts = Slot { tables: [Table::parse("public.parts").unwrap()].into(), ..slot.clone() };
    assert!(ensure(&database, &parts).unwrap_err().contains("part has no replica identity"));
    for mend in ["ALTER TABLE a REPLICA IDENTITY FULL", "ALTER TABLE a REPLICA IDENTITY DEFAULT, ADD PRIMARY KEY (id)"]
    {
        admin.run(mend);
        ensure(&database, &slot).unwrap();
        admin.run("UPDATE a SET text = 'More.'; SELECT pg_drop_replication_slot('s'); DROP PUBLICATION p");
    }
}

#[test]
fn a_publication_that_leaves_out_changes_is_an_error() {
    let Some(database) = Database::start("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int)") else {
        return;
    };
    let admin = database.admin();
    admin.run("CREATE PUBLICATION p FOR TABLE a WITH (publish = 'insert, update')");
    let refused = ensure(&database, &slot("insert, update, delete, truncate", "public.a")).unwrap_err();
    assert!(refused.starts_with("the publication `p` does not publish `delete` (ALTER PUBLICATION p SET"), "{refused}");
    let refused = ensure(&database, &slot("insert", "public.b")).unwrap_err();
    assert!(refused.contains("does not have the table public.b"), "{refused}");
    ensure(&database, &slot("insert", "public.a")).unwrap();
}

#[test]
fn the_rows_of_a_partitioned_table_are_turns() {
    let partitioned = "CREATE TABLE turns (id bigserial, conversation_id text, turn bigint, speaker text, text text) \
                       PARTITION BY RANGE (id); \
                       CREATE TABLE turns_1 PARTITION OF turns FOR VALUES FROM (1) TO (3); \
                       CREATE TABLE turns_2 PARTITION OF turns FOR VALUES FROM (3) TO (100)";
    let Some(database) = Database::start(partitioned) else { return };
    let admin = database.admin();
    let by_slot = Turns::run(database.turns(QUEUE), Mode::Follow);
    let by_cursor = Turns::run(database.turns(CURSOR), Mode::Follow);
    admin.until("SELECT count(*) FROM pg_replication_slots", "1");
    for text in ["one", "two", "three"] {
        admin.run(&insert(text));
        assert_eq!((by_slot.text(), by_cursor.text()), (text.to_owned(), text.to_owned()));
    }
    by_slot.end(true).unwrap_err();
    by_cursor.end(true).unwrap_err();
}

#[test]
fn an_id_is_the_same_in_the_log_and_in_the_query() {
    let tables =
        "CREATE TABLE a (id char(8) PRIMARY KEY, text text); INSERT INTO a VALUES ('one', 'One.'), ('two', 'Two.')";
    let Some(database) = Database::start(tables) else { return };
    let admin = database.admin();
    let config = "query: \"SELECT id, text FROM a\", changes: Slot(name: \"docs\", tables: {\"public.a\": \"id\"}, every_s: 0.02)";
    let running = Corpus::run(database.corpus(config), Mode::Follow);
    assert_eq!(running.start(), ["one=One.", "two=Two."]);
    // The log has blanks at the end of the id.
    admin.run("DELETE FROM a WHERE id = 'one'");
    assert_eq!(running.changes(), ["-one"]);
    running.end(true).unwrap_err();

    admin.run("CREATE TABLE b (id int, text text); INSERT INTO b VALUES (17, 'Text.')");
    let config = "query: \"SELECT id, text FROM b\", changes: Notify(channel: \"b\")";
    let running = Corpus::run(database.corpus(config), Mode::Follow);
    assert_eq!(running.start(), ["17=Text."]);
    admin.run("DELETE FROM b; NOTIFY b, '017'");
    assert_eq!(running.changes(), ["-17"]);
    running.end(true).unwrap_err();
}

fn deliver(sink: &mut PostgresSink) -> Result<(), ConnectorError> {
    let (answers, taken) = ([answer()], AtomicUsize::new(0));
    RUNTIME.block_on(sink.deliver(Delivery::new(&answers, &taken)))
}

#[test]
fn a_table_that_cannot_be_created_refuses_no_answer() {
    let Some(database) = Database::start("") else { return };
    let admin = database.admin();
    // As when two runs create the table at the same time.
    admin.run(
        "CREATE FUNCTION fail() RETURNS event_trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE unique_violation USING MESSAGE = 'another one creates it'; END $$; \
         CREATE EVENT TRIGGER fail ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION fail()",
    );
    let mut sink = database.sink("table: \"public.answers\", create: true");
    let error = deliver(&mut sink).unwrap_err();
    assert!(may_pass(&error) && error.to_string().starts_with("cannot create the table: another one"), "{error}");
    admin.run("DROP EVENT TRIGGER fail");
    deliver(&mut sink).unwrap();
    // A table that exists needs no role that may create it.
    admin.run(
        "CREATE ROLE app LOGIN; GRANT INSERT, SELECT ON answers TO app; REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    );
    let url = database.url().replace("postgres@", "app@");
    let config = format!("(input: \"a\", url: {url:?}, table: \"public.answers\", create: true)");
    deliver(&mut from_str::<PostgresSinkConfig>(&config).unwrap().sink().unwrap()).unwrap();
    assert_eq!(admin.one("SELECT count(*) FROM answers"), "1");
}

#[test]
fn a_cursor_does_not_follow_a_standby() {
    let Some(mut database) = Database::start("") else { return };
    connected(&database, |calls| calls.check_primary().unwrap());
    database.server.down();
    std::fs::write(database.server.data().join("cluster/standby.signal"), "").unwrap();
    database.server.up();
    let error = connected(&database, |calls| calls.check_primary().unwrap_err());
    assert!(may_pass(&error) && error.to_string().contains("is a standby"), "{error}");
}
