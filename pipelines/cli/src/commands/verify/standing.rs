//! Whether standing answers are those that the pipeline gives from the present documents.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use futures::StreamExt as _;
use serde_json::{Value, json};
use turnflow_engine::ask::AskRequest;
use turnflow_engine::connector::Mode;
use turnflow_engine::durable::{StoredTurn, standing_turns};
use turnflow_engine::record::{AnswerRecord, Turn};
use turnflow_engine::run::{Engine, Options, TurnSources};
use turnflow_eval::random::Random;

use super::super::{Fault, start};
use super::VerifyArgs;

/// Turns that are asked at once.
const AT_ONCE: usize = 32;
/// Differences that are shown.
const SHOWN: usize = 10;

/// An answer that stands on other passages than it should.
struct Differing {
    question: Arc<str>,
    found: Vec<Arc<str>>,
    expected: Vec<Arc<str>>,
}

/// The comparison of standing answers.
#[derive(Default)]
pub(super) struct Compared {
    /// All standing turns, and those that were compared.
    turns: (usize, usize),
    differ: Vec<Differing>,
    /// Same passages, other words: a language model was asked again.
    reworded: usize,
}

impl Compared {
    pub fn is_equal(&self) -> bool {
        self.differ.is_empty()
    }

    pub fn to_json(&self) -> Value {
        let differ = self
            .differ
            .iter()
            .map(|Differing { question, found, expected }| json!({"question": question, "passages": found, "expected": expected}));
        json!({
            "standing": self.turns.0,
            "compared": self.turns.1,
            "reworded": self.reworded,
            "differ": differ.collect::<Vec<_>>(),
        })
    }

    pub fn to_text(&self) -> String {
        let Self { turns: (all, compared), differ, reworded } = self;
        if *all == 0 {
            return String::new();
        }
        let mut out = format!("standing answers: {compared} of {all} compared, {} differ", differ.len());
        if *reworded > 0 {
            out.push_str(&format!("; {reworded} have the same passages and other words"));
        }
        out.push('\n');
        for Differing { question, found, expected } in differ.iter().take(SHOWN) {
            out.push_str(&format!("  {question}\n    stands on {found:?}\n    should be {expected:?}\n"));
        }
        out
    }
}

/// Answers standing turns again, with the indexes of `shadow`. If documents have changed while nothing ran, the stored
/// answers are older, which counts as a difference, too.
pub(super) fn compare(args: &VerifyArgs, shadow: PathBuf) -> Result<Compared, Fault> {
    let mut turns = standing_turns(&args.state)?;
    let all = turns.len();
    if !args.all {
        let mut random = Random::new(args.seed);
        while turns.len() > args.sample {
            turns.swap_remove(random.below(turns.len()));
        }
    }
    if turns.is_empty() {
        return Ok(Compared { turns: (all, 0), ..Compared::default() });
    }
    let mut plan = args.pipeline.plan()?.running();
    plan.dead_letters = None;
    let options = Options {
        workers: args.workers.count(),
        state: Some(shadow),
        components: Some(args.state.join("components")),
        corpora: Mode::Once,
        sources: TurnSources::None,
        sinks: false,
        ..Options::default()
    };
    let engine = start(plan, options)?;
    let compared = turns.len();
    let asked = futures::stream::iter(turns).map(|stored| answered(&engine, stored)).buffered(AT_ONCE);
    let answers: Vec<_> = futures::executor::block_on(asked.collect());
    engine.join()?;
    let mut result = Compared { turns: (all, compared), ..Compared::default() };
    for answer in answers {
        let (question, stands, now) = answer.map_err(|reason| Fault::Run(anyhow!(reason)))?;
        // A failure is no answer that stands.
        let Some(stands) = stands.filter(|record| record.error.is_none()) else { continue };
        let texts = |record: &AnswerRecord| -> Vec<_> {
            record.hits.iter().map(|hit| (hit.passage.clone(), hit.text.clone())).collect()
        };
        if texts(&stands) != texts(&now) {
            let ids = |record: &AnswerRecord| record.hits.iter().map(|hit| hit.passage.clone()).collect();
            result.differ.push(Differing { question, found: ids(&stands), expected: ids(&now) });
        } else if (stands.status, &stands.answer) != (now.status, &now.answer) {
            result.reworded += 1;
        }
    }
    Ok(result)
}

type Answered = Result<(Arc<str>, Option<AnswerRecord>, AnswerRecord), String>;

async fn answered(engine: &Engine, StoredTurn { turn, records, .. }: StoredTurn) -> Answered {
    let stands = records.into_values().max_by_key(|record| record.revision);
    let now = engine.ask(request(&turn)).answer().await?;
    Ok((turn.text.clone(), stands, now))
}

/// The request that asks a turn again.
fn request(turn: &Turn) -> AskRequest {
    AskRequest {
        history: turn.history.clone(),
        conversation_id: turn.conversation_id.clone(),
        turn: turn.turn,
        collection: turn.collection.clone(),
        timestamp: turn.timestamp,
        extra: turn.extra.clone(),
        source: Some(turn.source.clone()),
        stream: false,
        ..AskRequest::new(turn.text.clone())
    }
}
