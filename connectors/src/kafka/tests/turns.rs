//! Tests of the turn source.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rdkafka::types::RDKafkaRespErr;
use turnflow_engine::cluster::Share;
use turnflow_engine::component::TurnSourceConfig;
use turnflow_engine::connector::{Mode, Offsets, SourceOffset, Stop, TurnOutput, TurnSource};
use turnflow_engine::dead_letter::DeadLetters;
use turnflow_engine::spec::from_str;

use super::super::source::{KafkaConfig, KafkaTurns, Place, Problem};
use super::super::topic::Watermarks;
use super::{Cluster, Proxy, context, until};
use crate::testing::Turns;

fn config(brokers: &str, further: &str) -> KafkaConfig {
    from_str(&format!("(brokers: {brokers:?}, topic: \"t\"{further})")).unwrap()
}

fn source(brokers: &str, further: &str) -> KafkaTurns {
    config(brokers, further).source(&context())
}

/// The texts of this number of turns, sorted.
fn sorted(turns: &Turns, count: usize) -> Vec<String> {
    let mut texts: Vec<String> = (0..count).map(|_| turns.text()).collect();
    texts.sort();
    texts
}

fn log(turns: &[turnflow_engine::connector::SourcedTurn]) -> Arc<str> {
    turns[0].place.clone().unwrap().log
}

#[test]
fn each_partition_is_in_order_and_resumes_after_any_of_its_offsets() {
    let cluster = Cluster::start(&[("t", 3)]);
    for number in 0..4 {
        (0..3).for_each(|partition| cluster.turn("t", partition, &format!("{partition}.{number}")));
    }
    let (turns, dead) = Turns::run(source(&cluster.brokers(), ""), Mode::Once).all();
    assert_eq!((turns.len(), dead.len()), (12, 0));
    for partition in 0..3 {
        let of = |turn: &&turnflow_engine::connector::SourcedTurn| {
            *turn.place.as_ref().unwrap().partition == *partition.to_string()
        };
        let read: Vec<_> = turns.iter().filter(of).collect();
        let texts: Vec<_> = read.iter().map(|turn| turn.record.text.to_string()).collect();
        assert_eq!(texts, (0..4).map(|number| format!("{partition}.{number}")).collect::<Vec<_>>());
        assert_eq!(read[2].position, format!("t[{partition}]@2"));
        assert_eq!(read[2].place.as_ref().unwrap().end, 3);
    }
    // Each partition resumes after another offset; one was never read.
    let offset = |partition: &str, end| SourceOffset {
        partition: partition.into(),
        log: log(&turns),
        generation: 2,
        end,
        line: end,
    };
    let offsets: Offsets = [offset("0", 1), offset("2", 4)].into_iter().collect();
    let (turns, _) = Turns::resuming(source(&cluster.brokers(), ", start: End"), Mode::Once, offsets).all();
    let mut texts: Vec<_> = turns.iter().map(|turn| turn.record.text.to_string()).collect();
    texts.sort();
    assert_eq!(texts, ["0.1", "0.2", "0.3", "1.0", "1.1", "1.2", "1.3"]);
    let generations = turns.iter().map(|turn| turn.place.clone().unwrap()).filter(|place| &*place.partition == "0");
    assert!(generations.into_iter().all(|place| place.generation == 2));
}

#[test]
fn a_process_reads_its_partitions_and_where_all_begin() {
    let cluster = Cluster::start(&[("t", 5)]);
    (0..5).for_each(|partition| cluster.turn("t", partition, &format!("old {partition}")));
    let begun = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut all = Vec::new();
    for process in 0..3 {
        let mut source = source(&cluster.brokers(), "");
        source.reader.share = Share::new(process, 3);
        let (turns, _) = Turns::run(source, Mode::Once).all();
        all.push(turns.iter().map(|turn| turn.record.text.to_string()).collect::<BTreeSet<_>>());
    }
    let texts = |partitions: &[i32]| partitions.iter().map(|partition| format!("old {partition}")).collect();
    assert_eq!(all, [texts(&[0, 3]), texts(&[1, 4]), texts(&[2])]);
    // More processes than partitions: it reads nothing, and knows where the partitions of the others begin. So a process
    // that is killed at once does not make them look like later ones.
    let (of_output, (sender, turns), (_handle, stop)) = (begun.clone(), crossbeam_channel::unbounded(), Stop::new());
    let output = TurnOutput::new(sender, Arc::new(|| {}), DeadLetters::counted(), "turns".into(), stop)
        .beginning(Arc::new(move |offsets| of_output.lock().push(offsets)));
    let mut source = source(&cluster.brokers(), ", start: End");
    source.reader.share = Share::new(6, 7);
    Box::new(source).run(Mode::Once, output).unwrap();
    let begun = begun.lock();
    let ends: Vec<_> = begun[0].iter().map(|offset| (offset.partition.to_string(), offset.end)).collect();
    assert_eq!((begun.len(), turns.len()), (1, 0));
    assert_eq!(ends, (0..5).map(|partition| (partition.to_string(), 1)).collect::<Vec<_>>());
}

#[test]
fn it_follows_and_finds_new_partitions() {
    let cluster = Cluster::start(&[("t", 2)]);
    cluster.turn("t", 0, "old");
    let mut source = source(&cluster.brokers(), ", start: End");
    let visible = Arc::new(AtomicI32::new(1));
    source.reader.visible = Some(visible.clone());
    let turns = Turns::run(source, Mode::Follow);
    // The end is found before the next record is there, or after it.
    let mut number = 0;
    until("no turn", || {
        number += 1;
        cluster.turn("t", 0, &format!("{number}"));
        std::thread::sleep(Duration::from_millis(50));
        turns.waiting() > 0
    });
    assert_ne!(turns.text(), "old");
    cluster.turn("t", 1, "in the new partition");
    visible.store(2, Ordering::Release);
    while turns.next() != ("in the new partition".to_owned(), "t[1]@0".to_owned()) {}
    turns.end(true).unwrap_err();
}

#[test]
fn a_bad_record_is_a_dead_letter_and_a_tombstone_is_skipped() {
    let cluster = Cluster::start(&[("t", 1)]);
    cluster.turn("t", 0, "one");
    cluster.put("t", 0, Some("c"), None);
    cluster.put("t", 0, None, Some(b"{no turn"));
    cluster.put("t", 0, None, Some(&[b' '; 300]));
    cluster.turn("t", 0, "two");
    let (turns, dead) = Turns::run(source(&cluster.brokers(), ", max_bytes: 200"), Mode::Once).all();
    let texts: Vec<_> = turns.iter().map(|turn| turn.record.text.to_string()).collect();
    assert_eq!(texts, ["one", "two"]);
    assert_eq!(turns[1].place.as_ref().unwrap().end, 5);
    assert!(dead[0].starts_with("t[0]@2: "), "{dead:?}");
    assert_eq!(dead[1], "t[0]@3: the record has 300 bytes, more than 200");
    assert_eq!(dead.len(), 2);
}

#[test]
fn nothing_is_lost_or_repeated_while_the_broker_is_away() {
    let cluster = Cluster::start(&[("t", 2)]);
    let turns = Turns::run(source(&cluster.brokers(), ""), Mode::Follow);
    for round in 0..2 {
        (0..10).for_each(|number| cluster.turn("t", number % 2, &format!("{round}.{number}")));
        let sent: Vec<_> = (0..10).map(|number| format!("{round}.{number}")).collect();
        assert_eq!(sorted(&turns, 10), sent);
        cluster.mock().broker_down(1).unwrap();
        // Long enough for several attempts to connect.
        std::thread::sleep(Duration::from_secs(2));
        cluster.mock().broker_up(1).unwrap();
    }
    cluster.turn("t", 0, "last");
    assert_eq!(turns.next(), ("last".to_owned(), "t[0]@10".to_owned()));
    assert_eq!(turns.waiting(), 0);
    turns.end(true).unwrap_err();
}

#[test]
fn a_broker_that_is_away_at_the_start_is_waited_for() {
    let cluster = Cluster::start(&[("t", 1)]);
    cluster.turn("t", 0, "one");
    let brokers = cluster.brokers();
    cluster.mock().broker_down(1).unwrap();
    let turns = Turns::run(source(&brokers, ""), Mode::Follow);
    std::thread::sleep(Duration::from_secs(1));
    cluster.mock().broker_up(1).unwrap();
    assert_eq!(turns.text(), "one");
    turns.end(true).unwrap_err();
}

#[test]
fn a_topic_that_is_missing_for_a_while_is_read_on() {
    let cluster = Cluster::start(&[("t", 1)]);
    cluster.turn("t", 0, "one");
    let turns = Turns::run(source(&cluster.brokers(), ""), Mode::Follow);
    assert_eq!(turns.text(), "one");
    cluster.mock().topic_error("t", RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    cluster.mock().topic_error("t", RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
    cluster.turn("t", 0, "two");
    let turn = turns.take();
    assert_eq!((&*turn.record.text, turn.place.unwrap().generation), ("two", 0));
    assert_eq!(turns.waiting(), 0);
    turns.end(true).unwrap_err();
}

#[test]
fn a_topic_that_was_created_again_is_read_from_its_beginning() {
    let (proxy, old) = (Proxy::start(), Cluster::start(&[("t", 1)]));
    for text in ["one", "two", "three"] {
        old.turn("t", 0, text);
    }
    proxy.exchange(Some(&old));
    let turns = Turns::run(source(&proxy.brokers(), ""), Mode::Follow);
    assert_eq!(sorted(&turns, 3), ["one", "three", "two"]);
    // The new topic has as many records, so that the offsets do not show the difference.
    let new = Cluster::start(&[("t", 1)]);
    for text in ["a", "b", "c"] {
        new.turn("t", 0, text);
    }
    proxy.exchange(None);
    proxy.exchange(Some(&new));
    for (number, text) in ["a", "b", "c"].into_iter().enumerate() {
        let turn = turns.take();
        let place = turn.place.unwrap();
        assert_eq!((&*turn.record.text, place.generation, place.end), (text, 1, number as u64 + 1));
    }
    turns.end(true).unwrap_err();
}

#[test]
fn records_that_the_brokers_removed_are_skipped() {
    let cluster = Cluster::start(&[("t", 1)]);
    cluster.turn("t", 0, "first");
    let (turns, _) = Turns::run(source(&cluster.brokers(), ""), Mode::Once).all();
    let resume = turns[0].place.clone().unwrap();
    // The mock cluster keeps 5 MiB of a partition.
    let large = vec![b' '; 1 << 20];
    (0..8).for_each(|_| cluster.put("t", 0, None, Some(&large)));
    cluster.turn("t", 0, "last");
    let offsets = Offsets::from(resume);
    let (turns, dead) = Turns::resuming(source(&cluster.brokers(), ""), Mode::Once, offsets).all();
    let place = turns[0].place.clone().unwrap();
    assert_eq!((turns.len(), &*turns[0].record.text, place.generation, place.end), (1, "last", 0, 10));
    assert!(dead.is_empty());
}

#[test]
fn a_place_is_compared_with_what_the_partition_has_now() {
    let place = |log: &str, generation, next| Place { log: log.into(), generation, next };
    let resumed = |next, low, high, log: &str| {
        place("id/a", 3, next).resumed(&log.into(), &Watermarks { partition: 0, low, high })
    };
    assert_eq!(resumed(5, 0, 9, "id/a"), (place("id/a", 3, 5), None));
    assert_eq!(resumed(9, 0, 9, "id/a"), (place("id/a", 3, 9), None));
    assert_eq!(resumed(5, 7, 9, "id/a"), (place("id/a", 3, 7), Some(Problem::Lost(2))));
    assert_eq!(resumed(5, 0, 4, "id/a"), (place("id/a", 4, 0), Some(Problem::Replaced)));
    assert_eq!(resumed(5, 2, 9, "id/b"), (place("id/b", 4, 2), Some(Problem::Replaced)));
    // The brokers were updated and now give ids.
    assert_eq!(resumed(5, 0, 9, "name/c/t"), (place("name/c/t", 3, 5), None));
}

#[test]
fn a_source_that_waits_for_the_engine_is_not_thrown_out() {
    let cluster = Cluster::start(&[("t", 1)]);
    (0..50).for_each(|number| cluster.turn("t", 0, &format!("{number:02}")));
    // A member of a group would have to poll each second.
    let further =
        ", group: Some(\"g\"), properties: {\"max.poll.interval.ms\": \"1000\", \"session.timeout.ms\": \"1000\"}";
    let (turns, thread) = bounded(source(&cluster.brokers(), further));
    let first = turns.recv_timeout(crate::testing::PATIENCE).unwrap();
    assert_eq!(&*first.turn.record.text, "00");
    std::thread::sleep(Duration::from_secs(3));
    for number in 1..50 {
        let next = turns.recv_timeout(crate::testing::PATIENCE).unwrap();
        assert_eq!(&*next.turn.record.text, format!("{number:02}"));
    }
    thread.join().unwrap().unwrap();
}

type Thread = std::thread::JoinHandle<Result<(), turnflow_engine::connector::ConnectorError>>;

/// Runs a source whose turns must be taken one by one.
fn bounded(source: KafkaTurns) -> (crossbeam_channel::Receiver<turnflow_engine::connector::Arrived>, Thread) {
    use turnflow_engine::connector::{Stop, TurnOutput, TurnSource};
    let (sender, turns) = crossbeam_channel::bounded(1);
    let (handle, stop) = Stop::new();
    let dead = turnflow_engine::dead_letter::DeadLetters::counted();
    let output = TurnOutput::new(sender, Arc::new(|| {}), dead, "turns".into(), stop);
    let thread = std::thread::spawn(move || {
        let _handle = handle;
        Box::new(source).run(Mode::Once, output)
    });
    (turns, thread)
}

#[test]
fn wrong_settings_are_found_and_secrets_are_not_shown() {
    let problems = |config: &KafkaConfig| {
        let found = config.connection().problems();
        found.iter().map(|(field, problem)| format!("{field}: {problem}")).collect::<Vec<_>>().join("\n")
    };
    let sasl = ", properties: {\"security.protocol\": \"SASL_SSL\", \"sasl.username\": \"me\"}, \
                secrets: {\"sasl.password\": Env(\"KAFKA_PASSWORD\")}";
    assert_eq!(problems(&config("a:9092,b:9092", sasl)), "");
    let explained = config("a:9092", sasl).explain();
    assert!(explained.contains("sasl.password") && !explained.contains("KAFKA_PASSWORD"), "{explained}");
    for (further, problem) in [
        (", properties: {\"group.id\": \"g\"}", "`group.id` cannot be set"),
        (", properties: {\"sasl.password\": \"p\"}", "belongs into `secrets`"),
        (", properties: {\"no.such\": \"p\"}", "No such configuration property"),
        (", properties: {\"security.protocol\": \"WRONG\"}", "security.protocol"),
        (", secrets: {\"no.such\": Env(\"A\")}", "No such configuration property"),
    ] {
        let found = problems(&config("a:9092", further));
        assert!(found.contains(problem), "{further}: {found}");
    }
    assert!(problems(&config("a:9092, b", "")).contains("`brokers`"));
}
