//! Live answers: what sinks have in the end is what a cold run gives.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::strategy::Strategy;
use turnflow_engine::connector::Mode;
use turnflow_engine::record::AnswerRecord;
use turnflow_engine::run::{Engine, Options};

use crate::support::{answers, data, holds, model, plan_of, until};

fn pipeline(mode: &str, model: Option<&Path>) -> String {
    let (models, dense, by) = match model {
        Some(model) => (
            format!(
                "models: {{ \"minilm\": Onnx(path: {:?}, tokenizer: {:?}) }},",
                model.join("model.onnx"),
                model.join("tokenizer.json")
            ),
            "\"dense\": Dense(input: \"query\", corpus: \"docs\", model: \"minilm\", top: 8),
             \"hits\": Rrf(inputs: [\"lexical\", \"dense\"], top: 5),",
            ", model: \"minilm\"",
        ),
        None => (String::new(), "\"hits\": Rrf(inputs: [\"lexical\"], top: 5),", ""),
    };
    format!(
        r#"Pipeline(
    mode: {mode},
    {models}
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": LastTurn(input: "turns"),
        "lexical": Bm25(input: "query", corpus: "docs", top: 8),
        {dense}
        "answer": ExtractiveAnswer(input: "hits"{by}),
        "final": IdkNormalize(input: "answer"),
        "out": JsonLinesSink(input: "final", path: "answers.jsonl"),
    }},
)"#
    )
}

fn start(dir: &Path, text: &str, workers: usize, mode: Mode) -> Engine {
    let options = Options { workers, state: Some(dir.join("state")), turns: mode, corpora: mode, ..Options::default() };
    Engine::start(plan_of(dir, text), options).unwrap()
}

/// What a reader of the sink has: the last revision of each turn that is not withdrawn.
fn accumulated(dir: &Path) -> BTreeMap<(String, u32), AnswerRecord> {
    let mut all: BTreeMap<(String, u32), AnswerRecord> = BTreeMap::new();
    for record in answers(&dir.join("answers.jsonl")) {
        let key = (record.conversation_id.to_string(), record.turn);
        if record.retracted {
            let gone = all.remove(&key).unwrap_or_else(|| panic!("{key:?} is withdrawn and not there"));
            assert_eq!((gone.revision, &gone.answer), (record.revision, &record.answer), "{key:?}");
            continue;
        }
        let before = all.insert(key.clone(), record);
        assert!(before.is_none(), "{key:?} is there twice");
    }
    all
}

fn cold(dir: &Path, model: Option<&Path>) -> BTreeMap<(String, u32), AnswerRecord> {
    let other = tempfile::tempdir().unwrap();
    for file in ["docs.jsonl", "turns.jsonl"] {
        fs::copy(dir.join(file), other.path().join(file)).unwrap();
    }
    let engine = start(other.path(), &pipeline("Once", model), 1, Mode::Once);
    until("the cold run's end", || engine.has_ended());
    engine.join().unwrap();
    accumulated(other.path())
}

fn said(record: &AnswerRecord) -> (String, String, Vec<String>) {
    let hits = record.hits.iter().map(|hit| hit.passage.to_string()).collect();
    (format!("{:?}", record.status), record.answer.to_string(), hits)
}

/// Which rows the corpus has, one state after the other: one in three is missing.
fn history(rows: usize) -> impl Strategy<Value = Vec<Vec<bool>>> {
    vec(vec(weighted(2.0 / 3.0), rows), 11)
}

/// A history of the corpus, with restarts in the middle of it.
fn live_through(rows: &[String], turns: &[String], model: Option<&Path>, workers: usize, history: Vec<Vec<bool>>) {
    let mut history = history.into_iter();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut write = |dir: &Path| {
        let is_there = history.next().unwrap();
        let chosen: Vec<&str> = rows.iter().zip(is_there).filter(|(_, is)| *is).map(|(row, _)| row.as_str()).collect();
        fs::write(dir.join("docs.new"), chosen.join("\n") + "\n").unwrap();
        fs::rename(dir.join("docs.new"), dir.join("docs.jsonl")).unwrap();
    };
    write(dir);
    fs::write(dir.join("turns.jsonl"), turns.join("\n") + "\n").unwrap();
    let live = pipeline("Live(standing: 500)", model);
    let mut revised = 0;
    for _ in 0..2 {
        let engine = start(dir, &live, workers, Mode::Follow);
        engine.wait_ready().unwrap();
        for _ in 0..4 {
            let epoch = engine.epochs().current().epoch;
            write(dir);
            until("the next epoch", || engine.epochs().current().epoch > epoch);
        }
        let expected = cold(dir, model);
        until("the answers to be those of a cold run", || {
            let now = accumulated(dir);
            now.len() == expected.len() && now.iter().all(|(key, record)| said(record) == said(&expected[key]))
        });
        revised += engine.revised();
        engine.stop();
        engine.join().unwrap();
        // While nothing runs the corpus changes too.
        write(dir);
    }
    // A run over what is there brings standing answers up to date, and ends.
    let engine = start(dir, &live, workers, Mode::Once);
    until("the end", || engine.has_ended());
    engine.join().unwrap();
    let (now, expected) = (accumulated(dir), cold(dir, model));
    for (key, record) in &expected {
        assert_eq!(said(&now[key]), said(record), "{key:?}");
    }
    assert!(revised > 0, "something has changed on the way");
}

/// A kill between the moment when turns were noted as standing and the one when their conversations
/// were: the next process has them from the store, and reads them again besides.
#[test]
fn a_turn_that_stands_and_is_read_again_stands_once() {
    use redb::{ReadableDatabase as _, TableDefinition};
    const SOURCES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("sources");
    const HEADS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("heads");

    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let rows = |text: &str| serde_json::json!({"_id": "d", "text": text}).to_string() + "\n";
    fs::write(dir.join("docs.jsonl"), rows("The ferry leaves at noon.")).unwrap();
    let turns: Vec<String> = (0..400).map(|n| turn(&format!("c{n}"), 1, "When does the ferry leave?")).collect();
    fs::write(dir.join("turns.jsonl"), turns.join("\n") + "\n").unwrap();
    let live = pipeline("Live(standing: 500)", None);
    let engine = start(dir, &live, 2, Mode::Once);
    until("the end", || engine.has_ended());
    engine.join().unwrap();
    let database = redb::Database::open(dir.join("state/turns.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(SOURCES).unwrap().retain(|_, _| false).unwrap();
    transaction.open_table(HEADS).unwrap().retain(|_, _| false).unwrap();
    transaction.commit().unwrap();
    let standing = TableDefinition::<'_, &str, &[u8]>::new("standing");
    let kept = database.begin_read().unwrap().open_table(standing).unwrap();
    assert_eq!(redb::ReadableTableMetadata::len(&kept).unwrap(), 400);
    drop((kept, database));
    for text in ["The ferry leaves at one.", "The ferry leaves at two."] {
        fs::write(dir.join("docs.jsonl"), rows(text)).unwrap();
        let engine = start(dir, &live, 2, Mode::Once);
        until("the end", || engine.has_ended());
        engine.join().unwrap();
        // This panics where an answer is there twice.
        let now = accumulated(dir);
        let says_so = |record: &&AnswerRecord| record.answer.contains(&text[18..]);
        assert_eq!((now.len(), now.values().filter(says_so).count()), (400, 400), "{text}");
    }
}

fn turn(conversation: &str, number: usize, text: &str) -> String {
    serde_json::json!({"conversation_id": conversation, "turn": number, "speaker": "user", "text": text}).to_string()
}

#[test]
fn accumulated_answers_equal_a_cold_run() {
    let words = super::WORDS;
    let row = |n: usize| {
        let text =
            format!("The {} and the {} met the {}.", words[n % 20], words[(n * 7 + 3) % 20], words[(n * 3) % 20]);
        serde_json::json!({"_id": format!("r{n}"), "text": text}).to_string()
    };
    let rows: Vec<String> = (0..40).map(row).collect();
    let turns: Vec<String> = (0..20)
        .map(|n| turn(&format!("c{}", n % 5), n / 5 + 1, &format!("{} {}", words[n], words[(n + 9) % 20])))
        .collect();
    for workers in [1, 2] {
        holds(workers as u8, 1, history(rows.len()), |history| live_through(&rows, &turns, None, workers, history));
    }
}

/// The same on real passages and questions, with a model.
#[test]
fn accumulated_answers_equal_a_cold_run_on_real_data() {
    let (Some(mtrag), Some(model)) = (data("mtrag"), model("minilm-int8")) else { return };
    let rows = fs::read_to_string(mtrag.join("corpus/clapnq.jsonl")).unwrap();
    let rows: Vec<String> = rows.lines().take(80).map(str::to_owned).collect();
    let log = fs::read_to_string(mtrag.join("turns.dev.jsonl")).unwrap();
    let turns: Vec<String> =
        log.lines().filter(|line| line.contains("\"speaker\": \"user\"")).take(40).map(str::to_owned).collect();
    holds(7, 1, history(rows.len()), |history| live_through(&rows, &turns, Some(&model), 2, history));
}

/// Revisions go to the sinks that ask for them, whatever the pipeline says of the others.
#[test]
fn a_sink_has_a_mode_of_its_own() {
    let row = |text: &str| serde_json::json!({"_id": "r", "text": text}).to_string() + "\n";
    for (mode, first, second) in [("Once", "", ", mode: Live"), ("Live()", ", mode: Once", "")] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let text = pipeline(mode, None).replace(
            "\"out\": JsonLinesSink(input: \"final\", path: \"answers.jsonl\")",
            &format!(
                "\"first\": JsonLinesSink(input: \"final\", path: \"first.jsonl\"{first}),
                 \"out\": JsonLinesSink(input: \"final\", path: \"answers.jsonl\"{second})"
            ),
        );
        fs::write(dir.join("turns.jsonl"), turn("c", 1, "When does the ferry leave?") + "\n").unwrap();
        // A restart in between: who has what is known by it.
        for (at, says) in ["at noon", "at dusk", "at dawn"].into_iter().enumerate() {
            fs::write(dir.join("docs.jsonl"), row(&format!("The ferry leaves {says}."))).unwrap();
            let engine = start(dir, &text, 1, Mode::Follow);
            until("the answer of now", || {
                answers(&dir.join("answers.jsonl")).last().is_some_and(|record| record.answer.contains(says))
            });
            engine.stop();
            engine.join().unwrap();
            assert_eq!(answers(&dir.join("answers.jsonl")).len(), 1 + 2 * at);
            assert_eq!(accumulated(dir).len(), 1);
        }
        let given: Vec<_> = answers(&dir.join("first.jsonl")).iter().map(|record| record.answer.to_string()).collect();
        assert!(given.len() == 1 && given[0].contains("at noon"), "{given:?}");
    }
}

/// As a kill between a retraction and what follows leaves it, where nothing has changed in the end.
#[test]
fn an_answer_that_was_withdrawn_by_a_killed_process_stands_again() {
    for again in ["Live()", "Once"] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        fs::write(dir.join("docs.jsonl"), "{\"_id\": \"r\", \"text\": \"The ferry leaves at noon.\"}\n").unwrap();
        fs::write(dir.join("turns.jsonl"), turn("c", 1, "When does the ferry leave?") + "\n").unwrap();
        let once = |mode: &str| {
            let engine = start(dir, &pipeline(mode, None), 1, Mode::Once);
            until("the end", || engine.has_ended());
            engine.join().unwrap();
        };
        once("Live()");
        let first = answers(&dir.join("answers.jsonl")).pop().unwrap();
        let withdrawn = AnswerRecord { retracted: true, ..first.clone() };
        let lines: String = [&first, &withdrawn].map(|line| serde_json::to_string(line).unwrap() + "\n").concat();
        fs::write(dir.join("answers.jsonl"), lines).unwrap();
        for _ in 0..2 {
            once(again);
            let all = answers(&dir.join("answers.jsonl"));
            assert_eq!(all.len(), 3, "{again}: {all:?}");
            assert_eq!((all[2].revision, &all[2].answer, all[2].retracted), (1, &first.answer, false));
        }
    }
}

/// A sink that comes later gets the next answer that says something else, as its first; also where
/// the process was killed before a checkpoint knew of that.
#[test]
fn a_sink_that_comes_later_begins_with_an_answer_and_gets_each_revision_once() {
    use redb::{ReadableDatabase as _, ReadableTable as _, TableDefinition};

    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let one = pipeline("Live()", None);
    let sinks = "\"out\": JsonLinesSink(input: \"final\", path: \"answers.jsonl\")";
    let two = one.replace(sinks, &format!("{sinks}, \"late\": JsonLinesSink(input: \"final\", path: \"late.jsonl\")"));
    fs::write(dir.join("turns.jsonl"), turn("c", 1, "When does the ferry leave?") + "\n").unwrap();
    let once = |text: &str, says: &str| {
        let row = serde_json::json!({"_id": "d", "text": format!("The ferry leaves {says}.")});
        fs::write(dir.join("docs.jsonl"), format!("{row}\n")).unwrap();
        let engine = start(dir, text, 2, Mode::Once);
        until("the end", || engine.has_ended());
        engine.join().unwrap();
    };
    let late = || -> Vec<(u32, bool, String)> {
        let all = answers(&dir.join("late.jsonl"));
        let last = |text: &str| text.split_whitespace().nth(4).unwrap_or_default().to_owned();
        all.iter().map(|record| (record.revision, record.retracted, last(&record.answer))).collect()
    };
    once(&one, "at noon");
    // The same answer again is nothing new.
    once(&two, "at noon");
    assert_eq!(late(), []);
    once(&two, "at dusk");
    let first = late();
    assert_eq!((first.len(), first[0].0, first[0].1), (1, 0, false), "{first:?}");
    // As a kill leaves it: the sink has it, and the last checkpoint does not know.
    let database = redb::Database::open(dir.join("state/turns.redb")).unwrap();
    let write = database.begin_write().unwrap();
    for (table, fields) in [("standing", &["records"][..]), ("sources", &["marks", "written"])] {
        let table = TableDefinition::<'_, &str, &[u8]>::new(table);
        let stored: Vec<(String, serde_json::Value)> = {
            let table = database.begin_read().unwrap().open_table(table).unwrap();
            let entries = table.iter().unwrap().map(Result::unwrap);
            entries
                .map(|(key, value)| (key.value().to_owned(), serde_json::from_slice(value.value()).unwrap()))
                .collect()
        };
        for (key, mut value) in stored {
            for field in fields {
                assert!(value[field].as_object_mut().unwrap().remove("late").is_some(), "{value}");
            }
            let bytes = serde_json::to_vec(&value).unwrap();
            write.open_table(table).unwrap().insert(&*key, &*bytes).unwrap();
        }
    }
    write.commit().unwrap();
    drop(database);
    once(&two, "at dawn");
    let all = late();
    let shape: Vec<(u32, bool)> = all.iter().map(|(revision, retracted, _)| (*revision, *retracted)).collect();
    assert_eq!(shape, [(0, false), (0, true), (1, false)], "{all:?}");
    assert_eq!(all[0].2, all[1].2);
    accumulated(dir);
}

/// One sink has the answer of an earlier process, and the other one lost its file: the turn is
/// answered again, with another answer. The first sink gets it as a revision.
#[test]
fn a_sink_that_kept_its_answer_gets_the_new_one_as_a_revision() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let text = pipeline("Live(standing: 500)", None).replace(
        "\"out\": JsonLinesSink(",
        "\"found\": JsonLinesSink(input: \"hits\", path: \"hits.jsonl\"),\n        \"out\": JsonLinesSink(",
    );
    let document =
        |text: &str| fs::write(dir.join("docs.jsonl"), format!("{{\"_id\": \"d\", \"text\": \"{text}\"}}\n"));
    document("The ferry leaves at ten.").unwrap();
    let turn = r#"{"conversation_id": "c", "turn": 1, "speaker": "user", "text": "When does the ferry leave?"}"#;
    fs::write(dir.join("turns.jsonl"), format!("{turn}\n")).unwrap();
    let once = || {
        let engine = start(dir, &text, 1, Mode::Once);
        until("the end", || engine.has_ended());
        engine.join().unwrap();
    };
    once();
    assert!(accumulated(dir)[&("c".to_owned(), 1)].answer.contains("ten"));
    document("The ferry leaves at noon.").unwrap();
    fs::remove_file(dir.join("hits.jsonl")).unwrap();
    fs::remove_file(dir.join("state/turns.redb")).unwrap();
    once();
    let answer = &accumulated(dir)[&("c".to_owned(), 1)];
    assert_eq!((answer.revision, answer.answer.contains("noon")), (1, true), "{}", answer.answer);
    // The other file got a first answer.
    assert_eq!(answers(&dir.join("hits.jsonl")).len(), 1);
}
