//! What the agent has done in a turn: its steps, the passages that it has read, and the prompt for the next step.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;
use turnflow_engine::document::Corpus;
use turnflow_engine::language::{ChatRole, Message, Part, Prompt};
use turnflow_engine::record::Hit;

use super::action::{Action, Step};
use crate::passages::Length;
use crate::sentences::sentence_ranges;
use crate::template::Template;
use crate::words::{is_function, key, words};

/// Maximum number of sentences that a lookup shows.
const SENTENCES: usize = 5;
/// Maximum length of a sentence that a lookup shows, in characters.
const SENTENCE: usize = 600;

/// A step as `checks.agent.steps` has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Done {
    pub thought: String,
    pub action: &'static str,
    pub input: String,
    /// Numbers of the passages that the observation shows, from 1.
    pub passages: Vec<usize>,
    /// What the model was told instead of passages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A step's messages: what the model wrote, in one form, and the parts of the observation.
struct Exchange {
    wrote: String,
    observed: Vec<Part>,
}

/// The steps of a turn and the passages that they have found.
pub(super) struct Transcript {
    opening: Prompt,
    exchanges: Vec<Exchange>,
    pub done: Vec<Done>,
    /// The passages found, in the order of their numbers.
    pub found: Vec<Hit>,
    numbers: HashMap<(Option<Corpus>, Arc<str>), usize>,
}

impl Transcript {
    pub fn new(opening: Prompt) -> Self {
        Self { opening, exchanges: Vec::new(), done: Vec::new(), found: Vec::new(), numbers: HashMap::new() }
    }

    /// The prompt for the next step. Passages of earlier observations may be cut, and with `all` also those of the last.
    pub fn prompt(&self, all: bool) -> Prompt {
        let mut prompt = self.opening.clone();
        let last = self.exchanges.len().saturating_sub(1);
        for (at, Exchange { wrote, observed }) in self.exchanges.iter().enumerate() {
            prompt.messages.push(Message::fixed(ChatRole::Assistant, wrote.clone()));
            let part = |part: &Part| Part { may_be_cut: part.may_be_cut && (all || at < last), ..part.clone() };
            prompt.messages.push(Message { role: ChatRole::User, parts: observed.iter().map(part).collect() });
        }
        prompt
    }

    /// The earlier step with the same action, from 1.
    pub fn same(&self, action: &Action) -> Option<usize> {
        let input = action.input().to_lowercase();
        let same = |done: &Done| done.action == action.name() && done.input.to_lowercase() == input;
        self.done.iter().position(same).map(|at| at + 1)
    }

    /// Adds the hits that are new to the passages; returns the numbers of all.
    fn number(&mut self, hits: &[Hit]) -> Vec<usize> {
        let one = |hit: &Hit| {
            *self.numbers.entry(hit.chunk.identity()).or_insert_with(|| {
                self.found.push(hit.clone());
                self.found.len()
            })
        };
        hits.iter().map(one).collect()
    }

    /// Records a search with its hits. Passages that an earlier observation has shown are named by their numbers.
    pub fn searched(&mut self, step: &Step, action: &Action, hits: &[Hit], show: &Length, template: &Template) {
        let before = self.found.len();
        let numbers = self.number(hits);
        if numbers.is_empty() {
            return self.told(step, action, "no passage was found; try other words");
        }
        let mut parts = Vec::new();
        for number in &numbers {
            let shown = match *number > before {
                true => passage(&self.found[*number - 1], show, template),
                false => "is shown above".to_owned(),
            };
            parts.push(Part { text: format!("[{number}] {shown}\n\n"), may_be_cut: true });
        }
        self.push(step, action, parts, numbers, None);
    }

    /// Shows more of a passage. Returns a note to the model if there is no such passage.
    pub fn read(&mut self, step: &Step, number: usize, show: &Length, template: &Template) -> Result<(), String> {
        let Some(hit) = number.checked_sub(1).and_then(|at| self.found.get(at)) else {
            return Err(format!("there is no passage {number} yet: {} were found", self.found.len()));
        };
        let text = format!("[{number}] {}\n\n", passage(hit, show, template));
        self.push(step, &Action::Read(number), vec![Part { text, may_be_cut: true }], vec![number], None);
        Ok(())
    }

    /// Shows the sentences of the passages found with most of the words.
    pub fn looked_up(&mut self, step: &Step, text: &str, template: &Template) {
        let wanted: Vec<String> =
            words(text).iter().filter(|word| !is_function(word.text)).map(|word| key(word.text)).collect();
        let mut sentences: Vec<(usize, usize, &str)> = Vec::new();
        for (at, hit) in self.found.iter().enumerate() {
            let text = &*hit.chunk.text;
            for (start, end) in sentence_ranges(text) {
                let there: Vec<String> = words(&text[start..end]).iter().map(|word| key(word.text)).collect();
                let shared = wanted.iter().filter(|word| there.contains(word)).count();
                if shared > 0 {
                    sentences.push((shared, at + 1, &text[start..end]));
                }
            }
        }
        // The sort is stable: among equals, the earlier sentence is first.
        sentences.sort_by_key(|(shared, ..)| std::cmp::Reverse(*shared));
        sentences.truncate(SENTENCES);
        let action = Action::Lookup(text.to_owned());
        if sentences.is_empty() {
            return self.told(step, &action, "no passage found so far has these words; search for them");
        }
        let part = |(_, number, sentence): &(usize, usize, &str)| {
            let end = sentence.char_indices().nth(SENTENCE).map_or(sentence.len(), |(at, _)| at);
            let text = format!("[{number}] {}\n\n", template.quoted(sentence[..end].trim()));
            Part { text, may_be_cut: true }
        };
        let parts = sentences.iter().map(part).collect();
        let mut numbers: Vec<usize> = sentences.iter().map(|(_, number, _)| *number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        self.push(step, &action, parts, numbers, None);
    }

    /// Records a step whose observation is a note of the engine.
    pub fn told(&mut self, step: &Step, action: &Action, note: &str) {
        self.push(step, action, Vec::new(), Vec::new(), Some(note.to_owned()));
    }

    /// Records a reply that has no valid action.
    pub fn malformed(&mut self, step: &Step, note: &str) {
        let form = "write one line `Action:` with search[words], lookup[words], read[number] or finish[answer]";
        let Step { thought, .. } = step;
        self.exchanges
            .push(Exchange { wrote: format!("Thought: {thought}"), observed: note_part(&format!("{note}; {form}")) });
        let note = Some(note.to_owned());
        let (thought, input) = (thought.clone(), String::new());
        self.done.push(Done { thought, action: "none", input, passages: Vec::new(), note });
    }

    fn push(&mut self, step: &Step, action: &Action, parts: Vec<Part>, passages: Vec<usize>, note: Option<String>) {
        let (name, input) = (action.name(), action.input());
        let observed = match &note {
            Some(note) => note_part(note),
            None => {
                std::iter::once(Part { text: "Observation:\n".to_owned(), may_be_cut: false }).chain(parts).collect()
            }
        };
        self.exchanges
            .push(Exchange { wrote: format!("Thought: {}\nAction: {name}[{input}]", step.thought), observed });
        self.done.push(Done { thought: step.thought.clone(), action: name, input, passages, note });
    }
}

fn note_part(note: &str) -> Vec<Part> {
    vec![Part { text: format!("Observation: {note}."), may_be_cut: false }]
}

/// A passage's text, cut and quoted.
fn passage(hit: &Hit, show: &Length, template: &Template) -> String {
    let text = hit.chunk.text.trim();
    // Only a length in tokens can fail, and the agent's lengths are in characters.
    template.quoted(show.cut(text).unwrap_or(text)).into_owned()
}
