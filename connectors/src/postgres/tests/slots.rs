use turnflow_engine::connector::{Mode, SourceOffset};

use super::*;
use crate::testing::{Corpus, Turns};

const TABLES: &str = "CREATE TABLE articles (id bigint PRIMARY KEY, title text); \
                      CREATE TABLE parts (id bigserial PRIMARY KEY, article bigint, text text)";
const DOCS: &str = "query: \"SELECT a.id, a.title, (SELECT string_agg(p.text, ' ' ORDER BY p.id) FROM parts p WHERE p.article = a.id) AS text \
                    FROM articles a\", \
                    changes: Slot(name: \"docs\", tables: {\"public.articles\": \"id\", \"public.parts\": \"article\"}, every_s: 0.02)";
const CURRENT: &str = "SELECT (confirmed_flush_lsn - '0/0')::text FROM pg_replication_slots WHERE slot_name = 'docs'";

fn put(admin: &Admin, id: i64, text: &str) {
    admin.run(&format!(
        "BEGIN; INSERT INTO articles VALUES ({id}, 'T') ON CONFLICT DO NOTHING; \
         INSERT INTO parts (article, text) VALUES ({id}, '{text}'); COMMIT"
    ));
}

#[test]
fn a_slot_names_the_documents_whose_rows_change() {
    let Some(mut database) = Database::start(TABLES) else { return };
    let admin = database.admin();
    put(&admin, 1, "One.");
    put(&admin, 2, "Two.");
    let running = Corpus::run(database.corpus(DOCS), Mode::Follow);
    assert_eq!(running.start(), ["1=One.", "2=Two."]);
    // A row of another table is part of a document.
    put(&admin, 1, "More.");
    assert_eq!(running.changes(), ["1=One. More."]);
    admin.run("DELETE FROM articles WHERE id = 2");
    assert_eq!(running.changes(), ["-2"]);
    // A key that changes: the replica identity tells the old one.
    admin.run("BEGIN; UPDATE articles SET id = 3 WHERE id = 1; UPDATE parts SET article = 3; COMMIT");
    assert_eq!(running.changes(), ["-1", "3=One. Two. More."]);
    // The primary key of the parts does not tell the article, so everything is read.
    admin.run("DELETE FROM parts WHERE text = 'Two.'");
    assert_eq!(running.changes(), ["3=One. More."]);
    admin.run("ALTER TABLE parts REPLICA IDENTITY FULL");
    admin.run("DELETE FROM parts WHERE text = 'More.'");
    assert_eq!(running.changes(), ["3=One."]);
    database.server.down();
    database.server.up();
    let admin = database.admin();
    put(&admin, 4, "Four.");
    assert_eq!(running.changes(), ["4=Four."]);
    admin.run("TRUNCATE articles");
    assert_eq!(running.changes(), ["-3", "-4"]);
    assert!(running.dead().is_empty());
    running.nothing_more();
    running.end(true).unwrap_err();
}

#[test]
fn changes_while_it_does_not_run_are_read_and_a_repeated_reading_changes_nothing() {
    let Some(database) = Database::start(TABLES) else { return };
    let admin = database.admin();
    put(&admin, 1, "One.");
    let running = Corpus::run(database.corpus(DOCS), Mode::Follow);
    assert_eq!(running.start(), ["1=One."]);
    running.end(true).unwrap_err();
    put(&admin, 2, "Two.");
    admin.run("DELETE FROM articles WHERE id = 1");
    let before = admin.one(CURRENT);
    // The changes are in the first reading already, and in the slot: they are read again, and are no changes.
    let running = Corpus::run(database.corpus(DOCS), Mode::Follow);
    assert_eq!(running.start(), ["2=Two."]);
    admin.until(&format!("SELECT (({CURRENT})::numeric > {before})::text"), "true");
    running.nothing_more();
    put(&admin, 3, "Three.");
    assert_eq!(running.changes(), ["3=Three."]);
    running.end(true).unwrap_err();
}

#[test]
fn a_slot_moves_on_while_other_tables_change() {
    let Some(database) = Database::start(TABLES) else { return };
    let admin = database.admin();
    put(&admin, 1, "One.");
    let running = Corpus::run(database.corpus(DOCS), Mode::Follow);
    assert_eq!(running.start(), ["1=One."]);
    admin.run("CREATE TABLE other AS SELECT generate_series(1, 1000) AS n");
    let written = admin.one("SELECT (pg_current_wal_lsn() - '0/0')::text");
    admin.until(&format!("SELECT (({CURRENT})::numeric >= {written})::text"), "true");
    running.nothing_more();
    running.end(true).unwrap_err();
}

#[test]
fn a_slot_that_was_lost_is_made_again_with_everything_read() {
    let Some(database) = Database::start(TABLES) else { return };
    let admin = database.admin();
    put(&admin, 1, "One.");
    let running = Corpus::run(database.corpus(DOCS), Mode::Follow);
    assert_eq!(running.start(), ["1=One."]);
    // A slot in use cannot be dropped.
    let drop = "DO $$ BEGIN LOOP BEGIN PERFORM pg_drop_replication_slot('docs'); EXIT; \
                EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.001); END; END LOOP; END $$";
    admin.run(drop);
    put(&admin, 2, "Two.");
    running.until(&["2=Two."]);
    put(&admin, 3, "Three.");
    running.until(&["3=Three."]);
    running.end(true).unwrap_err();
}

#[test]
fn a_large_transaction_is_read_whole() {
    let Some(database) = Database::start(TABLES) else { return };
    let admin = database.admin();
    put(&admin, 1, "One.");
    let running = Corpus::run(database.corpus(DOCS), Mode::Follow);
    assert_eq!(running.start(), ["1=One."]);
    admin.run(
        "BEGIN; INSERT INTO articles SELECT n, 'T' FROM generate_series(2, 15000) n; \
         INSERT INTO parts (article, text) SELECT n, 'Text.' FROM generate_series(2, 15000) n; COMMIT",
    );
    assert_eq!(running.changes().len(), 14_999);
    put(&admin, 1, "More.");
    assert_eq!(running.changes(), ["1=One. More."]);
    running.end(true).unwrap_err();
}

const QUEUE: &str = "table: \"public.turns\", follow: Slot(name: \"turns\", every_s: 0.02)";

#[test]
fn inserts_are_turns_in_the_order_of_their_commits() {
    let Some(mut database) = Database::start(TURNS) else { return };
    let admin = database.admin();
    admin.run(&insert("before the slot"));
    let running = Turns::run(database.turns(QUEUE), Mode::Follow);
    admin.until("SELECT count(*) FROM pg_replication_slots", "1");
    let late = database.admin();
    late.run("BEGIN");
    late.run(&insert("one"));
    late.run(&insert("two"));
    admin.run(&insert("zero"));
    late.run("COMMIT");
    admin.run("UPDATE turns SET text = 'changed' WHERE text = 'two'");
    admin.run("INSERT INTO turns (conversation_id, turn, speaker, text) VALUES ('c', 1, 'cat', '')");
    admin.run("INSERT INTO turns (conversation_id, turn, speaker, text, timestamp) VALUES ('c', 1, 'user', 'three', '1970-01-01 00:00:02+00')");
    let mut turns = Vec::new();
    for text in ["zero", "one", "two", "three"] {
        turns.push(running.take());
        assert_eq!(&*turns.last().unwrap().record.text, text);
    }
    assert_eq!(turns[3].record.timestamp, Some(2.0));
    let order = |turn: &turnflow_engine::connector::SourcedTurn| SourceOffset::order(turn.place.as_ref().unwrap());
    assert!(turns.windows(2).all(|two| order(&two[0]) < order(&two[1])));
    assert_eq!(running.dead().len(), 1);
    database.server.down();
    database.server.up();
    let admin = database.admin();
    admin.run(&insert("four"));
    assert_eq!(running.text(), "four");
    running.end(true).unwrap_err();
    // Nothing was acknowledged, so the slot has all of them; the offset says where to go on.
    for (at, turn) in turns.iter().enumerate() {
        let again = Turns::resume(database.turns(QUEUE), Mode::Once, turn.place.clone()).all().0;
        let texts: Vec<&str> = again.iter().map(|turn| &*turn.record.text).collect();
        assert_eq!(texts, ["zero", "one", "two", "three", "four"][at + 1..], "after {at}");
        assert!(again.iter().all(|later| order(later) > order(turn)));
        // What the offset covers is taken out of the slot, so the order of the loop matters.
    }
}

#[test]
fn a_slot_of_turns_that_was_lost_goes_on_with_larger_offsets() {
    let Some(database) = Database::start(TURNS) else { return };
    let admin = database.admin();
    let running = Turns::run(database.turns(QUEUE), Mode::Follow);
    admin.until("SELECT count(*) FROM pg_replication_slots", "1");
    admin.run(&insert("one"));
    let one = running.take().place.unwrap();
    running.end(true).unwrap_err();
    admin.run("SELECT pg_drop_replication_slot('turns')");
    let running = Turns::resume(database.turns(QUEUE), Mode::Follow, Some(one.clone()));
    admin.until("SELECT count(*) FROM pg_replication_slots", "1");
    admin.run(&insert("two"));
    let two = running.take();
    assert_eq!(&*two.record.text, "two");
    assert!(two.place.unwrap().order() > one.order());
    running.end(true).unwrap_err();
}

/// Why it exists: the same row was another turn by a slot than by a cursor: times without `T`, lists as texts.
#[test]
fn a_row_is_the_same_turn_by_a_slot_and_by_a_cursor() {
    let further = "a bool, b smallint, c int, d bigint, e real, f float8, g numeric, h varchar, i char(4), j uuid, \
                   k timestamp, l timestamptz, m date, n time, o interval, p json, q jsonb, r bytea, s int[], t text[], \
                   u numeric[], v timestamptz[], w bool[], x jsonb[], y point, z int4range, aa inet, bb xml, cc bit(3), \
                   dd int[][], ee money, ff timetz, gg json";
    let table = TURNS.replace("record jsonb)", &format!("record jsonb, {further})"));
    let Some(database) = Database::start(&table) else { return };
    let admin = database.admin();
    let slot = "table: \"public.turns\", follow: Slot(name: \"s\", every_s: 0.02)";
    let (none, _) = Turns::run(database.turns(slot), Mode::Once).all();
    assert_eq!(none.len(), 0);
    let values = [
        "true, -1, 2, 9007199254740993, 1.5, 1e20, 1.50, 'v', 'c', '12345678-1234-1234-1234-123456789012', \
         '2024-01-01 02:03:04.5', '2024-01-01 02:03:04+02', '2024-01-01', '02:03', '1 mon 2 days', '{\"a\" : [1, null]}', \
         '{\"b\":1.50}', '\\xdead', '{1,NULL}', '{a,\"b c\",\"NULL\",NULL,\"q\\\"\"}', '{1.50,NaN}', \
         '{2024-01-01 00:00+00}', '{t,f}', '{\"{\\\"x\\\": 1}\"}', '(1,2)', '[1,5)', '10.0.0.1', '<a/>', B'101', \
         '{{1,2},{3,4}}', '12.5', '02:03+01', '7'",
        "false, 0, 0, 0, 'NaN', '-Infinity', 'NaN', '', '', NULL, 'infinity', '-infinity', 'infinity', NULL, '-1 day', '\"s\"', \
         'null', '', '{}', '{}', '{}', '{}', '{}', '{}', NULL, 'empty', '::1', NULL, NULL, '{}', '-1', NULL, 'true'",
        "NULL, NULL, NULL, NULL, NULL, NULL, '1e400', 'é\t', NULL, NULL, '0044-03-15 BC', '0044-03-15 00:00+00 BC', \
         '5874897-12-31', NULL, NULL, '{\"a\":\"\\ud83d\"}', NULL, NULL, '[0:1]={1,2}', NULL, NULL, NULL, NULL, NULL, NULL, \
         NULL, NULL, NULL, NULL, NULL, NULL, NULL, '{\"a\":1e999}'",
        "NULL, NULL, NULL, 9223372036854775807, NULL, NULL, 123456789012345678901234567890, NULL, NULL, NULL, NULL, NULL, \
         NULL, NULL, NULL, '{\"a\":[123456789012345678901234567890]}', '{\"b\":-98765432109876543210}', NULL, NULL, NULL, \
         '{123456789012345678901234567890,7}', NULL, NULL, '{\"{\\\"x\\\": 123456789012345678901234567890}\"}', NULL, NULL, \
         NULL, NULL, NULL, NULL, NULL, NULL, '123456789012345678901234567890'",
    ];
    let names: Vec<&str> = further.split(", ").filter_map(|column| column.split_whitespace().next()).collect();
    for values in values {
        admin.run(&format!(
            "INSERT INTO turns (conversation_id, turn, speaker, text, timestamp, {}) VALUES ('c', 1, 'user', 't', \
             '2024-05-06 07:08:09+00', {values})",
            names.join(", ")
        ));
    }
    let of = |fields: &str| {
        let (turns, dead) = Turns::run(database.turns(fields), Mode::Once).all();
        assert!(dead.is_empty(), "{dead:?}");
        turns.into_iter().map(|turn| turn.record).collect::<Vec<_>>()
    };
    let (by_slot, by_cursor) = (of(slot), of("table: \"public.turns\", follow: Cursor(column: \"id\", every_s: 0.02)"));
    assert_eq!(by_slot.len(), values.len());
    for (slot, cursor) in by_slot.iter().zip(&by_cursor) {
        for (name, value) in &cursor.extra {
            assert_eq!(slot.extra.get(name), Some(value), "{name}");
        }
        assert_eq!(slot, cursor);
    }
    // Numbers that no reader of JSON keeps are texts.
    let wide = &by_slot.last().unwrap().extra;
    assert_eq!(wide["g"], "123456789012345678901234567890");
    assert_eq!((&wide["p"]["a"][0], &wide["q"]["b"]), (&wide["g"], &"-98765432109876543210".into()));
    assert_eq!((&wide["u"][0], &wide["x"][0]["x"], &wide["gg"]), (&wide["g"], &wide["g"], &wide["g"]));
    assert_eq!(wide["d"], 9_223_372_036_854_775_807_i64);
}
