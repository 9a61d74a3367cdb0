//! `turnflow bench --freshness`: measures the time from a change of the corpus to the first answer
//! that reflects it, under a load of other turns.
//!
//! Each trial adds a passage of invented words, edits it, and deletes it. After each change, a
//! question is asked repeatedly, one at a time, until its answer uses the new text, or no longer uses
//! the deleted one. The time is measured from just before the write to the delivery of that answer.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::{Map, Value as Json, json};
use turnflow_engine::connector::{Mode, SourcedTurn};
use turnflow_engine::inference::{Embedder, InferenceError, Priority, Role};
use turnflow_engine::plan::plan_file;
use turnflow_engine::record::{Hit, Item, Speaker, TurnRecord, Value};
use turnflow_engine::run::{Engine, Options, TurnSources};
use turnflow_engine::spec::load;
use turnflow_engine::wording::count;

use super::super::{catalog, progress, start};
use super::live::{Live, Scratch, copy};
use super::{BenchArgs, Fault, Outcome, percentile, told, turns};

/// Duration of the other turns' load before the first change, for comparison.
const BEFORE: Duration = Duration::from_secs(5);
/// Pause between changes; not a multiple of any period.
const BETWEEN: Duration = Duration::from_millis(173);
/// The time limit for an answer that reflects a change.
const TOO_LATE: Duration = Duration::from_secs(60);
/// Number of calls to measure the model's own time.
const CALLS: usize = 25;
/// The kinds of changes, in the order in which they are made.
const CHANGES: [&str; 3] = ["added", "edited", "deleted"];
/// Number of words of a question made from a passage.
const WORDS: usize = 12;

/// An answer, as delivered.
struct Seen {
    conversation: Arc<str>,
    at: Instant,
    hits: Result<Vec<Hit>, String>,
}

pub(super) fn run(args: &BenchArgs, trials: usize) -> Outcome {
    let plan = args.pipeline.plan()?;
    let corpus = match &args.corpus {
        Some(name) => name.clone(),
        None => plan.corpora.first().map(|corpus| corpus.name.to_string()).unwrap_or_default(),
    };
    let loaded = load(&args.pipeline.file, &args.pipeline.set);
    let source = loaded.tree.as_ref().and_then(|tree| tree.get("corpora")?.get(&corpus)?.get("source"));
    let source = source.ok_or_else(|| told(format!("the pipeline has no corpus `{corpus}`")))?;
    let scratch = Scratch::new()?;
    let live = Live::new(source, &loaded.sources, &scratch)?;
    let state = scratch.path("state");
    match &args.engine.state {
        Some(given) if given.is_dir() => copy(given, &state)?,
        Some(given) => eprintln!("no state directory `{}`: everything is indexed first", given.display()),
        None => {}
    }
    let mut set = args.pipeline.set.clone();
    set.extend(live.overrides(&corpus));
    let plan = plan_file(&args.pipeline.file, &set, catalog())
        .plan
        .ok_or_else(|| anyhow!("the pipeline is invalid with the copy of `{corpus}`"))?;
    // The sink delivers answers; without a sink, the last node does.
    let last = plan.nodes.iter().find(|node| node.output.is_none()).or(plan.nodes.last());
    let last = last.map(|node| node.id.clone()).ok_or_else(|| told("the pipeline has no nodes"))?;
    let (sender, answers) = channel();
    let observer = move |node: &str, item: &Item| {
        if *node == *last {
            let hits = match &item.value {
                Value::Answer(answer) => Ok(answer.hits.clone()),
                Value::Hits(hits) => Ok(hits.hits.clone()),
                Value::Failed(failure) => Err(format!("node `{}`: {}", failure.node, failure.reason)),
                Value::Turn | Value::Query(_) | Value::Prompt(_) => Ok(Vec::new()),
            };
            let _ = sender.send(Seen { conversation: item.turn.conversation_id.clone(), at: Instant::now(), hits });
        }
    };
    let options = Options {
        sources: TurnSources::None,
        corpora: Mode::Follow,
        sinks: false,
        observer: Some(Arc::new(observer)),
        ..args.engine.options(&plan)
    };
    let questions = questions(args, &live)?;
    let engine = start(plan, Options { state: Some(state), ..options })?;
    let outcome = measure(&engine, answers, &live, &corpus, questions, args, trials);
    engine.stop();
    engine.join()?;
    outcome
}

/// A change, the passage to ask for, and whether that passage must be found afterwards.
type Step<'a> = (&'a dyn Fn() -> std::io::Result<Instant>, &'a Invented, bool);

fn questions(args: &BenchArgs, live: &Live) -> Result<Vec<String>, Fault> {
    let questions: Vec<String> = match &args.turns {
        Some(path) => {
            let turns = turns::turns(args, path, args.limit.unwrap_or(1000))?.into_iter();
            turns.filter(|turn| turn.record.speaker == Speaker::User).map(|turn| turn.record.text.to_string()).collect()
        }
        None => {
            let texts = live.texts()?;
            let long = texts.iter().map(|text| text.split_whitespace().take(WORDS).collect::<Vec<_>>());
            long.filter(|words| words.len() == WORDS).map(|words| words.join(" ")).collect()
        }
    };
    if questions.is_empty() {
        Err(told("no questions for the other turns; give a log with --turns"))
    } else {
        Ok(questions)
    }
}

fn measure(
    engine: &Engine,
    answers: Receiver<Seen>,
    live: &Live,
    corpus: &str,
    questions: Vec<String>,
    args: &BenchArgs,
    trials: usize,
) -> Outcome {
    let view = engine.epochs().current();
    let chunks = view.corpora.get(corpus).map_or(0, |view| view.chunks);
    if !args.format.is_json() {
        println!("corpus `{corpus}`, {}; background turns per second: {}", count(chunks, "chunk"), args.rate);
    }
    let published = publications(engine)?;
    let mut flow = Flow {
        engine,
        answers,
        corpus: corpus.into(),
        questions,
        every: Duration::from_secs_f64(1.0 / args.rate),
        next: Instant::now(),
        asked: HashMap::new(),
        count: 0,
        latencies: Vec::new(),
        probes: 0,
    };
    let model = model_time(engine, &invented(0))?;
    flow.idle(BEFORE)?;
    let before = std::mem::take(&mut flow.latencies);

    let epoch = engine.epochs().current().epoch;
    let mut times: [Times; 3] = Default::default();
    let bar = progress::bar(trials as u64, "changing");
    for trial in 0..trials {
        let (first, second) = (invented(2 * trial + 1), invented(2 * trial + 2));
        let has = |hits: &[Hit], what: &Invented| hits.iter().any(|hit| hit.chunk.text.contains(&what.name));
        let steps: [Step<'_>; 3] = [
            (&|| live.add(&first.sentence), &first, true),
            (&|| live.edit(&second.sentence), &second, true),
            (&|| live.delete(), &second, false),
        ];
        for ((change, what, wanted), times) in steps.into_iter().zip(&mut times) {
            flow.idle(BETWEEN)?;
            let begun = change()?;
            tracing::debug!("the corpus is changed");
            let answered = flow.until(&what.question, |hits| has(hits, what) == wanted)?;
            tracing::debug!("the answer has the change");
            let epochs = published.lock().unwrap_or_else(PoisonError::into_inner);
            let visible = epochs.iter().find(|at| **at > begun).copied().unwrap_or(answered);
            times.published.push((visible - begun).as_secs_f64() * 1000.0);
            times.answered.push((answered - begun).as_secs_f64() * 1000.0);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();

    let beside =
        [("before", before), ("meanwhile", std::mem::take(&mut flow.latencies))].map(|(when, mut latencies)| {
            (when, latencies.len(), [0.5, 0.95].map(|share| percentile(&mut latencies, share)))
        });
    let epochs = engine.epochs().current().epoch - epoch;
    if args.format.is_json() {
        let changes: Map<String, Json> =
            CHANGES.into_iter().zip(&mut times).map(|(name, times)| (name.to_owned(), times.json())).collect();
        let beside: Map<String, Json> = beside
            .map(|(when, turns, [p50, p95])| (when.to_owned(), json!({"turns": turns, "p50": p50, "p95": p95})))
            .into_iter()
            .collect();
        let report = json!({
            "corpus": corpus,
            "chunks": chunks,
            "changes_ms": changes,
            "model_ms": {"passage": model[0], "question": model[1], "answer": model[2]},
            "epochs": epochs,
            "questions": flow.probes,
            "turns_beside": beside,
        });
        println!("{report:#}");
        return Ok(());
    }
    println!("{:12}{:24}{:>10}{:>10}{:>10}", "ms", "until", "least", "median", "p95");
    for (name, times) in CHANGES.into_iter().zip(&mut times) {
        times.line(name, "published", |times| &mut times.published);
        times.line("", "answered", |times| &mut times.answered);
    }
    println!(
        "the model's own time, idle: {:.1} ms (passage {:.1}, question {:.1}, the answer's new sentence {:.1})",
        model.iter().sum::<f64>(),
        model[0],
        model[1],
        model[2]
    );
    println!("epochs published: {}; questions asked: {}", epochs, flow.probes);
    for (when, turns, [p50, p95]) in beside {
        println!("background turns, {when}: {turns}, ms p50 {p50:.1}, p95 {p95:.1}");
    }
    Ok(())
}

/// The times of one kind of change, in milliseconds.
#[derive(Default)]
struct Times {
    published: Vec<f64>,
    answered: Vec<f64>,
}

impl Times {
    fn json(&mut self) -> Json {
        let of = |values: &mut Vec<f64>| {
            let [least, median, p95] = [0.0, 0.5, 0.95].map(|share| percentile(values, share));
            json!({"least": least, "median": median, "p95": p95})
        };
        json!({"published": of(&mut self.published), "answered": of(&mut self.answered)})
    }

    fn line(&mut self, name: &str, until: &str, which: impl Fn(&mut Self) -> &mut Vec<f64>) {
        let values = which(self);
        let [least, median, p95] = [0.0, 0.5, 0.95].map(|share| percentile(values, share));
        println!("{name:12}{until:24}{least:>10.1}{median:>10.1}{p95:>10.1}");
    }
}

/// Records when each epoch appears.
fn publications(engine: &Engine) -> std::io::Result<Arc<Mutex<Vec<Instant>>>> {
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let (recorded, mut epochs) = (times.clone(), engine.epochs().subscribe());
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    // The thread ends with the engine.
    std::thread::Builder::new().name("publications".into()).spawn(move || {
        runtime.block_on(async {
            while epochs.changed().await.is_ok() {
                recorded.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
            }
        });
    })?;
    Ok(times)
}

/// Median times of the idle model for a passage, a question, and a sentence of the answer, in
/// milliseconds.
fn model_time(engine: &Engine, what: &Invented) -> Result<[f64; 3], Fault> {
    let Some(embedder) = engine.models().values().find_map(|model| model.embedder.clone()) else {
        return Ok([0.0; 3]);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let time = |text: &str, role: Role| -> Result<f64, InferenceError> {
        let mut times = Vec::new();
        for call in 0..CALLS {
            let begun = Instant::now();
            runtime.block_on(embed(&embedder, format!("{text} {call}"), role))?;
            times.push(begun.elapsed().as_secs_f64() * 1000.0);
        }
        Ok(percentile(&mut times, 0.5))
    };
    Ok([time(&what.sentence, Role::Passage)?, time(&what.question, Role::Query)?, time(&what.sentence, Role::Passage)?])
}

async fn embed(embedder: &Arc<dyn Embedder>, text: String, role: Role) -> Result<(), InferenceError> {
    embedder.embed(vec![text], role, Priority::Turn).await.map(drop)
}

/// The turns: one question that is asked repeatedly, and others at a steady rate.
struct Flow<'a> {
    engine: &'a Engine,
    answers: Receiver<Seen>,
    corpus: Arc<str>,
    questions: Vec<String>,
    every: Duration,
    next: Instant,
    asked: HashMap<Arc<str>, Instant>,
    count: usize,
    latencies: Vec<f64>,
    probes: usize,
}

impl Flow<'_> {
    fn ask(&mut self, conversation: Arc<str>, text: &str) -> Result<(), Fault> {
        let record = TurnRecord {
            conversation_id: conversation,
            turn: 1,
            speaker: Speaker::User,
            text: text.into(),
            collection: Some(self.corpus.clone()),
            timestamp: None,
            extra: Map::new(),
        };
        let position = record.conversation_id.to_string();
        if !self.engine.submit(SourcedTurn { record, position, history: None, place: None }) {
            self.engine.check()?;
            return Err(anyhow!("the pipeline ended").into());
        }
        Ok(())
    }

    /// The next answer to the repeated question, if it arrives before `end`.
    fn answer(&mut self, end: Instant) -> Result<Option<Seen>, Fault> {
        loop {
            let now = Instant::now();
            if now >= end {
                return Ok(None);
            }
            if now >= self.next {
                self.next = now.max(self.next + self.every);
                let conversation: Arc<str> = format!("beside-{}", self.count).into();
                // Jump through the list, so that consecutive questions are about different documents.
                let text = self.questions[self.count * 7919 % self.questions.len()].clone();
                self.count += 1;
                self.asked.insert(conversation.clone(), now);
                self.ask(conversation, &text)?;
            }
            match self.answers.recv_timeout(self.next.min(end).saturating_duration_since(now)) {
                Ok(seen) => match self.asked.remove(&seen.conversation) {
                    Some(asked) => self.latencies.push((seen.at - asked).as_secs_f64() * 1000.0),
                    None => return Ok(Some(seen)),
                },
                Err(RecvTimeoutError::Timeout) => self.engine.check()?,
                Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("the pipeline ended").into()),
            }
        }
    }

    /// Asks only the other turns for this duration.
    fn idle(&mut self, duration: Duration) -> Result<(), Fault> {
        self.answer(Instant::now() + duration).map(drop)
    }

    /// Asks until the answer's hits are as wanted; returns the time of that delivery.
    fn until(&mut self, question: &str, wanted: impl Fn(&[Hit]) -> bool) -> Result<Instant, Fault> {
        let end = Instant::now() + TOO_LATE;
        loop {
            self.probes += 1;
            self.ask(format!("asked-{}", self.probes).into(), question)?;
            let Some(seen) = self.answer(end)? else {
                return Err(anyhow!("no answer reflected a change of the corpus after {} s", TOO_LATE.as_secs()).into());
            };
            match seen.hits {
                Ok(hits) if wanted(&hits) => return Ok(seen.at),
                Ok(_) => {}
                Err(reason) => return Err(anyhow!("a turn failed: {reason}").into()),
            }
        }
    }
}

/// A sentence that is in no corpus, and a question that it answers.
struct Invented {
    name: String,
    sentence: String,
    question: String,
}

fn invented(number: usize) -> Invented {
    // Odd multipliers: different numbers produce different words.
    let word = |salt: u32| {
        let mut rest = (number as u32 + 1).wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(40_503));
        let mut word = String::new();
        for _ in 0..5 {
            word.push(char::from(b"bdfgklmnprstvz"[rest as usize % 14]));
            rest /= 14;
            word.push(char::from(b"aeiou"[rest as usize % 5]));
            rest /= 5;
        }
        word
    };
    let (name, who, what) = (word(1), word(2), word(3));
    Invented {
        sentence: format!("The {name} accord obliges every {who} keeper to file a {what} statement within nine days."),
        question: format!("What must every {who} keeper file under the {name} accord?"),
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_words_are_each_trials_own() {
        let mut names: Vec<String> = (0..10_000).map(|number| invented(number).name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 10_000);
    }
}
