//! What several tests need: models, data, and the reason to skip where they are missing.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Map;
use turnflow::CATALOG;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use turnflow_engine::connector::SourcedTurn;
use turnflow_engine::plan::{Plan, plan};
use turnflow_engine::record::{AnswerRecord, Hit, Item, Speaker, TurnRecord, Value};
use turnflow_engine::run::{Engine, Options, TurnSources};
use turnflow_engine::spec::load_str;

/// What is waited for comes within this, however slow the machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A generator of inputs that are the same in each run.
pub fn runner(seed: u8, cases: u32) -> TestRunner {
    // Each case starts engines, so a failure is not made much smaller.
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 30, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]))
}

/// Runs a test on this many inputs. It fails by panicking; then the input is made smaller.
#[track_caller]
pub fn holds<S: Strategy>(seed: u8, cases: u32, inputs: S, test: impl Fn(S::Value)) {
    let ran = runner(seed, cases).run(&inputs, |input| {
        test(input);
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
}

/// The directory of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Where `TURNFLOW_TESTS_MUST_RUN` is set, as in continuous integration, nothing that could be had
/// may be missing.
fn skip(why: &str) {
    assert!(std::env::var_os("TURNFLOW_TESTS_MUST_RUN").is_none(), "{why}");
    println!("skipped: {why}");
}

/// The directory of a model that `turnflow models fetch` brings; `None`, with a word on it,
/// where it has not been fetched.
pub fn model(name: &str) -> Option<PathBuf> {
    let path = root().join("models").join(name);
    let runtime = root().join("models/onnxruntime/libonnxruntime.so");
    if path.exists() && runtime.exists() {
        return Some(path);
    }
    skip(&format!("{} is missing; `turnflow models fetch` downloads it", path.display()));
    None
}

/// The variable that names pdfium, where it has been fetched.
pub fn pdfium() -> Option<(&'static str, PathBuf)> {
    let path = root().join("models/pdfium/libpdfium.so");
    path.exists().then_some(("PDFIUM_PATH", path))
}

/// The variable that names the model of OCR, where it has been fetched.
pub fn ocr() -> Option<(&'static str, PathBuf)> {
    let path = root().join("models/ocr");
    path.exists().then_some(("OCR_PATH", path))
}

/// A directory of the benchmark data, `$TURNFLOW_DATA` or `../shared/data`; `None`, with a
/// word on it, where there is none.
pub fn data(name: &str) -> Option<PathBuf> {
    let base = std::env::var_os("TURNFLOW_DATA").map_or_else(|| root().join("../shared/data"), PathBuf::from);
    let path = base.join(name);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: there is no benchmark data at {}", path.display());
    None
}

/// The plan of a pipeline's text; paths are relative to `base`.
pub fn plan_of(base: &Path, text: &str) -> Plan {
    let planned = plan(load_str("test.ron", base, text, &[]), &CATALOG);
    assert!(planned.diagnostics.is_empty(), "{:#?}", planned.diagnostics);
    planned.plan.unwrap()
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// What a turn came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Hits by node.
    pub hits: HashMap<String, Vec<Hit>>,
    /// The last value.
    pub last: Option<Item>,
    /// The epoch it read.
    pub epoch: u64,
    /// The value of each node.
    pub values: Vec<(String, Value)>,
}

impl Outcome {
    /// A node's hits; what went wrong, if there are none.
    pub fn of(&self, node: &str) -> &[Hit] {
        self.hits
            .get(node)
            .unwrap_or_else(|| panic!("`{node}` gave no hits: {:?}", self.last.as_ref().map(|item| &item.value)))
    }

    /// Ids and exact scores of a node's hits.
    pub fn exact(&self, node: &str) -> Vec<(String, u32)> {
        self.of(node).iter().map(|hit| (hit.chunk.id.to_string(), hit.score.to_bits())).collect()
    }

    /// The documents of a node's hits.
    pub fn documents(&self, node: &str) -> Vec<String> {
        self.of(node).iter().map(|hit| hit.chunk.document.to_string()).collect()
    }
}

/// A running pipeline that is asked question by question.
pub struct Asked {
    pub engine: Engine,
    ends: Receiver<(String, Outcome)>,
    asked: usize,
}

type Open = Arc<Mutex<HashMap<String, Outcome>>>;

/// What an outcome is known by: conversations may have several turns.
fn key_of(conversation: &str, turn: u32) -> String {
    if turn == 1 { conversation.to_owned() } else { format!("{conversation}/{turn}") }
}

fn observer(last: String, open: Open, ends: Sender<(String, Outcome)>) -> turnflow_engine::turns::Observer {
    let ends = Mutex::new(ends);
    Arc::new(move |node: &str, item: &Item| {
        let mut open = open.lock().unwrap();
        let id = key_of(&item.turn.conversation_id, item.turn.turn);
        let outcome = open.entry(id.clone()).or_default();
        outcome.epoch = item.turn.epoch;
        outcome.values.push((node.to_owned(), item.value.clone()));
        if let Value::Hits(hits) = &item.value {
            outcome.hits.insert(node.to_owned(), hits.hits.clone());
        }
        if node == last {
            outcome.last = Some(item.clone());
            let outcome = open.remove(&id).unwrap();
            let _ = ends.lock().unwrap().send((id, outcome));
        }
    })
}

impl Asked {
    /// Starts the pipeline and waits until it is ready.
    pub fn start(plan: Plan, options: Options) -> Self {
        let this = Self::begin(plan, options);
        this.engine.wait_ready().unwrap();
        this
    }

    /// Starts the pipeline; a turn's outcome is complete with the value of its last node.
    pub fn begin(plan: Plan, options: Options) -> Self {
        let last = plan.nodes.iter().rev().find(|node| node.output.is_some()).unwrap().id.to_string();
        let (sender, ends) = channel();
        let observer = observer(last, Arc::default(), sender);
        let options = Options { sources: TurnSources::None, sinks: false, observer: Some(observer), ..options };
        let engine = Engine::start(plan, options).unwrap();
        Self { engine, ends, asked: 0 }
    }

    /// Asks one question, in a conversation of its own, and waits for its outcome.
    pub fn ask(&mut self, text: &str) -> Outcome {
        let id = self.submit(text);
        self.outcome(&key_of(&id, 1))
    }

    /// Asks with a record, and waits for its outcome.
    pub fn ask_record(&mut self, record: TurnRecord) -> Outcome {
        self.asked += 1;
        let (id, position) = (key_of(&record.conversation_id, record.turn), self.asked.to_string());
        assert!(self.engine.submit(SourcedTurn { record, position, history: None, place: None }));
        self.outcome(&id)
    }

    fn outcome(&mut self, id: &str) -> Outcome {
        loop {
            let (of, outcome) = self.ends.recv_timeout(PATIENCE).unwrap();
            if of == *id {
                return outcome;
            }
        }
    }

    /// Asks without waiting; gives the conversation's id.
    pub fn submit(&mut self, text: &str) -> String {
        self.asked += 1;
        let id = format!("q{}", self.asked);
        let record = TurnRecord {
            conversation_id: id.as_str().into(),
            turn: 1,
            speaker: Speaker::User,
            text: text.into(),
            collection: None,
            timestamp: None,
            extra: Map::new(),
        };
        assert!(self.engine.submit(SourcedTurn { record, position: id.clone(), history: None, place: None }));
        id
    }

    /// Asks until a node's hits are as wished, and gives the outcome that is.
    pub fn ask_until(&mut self, text: &str, what: &str, wished: impl Fn(&Outcome) -> bool) -> Outcome {
        let begun = Instant::now();
        loop {
            let outcome = self.ask(text);
            if wished(&outcome) {
                return outcome;
            }
            assert!(begun.elapsed() < PATIENCE, "asked {text:?} in vain for {what}; last {outcome:?}");
        }
    }

    /// Contents that a model was asked for since the start.
    pub fn embedded(&self) -> u64 {
        let corpora = self.engine.corpora();
        corpora.iter().map(|(_, progress, _)| turnflow_engine::publish::CorpusProgress::get(&progress.embedded)).sum()
    }
}

/// Answers that a sink wrote. A line that it is still writing does not count.
pub fn answers(path: &Path) -> Vec<AnswerRecord> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let text = std::str::from_utf8(&bytes[..end]).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Numbers that are the same in each run.
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % most
    }

    /// A word: some are frequent, and most are rare.
    pub fn word(&mut self) -> String {
        let rank = (600.0_f64.powf(self.below(10_000) as f64 / 10_000.0)) as usize;
        const PARTS: [&str; 8] = ["fer", "har", "til", "mon", "sak", "dru", "pel", "vin"];
        format!("{}{}{}", PARTS[rank % 8], PARTS[rank / 8 % 8], PARTS[rank / 64 % 8])
    }

    pub fn text(&mut self, words: usize) -> String {
        (0..words).map(|_| self.word()).collect::<Vec<_>>().join(" ")
    }
}

/// The body of a request, as the server at the other end of a test reads it.
pub fn request_body(stream: &TcpStream) -> Option<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        // A client may open a connection and close it again.
        reader.read_line(&mut line).ok().filter(|bytes| *bytes > 0)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(body)
}
