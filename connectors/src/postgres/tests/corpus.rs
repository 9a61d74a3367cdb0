use turnflow_engine::connector::Mode;

use super::*;
use crate::testing::Corpus;

const ARTICLES: &str = "CREATE TABLE articles (id bigint PRIMARY KEY, title text, body text, lang text, \
                        updated_at timestamptz DEFAULT now(), deleted boolean DEFAULT false)";
const QUERY: &str = "query: \"SELECT id, title, body AS text, lang, updated_at, deleted FROM articles;\"";
/// A query whose rows change only where the document does.
const PLAIN: &str = "query: \"SELECT id, title, body AS text, lang FROM articles -- all of them\"";

fn put(id: i64, text: &str) -> String {
    format!(
        "INSERT INTO articles (id, title, body, lang) VALUES ({id}, 'T', '{text}', 'en') \
         ON CONFLICT (id) DO UPDATE SET body = excluded.body, updated_at = clock_timestamp()"
    )
}

/// Tells the ids of changed rows.
const TRIGGER: &str = "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
    IF TG_OP <> 'INSERT' THEN PERFORM pg_notify('articles', OLD.id::text); END IF; \
    IF TG_OP <> 'DELETE' THEN PERFORM pg_notify('articles', NEW.id::text); END IF; RETURN NULL; END $$; \
    CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON articles FOR EACH ROW EXECUTE FUNCTION tell()";

#[test]
fn the_columns_of_a_row_are_a_document() {
    let Some(database) = Database::start(ARTICLES) else { return };
    let admin = database.admin();
    admin.run(&put(1, "One."));
    let query = "query: \"SELECT 'a/' || id AS key, title AS name, body, ARRAY['x', 'y'] AS tags, lang, 1.5::numeric AS n, \
                 NULL AS nothing, '{\\\"deep\\\": 1}'::json AS more FROM articles\", id: \"key\", title: \"name\", text: \"body\"";
    let running = Corpus::run(database.corpus(query), Mode::Once);
    let document = running.commit().remove(0).1.unwrap();
    assert_eq!((&*document.id, &*document.title, &*document.text), ("a/1", "T", "One."));
    let metadata = serde_json::Value::Object(document.metadata.to_json());
    assert_eq!((&metadata["lang"], &metadata["tags"]), (&"en".into(), &serde_json::json!(["x", "y"])), "{metadata}");
    running.started();
    running.end(false).unwrap();
}

#[test]
fn all_rows_are_read_in_pages_and_rows_that_are_no_documents_are_dead_letters_once() {
    let Some(database) = Database::start("CREATE TABLE articles (id text, title text, body text)") else { return };
    let admin = database.admin();
    admin.run("INSERT INTO articles SELECT n::text, 'T', 'Text ' || n FROM generate_series(1, 5000) n");
    admin.run(
        "INSERT INTO articles VALUES (NULL, '', 'x'), ('', '', 'y'), ('bad', 'T', NULL), ('7', 'T', 'Another.'), \
               ('large', 'T', repeat('x', 3000))",
    );
    let fields =
        "query: \"SELECT id, title, body AS text FROM articles\", changes: Poll(every_s: 0.02), max_bytes: 2000";
    let running = Corpus::run(database.corpus(fields), Mode::Follow);
    assert_eq!(running.start().len(), 5000);
    admin.run("UPDATE articles SET body = 'New.' WHERE id = '9'");
    assert_eq!(running.changes(), ["9=New."]);
    admin.run("UPDATE articles SET body = 'Good.' WHERE id = 'bad'");
    assert_eq!(running.changes(), ["bad=Good."]);
    admin.run("UPDATE articles SET body = NULL WHERE id = '9'");
    assert_eq!(running.changes(), ["-9"]);
    admin.run("DELETE FROM articles WHERE id = '11'; UPDATE articles SET id = 'twelve' WHERE id = '12'");
    assert_eq!(running.changes(), ["-11", "-12", "twelve=Text 12"]);
    let dead = running.dead();
    assert_eq!(dead.len(), 6, "{dead:?}");
    assert_eq!(dead[0], "postgres: a row: `id` is missing");
    assert_eq!(dead[2], "postgres: bad: `text` is missing");
    assert_eq!(dead[3], "postgres: 7: `id` \"7\" is already the id of an earlier row, which is kept");
    assert!(dead[4].starts_with("postgres: large: the row has 3"), "{dead:?}");
    running.nothing_more();
    running.end(true).unwrap_err();
}

#[test]
fn notifications_name_the_rows_that_are_read_again() {
    let Some(mut database) = Database::start(&format!("{ARTICLES}; {TRIGGER}")) else { return };
    let admin = database.admin();
    (1..=3).for_each(|id| admin.run(&put(id, &format!("Text {id}."))));
    let fields = format!("{PLAIN}, changes: Notify(channel: \"articles\")");
    let running = Corpus::run(database.corpus(&fields), Mode::Follow);
    assert_eq!(running.start(), ["1=Text 1.", "2=Text 2.", "3=Text 3."]);
    admin.run(&put(2, "New."));
    assert_eq!(running.changes(), ["2=New."]);
    admin.run("DELETE FROM articles WHERE id = 1");
    assert_eq!(running.changes(), ["-1"]);
    admin.run("BEGIN; UPDATE articles SET id = 4 WHERE id = 3; UPDATE articles SET lang = 'de' WHERE id = 2; COMMIT");
    running.until(&["-3", "4=Text 3."]);
    // An id that is no number, a list, and nothing.
    admin.run("ALTER TABLE articles DISABLE TRIGGER tell");
    admin.run(&put(2, "Two."));
    admin.run(&put(5, "Five."));
    admin.run("NOTIFY articles, '[2, \"5\", \"no number\"]'");
    running.until(&["2=Two.", "5=Five."]);
    admin.run(&put(6, "Six."));
    admin.run("NOTIFY articles");
    running.until(&["6=Six."]);
    // What changes until there is a new connection is found, and what changes afterwards is told.
    admin.run("ALTER TABLE articles ENABLE TRIGGER tell");
    database.server.down();
    database.server.up();
    let admin = database.admin();
    admin.run("DELETE FROM articles WHERE id = 5");
    admin.run(&put(7, "Seven."));
    running.until(&["-5", "7=Seven."]);
    assert!(running.dead().is_empty());
    running.end(true).unwrap_err();
}

#[test]
fn a_notification_costs_as_much_as_its_rows() {
    let Some(database) = Database::start(&format!("{ARTICLES}; {TRIGGER}")) else { return };
    let admin = database.admin();
    admin.run("ALTER TABLE articles DISABLE TRIGGER tell");
    admin.run("INSERT INTO articles (id, title, body) SELECT n, 'T', 'Text.' FROM generate_series(1, 20000) n");
    admin.run("ALTER TABLE articles ENABLE TRIGGER tell; ANALYZE articles");
    let fields = format!("{PLAIN}, changes: Notify(channel: \"articles\")");
    let running = Corpus::run(database.corpus(&fields), Mode::Follow);
    assert_eq!(running.start().len(), 20_000);
    for id in 1..=30 {
        admin.run(&put(id, "New."));
        assert_eq!(running.changes(), [format!("{id}=New.")]);
    }
    running.end(true).unwrap_err();
    // A connection counts its reads at the latest when it ends.
    admin.until("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'turnflow'", "0");
    admin.until("SELECT (idx_scan >= 30)::text FROM pg_stat_user_tables WHERE relname = 'articles'", "true");
    let scans = admin.one("SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'articles'");
    assert!(scans.parse::<u32>().unwrap() < 10, "the whole table was read {scans} times");
}

#[test]
fn a_cursor_sees_transactions_that_commit_late_and_rows_that_count_as_deleted() {
    let Some(database) = Database::start(ARTICLES) else { return };
    let admin = database.admin();
    (1..=3).for_each(|id| admin.run(&put(id, &format!("Text {id}."))));
    let changes = "changes: Cursor(column: \"updated_at\", every_s: 0.02, deleted: Some(\"deleted\"), compare_s: 0)";
    let late = database.admin();
    late.run("BEGIN; SELECT now()");
    let running = Corpus::run(database.corpus(&format!("{QUERY}, {changes}")), Mode::Follow);
    assert_eq!(running.start().len(), 3);
    for number in 0..5 {
        admin.run(&put(1, &format!("New {number}.")));
        assert_eq!(running.changes(), [format!("1=New {number}.")]);
    }
    // Its time is that of its beginning.
    late.run("UPDATE articles SET body = 'Late.', updated_at = now() WHERE id = 2; COMMIT");
    assert_eq!(running.changes(), ["2=Late."]);
    admin.run("UPDATE articles SET deleted = true, updated_at = now() WHERE id = 3");
    assert_eq!(running.changes(), ["-3"]);
    admin.run("UPDATE articles SET deleted = false, updated_at = now() WHERE id = 3");
    assert_eq!(running.changes(), ["3=Text 3."]);
    running.nothing_more();
    running.end(true).unwrap_err();
}

/// Why it exists: after one row with a time in the future, no later change was found.
#[test]
fn a_row_of_the_future_hides_no_later_ones() {
    let Some(database) = Database::start(ARTICLES) else { return };
    let admin = database.admin();
    (1..=3).for_each(|id| admin.run(&put(id, &format!("Text {id}."))));
    admin.run("UPDATE articles SET updated_at = 'infinity' WHERE id = 2");
    let changes = "changes: Cursor(column: \"updated_at\", every_s: 0.02, compare_s: 0)";
    let running = Corpus::run(database.corpus(&format!("{QUERY}, {changes}")), Mode::Follow);
    assert_eq!(running.start().len(), 3);
    admin.run(&put(1, "New."));
    assert_eq!(running.changes(), ["1=New."]);
    // While it runs, too; and the row of the future is read itself.
    admin.run("UPDATE articles SET body = 'Of the future.', updated_at = now() + interval '20 years' WHERE id = 3");
    assert_eq!(running.changes(), ["3=Of the future."]);
    admin.run(&put(1, "Newer."));
    assert_eq!(running.changes(), ["1=Newer."]);
    running.nothing_more();
    running.end(true).unwrap_err();
}

#[test]
fn a_cursor_compares_everything_from_time_to_time() {
    let Some(database) = Database::start(ARTICLES) else { return };
    let admin = database.admin();
    (1..=3).for_each(|id| admin.run(&put(id, &format!("Text {id}."))));
    let changes = "changes: Cursor(column: \"updated_at\", every_s: 0.02, compare_s: 0.2)";
    let running = Corpus::run(database.corpus(&format!("{QUERY}, {changes}")), Mode::Follow);
    assert_eq!(running.start().len(), 3);
    admin.run("DELETE FROM articles WHERE id = 2");
    assert_eq!(running.changes(), ["-2"]);
    running.end(true).unwrap_err();
}

#[test]
fn a_query_that_fails_is_tried_again_and_ends_a_run_that_does_not_follow() {
    let Some(database) = Database::start("") else { return };
    let running = Corpus::run(database.corpus(&format!("{PLAIN}, changes: Poll(every_s: 0.02)")), Mode::Follow);
    let admin = database.admin();
    // In one transaction: the table has its row when it is found.
    admin.run(&format!("{ARTICLES}; {}", put(1, "One.")));
    assert_eq!(running.start(), ["1=One."]);
    running.end(true).unwrap_err();
}

#[test]
fn rows_in_another_form_are_mapped() {
    let Some(database) = Database::start("CREATE TABLE pages (id int PRIMARY KEY, page jsonb, deleted boolean)") else {
        return;
    };
    let admin = database.admin();
    admin.run("INSERT INTO pages VALUES (1, '{\"parts\": [\"one\", \"two\"]}'), (2, '{\"parts\": [\"three\"]}')");
    let fields = r#"query: "SELECT id, page, deleted FROM pages", changes: Poll(every_s: 0.02),
        map: Jq("select(.deleted | not) | .id as $id | .page.parts | to_entries[] | {id: \"\\($id)-\\(.key)\", text: .value}")"#;
    let running = Corpus::run(database.corpus(fields), Mode::Follow);
    assert_eq!(running.start(), ["1-0=one", "1-1=two", "2-0=three"]);
    admin.run("UPDATE pages SET page = '{\"parts\": [\"new\"]}' WHERE id = 1");
    assert_eq!(running.changes(), ["-1-1", "1-0=new"]);
    admin.run("UPDATE pages SET page = '{\"parts\": 5}' WHERE id = 1");
    assert_eq!(running.changes(), ["-1-0"]);
    admin.run("DELETE FROM pages WHERE id = 2");
    assert_eq!(running.changes(), ["-2-0"]);
    let dead = running.dead();
    assert!(dead.len() == 1 && dead[0].starts_with("postgres: 1: not mapped: "), "{dead:?}");
    running.end(true).unwrap_err();
}
