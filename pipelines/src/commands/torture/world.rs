//! The world in which a pipeline is tortured: documents that come, change, move and go, a log
//! that grows, and a pipeline file that is rewritten, at times wrongly.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

use super::Common;
use crate::random::Random;

const WORDS: &[&str] = &[
    "harbour", "ferry", "tide", "lamp", "keeper", "storm", "signal", "anchor", "rope", "chart", "compass", "gull",
    "island", "north", "wind", "sail", "boat", "net", "salt", "fog", "pier", "buoy", "deck", "mast",
];
const CONVERSATIONS: usize = 12;
/// Longer than clocks jump: a conversation that has been idle for so long is rightly forgotten.
const IDLE_S: u64 = 400 * 86_400;
/// What models gave that is remembered, at most: little enough that an hour's load reaches it.
const MEMO_MB: u64 = 16;

/// What the pipeline file says now.
#[derive(Clone)]
struct Shape {
    english: bool,
    second: bool,
    dense: bool,
    sentences: usize,
    top: usize,
    passages: usize,
    in_flight: usize,
}

/// A directory with documents, a log and a pipeline.
pub(super) struct World {
    pub dir: PathBuf,
    pub random: Random,
    /// Answers are revised.
    pub live: bool,
    model: Option<PathBuf>,
    shape: Shape,
    turns: Vec<u32>,
    files: u32,
}

impl World {
    /// Makes the directory; with a model the pipeline may have a dense index.
    pub fn new(dir: &Path, common: &Common, model: Option<PathBuf>) -> anyhow::Result<Self> {
        let dense = model.is_some();
        let shape = Shape { english: true, second: false, dense, sentences: 0, top: 10, passages: 2, in_flight: 64 };
        let mut world = Self {
            dir: dir.to_owned(),
            random: Random::new(common.seed),
            live: common.live,
            model,
            shape,
            turns: vec![0; CONVERSATIONS],
            files: 0,
        };
        fs::create_dir_all(world.docs()).with_context(|| format!("cannot make `{}`", world.docs().display()))?;
        for _ in 0..common.documents {
            world.add()?;
        }
        fs::write(dir.join("turns.jsonl"), "")?;
        world.write_pipeline()?;
        Ok(world)
    }

    fn docs(&self) -> PathBuf {
        self.dir.join("docs")
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// The pipeline file.
    pub fn pipeline(&self) -> PathBuf {
        self.dir.join("pipeline.ron")
    }

    /// Turns said so far, by conversation.
    pub fn asked(&self) -> impl Iterator<Item = (String, u32)> {
        self.turns.iter().enumerate().flat_map(|(id, turns)| (1..=*turns).map(move |turn| (format!("c{id}"), turn)))
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.turns.iter().map(|turns| *turns as usize).sum()
    }

    /// What the user says in a turn: it names its conversation and number.
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
        let mut log = fs::OpenOptions::new().append(true).open(self.dir.join("turns.jsonl"))?;
        Ok(log.write_all(format!("{record}\n").as_bytes())?)
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

    /// One change of the documents, as people and editors make it; their number stays about
    /// what it was.
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
                // As editors save: a file beside it, which takes its place.
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

    /// Changes the pipeline at one or two places; one time in five the file is invalid. Gives
    /// whether it is valid.
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
        self.write_pipeline()?;
        Ok(true)
    }

    /// Writes the pipeline as it is meant, valid.
    pub fn write_pipeline(&self) -> anyhow::Result<()> {
        self.write(&self.pipeline_text())
    }

    fn write(&self, text: &str) -> anyhow::Result<()> {
        let beside = self.dir.join("pipeline.new");
        fs::write(&beside, text)?;
        Ok(fs::rename(beside, self.pipeline())?)
    }

    fn pipeline_text(&self) -> String {
        let Shape { english, second, dense, sentences, top, passages, in_flight } = self.shape;
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
        let mut models = String::new();
        if let Some(model) = self.model.as_ref().filter(|_| dense) {
            inputs.push("\"dense\"");
            nodes += &format!(
                "        \"dense\": Dense(input: \"query\", corpus: \"docs\", model: \"minilm\", top: {top}),\n"
            );
            models = format!(
                "    models: {{ \"minilm\": Onnx(path: {:?}, tokenizer: {:?}) }},\n",
                model.join("model.onnx"),
                model.join("tokenizer.json")
            );
        }
        format!(
            "Pipeline(\n    name: \"torture\",\n    mode: {},\n    conversations: (max_in_flight: {in_flight}, idle_s: {IDLE_S}),\n    \
             maintenance: (every_s: 60, memo_mb: {MEMO_MB}),\n{models}    corpora: {{ \
             \"docs\": Corpus(source: Directory(path: \"docs\"), chunk: {chunk}) }},\n    nodes: {{\n        \
             \"turns\": JsonLines(path: \"turns.jsonl\"),\n        \"query\": UserTurns(input: \"turns\", last: 2),\n\
             {nodes}        \"fused\": Rrf(inputs: [{}], top: {top}),\n        \"answer\": ExtractiveAnswer(input: \
             \"fused\", passages: {passages}),\n        \"out\": JsonLinesSink(input: \"answer\", path: \
             \"answers.jsonl\"),\n    }},\n)\n",
            if self.live { "Live(standing: 200)" } else { "Once" },
            inputs.join(", ")
        )
    }
}
