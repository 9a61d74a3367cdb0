use futures::executor::block_on;
use rusqlite::Connection;
use turnflow_engine::spec::from_str;

use super::*;
use crate::testing::{Turns, runtime};

const TURNS: &str =
    "CREATE TABLE turns (n INTEGER PRIMARY KEY, conversation_id TEXT, turn INTEGER, speaker TEXT, text TEXT, extra)";
const QUERY: &str = "query: \"SELECT * FROM turns\", cursor: \"n\"";

fn context() -> ComponentContext {
    ComponentContext::alone("sqlite", runtime().clone())
}

fn config(fields: &str) -> SqliteConfig {
    from_str(&format!("(path: \"log.db\", {fields})")).unwrap()
}

fn source(directory: &Path, fields: &str) -> Sqlite {
    config(fields).source(directory, &context())
}

/// A database that another program has open.
fn database(directory: &Path, schema: &str) -> Connection {
    let database = Connection::open(directory.join("log.db")).unwrap();
    database.pragma_update(None, "journal_mode", "WAL").unwrap();
    database.execute_batch(schema).unwrap();
    database
}

fn insert(database: &Connection, number: u32) {
    let text = format!("t{number}");
    let values = (number, number, text);
    database.execute("INSERT INTO turns VALUES (?1, 'c', ?2, 'user', ?3, 1.5)", values).unwrap();
}

/// The source for lines of a log, in the column `record`.
pub(crate) fn turns_of(base: &Path, lines: &[u8]) -> Box<dyn TurnSource> {
    if !base.join("log.db").exists() {
        let database = database(base, "CREATE TABLE log (n INTEGER PRIMARY KEY, record TEXT)");
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line = String::from_utf8_lossy(line);
            database.execute("INSERT INTO log (record) VALUES (?1)", [&*line]).unwrap();
        }
    }
    Box::new(source(base, "query: \"SELECT * FROM log\", cursor: \"n\", every_s: 0.01"))
}

#[test]
fn rows_are_turns_and_further_ones_are_read_while_another_program_writes() {
    let directory = tempfile::tempdir().unwrap();
    let running = Turns::run(source(directory.path(), &format!("{QUERY}, every_s: 0.01")), Mode::Follow);
    let writer = database(directory.path(), TURNS);
    (1..=3).for_each(|number| insert(&writer, number));
    let first = running.take();
    assert_eq!((&*first.record.text, first.record.turn, &first.record.extra["extra"]), ("t1", 1, &1.5.into()));
    assert_eq!([running.text(), running.text()], ["t2", "t3"]);
    insert(&writer, 4);
    let fourth = running.take();
    assert!(&*fourth.record.text == "t4" && fourth.position.ends_with("log.db: 4"), "{}", fourth.position);
    // What is not committed is not read, and nobody waits for it.
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    insert(&writer, 5);
    writer.execute_batch("ROLLBACK").unwrap();
    insert(&writer, 6);
    assert_eq!(running.text(), "t6");
    running.end(true).unwrap_err();
    insert(&writer, 7);
    let (turns, dead) = Turns::resume(source(directory.path(), QUERY), Mode::Once, fourth.place).all();
    assert_eq!(turns.iter().map(|turn| &*turn.record.text).collect::<Vec<_>>(), ["t6", "t7"]);
    assert!(dead.is_empty(), "{dead:?}");
}

#[test]
fn a_database_in_place_of_another_is_read_from_its_beginning() {
    let directory = tempfile::tempdir().unwrap();
    let old = database(directory.path(), TURNS);
    insert(&old, 9);
    let running = Turns::run(source(directory.path(), &format!("{QUERY}, every_s: 0.01")), Mode::Follow);
    let before = running.take().place.unwrap();
    drop(old);
    let elsewhere = tempfile::tempdir_in(directory.path()).unwrap();
    let new = database(elsewhere.path(), TURNS);
    insert(&new, 2);
    new.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(new);
    // What was written to the other one, and is not in its file yet.
    ["log.db-wal", "log.db-shm"].iter().for_each(|name| drop(std::fs::remove_file(directory.path().join(name))));
    std::fs::rename(elsewhere.path().join("log.db"), directory.path().join("log.db")).unwrap();
    let after = running.take();
    assert_eq!((&*after.record.text, after.place.unwrap().generation), ("t2", before.generation + 1));
    running.end(true).unwrap_err();
}

#[test]
fn rows_that_are_rewritten_give_what_is_new_in_them() {
    let directory = tempfile::tempdir().unwrap();
    let writer = database(directory.path(), "CREATE TABLE chat (id TEXT PRIMARY KEY, said TEXT, at INTEGER)");
    let write = |id: &str, said: &[&str], at: u32| {
        let said: Vec<_> =
            (0..).zip(said).map(|(n, text)| serde_json::json!({"id": format!("{id}{n}"), "text": text})).collect();
        let said = serde_json::Value::from(said).to_string();
        writer.execute("INSERT OR REPLACE INTO chat VALUES (?1, ?2, ?3)", (id, said, at)).unwrap();
    };
    let program = "{id: .id, said: (.said | fromjson)} | .id as $c | .said[] | {id, conversation: $c, speaker: \\\"user\\\", text}";
    let fields =
        format!("query: \"SELECT id, said, at FROM chat;\", cursor: \"at\", every_s: 0.01, map: Jq(\"{program}\")");
    let config = config(&fields);
    let path = FilePath::from(&*directory.path().join("log.db"));
    let config = SqliteConfig { path, ..config };
    write("a", &["When?"], 100);
    write("b", &["Where?"], 100);
    let running = Turns::run(Whole(block_on(config.build(&context())).unwrap()), Mode::Follow);
    assert_eq!([running.text(), running.text()], ["When?", "Where?"]);
    // Within the same second, and later.
    write("b", &["Where?", "And how?"], 100);
    assert_eq!(running.text(), "And how?");
    write("a", &["When?", "Why?"], 101);
    assert_eq!(running.text(), "Why?");
    write("b", &["Where?", "And how?", "Who?"], 102);
    assert_eq!(running.text(), "Who?");
    running.end(true).unwrap_err();
}

/// Open WebUI writes a chat anew with each message, and while an answer is written.
#[test]
fn a_chat_of_open_webui_is_followed_while_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let schema = "CREATE TABLE chat (id TEXT PRIMARY KEY, created_at INTEGER, updated_at INTEGER, chat JSON)";
    let writer = database(directory.path(), schema);
    // Messages: id, parent, speaker, text, whether it is done.
    let write = |messages: &[(&str, Option<&str>, &str, &str, bool)], current: &str| {
        let mut all = serde_json::Map::new();
        for (id, parent, role, content, done) in messages {
            let message = serde_json::json!({
                "id": id, "parentId": parent, "role": role, "content": content, "timestamp": 7, "done": done,
            });
            all.insert((*id).to_owned(), message);
        }
        let chat = serde_json::json!({ "history": { "currentId": current, "messages": all } }).to_string();
        writer.execute("INSERT OR REPLACE INTO chat VALUES ('c', 1, 2, ?1)", [chat]).unwrap();
    };
    let fields = "query: \"SELECT id, created_at, updated_at, chat FROM chat\", cursor: \"updated_at\", every_s: 0.01, \
                  map: Preset(\"open-webui-db\"), conversations: (revise: true)";
    let path = FilePath::from(&*directory.path().join("log.db"));
    let config = SqliteConfig { path, ..config(fields) };
    let running = Turns::run(Whole(block_on(config.build(&context())).unwrap()), Mode::Follow);
    let said = || {
        let record = running.take().record;
        (record.turn, format!("{:?}: {}", record.speaker, record.text))
    };
    let (asked, half) = (("q", None, "user", "When?", true), ("a", Some("q"), "assistant", "At", false));
    write(&[asked, half], "a");
    assert_eq!(said(), (1, "User: When?".to_owned()));
    let answered = ("a", Some("q"), "assistant", "At nine.", true);
    write(&[asked, answered], "a");
    assert_eq!(said(), (1, "Agent: At nine.".to_owned()));
    // The answer is written anew, and then the question is edited: what is on another branch has the numbers of this one.
    let other = ("b", Some("q"), "assistant", "At ten.", true);
    write(&[asked, answered, other], "b");
    assert_eq!(said(), (1, "Agent: At ten.".to_owned()));
    let next = ("r", Some("b"), "user", "And where?", true);
    write(&[asked, answered, other, next], "r");
    assert_eq!(said(), (2, "User: And where?".to_owned()));
    let edited = ("s", Some("b"), "user", "And who?", true);
    write(&[asked, answered, other, next, edited], "s");
    assert_eq!(said(), (2, "User: And who?".to_owned()));
    running.end(true).unwrap_err();
}

struct Whole(Box<dyn TurnSource>);

impl TurnSource for Whole {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        self.0.run(mode, output)
    }
}

#[test]
fn a_locked_database_is_waited_for_and_a_wrong_query_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let writer = Connection::open(directory.path().join("log.db")).unwrap();
    writer.execute_batch(TURNS).unwrap();
    insert(&writer, 1);
    writer.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let running = Turns::run(source(directory.path(), QUERY), Mode::Follow);
    writer.execute_batch("COMMIT").unwrap();
    assert_eq!(running.text(), "t1");
    running.end(true).unwrap_err();
    for (fields, why) in [
        ("query: \"SELECT n FROM turns\", cursor: \"at\"", "no column `at` for `cursor`; it has `n`"),
        ("query: \"SELECT * FROM turns WHERE\", cursor: \"n\"", "incomplete input"),
        ("query: \"SELECT text FROM turns\", cursor: \"text\"", "no row has a whole number"),
        ("query: \"DELETE FROM turns RETURNING n\", cursor: \"n\"", "changes the database"),
    ] {
        let error = Turns::run(source(directory.path(), fields), Mode::Follow).end(false).unwrap_err();
        assert!(error.to_string().contains(why), "{fields}: {error}");
    }
}

#[test]
fn rows_come_in_pages_and_one_that_is_too_large_is_a_dead_letter() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = database(directory.path(), TURNS);
    let transaction = writer.transaction().unwrap();
    (1..=1203).for_each(|number| insert(&transaction, number));
    transaction.commit().unwrap();
    writer.execute("UPDATE turns SET text = ?1 WHERE n = 700", ["x".repeat(5000)]).unwrap();
    writer.execute("UPDATE turns SET extra = x'00ff' WHERE n = 701", []).unwrap();
    let (turns, dead) =
        Turns::run(source(directory.path(), &format!("{QUERY}, max_row_bytes: 4000")), Mode::Once).all();
    assert_eq!((turns.len(), dead.len()), (1202, 1));
    assert!(dead[0].contains("log.db: 700: the row has 5"), "{dead:?}");
    assert!(turns.windows(2).all(|two| two[0].record.turn < two[1].record.turn));
}

/// The corpus of these texts, and of a row without one.
pub(crate) fn corpus_of(base: &Path, texts: &[String]) -> Box<dyn turnflow_engine::connector::CorpusSource> {
    if !base.join("log.db").exists() {
        let database = database(base, "CREATE TABLE docs (_id INTEGER PRIMARY KEY, text TEXT)");
        for (number, text) in texts.iter().enumerate() {
            database.execute("INSERT INTO docs VALUES (?1, ?2)", (number as i64, text)).unwrap();
        }
        database.execute("INSERT INTO docs VALUES (1000000, NULL)", []).unwrap();
    }
    corpus(base, "query: \"SELECT * FROM docs\"")
}

fn corpus(base: &Path, fields: &str) -> Box<corpus::Sqlite> {
    let config: corpus::SqliteConfig = from_str(&format!("(path: \"log.db\", {fields}, every_s: 0.01)")).unwrap();
    Box::new(config.source(base, &context()).unwrap())
}

#[test]
fn rows_are_documents_and_those_that_change_are_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let writer = database(directory.path(), "CREATE TABLE kb (slug TEXT, body TEXT, lang TEXT)");
    writer.execute_batch("INSERT INTO kb VALUES ('a', 'one', 'en'), ('b', 'two', NULL)").unwrap();
    let source = corpus(directory.path(), "query: \"SELECT * FROM kb\", id: \"slug\", text: \"body\"");
    let running = crate::testing::Corpus::run(*source, Mode::Follow);
    let first = running.commit();
    running.started();
    assert_eq!(first[0].1.as_ref().unwrap().metadata.to_json()["lang"], "en");
    assert_eq!(crate::testing::told(first), ["a=one", "b=two"]);
    writer.execute_batch("UPDATE kb SET body = 'three' WHERE slug = 'b'; DELETE FROM kb WHERE slug = 'a'").unwrap();
    running.until(&["-a", "b=three"]);
    running.end(true).unwrap_err();
}

#[test]
fn a_mapping_makes_documents_of_rows() {
    let directory = tempfile::tempdir().unwrap();
    let writer = database(directory.path(), "CREATE TABLE events (n INTEGER PRIMARY KEY, json TEXT)");
    let put = |json: &str| {
        writer.execute("INSERT INTO events (json) VALUES (?1)", [json]).unwrap();
    };
    put("{\"id\": \"a\", \"parts\": [\"one\", \"two\"]}");
    put("{\"id\": \"b\", \"parts\": [\"three\"]}");
    put("{\"id\": \"a\", \"gone\": true}");
    put("{");
    let program = ".json | fromjson | if .gone then {id, delete: true} else {id, text: (.parts | join(\" \"))} end";
    let fields = format!("query: \"SELECT * FROM events\", map: Jq({program:?})");
    let running = crate::testing::Corpus::run(*corpus(directory.path(), &fields), Mode::Follow);
    assert_eq!(running.start(), ["b=three"]);
    assert_eq!(running.dead().len(), 1, "{:?}", running.dead());
    put("{\"id\": \"a\", \"parts\": [\"new\"]}");
    running.until(&["a=new"]);
    put("{\"id\": \"b\", \"gone\": true}");
    running.until(&["-b"]);
    assert_eq!(running.dead().len(), 1, "{:?}", running.dead());
    running.end(true).unwrap_err();
}

/// Rows without a number do not end the run, and times as texts are numbers.
#[test]
fn rows_without_a_number_are_not_read_and_times_are_numbers() {
    for (values, expected) in [
        (&["100", "'2026-01-01T00:00:00Z'", "101.5", "NULL", "-5", "x'00'", "300"][..], &["t0", "t6"][..]),
        (
            &[
                "'2026-01-01 00:00:01'",
                "NULL",
                "'soon'",
                "'2026-01-01T01:00:00.5+01:00'",
                "5",
                "'2026-01-01T00:00:00.25Z'",
            ],
            &["t5", "t3", "t0"],
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let writer = database(directory.path(), "CREATE TABLE log (text TEXT, at)");
        for (number, value) in values.iter().enumerate() {
            writer.execute_batch(&format!("INSERT INTO log VALUES ('t{number}', {value})")).unwrap();
        }
        let fields =
            "query: \"SELECT 'c' AS conversation_id, 1 AS turn, 'user' AS speaker, text, at FROM log\", cursor: \"at\"";
        let (turns, dead) = Turns::run(source(directory.path(), fields), Mode::Once).all();
        assert_eq!(turns.iter().map(|turn| &*turn.record.text).collect::<Vec<_>>(), expected);
        assert!(dead.is_empty(), "{dead:?}");
        // A restart goes on after the last one.
        writer
            .execute_batch(
                "INSERT INTO log SELECT 'new', max(at) || '' FROM log WHERE typeof(at) = 'text' AND at > '2026'",
            )
            .unwrap();
        writer.execute_batch("INSERT INTO log VALUES ('later', CASE (SELECT typeof(at) FROM log LIMIT 1) WHEN 'text' THEN '2027-01-01' ELSE 400 END)").unwrap();
        let last = turns.last().unwrap().place.clone();
        let (turns, _) = Turns::resume(source(directory.path(), fields), Mode::Once, last).all();
        assert_eq!(turns.iter().map(|turn| &*turn.record.text).collect::<Vec<_>>(), ["later"]);
    }
}
