//! Retries the dead letters of turn sources.

mod answer;

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::anyhow;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use turnflow_connectors::mapped::MapsAgain;
use turnflow_engine::component::ComponentContext;
use turnflow_engine::connector::ConnectorError;
use turnflow_engine::dead_letter::DeadLetter;
use turnflow_engine::metrics::Metrics;
use turnflow_engine::plan::{FailedTurns, NodeKind, Plan, PlannedNode};
use turnflow_engine::record::{Speaker, TurnRecord};
use turnflow_engine::state::StateDirectory;

use self::answer::{Turn, Way, answer};
use super::file::{LetterFile, LetterState};
use super::{DeadLettersArgs, count};
use crate::commands::{Fault, Outcome, node_map};

/// The reason of a submitted turn without an outcome.
const NO_ANSWER: &str = "retried without an answer";

/// A letter to retry.
struct Attempt {
    /// The number of its line.
    line: usize,
    letter: DeadLetter,
}

/// The outcome of an attempt, or the reason of its failure.
type Became = Result<(), String>;

/// Numbers of letters that are not retried, by reason.
#[derive(Default)]
struct Left {
    of_corpora: u64,
    truncated: u64,
    of_others: u64,
}

pub(super) fn run(args: &DeadLettersArgs) -> Outcome {
    let plan = args.pipeline.plan()?;
    let (path, state) = (args.path(&plan), args.engine.options(&plan).state);
    // Beside a run, nothing is retried.
    state.as_deref().filter(|state| state.is_dir()).map(StateDirectory::open).transpose()?;
    let file = LetterFile::at(&path);
    let (attempts, left) = sort(args, &plan, &file)?;
    let mut states = HashMap::new();
    let (mut answered, mut failed) = (0, 0);
    for (source, attempts) in attempts {
        let outcomes = of_source(args, &source, &attempts)?;
        for (Attempt { line, letter }, outcome) in attempts.into_iter().zip(outcomes) {
            let told = outcome.as_ref().map_or_else(|reason| format!("failed again: {reason}"), |()| "answered".into());
            if args.format.is_json() {
                let position = &letter.position;
                let reason = outcome.as_ref().err();
                println!(
                    "{}",
                    json!({ "source": source, "position": position, "answered": outcome.is_ok(), "reason": reason })
                );
            } else {
                println!("{}  {told}", letter.position);
            }
            if outcome.is_ok() {
                answered += 1;
            } else {
                failed += 1;
            }
            match outcome {
                Ok(()) => drop(states.insert(line, LetterState::Gone)),
                Err(reason) if reason != letter.reason => drop(states.insert(line, LetterState::Reason(reason))),
                Err(_) => {}
            }
        }
    }
    if !states.is_empty() {
        // Hold the state directory: a run must not write to the file while it is replaced.
        let _held = state.as_deref().map(StateDirectory::open).transpose()?;
        file.rewrite(&states)?;
    }
    let mut told = vec![format!("{} answered", count(answered, "turn")), format!("{failed} failed again")];
    for (letters, why) in [
        (left.truncated, "truncated, not retried"),
        (left.of_corpora, "of corpora, retried when the document changes"),
        (left.of_others, "of unknown sources, not retried"),
    ] {
        if letters > 0 {
            told.push(format!("{letters} {why}"));
        }
    }
    eprintln!("{}", told.join("; "));
    if failed > 0 { Err(Fault::Input) } else { Ok(()) }
}

/// The letters to retry, by source and in the order of the file, and the counts of the others.
fn sort(
    args: &DeadLettersArgs,
    plan: &Plan,
    file: &LetterFile,
) -> Result<(BTreeMap<String, Vec<Attempt>>, Left), Fault> {
    let is_source = |id: &str| plan.node(id).is_some_and(|node| matches!(node.kind, NodeKind::Source(_)));
    let is_corpus = |name: &str| plan.corpora.iter().any(|corpus| *corpus.name == *name);
    let mut attempts: BTreeMap<String, Vec<Attempt>> = BTreeMap::new();
    let mut left = Left::default();
    file.each(|line, letter| match letter.filter(|letter| args.wants(letter)) {
        None => {}
        Some(letter) if is_source(&letter.source) && letter.truncated => left.truncated += 1,
        Some(letter) if is_source(&letter.source) => {
            attempts.entry(letter.source.clone()).or_default().push(Attempt { line, letter });
        }
        Some(letter) if is_corpus(&letter.source) => left.of_corpora += 1,
        Some(_) => left.of_others += 1,
    })?;
    Ok((attempts, left))
}

/// Retries the letters of one source; returns their outcomes.
fn of_source(args: &DeadLettersArgs, source: &str, attempts: &[Attempt]) -> Result<Vec<Became>, Fault> {
    let plan = args.pipeline.plan()?;
    let (records, again) = records(args, &plan, source, attempts)?;
    let reached = reached(&plan, source);
    let sinks: Vec<&str> = reached.iter().filter(|node| node.output.is_none()).map(|node| &*node.id).collect();
    let Some(sink) = sinks.last().map(|sink| (*sink).to_owned()) else {
        return Err(Fault::Told(anyhow!("`{source}` leads to no sink, so its answers cannot be delivered")));
    };
    let takes_replies = reached.iter().flat_map(|node| node.operators()).any(|operator| operator.takes_replies());
    let mut outcomes = records.begun(attempts.len(), takes_replies);
    if !records.turns.is_empty() {
        let sinks: Vec<String> = sinks.into_iter().map(str::to_owned).collect();
        let mut plan = plan.towards(&sinks.iter().map(|id| &**id).collect::<Vec<_>>());
        // A turn that fails again already has its letter.
        plan.failed_turns = FailedTurns::Answer;
        let turn = |(letter, record)| Turn { letter, position: attempts[letter].letter.position.clone(), record };
        let turns = records.turns.into_iter().map(turn).collect();
        answer(args, plan, &Way { source, sink: &sink, takes_replies }, turns, &mut outcomes)?;
    }
    let became = |outcome: Outcomes| match (outcome.waits, outcome.first) {
        (_, Some(failed)) => Err(failed),
        (0, None) => Ok(()),
        (_, None) => Err(NO_ANSWER.to_owned()),
    };
    let became: Vec<Became> = outcomes.into_iter().map(became).collect();
    if let Some(again) = again {
        keep(again, attempts, &became).map_err(|error| Fault::Told(error.into()))?;
    }
    Ok(became)
}

/// Keeps what is known of the records that are answered: what is not may be tried once more.
fn keep(mut again: MapsAgain, attempts: &[Attempt], became: &[Became]) -> Result<(), ConnectorError> {
    let answered = attempts.iter().zip(became).filter(|(attempt, became)| became.is_ok() && is_unmapped(attempt));
    let answered: Vec<_> =
        answered.map(|(Attempt { letter, .. }, _)| (letter.position.clone(), letter.bytes())).collect();
    if answered.is_empty() {
        return Ok(());
    }
    again.map(&answered)?;
    again.keep()
}

/// Whether the record could not be mapped; otherwise it is a turn.
fn is_unmapped(attempt: &Attempt) -> bool {
    attempt.letter.reason.starts_with("not mapped:") || TurnRecord::parse(&attempt.letter.bytes()).is_err()
}

/// What became of the turns of a letter so far.
#[derive(Clone, Default)]
struct Outcomes {
    /// Number of its questions that have no outcome yet.
    waits: usize,
    /// The first failure.
    first: Option<String>,
}

/// The turns of letters, with the numbers of these, and letters that give none, with the reasons.
#[derive(Default)]
struct Records {
    turns: Vec<(usize, TurnRecord)>,
    refused: Vec<(usize, String)>,
}

impl Records {
    /// The outcomes before any turn is answered. Where no replies are judged, the agent's own turns need no answer: they are
    /// history.
    fn begun(&self, letters: usize, takes_replies: bool) -> Vec<Outcomes> {
        let mut outcomes = vec![Outcomes::default(); letters];
        let waits = |record: &TurnRecord| takes_replies || record.speaker == Speaker::User;
        for (letter, _) in self.turns.iter().filter(|(_, record)| waits(record)) {
            outcomes[*letter].waits += 1;
        }
        for (letter, reason) in &self.refused {
            outcomes[*letter].first = Some(reason.clone());
        }
        outcomes
    }

    fn add(&mut self, letter: usize, bytes: &[u8]) {
        match TurnRecord::parse(bytes) {
            Ok(record) => self.turns.push((letter, record)),
            Err(error) => self.refused.push((letter, error.to_string())),
        }
    }
}

/// The turns of letters. Those of a source with a mapping are mapped again, unless they failed as turns.
fn records(
    args: &DeadLettersArgs,
    plan: &Plan,
    source: &str,
    attempts: &[Attempt],
) -> Result<(Records, Option<MapsAgain>), Fault> {
    let mut records = Records::default();
    let bytes: Vec<Vec<u8>> = attempts.iter().map(|attempt| attempt.letter.bytes()).collect();
    let Some(mapping) = node_map::of_node(&args.pipeline.file, source)? else {
        bytes.iter().enumerate().for_each(|(letter, bytes)| records.add(letter, bytes));
        return Ok((records, None));
    };
    let (of_turns, of_records): (Vec<usize>, Vec<usize>) =
        (0..bytes.len()).partition(|letter| !is_unmapped(&attempts[*letter]));
    of_turns.into_iter().for_each(|letter| records.add(letter, &bytes[letter]));
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let components = args.engine.options(plan).state.map(|state| state.join("components"));
    let (handle, shutdown) = (runtime.handle().clone(), CancellationToken::new());
    let context = ComponentContext::new(source, handle, shutdown, Metrics::default(), components);
    let failed = |error: ConnectorError| Fault::Told(error.into());
    let mut again = MapsAgain::open(mapping, &context).map_err(failed)?;
    let place = |letter: &usize| (attempts[*letter].letter.position.clone(), bytes[*letter].clone());
    let wanted: Vec<(String, Vec<u8>)> = of_records.iter().map(place).collect();
    let made = again.map(&wanted).map_err(failed)?;
    made.turns.iter().for_each(|(number, turn)| records.add(of_records[*number], turn));
    records.refused.extend(made.refused.into_iter().map(|(number, reason)| (of_records[number], reason)));
    Ok((records, Some(again)))
}

/// The nodes that the source's turns reach.
fn reached<'a>(plan: &'a Plan, source: &str) -> Vec<&'a PlannedNode> {
    let mut fed: HashSet<usize> = HashSet::new();
    let mut reached = Vec::new();
    // Every node is listed after its inputs.
    for (at, node) in plan.nodes.iter().enumerate() {
        if *node.id == *source || node.inputs.iter().any(|input| fed.contains(input)) {
            fed.insert(at);
            reached.push(node);
        }
    }
    reached
}
