//! The conversation: its entries, its adjustments, and the commands.

mod commands;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turnflow_engine::adjust::Adjustments;
use turnflow_engine::record::{Speaker, Utterance};
use turnflow_engine::wording::count;

use self::commands::COMMANDS;
use super::backend::{PipelineInfo, Told};
use super::input::Input;

/// A question with its history and adjustments.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    pub pipeline: String,
    pub text: String,
    pub turn: u32,
    pub history: Vec<Utterance>,
    pub collection: Option<String>,
    pub adjust: Adjustments,
}

impl Question {
    /// As a record for `/v1/turns`.
    pub fn to_json(&self) -> Value {
        let weights: BTreeMap<&str, &[f32]> = self.adjust.weights.iter().map(|(node, of)| (&**node, &**of)).collect();
        json!({
            "conversation_id": "chat", "turn": self.turn, "speaker": "user", "text": self.text,
            "history": self.history, "collection": self.collection,
            "adjust": { "skip": self.adjust.skip, "weights": weights },
        })
    }
}

/// The effect of a key.
#[derive(Debug, PartialEq)]
pub(super) enum Effect {
    None,
    Ask(Question),
    Stop,
    Leave,
}

/// An entry of the conversation.
#[derive(Debug)]
pub(super) enum Entry {
    User(String),
    Agent { text: String, sources: Vec<String>, note: String },
    Note(String),
    Error(String),
}

/// A node's output, in a few lines.
#[derive(Debug)]
pub(super) struct Traced {
    pub node: String,
    pub took_ms: Option<f64>,
    pub lines: Vec<String>,
}

struct Running {
    question: Question,
    since: Instant,
    /// The node whose text is shown.
    node: Option<String>,
    text: String,
}

pub(super) struct Chat {
    pipelines: Vec<PipelineInfo>,
    at: usize,
    pub input: Input,
    pub entries: Vec<Entry>,
    history: Vec<Utterance>,
    turn: u32,
    collection: Option<String>,
    adjust: Adjustments,
    running: Option<Running>,
    pub traces: Vec<Traced>,
    pub shows_trace: bool,
    pub epoch: Option<u64>,
    /// Lines scrolled up from the end.
    pub scrolled: usize,
}

impl Chat {
    /// A conversation with the first of these pipelines.
    pub fn new(pipelines: Vec<PipelineInfo>) -> Self {
        let mut chat = Self {
            pipelines,
            at: 0,
            input: Input::default(),
            entries: vec![Entry::Note("Ask a question. /help shows the commands.".to_owned())],
            history: Vec::new(),
            turn: 0,
            collection: None,
            adjust: Adjustments::default(),
            running: None,
            traces: Vec::new(),
            shows_trace: false,
            epoch: None,
            scrolled: 0,
        };
        chat.choose_collection();
        chat
    }

    pub fn pipeline(&self) -> &PipelineInfo {
        &self.pipelines[self.at]
    }

    pub fn collection(&self) -> Option<&str> {
        self.collection.as_deref()
    }

    /// The conversation's adjustments, in a few words.
    pub fn adjusted(&self) -> Option<String> {
        if self.adjust.is_empty() {
            return None;
        }
        let off = self.adjust.skip.iter().map(|node| format!("without {node}"));
        let weights = self.adjust.weights.iter().map(|(node, weights)| format!("{node} {weights:?}"));
        Some(off.chain(weights).collect::<Vec<_>>().join(", "))
    }

    pub fn is_asking(&self) -> bool {
        self.running.is_some()
    }

    /// The answer so far, and the time since the question.
    pub fn partial(&self) -> Option<(&str, Duration)> {
        self.running.as_ref().map(|running| (running.text.as_str(), running.since.elapsed()))
    }

    pub fn scroll(&mut self, lines: isize) {
        self.scrolled = self.scrolled.saturating_add_signed(-lines);
    }

    fn note(&mut self, text: impl Into<String>) {
        self.entries.push(Entry::Note(text.into()));
        self.scrolled = 0;
    }

    fn error(&mut self, text: impl Into<String>) {
        self.entries.push(Entry::Error(text.into()));
        self.scrolled = 0;
    }

    /// Pipelines that search the turn's collection need one.
    fn choose_collection(&mut self) {
        let pipeline = &self.pipelines[self.at];
        let known = |name: &String| pipeline.corpora.iter().any(|corpus| corpus.name == *name);
        if !self.collection.as_ref().is_some_and(known) {
            self.collection = pipeline.corpora.first().filter(|_| pipeline.needs_collection).map(|of| of.name.clone());
        }
    }

    /// Completes the name of a command.
    pub fn complete(&mut self) {
        let mut fitting = COMMANDS.iter().filter(|command| command.starts_with(self.input.text()));
        if let (Some(one), None, false) = (fitting.next(), fitting.next(), self.input.text().is_empty()) {
            self.input.set(&format!("{one} "));
        }
    }

    /// Stops the current answer.
    pub fn stop(&mut self) -> Effect {
        let Some(running) = self.running.take() else { return Effect::None };
        if !running.text.is_empty() {
            let note = "stopped".to_owned();
            self.entries.push(Entry::Agent { text: running.text, sources: Vec::new(), note });
        } else {
            self.note("stopped");
        }
        Effect::Stop
    }

    /// Handles the line: a command, or a question.
    pub fn entered(&mut self) -> Effect {
        if self.input.text().trim().is_empty() || (self.is_asking() && !self.input.text().starts_with('/')) {
            return Effect::None;
        }
        let line = self.input.take();
        let line = line.trim();
        self.scrolled = 0;
        match line.strip_prefix('/') {
            Some(command) => self.command(command),
            None => self.ask(line),
        }
    }

    fn ask(&mut self, text: &str) -> Effect {
        self.turn += 1;
        let question = Question {
            pipeline: self.pipeline().name.clone(),
            text: text.to_owned(),
            turn: self.turn,
            history: self.history.clone(),
            collection: self.collection.clone(),
            adjust: self.adjust.clone(),
        };
        self.entries.push(Entry::User(text.to_owned()));
        self.traces.clear();
        let (since, node, text) = (Instant::now(), None, String::new());
        self.running = Some(Running { question: question.clone(), since, node, text });
        Effect::Ask(question)
    }

    /// Handles an event of the turn; returns whether the turn is over.
    pub fn told(&mut self, (name, fields): Told) -> bool {
        let Some(running) = &mut self.running else { return true };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match name.as_str() {
            "started" => self.epoch = fields["epoch"].as_u64(),
            "delta" => {
                let node = text(&fields["node"]);
                let answering = &self.pipelines[self.at].answering;
                if answering.contains(&node) && *running.node.get_or_insert(node.clone()) == node {
                    running.text.push_str(&text(&fields["text"]));
                }
            }
            "node" => {
                let node = text(&fields["node"]);
                let nodes = &self.pipelines[self.at].nodes;
                // A sink's input has already been shown.
                if nodes.iter().any(|of| of.id == node && of.role == "operator") {
                    let (took_ms, lines) = (fields["took_ms"].as_f64(), traced(&fields));
                    self.traces.push(Traced { node, took_ms, lines });
                }
            }
            "answer" => {
                let Some(Running { question, .. }) = self.running.take() else { return true };
                let answer = text(&fields["answer"]);
                self.history.push(Utterance { speaker: Speaker::User, text: question.text.into() });
                self.history.push(Utterance { speaker: Speaker::Agent, text: answer.as_str().into() });
                let mut seen = BTreeSet::new();
                let hits = fields["hits"].as_array().into_iter().flatten();
                let sources = hits.map(|hit| text(&hit["document"])).filter(|of| seen.insert(of.clone())).collect();
                let status = text(&fields["status"]);
                let status = if status == "idk" { "not in the passages, " } else { "" };
                let note = format!("{status}{:.0} ms", fields["latency_ms"].as_f64().unwrap_or_default());
                self.entries.push(Entry::Agent { text: answer, sources, note });
                return true;
            }
            "failed" => {
                self.running = None;
                let reason = fields["error"]["message"].as_str().or_else(|| fields["error"].as_str());
                self.error(reason.unwrap_or("the turn failed"));
                return true;
            }
            _ => {}
        }
        false
    }
}

/// A node's value in a few lines.
fn traced(fields: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let value = &fields["value"];
    let mut lines = Vec::new();
    if let Some(query) = value.get("Query") {
        lines.push(text(&query["text"]));
        lines.extend(query["parts"].as_array().into_iter().flatten().map(|part| format!("- {}", text(part))));
    } else if let Some(hits) = value.get("Hits").and_then(|hits| hits["hits"].as_array()) {
        lines.push(count(hits.len(), "passage"));
        lines.extend(
            hits.iter()
                .take(5)
                .map(|hit| format!("{:>8.4} {}", hit["score"].as_f64().unwrap_or_default(), text(&hit["chunk"]["id"]))),
        );
    } else if let Some(prompt) = value.get("Prompt") {
        let messages = prompt["prompt"]["messages"].as_array().map_or(0, Vec::len);
        lines.push(format!(
            "a prompt of {}, {}",
            count(messages, "message"),
            count(prompt["hits"].as_array().map_or(0, Vec::len), "passage")
        ));
    } else if let Some(answer) = value.get("Answer") {
        lines.push(format!("{}: {}", text(&answer["status"]), text(&answer["text"])));
    } else if let Some(failed) = value.get("Failed") {
        lines.push(format!("failed at {}: {}", text(&failed["node"]), text(&failed["reason"])));
    }
    let own = format!("{}: ", text(&fields["node"]));
    let warnings = fields["warnings"].as_array().into_iter().flatten();
    lines.extend(warnings.filter_map(|of| Some(format!("! {}", of.as_str()?.strip_prefix(&own)?))));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat() -> Chat {
        let node = |id: &str, kind: &str, corpora: &[&str], can_skip, weights| json!({ "id": id, "kind": kind, "role": "operator", "output": "Hits", "corpora": corpora, "can_skip": can_skip, "weights": weights });
        let pipeline = |name: &str| {
            let nodes = json!([
                node("fused", "Rrf", &[], true, json!([1.0, 1.0])),
                node("lexical", "Bm25", &["docs"], true, json!(null)),
                node("answer", "ExtractiveAnswer", &[], false, json!(null)),
            ]);
            json!({
                "name": name, "nodes": nodes, "corpora": [{ "name": "docs" }], "answering": ["answer"],
                "needs_collection": name == "two",
            })
        };
        Chat::new(["one", "two"].map(|name| serde_json::from_value(pipeline(name)).unwrap()).into())
    }

    fn enter(chat: &mut Chat, line: &str) -> Effect {
        chat.input.set(line);
        chat.entered()
    }

    fn last(chat: &Chat) -> String {
        match chat.entries.last() {
            Some(Entry::Note(text) | Entry::Error(text) | Entry::User(text) | Entry::Agent { text, .. }) => {
                text.clone()
            }
            None => String::new(),
        }
    }

    #[test]
    fn a_question_is_asked_with_what_is_switched_and_what_was_said() {
        let mut chat = chat();
        assert_eq!(enter(&mut chat, "/retriever lexical"), Effect::None);
        enter(&mut chat, "/weights fused 0.75");
        assert_eq!(chat.adjusted().unwrap(), "without lexical, fused [0.75, 0.25]");
        let Effect::Ask(question) = enter(&mut chat, " when? ") else { panic!() };
        assert_eq!((question.text.as_str(), question.turn, question.history.len()), ("when?", 1, 0));
        let record = question.to_json();
        assert_eq!(record["adjust"], json!({ "skip": ["lexical"], "weights": { "fused": [0.75, 0.25] } }));
        assert_eq!(enter(&mut chat, "too early"), Effect::None);
        chat.input.clear();
        for (node, piece) in [("draft", "x"), ("answer", "At "), ("answer", "ten.")] {
            assert!(!chat.told(("delta".to_owned(), json!({ "node": node, "text": piece }))));
        }
        assert_eq!(chat.partial().unwrap().0, "At ten.");
        let hits = json!([{ "document": "a" }, { "document": "a" }, { "document": "b" }]);
        let record = json!({ "answer": "At ten.", "status": "answered", "hits": hits, "latency_ms": 12.0 });
        assert!(chat.told(("answer".to_owned(), record)));
        let Some(Entry::Agent { sources, note, .. }) = chat.entries.last() else { panic!() };
        assert_eq!((sources.join(" "), note.as_str()), ("a b".to_owned(), "12 ms"));
        let Effect::Ask(question) = enter(&mut chat, "and back?") else { panic!() };
        assert_eq!((question.turn, question.history.len()), (2, 2));
    }

    #[test]
    fn commands_say_what_is_wrong() {
        let mut chat = chat();
        for (line, says) in [
            ("/nope", "unknown command `/nope`"),
            ("/mode three", "unknown pipeline `three`"),
            ("/retriever answer", "`answer` cannot be switched off"),
            ("/weights lexical 1", "`lexical` has no weights"),
            ("/weights fused 1 2 3", "fused has 2 weights, but 3 were given"),
            ("/weights fused -1 2", "weights must be numbers"),
            ("/weights fused NaN 2", "weights must be numbers"),
            ("/collection moon", "unknown collection `moon`"),
        ] {
            assert_eq!(enter(&mut chat, line), Effect::None);
            assert!(last(&chat).starts_with(says), "{line}: {}", last(&chat));
        }
        assert!(chat.adjusted().is_none());
        enter(&mut chat, "/retriever");
        assert_eq!(last(&chat), "on  lexical (Bm25)\non  fused (Rrf)");
        assert_eq!(enter(&mut chat, "/quit"), Effect::Leave);
    }

    #[test]
    fn another_mode_keeps_the_conversation() {
        let mut chat = chat();
        enter(&mut chat, "/retriever lexical");
        enter(&mut chat, "/mode two");
        assert_eq!((chat.adjusted(), chat.collection()), (None, Some("docs")));
        let Effect::Ask(question) = enter(&mut chat, "q") else { panic!() };
        assert_eq!(question.pipeline, "two");
        assert_eq!(chat.stop(), Effect::Stop);
        assert_eq!((chat.stop(), last(&chat)), (Effect::None, "stopped".to_owned()));
        chat.input.set("/tr");
        chat.complete();
        assert_eq!(chat.input.text(), "/trace ");
        enter(&mut chat, "/clear");
        assert_eq!(last(&chat), "a new conversation");
    }
}
