//! Questions that are edited and deleted after they were answered: sinks have the answers to those that are left.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use serde_json::json;
use turnflow_engine::connector::Mode;
use turnflow_engine::record::AnswerRecord;
use turnflow_engine::run::{Engine, Options};

use crate::support::{answers, plan_of, until};

fn pipeline(mode: &str) -> String {
    format!(
        r#"Pipeline(
    mode: {mode},
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl", watch: true), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "chat.jsonl", follow: true, conversations: (revise: true),
            map: Jq("{{id, conversation: .c, speaker: \"user\", text: .t, removed: .gone}}")),
        "query": UserTurns(input: "turns", last: 3),
        "hits": Bm25(input: "query", corpus: "docs", top: 3),
        "answer": ExtractiveAnswer(input: "hits"),
        "out": JsonLinesSink(input: "answer", path: "answers.jsonl"),
        "idk": JsonLinesSink(input: "answer", path: "idk.jsonl", when: Idk),
    }},
)"#
    )
}

fn start(dir: &Path, mode: &str) -> Engine {
    let options = Options {
        workers: 2,
        state: Some(dir.join("state")),
        turns: Mode::Follow,
        corpora: Mode::Follow,
        ..Options::default()
    };
    Engine::start(plan_of(dir, &pipeline(mode)), options).unwrap()
}

/// What a reader of the sink has: of each turn its question and answer. Each retraction takes back what is there.
fn left(dir: &Path) -> BTreeMap<(String, u32), AnswerRecord> {
    let mut all = BTreeMap::new();
    for record in answers(&dir.join("answers.jsonl")) {
        let key = (record.conversation_id.to_string(), record.turn);
        if record.retracted {
            let gone: AnswerRecord = all.remove(&key).unwrap_or_else(|| panic!("{key:?} is retracted and not there"));
            assert_eq!((&gone.key, gone.revision), (&record.key, record.revision), "{key:?}");
            // The conversation may have forgotten the text.
            assert!(record.answer.is_empty() || record.answer == gone.answer, "{key:?}");
        } else {
            assert!(all.insert(key.clone(), record).is_none(), "{key:?} is there twice");
        }
    }
    all
}

/// Writes to the log of messages, and knows what should be left.
struct Chat<'a> {
    dir: &'a Path,
    texts: BTreeMap<(String, u32), String>,
    state: u64,
}

impl Chat<'_> {
    fn random(&mut self, below: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % below as u64) as usize
    }

    fn write(&self, record: &serde_json::Value) {
        let mut log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("chat.jsonl")).unwrap();
        writeln!(log, "{record}").unwrap();
    }

    fn say(&mut self, conversation: &str, turn: u32, text: String) {
        self.write(&json!({ "id": format!("{conversation}{turn}"), "c": conversation, "t": text }));
        self.texts.insert((conversation.to_owned(), turn), text);
    }

    fn delete(&mut self, conversation: &str, turn: u32) {
        self.write(&json!({ "id": format!("{conversation}{turn}"), "gone": true }));
        self.texts.remove(&(conversation.to_owned(), turn));
    }

    /// Edits or deletes a question.
    fn change(&mut self) {
        let (keys, at): (Vec<(String, u32)>, _) = (self.texts.keys().cloned().collect(), self.random(1000));
        let Some((conversation, turn)) = keys.get(at % keys.len().max(1)) else { return };
        match self.random(2) {
            0 => self.delete(conversation, *turn),
            _ => {
                let word = WORDS[self.random(WORDS.len())];
                self.say(conversation, *turn, format!("Where are {word} now? ({turn}.{at})"));
            }
        }
    }

    fn documents(&mut self) {
        let mut rows = String::new();
        for word in WORDS {
            let place = self.random(9);
            rows.push_str(&json!({ "_id": word, "text": format!("The {word} are in room {place}.") }).to_string());
            rows.push('\n');
        }
        fs::write(self.dir.join("docs.new"), rows).unwrap();
        fs::rename(self.dir.join("docs.new"), self.dir.join("docs.jsonl")).unwrap();
    }

    /// Waits until the sink has an answer to the last text of each question, and nothing else.
    fn settles(&self, engine: &Engine) {
        until("the answers to what is left", || {
            // A message that is deleted before it is a turn has no number.
            let left = left(self.dir);
            let has = |((of, _), text): (&(String, u32), &String)| {
                left.iter().any(|((conversation, _), left)| of == conversation && left.query.ends_with(text.as_str()))
            };
            left.len() == self.texts.len() && self.texts.iter().all(has)
        });
        assert!(!engine.has_ended());
    }
}

const WORDS: [&str; 6] = ["maps", "keys", "boats", "tools", "seeds", "lamps"];

fn questions_come_and_go(mode: &str, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut chat = Chat { dir: dir.path(), texts: BTreeMap::new(), state: seed };
    chat.documents();
    fs::write(dir.path().join("chat.jsonl"), "").unwrap();
    let mut turn = 0;
    for round in 0..3 {
        let engine = start(dir.path(), mode);
        engine.wait_ready().unwrap();
        for _ in 0..4 {
            turn += 1;
            for conversation in ["a", "b", "c"] {
                let word = WORDS[chat.random(WORDS.len())];
                chat.say(conversation, turn, format!("Where are the {word}? ({turn})"));
            }
            if chat.random(2) == 0 {
                chat.settles(&engine);
            }
            for _ in 0..chat.random(4) {
                chat.change();
            }
            if mode != "Once" {
                chat.documents();
            }
        }
        // What was not read yet is read by the next process.
        if round < 2 && chat.random(2) == 0 {
            chat.change();
        } else {
            chat.settles(&engine);
        }
        engine.stop();
        engine.join().unwrap();
    }
    let withdrawn = answers(&dir.path().join("answers.jsonl")).into_iter().filter(|record| record.withdrawn).count();
    assert!(withdrawn > 0, "something was taken back");
}

#[test]
fn answers_to_questions_that_are_deleted_or_edited_are_retracted() {
    for seed in 1..=3 {
        questions_come_and_go("Once", seed);
    }
}

#[test]
fn standing_answers_to_questions_that_are_deleted_or_edited_are_retracted() {
    for seed in 1..=3 {
        questions_come_and_go("Live(standing: 500)", seed);
    }
}
