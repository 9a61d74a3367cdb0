//! Answers turns of dead letters. The turns of a conversation run one after another, each with what was said before it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use turnflow_engine::connector::{Mode, SourcedTurn};
use turnflow_engine::durable::Histories;
use turnflow_engine::plan::Plan;
use turnflow_engine::record::{Item, REPLY, Speaker, TurnRecord, Value};
use turnflow_engine::run::{Engine, Options, TurnSources};

use super::Outcomes;
use crate::commands::dead_letters::DeadLettersArgs;
use crate::commands::{Fault, start};

/// The interval between checks whether the run goes on.
const TICK: Duration = Duration::from_millis(100);

/// Where turns go.
pub(super) struct Way<'a> {
    pub source: &'a str,
    /// The sink at which outcomes are observed.
    pub sink: &'a str,
    /// Whether the plan judges the replies of the log's agent: these are its turns then.
    pub takes_replies: bool,
}

/// A turn of a letter, by the letter's number.
pub(super) struct Turn {
    pub letter: usize,
    pub position: String,
    pub record: TurnRecord,
}

/// A conversation and a turn.
type Key = (Arc<str>, u32);
/// The answer to a turn, or why it failed.
type Answer = Result<Option<Arc<str>>, String>;

/// Runs turns, and notes what becomes of their letters in `outcomes`.
pub(super) fn answer(
    args: &DeadLettersArgs,
    plan: Plan,
    way: &Way<'_>,
    turns: Vec<Turn>,
    outcomes: &mut [Outcomes],
) -> Result<(), Fault> {
    let state = args.engine.options(&plan).state;
    let limits = (plan.conversations.idle_s, plan.conversations.max_utterances);
    let ids = turns.iter().map(|turn| &turn.record.conversation_id);
    let read = Histories::read(state.as_deref(), way.source, ids, limits);
    let histories = read.map_err(|error| Fault::Told(error.into()))?;
    let (told, answers) = channel();
    let wanted = way.sink.to_owned();
    let observer = move |node: &str, item: &Item| {
        if *node == *wanted {
            let key = (item.turn.conversation_id.clone(), item.turn.turn);
            // The other end is gone when the retry is over.
            let _ = told.send((key, answer_of(item)));
        }
    };
    let options = Options {
        corpora: Mode::Once,
        sources: TurnSources::None,
        observer: Some(Arc::new(observer)),
        ..args.engine.options(&plan)
    };
    let engine = start(plan, options)?;
    let mut run = Run { engine, answers, histories, waiting: waiting(turns), running: HashMap::new(), outcomes };
    run.all(way);
    let Run { engine, histories, .. } = run;
    engine.end_turns();
    engine.join()?;
    state.map_or(Ok(()), |state| histories.keep(&state)).map_err(|error| Fault::Told(error.into()))
}

fn answer_of(item: &Item) -> Answer {
    match &item.value {
        Value::Failed(failure) => Err(format!("node `{}`: {}", failure.node, failure.reason)),
        Value::Answer(answer) => Ok(Some(answer.text.clone())),
        _ => Ok(None),
    }
}

/// The turns of each conversation, in the order of their numbers.
fn waiting(turns: Vec<Turn>) -> BTreeMap<Arc<str>, VecDeque<Turn>> {
    let mut waiting: BTreeMap<Arc<str>, Vec<Turn>> = BTreeMap::new();
    for turn in turns {
        waiting.entry(turn.record.conversation_id.clone()).or_default().push(turn);
    }
    let sorted = |(id, mut turns): (Arc<str>, Vec<Turn>)| {
        turns.sort_by_key(|turn| (turn.record.turn, turn.record.speaker == Speaker::Agent));
        (id, turns.into())
    };
    waiting.into_iter().map(sorted).collect()
}

struct Running {
    letter: usize,
    question: TurnRecord,
    /// The history has the question and the reply.
    is_said: bool,
}

struct Run<'a> {
    engine: Engine,
    answers: Receiver<(Key, Answer)>,
    histories: Histories,
    waiting: BTreeMap<Arc<str>, VecDeque<Turn>>,
    /// The turns that run, one of each conversation.
    running: HashMap<Key, Running>,
    outcomes: &'a mut [Outcomes],
}

impl Run<'_> {
    fn all(&mut self, way: &Way<'_>) {
        let ids: Vec<Arc<str>> = self.waiting.keys().cloned().collect();
        ids.iter().for_each(|id| self.go_on(id, way));
        while !self.running.is_empty() {
            match self.answers.recv_timeout(TICK) {
                Ok((key, answer)) => self.ended(key, answer, way),
                Err(RecvTimeoutError::Timeout) if !self.engine.has_failed() && !self.engine.has_ended() => {}
                Err(_) => return,
            }
        }
    }

    /// Runs the next turn of a conversation; what needs no answer is said.
    fn go_on(&mut self, id: &Arc<str>, way: &Way<'_>) {
        while let Some(Turn { letter, position, record }) = self.waiting.get_mut(id).and_then(VecDeque::pop_front) {
            let (speaker, key) = (record.speaker, (id.clone(), record.turn));
            let Some(question) = self.question(record, way) else {
                let outcome = &mut self.outcomes[letter];
                outcome.waits = outcome.waits.saturating_sub(usize::from(way.takes_replies));
                continue;
            };
            let mut history = self.histories.before(&question);
            if speaker == Speaker::Agent {
                // The question is in the history, perhaps with another number.
                history.pop_if(|last| last.speaker == Speaker::User && last.text == question.text);
            }
            let turn = SourcedTurn { record: question.clone(), position, history: Some(history), place: None };
            if self.engine.submit(turn) {
                self.running.insert(key, Running { letter, question, is_said: speaker == Speaker::Agent });
            }
            return;
        }
    }

    /// The question that a record asks, if it needs an answer; what another record says is added to the history.
    fn question(&mut self, record: TurnRecord, way: &Way<'_>) -> Option<TurnRecord> {
        let has_reply = record.extra.get(REPLY).is_some_and(serde_json::Value::is_string);
        match record.speaker {
            Speaker::User if !way.takes_replies || has_reply => Some(record),
            Speaker::Agent if way.takes_replies => {
                let asked = self.histories.before(&record).pop().filter(|last| last.speaker == Speaker::User);
                let question = asked.map(|asked| {
                    let mut question = TurnRecord { speaker: Speaker::User, text: asked.text, ..record.clone() };
                    question.extra.insert(REPLY.to_owned(), (*record.text).into());
                    question
                });
                self.histories.add(&record, None);
                question
            }
            _ => {
                self.histories.add(&record, None);
                None
            }
        }
    }

    fn ended(&mut self, key: Key, answer: Answer, way: &Way<'_>) {
        let Some(Running { letter, question, is_said }) = self.running.remove(&key) else { return };
        let outcome = &mut self.outcomes[letter];
        outcome.waits = outcome.waits.saturating_sub(1);
        let answer = answer.unwrap_or_else(|reason| {
            outcome.first.get_or_insert(reason);
            None
        });
        if !is_said {
            self.histories.add(&question, answer);
        }
        self.go_on(&key.0, way);
    }
}
