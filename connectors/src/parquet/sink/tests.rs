use std::fs;
use std::sync::atomic::AtomicUsize;

use serde_json::json;
use turnflow_engine::record::Status;
use turnflow_engine::spec::from_str;

use turnflow_engine::record::AnswerRecord;

use super::*;
use crate::testing::{PATIENCE, answer, runtime};

pub(crate) fn sink(base: &Path, fields: &str) -> ParquetSink {
    let config = format!("(input: \"a\", path: \"out\"{fields})");
    from_str::<ParquetSinkConfig>(&config).unwrap().sink(base).unwrap()
}

/// All answers of a directory, in closed files and in the open one.
pub(crate) fn stored(directory: &Path) -> Vec<AnswerRecord> {
    let mut answers = Vec::new();
    for (_, path) in store::closed(directory).unwrap() {
        let rows = rows::count(&path).unwrap();
        answers.extend((0..rows).map(|row| rows::read(&path, row).unwrap()));
    }
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            let text = fs::read_to_string(path).unwrap();
            answers.extend(text.lines().map(|line| serde_json::from_str::<AnswerRecord>(line).unwrap()));
        }
    }
    answers
}

fn numbered(number: u32) -> AnswerRecord {
    AnswerRecord { key: format!("k{number}").into(), turn: number, ..answer() }
}

fn deliver(sink: &mut ParquetSink, answers: &[AnswerRecord]) -> Result<(), ConnectorError> {
    let taken = AtomicUsize::new(0);
    runtime().block_on(sink.deliver(Delivery::new(answers, &taken)))
}

fn keys(directory: &Path) -> Vec<String> {
    stored(directory).iter().map(|answer| answer.key.to_string()).collect()
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// What a process leaves that is killed now.
fn killed(directory: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("out")).unwrap();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join("out").join(path.file_name().unwrap())).unwrap();
    }
    copy
}

#[test]
fn every_field_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut full = answer();
    full.error = Some("why".into());
    full.checks = json!({"nli": {"score": 0.5}}).as_object().unwrap().clone();
    full.extra = json!({"channel": "web", "principal": {"groups": ["a"]}}).as_object().unwrap().clone();
    full.hits[0].metadata = serde_json::from_value(json!({"lang": "en", "year": 2026})).unwrap();
    full.hits.push(full.hits[0].clone());
    full.hits[1].score = f32::MIN_POSITIVE;
    let none = AnswerRecord { hits: Vec::new(), status: Status::Idk, key: "other".into(), ..answer() };
    let retracted = AnswerRecord { retracted: true, withdrawn: true, revision: 3, ..answer() };
    let answers = [full, none, retracted];
    let mut sink = sink(directory.path(), "");
    deliver(&mut sink, &answers).unwrap();
    drop(sink);
    assert_eq!(names(&directory.path().join("out")), ["_answers.json", "answers-000000000001.parquet"]);
    assert_eq!(stored(&directory.path().join("out")), answers);
}

#[test]
fn other_programs_read_the_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), ", max_answers: 2");
    deliver(&mut sink, &(1..=5).map(numbered).collect::<Vec<_>>()).unwrap();
    let script = "import sys, pyarrow.dataset as d\n\
                  t = d.dataset(sys.argv[1]).to_table().to_pylist()\n\
                  print([(r['key'], r['hits'][0]['passage'], r['stamp']['epoch']) for r in t])";
    let python = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(directory.path().join("out"))
        .output()
        .map(|output| (output.status.success(), output));
    match python {
        Ok((true, output)) => {
            let printed = String::from_utf8(output.stdout).unwrap();
            // The last answer is in the open file.
            let hit = &answer().hits[0].passage;
            let row = |number| format!("('k{number}', '{hit}', {})", answer().stamp.epoch);
            let rows: Vec<String> = (1..=4).map(row).collect();
            assert_eq!(printed.trim(), format!("[{}]", rows.join(", ")));
        }
        failed => println!("skipped: there is no pyarrow here: {failed:?}"),
    }
}

#[test]
fn files_are_closed_when_they_are_full_or_old() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let mut counted = sink(directory.path(), ", max_answers: 2");
    deliver(&mut counted, &(1..=5).map(numbered).collect::<Vec<_>>()).unwrap();
    assert_eq!(
        names(&out),
        ["_answers.json", "_open-000000000005.jsonl", "answers-000000000001.parquet", "answers-000000000003.parquet"]
    );
    // A reload builds the next sink while this one runs: they share the open file.
    let mut other = sink(directory.path(), ", max_seconds: 0.1");
    deliver(&mut other, &[numbered(6)]).unwrap();
    drop(counted);
    let until = std::time::Instant::now() + PATIENCE;
    while !out.join("answers-000000000005.parquet").exists() {
        assert!(std::time::Instant::now() < until, "{:?}", names(&out));
        std::thread::sleep(Duration::from_millis(5));
    }
    deliver(&mut other, &[numbered(7)]).unwrap();
    drop(other);
    assert_eq!(names(&out).last().unwrap(), "answers-000000000007.parquet");
    assert_eq!(keys(&out), ["k1", "k2", "k3", "k4", "k5", "k6", "k7"]);
}

#[test]
fn a_restart_after_a_kill_has_each_answer_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), ", max_answers: 3");
    let mut marks = vec![sink.mark()];
    for number in 1..=8 {
        deliver(&mut sink, &[numbered(number)]).unwrap();
        marks.push(sink.mark());
        for (covered, mark) in marks.iter().enumerate() {
            let copy = killed(&directory.path().join("out"));
            let out = copy.path().join("out");
            let mut again = super::tests::sink(copy.path(), ", max_answers: 3");
            let search = Search { since: Some(mark), ..Search::default() };
            let Recovered { is_there, answers: mut found } = again.recover(search).unwrap();
            assert!(is_there && found.count() == number as usize - covered, "{number} {covered}");
            // The turns after the checkpoint are read again, and one more.
            for next in covered as u32 + 1..=number + 1 {
                let answer = numbered(next);
                let is_found = found.found(&answer.key).is_some();
                assert_eq!(is_found, next <= number);
                assert_eq!(found.record(&answer.key), is_found.then(|| answer.clone()));
                if !is_found {
                    deliver(&mut again, &[answer]).unwrap();
                }
            }
            drop(again);
            assert_eq!(keys(&out), (1..=number + 1).map(|number| format!("k{number}")).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_kill_while_a_file_is_closed_leaves_each_answer_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = sink(directory.path(), "");
    deliver(&mut sink, &[numbered(1), numbered(2)]).unwrap();
    let mark = sink.mark();
    deliver(&mut sink, &[numbered(3)]).unwrap();
    let open = directory.path().join("out/_open-000000000001.jsonl");
    let lines = fs::read(&open).unwrap();
    drop(sink);
    let closed = fs::read(directory.path().join("out/answers-000000000001.parquet")).unwrap();
    let about = fs::read_to_string(directory.path().join("out/_answers.json")).unwrap();
    let before = about.replace("\"next\":4", "\"next\":1");
    assert_ne!(about, before);
    let torn = [&lines[..], b"{\"conversation_id\": \"c"].concat();
    let new = "_answers-000000000001.parquet.new";
    let (staged, parquet) = ("_open-000000000001.jsonl", "answers-000000000001.parquet");
    let steps: [&[(&str, &[u8])]; 7] = [
        &[(staged, &torn), (ABOUT, before.as_bytes())],
        &[(staged, &lines[..lines.len() - 1]), (ABOUT, before.as_bytes())],
        &[(staged, &lines), (new, &closed[..closed.len() / 2]), (ABOUT, before.as_bytes())],
        &[(staged, &lines), (new, &closed), (ABOUT, before.as_bytes())],
        &[(staged, &lines), (parquet, &closed), (ABOUT, before.as_bytes())],
        &[(staged, &lines), (parquet, &closed), (ABOUT, about.as_bytes())],
        &[(parquet, &closed), (ABOUT, about.as_bytes())],
    ];
    for (number, files) in steps.iter().enumerate() {
        let copy = tempfile::tempdir().unwrap();
        let out = copy.path().join("out");
        fs::create_dir(&out).unwrap();
        files.iter().for_each(|(name, bytes)| fs::write(out.join(name), bytes).unwrap());
        let mut again = super::tests::sink(copy.path(), "");
        let found = again.recover(Search { since: Some(&mark), ..Search::default() }).unwrap();
        assert!(found.is_there && found.answers.count() == 1, "{number}");
        assert_eq!((keys(&out), again.mark().length), (vec!["k1".into(), "k2".into(), "k3".into()], 3), "{number}");
        drop(again);
        assert_eq!(names(&out), ["_answers.json", "answers-000000000001.parquet"], "{number}");
    }
}

#[test]
fn an_answer_with_a_score_that_is_no_number_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let mut one = sink(directory.path(), "");
    let mark = one.mark();
    let mut answer = numbered(1);
    let hit = serde_json::json!({"passage": "p", "document": "d", "score": 1.0, "text": "t"});
    answer.hits = vec![serde_json::from_value(hit).unwrap()];
    let mut with = |score: f32, key: &str| {
        answer.hits[0].score = score;
        answer.key = key.into();
        deliver(&mut one, std::slice::from_ref(&answer)).unwrap();
    };
    with(f32::NAN, "k1");
    with(f32::INFINITY, "k2");
    with(0.5, "k3");
    drop(one);
    assert_eq!(keys(&out), ["k1", "k2", "k3"]);
    let mut one = sink(directory.path(), "");
    let mut found = one.recover(Search { since: Some(&mark), ..Search::default() }).unwrap();
    assert!(found.answers.record("k2").unwrap().hits[0].score.is_nan());
    assert_eq!(found.answers.record("k3").unwrap().hits[0].score, 0.5);
}

#[test]
fn closed_files_may_be_taken_away() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let mut one = sink(directory.path(), ", max_answers: 1");
    deliver(&mut one, &[numbered(1), numbered(2)]).unwrap();
    let mark = one.mark();
    drop(one);
    fs::remove_file(out.join("answers-000000000001.parquet")).unwrap();
    fs::remove_file(out.join("answers-000000000002.parquet")).unwrap();
    let mut one = sink(directory.path(), "");
    let found = one.recover(Search { since: Some(&mark), ..Search::default() }).unwrap();
    assert!(found.is_there && found.answers.count() == 0);
    assert_eq!(one.mark(), mark);
    deliver(&mut one, &[numbered(3)]).unwrap();
    drop(one);
    assert_eq!(names(&out), ["_answers.json", "answers-000000000003.parquet"]);
    // Without the directory, its answers are gone too.
    fs::remove_dir_all(&out).unwrap();
    let mut one = sink(directory.path(), "");
    assert!(!one.recover(Search { since: Some(&mark), ..Search::default() }).unwrap().is_there);
}

#[test]
fn the_former_directory_is_searched() {
    let directory = tempfile::tempdir().unwrap();
    let mut former = sink(directory.path(), "");
    let mark = former.mark();
    deliver(&mut former, &[numbered(1)]).unwrap();
    drop(former);
    let config = from_str::<ParquetSinkConfig>("(input: \"a\", path: \"other\")").unwrap();
    let mut other = config.sink(directory.path()).unwrap();
    let mut found = other.recover(Search { since: Some(&mark), ..Search::default() }).unwrap();
    assert!(found.is_there && found.answers.found("k1").is_some());
    let mut found = other.recover(Search { former: std::slice::from_ref(&mark), ..Search::default() }).unwrap();
    assert!(found.is_there && found.answers.found("k1").is_some());
    let others = [directory.path().join("out").join(ABOUT)];
    let found = other.recover(Search { since: Some(&mark), others: &others, ..Search::default() }).unwrap();
    assert!(!found.is_there && found.answers.count() == 0);
    // A kill leaves an open file there.
    let closed = fs::read_dir(directory.path().join("out")).unwrap().map(|entry| entry.unwrap().path());
    let closed = closed.filter(|path| path.extension().is_some_and(|end| end == "parquet")).max().unwrap();
    fs::remove_file(closed).unwrap();
    let line = serde_json::to_string(&numbered(1)).unwrap();
    fs::write(directory.path().join("out/_open-000000000001.jsonl"), line + "\n").unwrap();
    let about = directory.path().join("out").join(ABOUT);
    fs::write(&about, fs::read_to_string(&about).unwrap().replace("\"next\":2", "\"next\":1")).unwrap();
    let mut found = other.recover(Search { since: Some(&mark), ..Search::default() }).unwrap();
    assert!(found.is_there && found.answers.found("k1").is_some());
    // A directory that was renamed is the same one.
    drop(other);
    fs::rename(directory.path().join("out"), directory.path().join("renamed")).unwrap();
    let config = from_str::<ParquetSinkConfig>("(input: \"a\", path: \"renamed\")").unwrap();
    let mut renamed = config.sink(directory.path()).unwrap();
    let mut found = renamed.recover(Search { since: Some(&mark), ..Search::default() }).unwrap();
    assert!(found.is_there && found.answers.found("k1").is_some());
}

#[test]
fn what_is_no_directory_of_answers_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join(ABOUT), "[]").unwrap();
    let config = from_str::<ParquetSinkConfig>("(input: \"a\", path: \"out\")").unwrap();
    let error = config.sink(directory.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("_answers.json"), "{error}");
    fs::write(out.join(ABOUT), "").unwrap();
    fs::write(out.join("answers-000000000001.parquet"), "PAR1").unwrap();
    let error = config.sink(directory.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("answers-000000000001.parquet"), "{error}");
}
