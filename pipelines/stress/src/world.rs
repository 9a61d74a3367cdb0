//! The world of a pipeline under stress: documents that are added, changed, moved and deleted, a
//! growing log, and a pipeline file that is rewritten, sometimes with errors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

use crate::Common;
use crate::embedder::Embedder;
use crate::names::Rotated;
use turnflow_eval::random::Random;

const WORDS: &[&str] = &[
    "harbour", "ferry", "tide", "lamp", "keeper", "storm", "signal", "anchor", "rope", "chart", "compass", "gull",
    "island", "north", "wind", "sail", "boat", "net", "salt", "fog", "pier", "buoy", "deck", "mast",
];
const CONVERSATIONS: usize = 12;
/// Number of questions with which each log begins in a hard world, the same each time; together more than 4,096 bytes.
const WARM_UP: usize = 10;
/// Their conversations have this letter and a number.
pub(crate) const WARM: char = 'w';
/// Idle limit of conversations; larger than any clock jump, so that no conversation expires.
const IDLE_S: u64 = 400 * 86_400;
/// Limit of the inference cache; small enough to be reached within an hour of load.
const MEMO_MB: u64 = 16;

/// The current settings of the pipeline file.
#[derive(Clone)]
struct Shape {
    english: bool,
    second: bool,
    dense: bool,
    sentences: usize,
    top: usize,
    passages: usize,
    in_flight: usize,
    /// Whether there is a third sink.
    late: bool,
}

/// A directory with documents, a log and a pipeline.
pub(crate) struct World {
    pub dir: PathBuf,
    /// The directory of the state and, in a hard world, of the answers.
    data: PathBuf,
    pub random: Random,
    /// Whether answers are revised.
    pub live: bool,
    /// Whether logs and answer files are rotated, the log has agent turns, and there is a second sink
    /// and later a third.
    hard: bool,
    /// Number of turns of each conversation when a process first started with the third sink.
    late_since: Option<Vec<u32>>,
    /// The agent turns in the log, by conversation and turn.
    agent: BTreeSet<(usize, u32)>,
    /// Records that the producer sends a second time, soon.
    again: Option<String>,
    /// Number of logs so far; each begins with the same records.
    pub logs: usize,
    /// The files that are rotated, by name.
    rotated: BTreeMap<&'static str, Rotated>,
    model: Option<PathBuf>,
    /// The embedding server of a second dense index.
    pub embedder: Option<Embedder>,
    shape: Shape,
    turns: Vec<u32>,
    files: u32,
}

impl World {
    /// Creates the directory. With a model, the pipeline may have a dense index.
    pub fn new(dir: &Path, data: PathBuf, common: &Common, model: Option<PathBuf>, hard: bool) -> anyhow::Result<Self> {
        let shape = Shape {
            english: true,
            second: false,
            dense: model.is_some(),
            sentences: 0,
            top: 10,
            passages: 2,
            in_flight: 64,
            late: false,
        };
        let mut world = Self {
            dir: dir.to_owned(),
            data,
            random: Random::new(common.seed),
            live: common.live,
            hard,
            late_since: None,
            agent: BTreeSet::new(),
            again: None,
            logs: 1,
            rotated: BTreeMap::new(),
            model,
            embedder: common.embedder.then(Embedder::start).transpose()?,
            shape,
            turns: vec![0; CONVERSATIONS],
            files: 0,
        };
        for name in ["turns", "answers", "second", "late"] {
            let directory = if name == "turns" { world.dir.clone() } else { world.out() };
            let rotated = Rotated::new(directory, name, &mut world.random);
            world.rotated.insert(name, rotated);
        }
        fs::create_dir_all(world.docs()).with_context(|| format!("cannot create `{}`", world.docs().display()))?;
        for _ in 0..common.documents {
            world.add()?;
        }
        fs::write(dir.join("turns.jsonl"), world.beginning())?;
        fs::create_dir_all(world.out())?;
        world.write_pipeline()?;
        Ok(world)
    }

    fn docs(&self) -> PathBuf {
        self.dir.join("docs")
    }

    /// The directory of the answer files; in a hard world it contains nothing else.
    pub fn out(&self) -> PathBuf {
        if self.hard { self.data.join("out") } else { self.dir.clone() }
    }

    /// An answer file with its rotated predecessors, oldest first.
    pub fn files(&self, name: &str) -> Vec<PathBuf> {
        self.rotated.get(name).map(Rotated::files).unwrap_or_default()
    }

    /// An example of the names of each kind of rotated file.
    pub fn names(&self) -> String {
        self.rotated.values().map(Rotated::example).collect::<Vec<_>>().join(", ")
    }

    /// Rotates the log or an answer file.
    pub fn rotate(&mut self) -> anyhow::Result<()> {
        let what = ["turns", "answers", "answers", "second", "late"][self.random.below(5)];
        self.rotate_one(what)
    }

    /// Rotates the log or an answer file, by its name.
    pub fn rotate_one(&mut self, what: &str) -> anyhow::Result<()> {
        // Skip a log that no process has opened yet: after a rotation it would never be read.
        if what == "turns"
            && self.files("answers").iter().all(|path| fs::metadata(path).is_ok_and(|file| file.len() == 0))
        {
            return Ok(());
        }
        if what == "turns" {
            // In another log, the same record is a new one.
            self.again = None;
        }
        self.rotated.get_mut(what).context("a file that is rotated")?.rotate()?;
        Ok(())
    }

    /// Packs a rotated answer file; `is_down` says that no process writes.
    pub fn pack(&mut self, is_down: bool) -> anyhow::Result<()> {
        let what = ["answers", "second", "late"][self.random.below(3)];
        let rotated = self.rotated.get_mut(what).context("a file that is rotated")?;
        rotated.pack(&mut self.random, is_down)?;
        Ok(())
    }

    /// What a log begins with.
    fn beginning(&self) -> String {
        let padding = "and nobody waits for the answer, ".repeat(14);
        let record = |at: usize| {
            let text = format!("Question {at} of the monitor, the same each time: is anybody there, {padding}please?");
            json!({"conversation_id": format!("{WARM}{at}"), "turn": 1, "speaker": "user", "text": text})
        };
        let count = if self.hard { WARM_UP } else { 0 };
        (0..count).map(|at| format!("{}\n", record(at))).collect()
    }

    /// Adds the third sink.
    pub fn add_sink(&mut self) -> anyhow::Result<()> {
        self.shape.late = true;
        self.write_pipeline()
    }

    /// Records the start of a process.
    pub fn starts(&mut self) {
        if self.shape.late && self.late_since.is_none() {
            self.late_since = Some(self.turns.clone());
        }
    }

    /// Whether this turn was asked after a process had started with the third sink.
    pub fn is_after_late(&self, conversation: &str, turn: u32) -> bool {
        let at: usize = conversation[1..].parse().unwrap_or_default();
        self.late_since.as_ref().is_some_and(|since| since.get(at).is_some_and(|before| turn > *before))
    }

    /// The agent's reply to a turn, if the log has one.
    fn agent(&self, conversation: &str, turn: u32) -> Option<String> {
        let at: usize = conversation[1..].parse().ok()?;
        self.agent.contains(&(at, turn)).then(|| format!("agent {conversation} t{turn}"))
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.data.join("state")
    }

    /// The pipeline file.
    pub fn pipeline(&self) -> PathBuf {
        self.dir.join("pipeline.ron")
    }

    /// The turns asked so far, by conversation.
    pub fn asked(&self) -> impl Iterator<Item = (String, u32)> {
        self.turns.iter().enumerate().flat_map(|(id, turns)| (1..=*turns).map(move |turn| (format!("c{id}"), turn)))
    }

    /// The number of turns asked so far.
    pub fn count(&self) -> usize {
        self.turns.iter().map(|turns| *turns as usize).sum()
    }

    /// The user's text in a turn; it contains its conversation and number.
    pub fn words(conversation: &str, turn: u32) -> String {
        let number: u32 = conversation.bytes().map(u32::from).sum::<u32>() * 31 + turn * 7;
        let words = [number, number / 3 + 5, number / 7 + 11].map(|at| WORDS[at as usize % WORDS.len()]);
        format!("{} {conversation} t{turn}", words.join(" "))
    }

    /// Appends a user's turn to the log.
    pub fn say(&mut self) -> anyhow::Result<()> {
        let id = self.random.below(self.turns.len());
        self.turns[id] += 1;
        let (conversation, turn) = (format!("c{id}"), self.turns[id]);
        let text = Self::words(&conversation, turn);
        let record = json!({"conversation_id": conversation, "turn": turn, "speaker": "user", "text": text});
        let path = self.dir.join("turns.jsonl");
        let beginning = if path.exists() {
            String::new()
        } else {
            self.logs += 1;
            self.beginning()
        };
        let mut lines = format!("{record}\n");
        if self.hard && self.random.below(3) == 0 {
            self.agent.insert((id, turn));
            let text = self.agent(&conversation, turn);
            let record = json!({"conversation_id": conversation, "turn": turn, "speaker": "agent", "text": text});
            lines += &format!("{record}\n");
        }
        let repeated = self.again.take_if(|_| self.random.below(2) == 0).unwrap_or_default();
        let text = format!("{beginning}{repeated}{lines}");
        if self.hard && self.again.is_none() && self.random.below(12) == 0 {
            self.again = Some(lines);
        }
        let mut log = fs::OpenOptions::new().create(true).append(true).open(path)?;
        Ok(log.write_all(text.as_bytes())?)
    }

    /// The expected query of a turn; `reply` returns the answer to an earlier turn.
    pub fn query(&self, conversation: &str, turn: u32, reply: impl Fn(u32) -> String) -> String {
        let words = |turn| Self::words(conversation, turn);
        if !self.hard {
            return if turn == 1 { words(1) } else { format!("{} {}", words(turn - 1), words(turn)) };
        }
        let mut said: Vec<String> = Vec::new();
        for before in turn.saturating_sub(3).max(1)..turn {
            said.push(words(before));
            let reply = self.agent(conversation, before).unwrap_or_else(|| reply(before));
            said.extend(Some(reply).filter(|reply| !reply.is_empty()));
        }
        said.push(words(turn));
        said[said.len().saturating_sub(3)..].join(" ")
    }

    fn text(&mut self) -> String {
        let sentences = 1 + self.random.below(4);
        let mut text = String::new();
        for _ in 0..sentences {
            let words: Vec<&str> =
                (0..3 + self.random.below(9)).map(|_| WORDS[self.random.below(WORDS.len())]).collect();
            text.push_str(&words.join(" "));
            text.push_str(". ");
        }
        text
    }

    fn add(&mut self) -> anyhow::Result<()> {
        self.files += 1;
        let (path, text) = (self.docs().join(format!("f{}.md", self.files)), self.text());
        Ok(fs::write(path, text)?)
    }

    /// Changes the documents once, as people and editors do. Their number stays roughly constant.
    pub fn edit(&mut self) -> anyhow::Result<()> {
        let mut there: Vec<PathBuf> = fs::read_dir(self.docs())?.flatten().map(|entry| entry.path()).collect();
        there.sort();
        if there.is_empty() {
            return self.add();
        }
        let one = there[self.random.below(there.len())].clone();
        match self.random.below(6) {
            0 => self.add(),
            1 => Ok(fs::remove_file(one)?),
            2 => {
                self.files += 1;
                Ok(fs::rename(one, self.docs().join(format!("f{}.md", self.files)))?)
            }
            3 => {
                // Many editors save this way: write a temporary file, then rename it.
                let (beside, text) = (self.docs().join(".saving"), self.text());
                fs::write(&beside, text)?;
                Ok(fs::rename(beside, one)?)
            }
            4 => {
                let text = self.text();
                let mut file = fs::OpenOptions::new().append(true).open(one)?;
                Ok(file.write_all(text.as_bytes())?)
            }
            _ => {
                let text = self.text();
                Ok(fs::write(one, text)?)
            }
        }
    }

    /// Changes one or two settings of the pipeline; one time in five, writes an invalid file. Returns
    /// whether the file is valid.
    pub fn reshape(&mut self) -> anyhow::Result<bool> {
        if self.random.below(5) == 0 {
            let text = self.pipeline_text();
            let broken = match self.random.below(4) {
                0 => text[..text.len() / 2].to_owned(),
                1 => text.replace("Rrf(", "Rff("),
                2 => text.replace("input: \"query\"", "input: \"qwery\""),
                _ => text.replace("top: ", "top: \"many\", tap: "),
            };
            self.write(&broken)?;
            return Ok(false);
        }
        self.reshape_valid()?;
        Ok(true)
    }

    /// Changes one or two settings of the pipeline.
    pub fn reshape_valid(&mut self) -> anyhow::Result<()> {
        for _ in 0..1 + self.random.below(2) {
            let random = self.random.below(100);
            let shape = &mut self.shape;
            match random % 7 {
                0 => shape.english = !shape.english,
                1 => shape.second = !shape.second,
                2 if self.model.is_some() => shape.dense = !shape.dense,
                2 | 3 => shape.sentences = random % 3,
                4 => shape.top = 3 + random % 10,
                5 => shape.passages = 1 + random % 3,
                _ => shape.in_flight = 8 + random,
            }
        }
        self.write_pipeline()
    }

    /// Writes the current, valid pipeline.
    pub fn write_pipeline(&self) -> anyhow::Result<()> {
        self.write(&self.pipeline_text())
    }

    fn write(&self, text: &str) -> anyhow::Result<()> {
        let beside = self.dir.join("pipeline.new");
        fs::write(&beside, text)?;
        Ok(fs::rename(beside, self.pipeline())?)
    }

    fn pipeline_text(&self) -> String {
        let Shape { english, second, dense, sentences, top, passages, in_flight, late } = self.shape;
        let chunk = match sentences {
            0 => "Whole()".to_owned(),
            size => format!("Sentences(size: {size}, overlap: 0)"),
        };
        let tokenizer = if english { "English" } else { "Whitespace" };
        let mut inputs = vec!["\"lexical\""];
        let mut nodes = format!(
            "        \"lexical\": Bm25(input: \"query\", corpus: \"docs\", tokenizer: {tokenizer}, top: {top}),\n"
        );
        if second {
            inputs.push("\"second\"");
            let other = if english { "Whitespace" } else { "English" };
            nodes += &format!(
                "        \"second\": Bm25(input: \"query\", corpus: \"docs\", tokenizer: {other}, top: {top}),\n"
            );
        }
        let mut models: Vec<String> = Vec::new();
        if let Some(model) = self.model.as_ref().filter(|_| dense) {
            inputs.push("\"dense\"");
            nodes += &format!(
                "        \"dense\": Dense(input: \"query\", corpus: \"docs\", model: \"minilm\", top: {top}),\n"
            );
            models.push(format!(
                "\"minilm\": Onnx(path: {:?}, tokenizer: {:?})",
                model.join("model.onnx"),
                model.join("tokenizer.json")
            ));
        }
        // Without its server, answers are made with the other lists.
        let mut found = "fused";
        if let Some(embedder) = &self.embedder {
            inputs.push("\"served\"");
            nodes += &format!(
                "        \"served\": Dense(input: \"query\", corpus: \"docs\", model: \"words\", top: {top}),\n        \
                 \"found\": Fallback(inputs: [\"fused\", \"lexical\"]),\n"
            );
            models.push(format!("\"words\": {}", embedder.model()));
            found = "found";
        }
        let models = match models.is_empty() {
            true => String::new(),
            false => format!("    models: {{ {} }},\n", models.join(", ")),
        };
        let sink = |id: &str, name: &str| {
            let path = self.out().join(format!("{name}.jsonl"));
            format!("\"{id}\": JsonLinesSink(input: \"answer\", path: {path:?}),\n        ")
        };
        let mut sinks = sink("out", "answers");
        let mut query = "UserTurns(input: \"turns\", last: 2)";
        if self.hard {
            sinks += &sink("copy", "second");
            query = "FullConversation(input: \"turns\", last: 3)";
        }
        if late {
            sinks += &sink("late", "late");
        }
        format!(
            "Pipeline(\n    name: \"stress\",\n    mode: {},\n    conversations: (max_in_flight: {in_flight}, idle_s: {IDLE_S}),\n    \
             maintenance: (every_s: 60, memo_mb: {MEMO_MB}),\n{models}    corpora: {{ \
             \"docs\": Corpus(source: Directory(path: \"docs\"), chunk: {chunk}) }},\n    nodes: {{\n        \
             \"turns\": JsonLines(path: \"turns.jsonl\"),\n        \"query\": {query},\n\
             {nodes}        \"fused\": Rrf(inputs: [{}], top: {top}),\n        \"answer\": ExtractiveAnswer(input: \
             \"{found}\", passages: {passages}),\n        {sinks}    }},\n)\n",
            if self.live { "Live(standing: 200)" } else { "Once" },
            inputs.join(", ")
        )
    }
}
