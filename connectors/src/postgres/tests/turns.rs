use turnflow_engine::connector::{Mode, SourceOffset};

use super::*;
use crate::testing::Turns;

const CURSOR: &str = "table: \"public.turns\", follow: Cursor(column: \"id\", every_s: 0.02)";

#[test]
fn turns_come_in_order_and_again_after_a_restart() {
    let Some(database) = Database::start(TURNS) else { return };
    let admin = database.admin();
    for number in 0..2500 {
        admin.run(&insert(&format!("t{number}")));
    }
    let (all, dead) = Turns::run(database.turns(CURSOR), Mode::Once).all();
    assert!(dead.is_empty(), "{dead:?}");
    assert_eq!(
        all.iter().map(|turn| &*turn.record.text).collect::<Vec<_>>(),
        (0..2500).map(|n| format!("t{n}")).collect::<Vec<_>>()
    );
    assert_eq!(all[9].position, "public.turns: 10");
    assert_eq!(all[9].record.extra["id"], 10);
    let place = all[1999].place.clone();
    let (rest, _) = Turns::resume(database.turns(CURSOR), Mode::Once, place).all();
    assert_eq!(rest.len(), 500);
    assert_eq!(&*rest[0].record.text, "t2000");
    assert!(rest[0].place.as_ref().unwrap().order() > all[1999].place.as_ref().unwrap().order());
}

#[test]
fn a_row_of_a_transaction_that_commits_late_is_neither_lost_nor_out_of_order() {
    let Some(database) = Database::start(TURNS) else { return };
    let (late, early) = (database.admin(), database.admin());
    late.run("BEGIN");
    late.run(&insert("first"));
    early.run(&insert("second"));
    let running = Turns::run(database.turns(CURSOR), Mode::Follow);
    early.run(&insert("third"));
    // A transaction that does not write to the table does not matter.
    let other = database.admin();
    other.run("BEGIN; CREATE TABLE other (id int)");
    early.until("SELECT (count(*) > 3)::text FROM pg_stat_activity", "true");
    std::thread::sleep(Duration::from_millis(300));
    running.nothing();
    late.run("COMMIT");
    for text in ["first", "second", "third"] {
        assert_eq!(running.text(), text);
    }
    // One that is rolled back leaves a gap.
    late.run("BEGIN");
    late.run(&insert("never"));
    early.run(&insert("fourth"));
    late.run("ROLLBACK");
    assert_eq!(running.text(), "fourth");
    assert!(running.end(true).is_err());
}

#[test]
fn no_row_is_lost_or_out_of_order_while_many_write() {
    let Some(database) = Database::start(TURNS) else { return };
    let running = Turns::run(database.turns(CURSOR), Mode::Follow);
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let admin = database.admin();
            std::thread::spawn(move || {
                for number in 0..100 {
                    let pause = (number * 7 + writer) % 5;
                    admin.run(&format!("BEGIN; {}; SELECT pg_sleep(0.00{pause}); COMMIT", insert("x")));
                }
            })
        })
        .collect();
    let mut last = 0;
    for _ in 0..400 {
        let end = running.take().place.unwrap().end;
        assert_eq!(end, last + 1);
        last = end;
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    running.end(true).unwrap_err();
}

#[test]
fn a_record_or_columns_are_a_turn_and_others_are_dead_letters() {
    let Some(database) = Database::start(TURNS) else { return };
    let admin = database.admin();
    admin.run(
        "INSERT INTO turns (conversation_id, turn, speaker, text, collection, timestamp) \
               VALUES ('c', 2, 'user', 'Why?', 'docs', '1970-01-01 00:00:01.5+00')",
    );
    admin.run(
        "INSERT INTO turns (conversation_id, turn, speaker, text) VALUES ('c', 1, 'cat', 'x'), (NULL, 1, 'user', 'x')",
    );
    admin.run("INSERT INTO turns (conversation_id, turn, speaker, text) VALUES ('c', 3, 'user', repeat('x', 2000))");
    admin.run(&insert("last"));
    let source = database.turns("table: \"public.turns\", follow: Cursor(column: \"id\"), max_bytes: 1000");
    let (all, dead) = Turns::run(source, Mode::Once).all();
    assert_eq!(all.iter().map(|turn| &*turn.record.text).collect::<Vec<_>>(), ["Why?", "last"]);
    assert_eq!((all[0].record.timestamp, all[0].record.collection.as_deref()), (Some(1.5), Some("docs")));
    assert!(dead[0].starts_with("public.turns: 2: not a turn record"), "{dead:?}");
    assert!(dead[2].starts_with("public.turns: 4: the row has 2"), "{dead:?}");
    assert_eq!(dead.len(), 3);

    admin.run("CREATE TABLE records (id bigint GENERATED ALWAYS AS IDENTITY, record json)");
    admin.run("INSERT INTO records (record) VALUES ('{\"conversation_id\": \"c\", \"turn\": 1, \"speaker\": \"user\", \"text\": \"a\\u0000b\"}')");
    admin.run("INSERT INTO records (record) VALUES ('[1]'), (NULL)");
    let (all, dead) =
        Turns::run(database.turns("table: \"public.records\", follow: Cursor(column: \"id\")"), Mode::Once).all();
    assert_eq!(&*all[0].record.text, "a\0b");
    assert_eq!(
        dead,
        ["public.records: 2: `record` is not a JSON object", "public.records: 3: `record` is not a JSON object"]
    );
}

#[test]
fn a_table_that_was_created_again_is_read_from_its_beginning() {
    let Some(database) = Database::start(TURNS) else { return };
    let admin = database.admin();
    (0..3).for_each(|number| admin.run(&insert(&format!("old{number}"))));
    let (old, _) = Turns::run(database.turns(CURSOR), Mode::Once).all();
    admin.run("DROP TABLE turns");
    admin.run(TURNS);
    admin.run(&insert("new"));
    let place = old[2].place.clone();
    let (new, _) = Turns::resume(database.turns(CURSOR), Mode::Once, place.clone()).all();
    assert_eq!(&*new[0].record.text, "new");
    let order = SourceOffset::order;
    assert!(order(new[0].place.as_ref().unwrap()) > order(place.as_ref().unwrap()));
}

#[test]
fn it_goes_on_after_the_server_was_away_and_a_notification_wakes_it() {
    let Some(mut database) = Database::start(TURNS) else { return };
    let follow = "table: \"public.turns\", follow: Cursor(column: \"id\", every_s: 3600, channel: Some(\"turns\"))";
    database.admin().run(&insert("one"));
    let running = Turns::run(database.turns(follow), Mode::Follow);
    assert_eq!(running.text(), "one");
    let admin = database.admin();
    admin.run(&format!("{}; NOTIFY turns", insert("two")));
    assert_eq!(running.text(), "two");
    database.server.down();
    database.server.up();
    let admin = database.admin();
    // The source may have its new connection already.
    admin.run(&format!("{}; NOTIFY turns", insert("three")));
    assert_eq!(running.text(), "three");
    running.end(true).unwrap_err();
}
