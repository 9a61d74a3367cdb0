//! The whole way on files, on one and on several workers.

use std::fs;
use std::io::Write as _;

use turnflow_engine::record::Status;
use turnflow_engine::run::{Engine, Options};

use crate::support::{answers, data, model, plan_of, until};

/// The whole way on files: a followed log with agent turns, malformed lines, a rotation, and
/// a corpus that changes at known places; the answers are the same on any number of workers.
#[test]
fn answers_do_not_depend_on_the_number_of_workers() {
    let Some(model) = model("minilm-int8") else { return };
    let Some(mtrag) = data("mtrag") else { return };
    let turns = fs::read_to_string(mtrag.join("turns.dev.jsonl")).unwrap();
    let lines: Vec<&str> = turns.lines().take(160).collect();
    let corpus: String = fs::read_to_string(mtrag.join("corpus/clapnq.jsonl"))
        .unwrap()
        .lines()
        .take(60)
        .map(|line| format!("{line}\n"))
        .collect();
    let mut all = Vec::new();
    for workers in [1, 2, 4] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("docs.jsonl"), &corpus).unwrap();
        let text = format!(
            r#"Pipeline(
    models: {{ "minilm": Onnx(path: {:?}, tokenizer: {:?}) }},
    corpora: {{ "docs": Corpus(source: JsonLines(path: "docs.jsonl"), chunk: Whole()) }},
    nodes: {{
        "turns": JsonLines(path: "turns.jsonl"),
        "query": UserTurns(input: "turns", last: 2),
        "lexical": Bm25(input: "query", corpus: "docs", top: 20),
        "dense": Dense(input: "query", corpus: "docs", model: "minilm", top: 20),
        "fused": Rrf(inputs: ["lexical", "dense"], top: 10),
        "answer": ExtractiveAnswer(input: "fused", model: "minilm", passages: 2),
        "final": IdkNormalize(input: "answer", min_support: 0.3),
        "out": JsonLinesSink(input: "final", path: "answers.jsonl"),
    }},
)"#,
            model.join("model.onnx"),
            model.join("tokenizer.json")
        );
        let mut log = fs::File::create(dir.path().join("turns.jsonl")).unwrap();
        let options = Options { workers, state: Some(dir.path().join("state")), ..Options::default() };
        let engine = Engine::start(plan_of(dir.path(), &text), options).unwrap();
        let mut asked = 0;
        let mut epoch = 0;
        for (part, lines) in lines.chunks(40).enumerate() {
            if part > 0 {
                // The corpus changes between parts: rows come, one goes.
                let row =
                    format!("{{\"_id\": \"new{part}\", \"text\": \"A ferry named Part {part} sails at noon.\"}}\n");
                let kept: String = corpus.lines().skip(part).map(|line| format!("{line}\n")).collect();
                fs::write(dir.path().join("docs.jsonl"), kept + &row).unwrap();
                until("the next epoch", || engine.epochs().current().epoch > epoch);
            } else {
                engine.wait_ready().unwrap();
            }
            epoch = engine.epochs().current().epoch;
            for line in lines {
                writeln!(log, "{line}").unwrap();
                asked += usize::from(line.contains("\"speaker\": \"user\""));
            }
            writeln!(log, "not a turn").unwrap();
            log.flush().unwrap();
            until("the part's answers", || engine.delivered() == asked);
            if part == 1 {
                // Rotation: the log moves away, and a new one begins.
                fs::rename(dir.path().join("turns.jsonl"), dir.path().join("turns.jsonl.1")).unwrap();
                log = fs::File::create(dir.path().join("turns.jsonl")).unwrap();
            }
        }
        until("the dead letters", || engine.dead_letters() == 4);
        engine.stop();
        engine.join().unwrap();
        let mut records: Vec<_> = answers(&dir.path().join("answers.jsonl"))
            .into_iter()
            .map(|answer| {
                let hits: Vec<_> =
                    answer.hits.iter().map(|hit| (hit.passage.to_string(), hit.score.to_bits())).collect();
                (
                    answer.conversation_id.to_string(),
                    answer.turn,
                    answer.status,
                    answer.query,
                    answer.answer,
                    hits,
                    answer.stamp,
                )
            })
            .collect();
        assert_eq!(records.len(), asked);
        records.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        assert!(records.iter().any(|record| record.2 == Status::Answered));
        all.push(records);
    }
    assert_eq!(all[0], all[1], "1 and 2 workers");
    assert_eq!(all[0], all[2], "1 and 4 workers");
}
