//! Restarts with edited offsets and sink positions, and with logs and answers of any content.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crossbeam_channel::unbounded;
use futures::FutureExt;
use serde_json::json;
use turnflow_connectors::jsonl_sink::JsonLinesSinkConfig;
use turnflow_connectors::jsonl_turns::JsonLinesConfig;
use turnflow_engine::connector::{
    AnswerSink, Delivery, Mode, Search, SinkPosition, SourceOffset, SourcedTurn, Stop, TurnOutput, TurnSource,
};
use turnflow_engine::dead_letter::DeadLetters;
use turnflow_engine::record::AnswerRecord;

thread_local! {
    static DIRECTORY: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

/// Calls `body` with a temporary directory of this thread, in memory if possible.
pub fn with_directory(body: impl FnOnce(&Path)) {
    DIRECTORY.with_borrow_mut(|directory| {
        let directory = directory.get_or_insert_with(|| {
            tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a temporary directory")
        });
        body(directory.path());
    });
}

/// The first bytes choose the test; the rest is a log, or a position and a log.
pub fn resume(data: &[u8]) {
    let Some(([what, generation, line, low, high], rest)) = data.split_first_chunk::<5>() else { return };
    let end = u64::from(u16::from_le_bytes([*low, *high]));
    match what % 4 {
        0 => {
            let at = rest.len().min(usize::from(*line) * 8);
            let (log, file) = rest.split_at(at);
            let log: Arc<str> = String::from_utf8_lossy(log).into();
            hostile(
                SourceOffset {
                    log,
                    generation: u64::from(*generation),
                    end,
                    line: u64::from(*line),
                    ..Default::default()
                },
                file,
            );
        }
        1 => interrupted(rest, end as usize),
        2 => delivered(rest, None),
        _ => delivered(rest, Some(end)),
    }
}

fn run(directory: &Path, place: Option<SourceOffset>) -> Vec<SourcedTurn> {
    let config: JsonLinesConfig =
        turnflow_engine::spec::from_str("(path: \"turns.jsonl\", max_line_bytes: 4096)").expect("a configuration");
    let (sender, turns) = unbounded();
    let (_handle, stop) = Stop::new();
    let output = TurnOutput::new(sender, Arc::new(|| {}), DeadLetters::counted(), "fuzz".into(), stop);
    let source = Box::new(config.source(directory));
    source.run(Mode::Once, output.resuming(place.map(Into::into).unwrap_or_default())).expect("a file that is there");
    turns.try_iter().map(|arrived| arrived.turn).collect()
}

/// An arbitrary offset: the source reads either the whole log or the records after the offset.
fn hostile(place: SourceOffset, log: &[u8]) {
    with_directory(|directory| {
        fs::write(directory.join("turns.jsonl"), log).expect("a file in a directory of our own");
        let all = run(directory, None);
        let rest = run(directory, Some(place));
        assert!(rest.len() <= all.len());
        let texts = |turns: &[SourcedTurn]| turns.iter().map(|turn| turn.record.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&rest), texts(&all[all.len() - rest.len()..]));
    });
}

/// A log that grows while the process is down: no record is read twice, and none is skipped.
fn interrupted(log: &[u8], cut: usize) {
    let cut = log[..cut.min(log.len())].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    with_directory(|directory| {
        let path = directory.join("turns.jsonl");
        let write = |bytes: &[u8]| fs::write(&path, bytes).expect("a file in a directory of our own");
        write(log);
        let all = run(directory, None);
        write(&log[..cut]);
        let first = run(directory, None);
        write(log);
        let place = first.last().and_then(|turn| turn.place.clone());
        let second = run(directory, place);
        let both: Vec<_> = first.iter().chain(&second).map(|turn| (&turn.record, &turn.position)).collect();
        let all: Vec<_> = all.iter().map(|turn| (&turn.record, &turn.position)).collect();
        assert_eq!(both, all);
    });
}

/// A file of answers with any content, perhaps with a position: the sink searches it, and appends the
/// next answer as a complete line.
fn delivered(file: &[u8], length: Option<u64>) {
    with_directory(|directory| {
        let path = directory.join("answers.jsonl");
        fs::write(&path, file).expect("a file in a directory of our own");
        let config: JsonLinesSinkConfig =
            turnflow_engine::spec::from_str("(input: \"a\", path: \"answers.jsonl\")").expect("a configuration");
        let mut sink = config.sink(directory).expect("a file that is there");
        let kept = sink.kept().expect("a file keeps what it is given");
        let mark = length.map(|length| SinkPosition { length, ..kept.mark() });
        let mut answers =
            kept.recover(Search { since: mark.as_ref(), ..Search::default() }).expect("a file that is there").answers;
        let _ = (answers.found("k"), answers.found(""));
        let answer: AnswerRecord = serde_json::from_value(json!({
            "conversation_id": "c", "turn": 1, "revision": 0, "key": "k", "status": "idk", "query": "", "answer": "x",
            "hits": [], "stamp": { "pipeline": "", "epoch": 0, "models": {} }, "latency_ms": 0.0,
        }))
        .expect("an answer");
        let (answers, taken) = ([answer], AtomicUsize::new(0));
        // Writing to a file never waits.
        let delivered = sink.deliver(Delivery::new(&answers, &taken)).now_or_never();
        delivered.expect("no wait").expect("room for a line");
        assert_eq!(taken.into_inner(), 1);
        let now = fs::read(&path).expect("a file that is there");
        let whole = file.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        assert!(now.starts_with(&file[..whole]), "the earlier contents changed");
        let last = now.strip_suffix(b"\n").and_then(|now| now.rsplit(|byte| *byte == b'\n').next());
        assert!(serde_json::from_slice::<AnswerRecord>(last.unwrap_or_default()).is_ok(), "the last line is no answer");
        let mut again = config.sink(directory).expect("a file that is there");
        let kept = again.kept().expect("a file keeps what it is given");
        let mut answers = kept.recover(Search::default()).expect("a file that is there").answers;
        assert_eq!(answers.found("k").as_deref(), Some("x"));
    });
}
