//! Tests of the sink.

use std::sync::atomic::AtomicUsize;

use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use turnflow_engine::component::SinkConfig;
use turnflow_engine::connector::{AnswerSink, ConnectorError, Delivery};
use turnflow_engine::record::AnswerRecord;
use turnflow_engine::spec::from_str;

use super::super::sink::{KafkaSink, KafkaSinkConfig};
use super::{Cluster, RUNTIME, stored};
use crate::remote::may_pass;
use crate::testing::answer;

fn config(brokers: &str, further: &str) -> KafkaSinkConfig {
    from_str(&format!("(input: \"a\", brokers: {brokers:?}, topic: \"answers\", timeout_s: 2{further})")).unwrap()
}

fn answers(count: usize) -> Vec<AnswerRecord> {
    let one = |number| AnswerRecord {
        key: format!("k{number}").into(),
        conversation_id: format!("c{}", number % 5).into(),
        answer: format!("Answer {number}.").into(),
        ..answer()
    };
    (0..count).map(one).collect()
}

fn deliver(sink: &mut KafkaSink, answers: &[AnswerRecord]) -> (usize, Result<(), ConnectorError>) {
    let taken = AtomicUsize::new(0);
    let result = RUNTIME.block_on(sink.deliver(Delivery::new(answers, &taken)));
    (taken.into_inner(), result)
}

#[test]
fn answers_are_there_with_their_keys_and_in_order() {
    let cluster = Cluster::start(&[("answers", 3)]);
    let mut sink = config(&cluster.brokers(), "").sink().unwrap();
    let sent = answers(50);
    for group in sent.chunks(20) {
        let (took, result) = deliver(&mut sink, group);
        result.unwrap();
        assert_eq!(took, group.len());
    }
    let records = stored(&cluster.brokers(), "answers");
    assert_eq!(records.len(), 50);
    for conversation in 0..5 {
        let key = format!("c{conversation}");
        let of: Vec<_> = records.iter().filter(|record| record.key.as_deref() == Some(&key)).collect();
        assert!(of.iter().all(|record| record.partition == of[0].partition));
        let found: Vec<AnswerRecord> = of.iter().map(|record| serde_json::from_slice(&record.value).unwrap()).collect();
        let expected: Vec<_> = sent.iter().filter(|answer| *answer.conversation_id == *key).cloned().collect();
        assert_eq!(found, expected);
        let keys: Vec<_> = of.iter().map(|record| record.headers.clone()).collect();
        let key_of =
            |answer: &AnswerRecord| AnswerRecord::delivery_key(&answer.key, answer.revision.into(), answer.retracted);
        let expected: Vec<_> =
            expected.iter().map(|answer| vec![("turnflow-key".to_owned(), key_of(answer))]).collect();
        assert_eq!(keys, expected);
    }
}

#[test]
fn a_broker_that_is_away_is_an_error_that_passes() {
    let cluster = Cluster::start(&[("answers", 1)]);
    let mut sink = config(&cluster.brokers(), "").sink().unwrap();
    let sent = answers(4);
    let brokers = cluster.brokers();
    deliver(&mut sink, &sent[..1]).1.unwrap();
    cluster.mock().broker_down(1).unwrap();
    let (took, result) = deliver(&mut sink, &sent[1..]);
    let error = result.unwrap_err();
    assert!(took == 0 && may_pass(&error), "{took} {error}");
    cluster.mock().broker_up(1).unwrap();
    deliver(&mut sink, &sent[1..]).1.unwrap();
    let keys: Vec<_> = stored(&brokers, "answers").into_iter().map(|record| record.headers[0].1.clone()).collect();
    assert_eq!(keys, ["k0", "k1", "k2", "k3"]);
}

#[test]
fn an_answer_that_is_too_large_is_refused_and_the_others_are_not() {
    let cluster = Cluster::start(&[("answers", 1)]);
    let mut sink = config(&cluster.brokers(), "").sink().unwrap();
    let sent = answers(3);
    deliver(&mut sink, &sent[..1]).1.unwrap();
    // The brokers refuse the batch, and then each answer alone, once.
    let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.mock().request_errors(RDKafkaApiKey::Produce, &[too_large]);
    let (took, result) = deliver(&mut sink, &sent[1..]);
    result.unwrap();
    assert_eq!(took, 2);
    cluster.mock().request_errors(RDKafkaApiKey::Produce, &[too_large]);
    let (took, result) = deliver(&mut sink, &sent[1..2]);
    assert!(took == 0 && matches!(result, Err(ConnectorError::Refused { .. })), "{result:?}");
    // The client itself has a limit, too.
    let mut sink = config(&cluster.brokers(), ", properties: {\"message.max.bytes\": \"2000\"}").sink().unwrap();
    let mut mixed = answers(3);
    mixed[1].answer = "long ".repeat(1000).into();
    let (took, result) = deliver(&mut sink, &mixed);
    assert!(took == 1 && matches!(result, Err(ConnectorError::Refused { .. })), "{took} {result:?}");
    deliver(&mut sink, &mixed[2..]).1.unwrap();
}

#[test]
fn a_producer_is_created_again_after_a_fatal_error() {
    let cluster = Cluster::start(&[("answers", 1)]);
    let mut sink = config(&cluster.brokers(), "").sink().unwrap();
    let sent = answers(3);
    deliver(&mut sink, &sent[..1]).1.unwrap();
    // An idempotent producer does not work any more after this error.
    cluster
        .mock()
        .request_errors(RDKafkaApiKey::Produce, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER]);
    let (mut took, mut result) = deliver(&mut sink, &sent[1..]);
    if let Err(error) = &result {
        assert!(may_pass(error), "{error}");
        (took, result) = deliver(&mut sink, &sent[1..]);
    }
    result.unwrap();
    assert_eq!(took, 2);
}

#[test]
fn secrets_are_in_no_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hush-hush").unwrap();
    // A key that is no key, so that librdkafka refuses the settings.
    let further = format!(
        ", properties: {{\"security.protocol\": \"SSL\"}}, secrets: {{\"ssl.key.pem\": File({:?})}}",
        file.path()
    );
    let config = config("127.0.0.1:1", &further);
    assert!(!config.explain().contains("hush"));
    let (_, result) = deliver(&mut config.sink().unwrap(), &answers(1));
    let error = result.unwrap_err();
    assert!(
        may_pass(&error) && !error.to_string().contains("hush") && !format!("{error:?}").contains("hush"),
        "{error}"
    );
    std::fs::remove_file(file.path()).unwrap();
    let (_, result) = deliver(&mut config.sink().unwrap(), &answers(1));
    assert!(result.unwrap_err().to_string().contains("cannot read the secret"));
}
