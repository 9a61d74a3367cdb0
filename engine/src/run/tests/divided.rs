//! Tests of sources that the processes of a cluster read together. All processes are engines of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde::Deserialize;

use super::members::Members;
use super::*;
use crate::cluster::Share;
use crate::component::*;
use crate::connector::{
    AnswerSink, ConnectorError, Delivery, KeptAnswers, NoAnswers, Offsets, Recovered, Search, SinkPosition,
    SourceOffset, Stopped, Syncing, TurnOutput, TurnSource,
};
use crate::record::{PortType, Query, Speaker, Value};
use crate::spec::from_tree;

/// The lines of each log: by its name, and by partition.
static LOGS: Mutex<BTreeMap<String, Vec<Vec<String>>>> = Mutex::new(BTreeMap::new());
/// The operator panics on a turn with this text.
const FAULT: &str = "panics";

/// The answers that each sink has got.
static TAKEN: Mutex<BTreeMap<String, Vec<Taken>>> = Mutex::new(BTreeMap::new());
/// Which partitions of each log were read by which process's share.
static READ: Mutex<BTreeMap<String, Vec<(usize, Share)>>> = Mutex::new(BTreeMap::new());

static PARTS: LazyLock<Catalog> = LazyLock::new(|| Catalog {
    operators: vec![OperatorKind {
        name: "Said",
        inputs: const { &[InputPort::one(PortType::Turns)] },
        output: PortType::Queries,
        summary: "",
        fields: Said::fields,
        parse: |tree, sources| Ok(Box::new(from_tree::<Said>(tree, sources)?)),
    }],
    turn_sources: vec![TurnSourceKind::of::<Log>("Log", "")],
    sinks: vec![SinkKind::of::<Taking>("Taking", "")],
    models: vec![],
    chunkers: vec![],
    corpus_sources: vec![],
    passages: None,
    reference: String::new(),
});

/// What a sink got.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Taken {
    conversation: String,
    turn: u64,
    query: String,
}

/// A source with partitions, in memory.
#[derive(Clone, Debug, Deserialize)]
struct Log {
    name: String,
    /// Without effect.
    #[serde(default)]
    _version: u32,
}

impl Configured for Log {}

impl TurnSourceConfig for Log {
    fn is_divisible(&self) -> bool {
        true
    }
    fn build(&self, context: &ComponentContext) -> Building<'_, dyn TurnSource> {
        built(Ok(Box::new(Reader { name: self.name.clone(), share: context.share() })))
    }
}

struct Reader {
    name: String,
    share: Share,
}

impl TurnSource for Reader {
    fn run(self: Box<Self>, mode: Mode, output: TurnOutput) -> Result<(), ConnectorError> {
        let count = LOGS.lock()[&self.name].len();
        let place = |partition: usize, line: usize| SourceOffset {
            partition: partition.to_string().into(),
            log: "log".into(),
            generation: 0,
            end: line as u64,
            line: line as u64,
        };
        let resume = |partition: usize| output.resume_partitions().get(&partition.to_string()).map_or(0, |at| at.end);
        let mut next: Vec<usize> = (0..count).map(|partition| resume(partition) as usize).collect();
        if output.resume_partitions().is_empty() {
            output.begin_partitions((0..count).map(|partition| place(partition, 0)).collect::<Offsets>());
        }
        loop {
            for partition in (0..count).filter(|partition| self.share.has(&partition.to_string())) {
                let lines = LOGS.lock()[&self.name][partition][next[partition]..].to_vec();
                for line in lines {
                    next[partition] += 1;
                    READ.lock().entry(self.name.clone()).or_default().push((partition, self.share));
                    let position = format!("{partition}:{}", next[partition]);
                    output.line(line.as_bytes(), &position, Some(place(partition, next[partition])))?;
                }
            }
            output.caught_up();
            if mode == Mode::Once {
                return Ok(());
            }
            if output.stop().wait(Duration::from_millis(5)) {
                return Err(Stopped.into());
            }
        }
    }
}

/// What the user has said, and says now.
#[derive(Clone, Debug, Deserialize)]
struct Said {
    #[serde(rename = "input")]
    _input: String,
    #[serde(default)]
    prefix: String,
}

impl Configured for Said {}

impl OperatorConfig for Said {
    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> BuildFuture<'a, Arc<dyn Operator>> {
        built_at_once(|| Ok(Arc::new(self.clone())))
    }
}

impl Operator for Said {
    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Result<Value, OperatorError>> {
        async move {
            assert!(!call.turn.text.contains(FAULT), "as a fault in the operator would");
            let said = call.turn.history.iter().filter(|said| said.speaker == Speaker::User);
            let said: Vec<&str> = said.map(|said| &*said.text).chain([&*call.turn.text]).collect();
            Ok(Value::Query(Query::new(self.prefix.clone() + &said.join(" "))))
        }
        .boxed()
    }
}

/// A sink in memory.
#[derive(Clone, Debug, Deserialize)]
struct Taking {
    #[serde(rename = "input")]
    _input: String,
    name: String,
    /// Whether only one process may write to it; its answers can be read back then.
    #[serde(default)]
    owned: bool,
}

impl Configured for Taking {}

impl SinkConfig for Taking {
    fn is_shared(&self) -> bool {
        !self.owned
    }
    fn build<'a>(&'a self, _: &'a ComponentContext, _: &'a Models) -> Building<'a, dyn AnswerSink> {
        built(Ok(Box::new(self.clone())))
    }
}

impl AnswerSink for Taking {
    fn deliver<'a>(&'a mut self, delivery: Delivery<'a>) -> BoxFuture<'a, Result<(), ConnectorError>> {
        for answer in delivery.answers() {
            let (conversation, turn) = (answer.conversation_id.to_string(), answer.turn.into());
            let taken = Taken { conversation, turn, query: answer.query.to_string() };
            TAKEN.lock().entry(self.name.clone()).or_default().push(taken);
            delivery.took(1);
        }
        async { Ok(()) }.boxed()
    }
    fn kept(&mut self) -> Option<&mut dyn KeptAnswers> {
        self.owned.then_some(self)
    }
}

impl KeptAnswers for Taking {
    fn mark(&self) -> SinkPosition {
        let length = TAKEN.lock().get(&self.name).map_or(0, Vec::len) as u64;
        SinkPosition { log: self.name.as_str().into(), length, content: None }
    }
    fn syncing(&mut self) -> Syncing {
        Box::new(|| Ok(()))
    }
    fn recover(&mut self, _: Search<'_>) -> Result<Recovered, ConnectorError> {
        Ok(Recovered { is_there: true, answers: Box::new(NoAnswers) })
    }
}

fn taken(name: &str) -> Vec<Taken> {
    TAKEN.lock().get(name).cloned().unwrap_or_default()
}

fn planned(text: &str) -> Plan {
    let planned = plan(load_str("test.ron", Path::new(""), text, &[]), &PARTS);
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    planned.plan.unwrap()
}

/// A pipeline that reads and writes the log and the sink of this name.
fn text(name: &str, prefix: &str, further: &str) -> String {
    format!(
        r#"Pipeline(nodes: {{
            "turns": Log(name: "{name}"),
            "query": Said(input: "turns", prefix: "{prefix}"),
            "out": Taking(input: "query", name: "{name}"),
            {further}
        }})"#
    )
}

/// Adds turns to a log: to each of these conversations, whose partition is its number modulo that of the partitions.
fn say(name: &str, partitions: usize, conversations: std::ops::Range<usize>, turns: std::ops::RangeInclusive<u64>) {
    let mut logs = LOGS.lock();
    let log = logs.entry(name.to_owned()).or_insert_with(|| vec![Vec::new(); partitions]);
    for turn in turns {
        for conversation in conversations.clone() {
            log[conversation % partitions].push(format!(
                r#"{{"conversation_id": "c{conversation}", "turn": {turn}, "speaker": "user", "text": "t{turn}"}}"#
            ));
        }
    }
}

/// What the sink of this name has when each turn is answered once, with its history.
fn expected(
    conversations: std::ops::Range<usize>,
    turns: std::ops::RangeInclusive<u64>,
) -> BTreeSet<(String, u64, String)> {
    let said = |turn| (1..=turn).map(|turn| format!("t{turn}")).collect::<Vec<_>>().join(" ");
    let of = |conversation| turns.clone().map(move |turn| (format!("c{conversation}"), turn, said(turn)));
    conversations.flat_map(of).collect()
}

/// Asserts that a sink has these answers, each once.
fn assert_taken(name: &str, expected: &BTreeSet<(String, u64, String)>) {
    let taken = taken(name);
    let found: BTreeSet<_> =
        taken.iter().map(|taken| (taken.conversation.clone(), taken.turn, taken.query.clone())).collect();
    assert_eq!(found, *expected);
    assert_eq!(taken.len(), expected.len(), "some are there twice: {taken:#?}");
}

/// A cluster that reads turns.
fn start(text: &str, state: &Path, processes: usize, turns: Mode) -> Members {
    Members::start(planned, text, processes, |process| {
        // The mode of the others is that of the first.
        let turns = if process == 0 { turns } else { Mode::Follow };
        let state = Some(state.join(process.to_string()));
        Options { turns, state, workers: 2, ..Options::default() }
    })
}

/// Waits until the sink has this number of answers.
fn wait_for(cluster: &Members, name: &str, count: usize) {
    until("the answers", || {
        cluster.check();
        taken(name).len() >= count
    });
}

/// The processes that have read lines of each partition of a log.
fn readers(name: &str) -> BTreeMap<usize, BTreeSet<String>> {
    let mut readers: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for (partition, share) in READ.lock().get(name).into_iter().flatten() {
        readers.entry(*partition).or_default().insert(format!("{share:?}"));
    }
    readers
}

#[test]
fn all_processes_read_and_another_number_goes_on_where_they_were() {
    let (name, state) = ("goes on", tempfile::tempdir().unwrap());
    let mut turns = 0;
    say(name, 4, 0..12, 1..=1);
    for processes in [2, 3, 1, 4] {
        READ.lock().remove(name);
        let cluster = start(&text(name, "", ""), state.path(), processes, Mode::Follow);
        turns += 1;
        wait_for(&cluster, name, 12 * turns as usize);
        say(name, 4, 0..12, turns + 1..=turns + 1);
        turns += 1;
        wait_for(&cluster, name, 12 * turns as usize);
        // The last turns may not be in a checkpoint yet; a stop writes it.
        cluster.stop();
        let all: BTreeSet<String> = readers(name).into_values().flatten().collect();
        assert_eq!(all.len(), processes);
        assert!(readers(name).values().all(|readers| readers.len() == 1), "each partition is read by one process");
        // The next processes begin with turns that have come meanwhile.
        say(name, 4, 0..12, turns + 1..=turns + 1);
    }
    assert_taken(name, &expected(0..12, 1..=turns));
}

#[test]
fn a_run_of_existing_turns_ends_in_all_processes() {
    let (name, state) = ("once", tempfile::tempdir().unwrap());
    say(name, 3, 0..9, 1..=20);
    LOGS.lock().get_mut(name).unwrap()[1].push("{no turn".to_owned());
    say(name, 3, 9..11, 1..=1);
    start(&text(name, "", ""), state.path(), 3, Mode::Once).end();
    let mut all = expected(0..9, 1..=20);
    all.extend(expected(9..11, 1..=1));
    assert_taken(name, &all);
    let letters = letters(&state.path().join("0"));
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!(letters[0][..2], ["turns".to_owned(), "1:61".to_owned()]);
}

#[test]
fn a_reload_ends_and_begins_the_sources_of_all_processes() {
    let (name, owned, state) = ("reload", "reload owned", tempfile::tempdir().unwrap());
    let with_owned = format!("\"more\": Taking(input: \"query\", name: \"{owned}\", owned: true),");
    let other_source = text(name, "", "").replace("Log(", "Log(_version: 1, ");
    say(name, 4, 0..0, 1..=1);
    let cluster = start(&text(name, "", ""), state.path(), 3, Mode::Follow);
    let mut turn = 0;
    let added = "reload added";
    let with_added = format!(
        r#""others": Log(name: "{added}"), "said": Said(input: "others"), "sent": Taking(input: "said", name: "{added}"),"#
    );
    say(added, 3, 0..6, 1..=3);
    // A sink that one process must write; then it is gone; the settings of the source; another source; only an operator.
    for text in [
        text(name, "", &with_owned),
        text(name, "", ""),
        other_source,
        text(name, "", &with_added),
        text(name, "", &with_added.replace("Said(input", "Said(prefix: \"\", input")),
    ] {
        turn += 1;
        say(name, 4, 0..8, turn..=turn);
        // Some turns are being answered, or wait.
        cluster.reload(&text);
        READ.lock().remove(name);
        turn += 1;
        say(name, 4, 0..8, turn..=turn);
        wait_for(&cluster, name, 8 * turn as usize);
        let all: BTreeSet<String> = readers(name).into_values().flatten().collect();
        assert_eq!(all.len(), if text.contains("owned") { 1 } else { 3 });
    }
    wait_for(&cluster, added, 18);
    cluster.stop();
    assert_taken(name, &expected(0..8, 1..=turn));
    assert_taken(added, &expected(0..6, 1..=3));
    assert!(taken(owned).len() >= 8, "{:#?}", taken(owned));
}

#[test]
fn what_one_process_must_do_keeps_a_source_whole() {
    let divided = |text: &str| crate::plan::Divided::of(&planned(text));
    let shared = divided(&text("x", "", ""));
    assert_eq!((shared.sources.len(), shared.sinks.len(), shared.whole.len()), (1, 1, 0));
    // Another source has a sink of its own that one process must write.
    let two = r#""others": Log(name: "y"), "own": Said(input: "others"), "more": Taking(input: "own", name: "y", owned: true),"#;
    let both = divided(&text("x", "", two));
    assert_eq!((&both.sources, &both.sinks), (&shared.sources, &shared.sinks));
    assert_eq!(both.whole.into_keys().collect::<Vec<_>>(), ["others".into()]);
    let more = r#""more": Taking(input: "query", name: "y", owned: true),"#;
    let live = text("x", "", "").replace("Pipeline(", "Pipeline(mode: Live(), ");
    let without_sink = r#"Pipeline(nodes: { "turns": Log(name: "x"), "query": Said(input: "turns") })"#;
    for (pipeline, why) in [
        (&*text("x", "", more), "only one process may write `more`"),
        (&live, "the pipeline is live"),
        (without_sink, "it leads to no sink"),
    ] {
        let found = divided(pipeline);
        assert_eq!((found.sources.len(), found.sinks.len(), &*found.whole["turns"]), (0, 0, why));
        let explained = planned(pipeline).explain();
        assert!(explained.contains(&format!("in a cluster: process 0 reads all of it, because {why}")), "{explained}");
    }
    assert!(planned(&text("x", "", "")).explain().contains("in a cluster: all processes read it together"));
}

/// Conversations of other processes pass through the first one, whatever is in them.
#[test]
fn texts_of_every_kind_are_in_the_history_after_another_number_of_processes() {
    let (name, state) = ("texts", tempfile::tempdir().unwrap());
    let words = "ferry harbour ".repeat(80_000);
    let texts = ["渡轮几点开？", "متى تغادر العبّارة؟", "🛳\u{fe0f}\u{202e}\u{0000}\u{feff}", &*words, "\"} ]] ], \\n"];
    let say = |turn: u64| {
        let mut logs = LOGS.lock();
        let log = logs.entry(name.to_owned()).or_insert_with(|| vec![Vec::new(); texts.len()]);
        for (partition, text) in texts.iter().enumerate() {
            let id = format!("{} {partition}", &texts[0]);
            let line = serde_json::json!({"conversation_id": id, "turn": turn, "speaker": "user", "text": text});
            log[partition].push(line.to_string());
        }
    };
    for (turn, processes) in (1..).zip([3, 2, 4]) {
        say(turn);
        let cluster = start(&text(name, "", ""), state.path(), processes, Mode::Follow);
        wait_for(&cluster, name, texts.len() * turn as usize);
        cluster.stop();
    }
    let taken = taken(name);
    assert_eq!(taken.len(), 3 * texts.len());
    for Taken { conversation, turn, query } in taken {
        let text = texts[conversation.rsplit(' ').next().unwrap().parse::<usize>().unwrap()];
        assert!(query == vec![text; turn as usize].join(" "), "turn {turn} of {conversation}");
    }
}

/// A turn that cannot be answered in another process is answered as failed, and the next ones go on.
#[test]
fn a_panic_in_another_process_costs_its_turn_alone() {
    let (name, state) = ("panic", tempfile::tempdir().unwrap());
    say(name, 2, 0..4, 1..=1);
    for log in &mut LOGS.lock().get_mut(name).unwrap()[..] {
        let id = if log[0].contains("c0") { "c0" } else { "c1" };
        log.push(format!(r#"{{"conversation_id": "{id}", "turn": 2, "speaker": "user", "text": "{FAULT}"}}"#));
    }
    say(name, 2, 0..4, 3..=3);
    let cluster = start(&text(name, "", ""), state.path(), 2, Mode::Follow);
    wait_for(&cluster, name, 4 + 2 + 4);
    cluster.stop();
    let mut turns: Vec<_> = taken(name).into_iter().map(|taken| (taken.conversation, taken.turn)).collect();
    turns.sort();
    let of = |id: &str, turns: &[u64]| turns.iter().map(|turn| (id.to_owned(), *turn)).collect::<Vec<_>>();
    let expected = [of("c0", &[1, 2, 3]), of("c1", &[1, 2, 3]), of("c2", &[1, 3]), of("c3", &[1, 3])];
    assert_eq!(turns, expected.concat());
}
