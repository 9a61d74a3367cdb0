//! Invariants of every connector, checked for each entry of the tables: order, bad records, back-pressure, stopping,
//! and resuming after a restart. A new connector adds a case here.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Cursor, Write};
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use turnflow_engine::connector::{
    AnswerSink, AnswersOf, Arrived, ConnectorError, CorpusEvent, CorpusOutput, CorpusSource, Delivery, Mode, Offsets,
    Recovered, Search, Stop, StopHandle, StoredDocument, TurnOutput, TurnSource,
};
use turnflow_engine::dead_letter::DeadLetters;
use turnflow_engine::record::AnswerRecord;
use turnflow_engine::spec::from_str;

use crate::open_once::Place;
use crate::testing::{PATIENCE, answer, runtime, turn};
use crate::{
    CORPUS_SOURCES, SINKS, TURN_SOURCES, answers, directory, documents, jsonl_corpus, jsonl_sink, jsonl_turns, stdin,
    stdout, turns,
};

fn always() -> bool {
    true
}

/// Lines that are not turns in any source.
const BAD_TURNS: [&[u8]; 6] = [
    b"{no JSON",
    b"{}",
    b"{\"text\": 1}",
    b"{\xff\xfe}",
    b"{\"conversation_id\": \"c\", \"turn\": 1, \"speaker\": \"cat\", \"text\": \"\"}",
    b"{\"conversation_id\": \"c\", \"turn\": -1, \"speaker\": \"user\", \"text\": \"\"}",
];

/// A source of turns: how to build it in a directory, with these lines.
struct TurnCase {
    kind: &'static str,
    /// Whether it can run here: a server's program may be missing.
    is_there: fn() -> bool,
    build: fn(&Path, &[u8]) -> Box<dyn TurnSource>,
    /// Whether its turns have offsets.
    resumes: bool,
}

const TURNS: &[TurnCase] = &[
    TurnCase {
        kind: "JsonLines",
        is_there: always,
        build: |base, lines| {
            fs::write(base.join("turns.jsonl"), lines).unwrap();
            Box::new(from_str::<jsonl_turns::JsonLinesConfig>("(path: \"turns.jsonl\")").unwrap().source(base))
        },
        resumes: true,
    },
    TurnCase { kind: "Files", is_there: always, build: crate::files::tests::turns_of, resumes: true },
    TurnCase {
        kind: "Stdin",
        is_there: always,
        build: |_, lines| Box::new(stdin::Stdin::reading(Cursor::new(lines.to_vec()))),
        resumes: false,
    },
    TurnCase {
        kind: "Turns",
        is_there: always,
        build: |base, lines| {
            let path = base.join("turns.redb");
            let is_new = !path.exists();
            let source = turns::TurnsConfig::default().open(Place::File(path)).unwrap();
            if is_new {
                let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                source.put_raw(&lines.map(<[u8]>::to_vec).collect::<Vec<_>>());
            }
            Box::new(source)
        },
        resumes: true,
    },
    #[cfg(feature = "nats")]
    TurnCase {
        kind: "Nats",
        is_there: crate::nats::tests::is_there,
        build: |base, lines| Box::new(crate::nats::tests::turns_of(base, lines)),
        resumes: true,
    },
    #[cfg(feature = "otlp")]
    TurnCase { kind: "Otlp", is_there: always, build: crate::otlp::tests::turns_of, resumes: true },
    #[cfg(feature = "parquet")]
    TurnCase {
        kind: "Parquet",
        is_there: always,
        build: |base, lines| {
            fs::write(base.join("t.parquet"), crate::parquet::source::tests::table_of(lines)).unwrap();
            Box::new(from_str::<crate::parquet::source::ParquetConfig>("(path: \"t.parquet\")").unwrap().source(base))
        },
        resumes: true,
    },
    #[cfg(feature = "postgres")]
    TurnCase {
        kind: "Postgres",
        is_there: crate::postgres::tests::is_there,
        build: |base, lines| Box::new(crate::postgres::tests::turns_of_lines(base, lines)),
        resumes: true,
    },
    #[cfg(feature = "sqlite")]
    TurnCase { kind: "Sqlite", is_there: always, build: crate::sqlite::tests::turns_of, resumes: true },
    #[cfg(feature = "redis")]
    TurnCase {
        kind: "Redis",
        is_there: crate::redis::tests::is_there,
        build: |base, lines| Box::new(crate::redis::tests::turns_of(base, lines)),
        resumes: true,
    },
    #[cfg(feature = "kafka")]
    TurnCase {
        kind: "Kafka",
        is_there: always,
        build: |base, lines| {
            let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let brokers = crate::kafka::tests::conforming(base, lines.map(|line| (None, line)));
            let config = format!("(brokers: {brokers:?}, topic: \"t\")");
            let config: crate::kafka::source::KafkaConfig = from_str(&config).unwrap();
            Box::new(config.source(&crate::kafka::tests::context()))
        },
        resumes: true,
    },
];

/// A corpus source: how to build it in a directory, with documents of these texts, one of which is unreadable.
struct CorpusCase {
    kind: &'static str,
    is_there: fn() -> bool,
    build: fn(&Path, &[String]) -> Box<dyn CorpusSource>,
}

const CORPORA: &[CorpusCase] = &[
    CorpusCase {
        kind: "Directory",
        is_there: always,
        build: |base, texts| {
            for (number, text) in texts.iter().enumerate() {
                let path = base.join(format!("{number}.md"));
                fs::write(&path, text).unwrap();
                // Both runs of a test see the same time.
                let file = fs::File::options().append(true).open(path).unwrap();
                file.set_modified(std::time::UNIX_EPOCH).unwrap();
            }
            fs::write(base.join("bad.pdf"), "no PDF").unwrap();
            Box::new(from_str::<directory::DirectoryConfig>("(path: \".\")").unwrap().source(base))
        },
    },
    CorpusCase {
        kind: "Documents",
        is_there: always,
        build: |base, texts| {
            let source = documents::DocumentsConfig::default().source(base).unwrap();
            let document = |(number, text): (usize, &String)| StoredDocument {
                id: number.to_string(),
                title: None,
                text: text.clone(),
                markup: Default::default(),
                metadata: serde_json::Map::new(),
                modified_ms: 0,
            };
            source.documents().unwrap().put(texts.iter().enumerate().map(document).collect()).unwrap();
            source.put_encoded("bad", b"no document");
            Box::new(source)
        },
    },
    CorpusCase {
        kind: "JsonLines",
        is_there: always,
        build: |base, texts| {
            let rows = texts
                .iter()
                .enumerate()
                .map(|(number, text)| serde_json::json!({"_id": number.to_string(), "text": text}));
            let rows: String = rows.map(|row| format!("{row}\n")).chain(["no row\n".to_owned()]).collect();
            fs::write(base.join("rows.jsonl"), rows).unwrap();
            Box::new(from_str::<jsonl_corpus::JsonLinesConfig>("(path: \"rows.jsonl\")").unwrap().source(base))
        },
    },
    #[cfg(feature = "bucket")]
    CorpusCase {
        kind: "Bucket",
        is_there: crate::bucket::tests::is_there,
        build: |base, texts| Box::new(crate::bucket::tests::corpus_of(base, texts)),
    },
    #[cfg(feature = "git")]
    CorpusCase {
        kind: "Git",
        is_there: crate::git::tests::is_there,
        build: |base, texts| Box::new(crate::git::tests::corpus_of(base, texts)),
    },
    #[cfg(feature = "parquet")]
    CorpusCase {
        kind: "Parquet",
        is_there: always,
        build: |base, texts| {
            let bytes = crate::readers::columnar::tests::of_texts(texts);
            fs::write(base.join("t.parquet"), bytes).unwrap();
            Box::new(from_str::<crate::parquet::corpus::ParquetConfig>("(path: \"t.parquet\")").unwrap().source(base))
        },
    },
    #[cfg(feature = "postgres")]
    CorpusCase {
        kind: "Postgres",
        is_there: crate::postgres::tests::is_there,
        build: |base, texts| Box::new(crate::postgres::tests::corpus_of_texts(base, texts)),
    },
    #[cfg(feature = "sqlite")]
    CorpusCase { kind: "Sqlite", is_there: always, build: crate::sqlite::tests::corpus_of },
    #[cfg(feature = "web")]
    CorpusCase { kind: "Web", is_there: always, build: |_, texts| Box::new(crate::web::tests::corpus_of(texts)) },
    #[cfg(feature = "nats")]
    CorpusCase {
        kind: "Nats",
        is_there: crate::nats::tests::is_there,
        build: |base, texts| Box::new(crate::nats::tests::bucket_of(base, texts)),
    },
    #[cfg(feature = "kafka")]
    CorpusCase {
        kind: "Kafka",
        is_there: always,
        build: |base, texts| {
            let texts = texts.iter().enumerate().map(|(number, text)| (Some(number.to_string()), text.as_bytes()));
            let bad: &[u8] = b"\xff";
            let brokers = crate::kafka::tests::conforming(base, texts.chain([(Some("bad".to_owned()), bad)]));
            let config = format!("(brokers: {brokers:?}, topic: \"t\", format: Text)");
            let config: crate::kafka::corpus::KafkaConfig = from_str(&config).unwrap();
            Box::new(config.source(&crate::kafka::tests::context()))
        },
    },
];

/// Captures what `Stdout` prints.
#[derive(Clone)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(buffer)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads back what a sink has written.
type ReadBack = Box<dyn Fn() -> Vec<u8>>;

/// A sink: how to build it in a directory.
struct SinkCase {
    kind: &'static str,
    is_there: fn() -> bool,
    build: fn(&Path) -> (Box<dyn AnswerSink>, ReadBack),
}

const TAKES: &[SinkCase] = &[
    SinkCase {
        kind: "Answers",
        is_there: always,
        build: |base| {
            let config: answers::AnswersConfig = from_str("(input: \"a\")").unwrap();
            let sink = config.open(Place::File(base.join("answers.redb"))).unwrap();
            let log = sink.log().unwrap();
            let read_back = move || {
                let (mut lines, mut after) = (Vec::new(), 0);
                loop {
                    let page = log.read(AnswersOf::All, after, 2).unwrap();
                    let Some(last) = page.last() else { return lines };
                    after = last.number;
                    for answer in &page {
                        serde_json::to_writer(&mut lines, &answer.record).unwrap();
                        lines.push(b'\n');
                    }
                }
            };
            (Box::new(sink), Box::new(read_back))
        },
    },
    SinkCase {
        kind: "JsonLinesSink",
        is_there: always,
        build: |base| {
            let config: jsonl_sink::JsonLinesSinkConfig = from_str("(input: \"a\", path: \"out.jsonl\")").unwrap();
            let path = base.join("out.jsonl");
            (Box::new(config.sink(base).unwrap()), Box::new(move || fs::read(&path).unwrap()))
        },
    },
    SinkCase {
        kind: "Stdout",
        is_there: always,
        build: |_| {
            let printed = Printed(Arc::default());
            let sink = stdout::Stdout::new(stdout::Format::Json, Box::new(printed.clone()));
            (Box::new(sink), Box::new(move || printed.0.lock().unwrap().clone()))
        },
    },
    #[cfg(feature = "nats")]
    SinkCase { kind: "NatsSink", is_there: crate::nats::tests::is_there, build: crate::nats::tests::sink_of },
    #[cfg(feature = "parquet")]
    SinkCase {
        kind: "ParquetSink",
        is_there: always,
        build: |base| {
            let directory = base.join("out");
            let read_back = move || {
                let answers = crate::parquet::sink::tests::stored(&directory);
                answers
                    .iter()
                    .flat_map(|answer| serde_json::to_vec(answer).unwrap().into_iter().chain([b'\n']))
                    .collect()
            };
            (Box::new(crate::parquet::sink::tests::sink(base, ", max_answers: 4")), Box::new(read_back))
        },
    },
    #[cfg(feature = "postgres")]
    SinkCase {
        kind: "PostgresSink",
        is_there: crate::postgres::tests::is_there,
        build: |base| {
            let (sink, read_back) = crate::postgres::tests::sink_of(base);
            (Box::new(sink), read_back)
        },
    },
    #[cfg(feature = "redis")]
    SinkCase { kind: "RedisSink", is_there: crate::redis::tests::is_there, build: crate::redis::tests::sink_of },
    #[cfg(feature = "webhook")]
    SinkCase {
        kind: "HttpSink",
        is_there: always,
        build: |_| {
            let (url, bodies) = crate::webhook::tests::collecting();
            let config = format!("(input: \"a\", url: {url:?}, concurrency: 1)");
            let config: crate::http_sink::HttpSinkConfig = from_str(&config).unwrap();
            (Box::new(config.sink().unwrap()), Box::new(move || bodies.lock().unwrap().clone()))
        },
    },
    #[cfg(feature = "webhook")]
    SinkCase {
        kind: "Webhook",
        is_there: always,
        build: |_| {
            let (url, bodies) = crate::webhook::tests::collecting();
            let config: crate::webhook::WebhookConfig = from_str(&format!("(input: \"a\", url: {url:?})")).unwrap();
            (Box::new(config.sink().unwrap()), Box::new(move || bodies.lock().unwrap().clone()))
        },
    },
    #[cfg(feature = "kafka")]
    SinkCase {
        kind: "KafkaSink",
        is_there: always,
        build: |base| {
            let brokers = crate::kafka::tests::conforming(base, std::iter::empty());
            let config = format!("(input: \"a\", brokers: {brokers:?}, topic: \"t\")");
            let config: crate::kafka::sink::KafkaSinkConfig = from_str(&config).unwrap();
            let read_back = move || {
                let records = crate::kafka::tests::stored(&brokers, "t");
                records.into_iter().flat_map(|record| [record.value, vec![b'\n']].concat()).collect()
            };
            (Box::new(config.sink().unwrap()), Box::new(read_back))
        },
    },
];

#[test]
fn every_connector_has_a_case() {
    let names = |cases: &[&'static str], tables: Vec<&'static str>| {
        assert_eq!(cases.iter().collect::<BTreeSet<_>>(), tables.iter().collect::<BTreeSet<_>>());
    };
    names(&TURNS.iter().map(|case| case.kind).collect::<Vec<_>>(), TURN_SOURCES.iter().map(|kind| kind.name).collect());
    names(
        &CORPORA.iter().map(|case| case.kind).collect::<Vec<_>>(),
        CORPUS_SOURCES.iter().map(|kind| kind.name).collect(),
    );
    names(&TAKES.iter().map(|case| case.kind).collect::<Vec<_>>(), SINKS.iter().map(|kind| kind.name).collect());
}

/// A source on a separate thread, with a channel of limited capacity.
struct Running<T> {
    records: Receiver<T>,
    stop: Option<StopHandle>,
    thread: JoinHandle<Result<(), ConnectorError>>,
    dead: DeadLetters,
}

impl<T> Running<T> {
    fn end(mut self) -> Result<(), ConnectorError> {
        self.stop = None;
        let until = Instant::now() + PATIENCE;
        while !self.thread.is_finished() {
            assert!(Instant::now() < until, "the source does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.thread.join().unwrap()
    }
}

fn run_turns(source: Box<dyn TurnSource>, mode: Mode, room: usize, resume: Offsets) -> Running<Arrived> {
    let (sender, records) = crossbeam_channel::bounded(room);
    let (stop, stopped) = Stop::new();
    let dead = DeadLetters::counted();
    let output = TurnOutput::new(sender, Arc::new(|| {}), dead.clone(), "turns".into(), stopped).resuming(resume);
    let thread = std::thread::spawn(move || source.run(mode, output));
    Running { records, stop: Some(stop), thread, dead }
}

fn run_corpus(source: Box<dyn CorpusSource>, mode: Mode, room: usize) -> Running<CorpusEvent> {
    let (sender, records) = crossbeam_channel::bounded(room);
    let (stop, stopped) = Stop::new();
    let dead = DeadLetters::counted();
    let output = CorpusOutput::new(sender, Arc::new(|| {}), dead.clone(), "docs".into(), stopped);
    let thread = std::thread::spawn(move || source.run(mode, output));
    Running { records, stop: Some(stop), thread, dead }
}

fn lines(count: usize) -> Vec<u8> {
    (0..count).flat_map(|number| (turn(&format!("t{number}")) + "\n").into_bytes()).collect()
}

fn all(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("t{number}")).collect()
}

fn texts(running: &Running<Arrived>) -> Vec<String> {
    let mut texts = Vec::new();
    while let Ok(arrived) = running.records.recv_timeout(PATIENCE) {
        texts.push(arrived.turn.record.text.to_string());
    }
    texts
}

#[test]
fn turns_come_in_order_and_bad_ones_are_dead_letters() {
    for case in TURNS.iter().filter(|case| (case.is_there)()) {
        let directory = tempfile::tempdir().unwrap();
        let mut log = Vec::new();
        for (number, bad) in BAD_TURNS.iter().enumerate() {
            log.extend_from_slice((turn(&format!("t{number}")) + "\n").as_bytes());
            log.extend_from_slice(bad);
            log.push(b'\n');
        }
        let running = run_turns((case.build)(directory.path(), &log), Mode::Once, 4, Offsets::default());
        assert_eq!(texts(&running), all(BAD_TURNS.len()), "{}", case.kind);
        assert_eq!(running.dead.count() as usize, BAD_TURNS.len(), "{}", case.kind);
        running.end().unwrap();
    }
}

#[test]
fn a_source_of_turns_waits_for_room_and_stops_while_it_waits() {
    for case in TURNS.iter().filter(|case| (case.is_there)()) {
        let directory = tempfile::tempdir().unwrap();
        let running = run_turns((case.build)(directory.path(), &lines(1000)), Mode::Once, 1, Offsets::default());
        assert_eq!(texts(&running), all(1000), "{}", case.kind);
        running.end().unwrap();

        let running = run_turns((case.build)(directory.path(), &lines(1000)), Mode::Follow, 1, Offsets::default());
        running.records.recv_timeout(PATIENCE).unwrap();
        let ended = running.end();
        assert!(matches!(ended, Ok(()) | Err(ConnectorError::Stopped(_))), "{}: {ended:?}", case.kind);
    }
}

#[test]
fn a_source_of_turns_resumes_after_any_of_its_offsets() {
    for case in TURNS.iter().filter(|case| (case.is_there)()) {
        let directory = tempfile::tempdir().unwrap();
        let build = || (case.build)(directory.path(), &lines(20));
        let running = run_turns(build(), Mode::Once, 100, Offsets::default());
        let read: Vec<Arrived> = (0..20).map(|_| running.records.recv_timeout(PATIENCE).unwrap()).collect();
        // It ends by itself; one that is stopped before may say so.
        running.records.recv_timeout(PATIENCE).unwrap_err();
        running.end().unwrap();
        let offsets: Vec<_> = read.iter().filter_map(|arrived| arrived.turn.place.clone()).collect();
        assert_eq!(offsets.len(), if case.resumes { 20 } else { 0 }, "{}", case.kind);
        let increase = |two: &[_]| matches!(two, [one, other] if turnflow_engine::connector::SourceOffset::order(one) < other.order());
        assert!(offsets.windows(2).all(increase), "{}", case.kind);
        for at in (0..offsets.len()).step_by(7) {
            // As stored in a checkpoint.
            let stored = serde_json::to_string(&Offsets::from(offsets[at].clone())).unwrap();
            let running = run_turns(build(), Mode::Once, 100, serde_json::from_str(&stored).unwrap());
            assert_eq!(texts(&running), all(20)[at + 1..], "{} after {at}", case.kind);
            running.end().unwrap();
        }
    }
}

#[test]
fn a_corpus_is_committed_before_it_is_ready_and_bad_documents_are_dead_letters() {
    for case in CORPORA.iter().filter(|case| (case.is_there)()) {
        let directory = tempfile::tempdir().unwrap();
        let documents: Vec<String> = (0..50).map(|number| format!("Text {number}.")).collect();
        let mut runs = Vec::new();
        for _ in 0..2 {
            let running = run_corpus((case.build)(directory.path(), &documents), Mode::Once, 1);
            let mut changes = Vec::new();
            let (mut uncommitted, mut ready) = (0, 0);
            while let Ok(event) = running.records.recv_timeout(PATIENCE) {
                match event {
                    CorpusEvent::Change(id, document) => {
                        uncommitted += 1;
                        changes.push((id, document));
                    }
                    CorpusEvent::Commit => uncommitted = 0,
                    CorpusEvent::Ready => {
                        assert_eq!(uncommitted, 0, "{}: ready before the commit", case.kind);
                        ready += 1;
                    }
                    CorpusEvent::End => {}
                }
            }
            assert_eq!((ready, uncommitted), (1, 0), "{}", case.kind);
            assert_eq!(running.dead.count(), 1, "{}: the one that cannot be read", case.kind);
            running.end().unwrap();
            assert_eq!(changes.len(), 50, "{}", case.kind);
            changes.sort_by(|one, other| one.0.cmp(&other.0));
            runs.push(changes);
        }
        assert!(runs[0] == runs[1], "{}: the same documents have the same ids", case.kind);
    }
}

#[test]
fn a_corpus_source_stops_while_it_waits_for_room() {
    for case in CORPORA.iter().filter(|case| (case.is_there)()) {
        let directory = tempfile::tempdir().unwrap();
        let documents: Vec<String> = (0..50).map(|number| format!("Text {number}.")).collect();
        for wait_for in [1, 0] {
            let running = run_corpus((case.build)(directory.path(), &documents), Mode::Follow, 1);
            (0..wait_for).for_each(|_| drop(running.records.recv_timeout(PATIENCE).unwrap()));
            let ended = running.end();
            assert!(matches!(ended, Ok(()) | Err(ConnectorError::Stopped(_))), "{}: {ended:?}", case.kind);
        }
    }
}

/// Answers that could break a line, a terminal or a parser.
fn hostile() -> Vec<AnswerRecord> {
    let texts = [
        "",
        "two\nlines\r\n",
        "\0\u{1b}[31m\u{7f}",
        "\u{2028}\u{feff}\u{202e}",
        "\"}\n{\"",
        "🙂👨‍👩‍👧 語",
        &"long ".repeat(200_000),
    ];
    let record = |(number, text): (usize, &&str)| AnswerRecord {
        key: format!("k{number}").into(),
        turn: number as u32,
        conversation_id: (*text).chars().take(1000).collect::<String>().into(),
        answer: (*text).into(),
        ..answer()
    };
    texts.iter().enumerate().map(record).collect()
}

fn deliver(sink: &mut dyn AnswerSink, answers: &[AnswerRecord]) -> usize {
    let taken = AtomicUsize::new(0);
    runtime().block_on(sink.deliver(Delivery::new(answers, &taken))).unwrap();
    taken.into_inner()
}

#[test]
fn a_sink_has_every_answer_whole_in_order_and_once() {
    for case in TAKES.iter().filter(|case| (case.is_there)()) {
        let directory = tempfile::tempdir().unwrap();
        let (mut sink, read_back) = (case.build)(directory.path());
        sink.begin().unwrap();
        let answers = hostile();
        let mut took = 0;
        for batch in answers.chunks(3) {
            took += deliver(&mut *sink, batch);
        }
        // A delivery that is dropped before it has begun leaves nothing incomplete behind.
        let taken = AtomicUsize::new(0);
        drop(sink.deliver(Delivery::new(&answers[..1], &taken)));
        let bytes = read_back();
        let lines = bytes.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).unwrap());
        let found: Vec<AnswerRecord> = lines.collect();
        assert!(found.starts_with(&answers), "{}", case.kind);
        assert!(took <= answers.len() && found.len() <= answers.len() + 1, "{}", case.kind);
    }
}

#[test]
fn a_sink_that_can_be_read_back_knows_what_it_has_after_a_restart() {
    for case in TAKES.iter().filter(|case| (case.is_there)()) {
        let directory = tempfile::tempdir().unwrap();
        let (mut sink, _) = (case.build)(directory.path());
        let answers = hostile();
        deliver(&mut *sink, &answers[..2]);
        let Some(mark) = sink.kept().map(|kept| kept.mark()) else { continue };
        deliver(&mut *sink, &answers[2..]);
        sink.kept().unwrap().syncing()().unwrap();
        drop(sink);
        let (mut sink, _) = (case.build)(directory.path());
        let Recovered { is_there, answers: mut found } =
            sink.kept().unwrap().recover(Search { since: Some(&mark), ..Search::default() }).unwrap();
        assert!(is_there && found.count() == answers.len() - 2, "{}", case.kind);
        for (number, record) in answers.iter().enumerate() {
            let read = found.record(&record.key);
            assert_eq!(read.as_ref(), (number >= 2).then_some(record), "{}", case.kind);
            assert_eq!(found.found(&record.key).as_deref(), (number >= 2).then_some(&*record.answer), "{}", case.kind);
        }
    }
}
