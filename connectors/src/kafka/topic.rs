//! What a topic is now: its identity, its partitions, and where they begin and end.

use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::bindings as c;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use turnflow_engine::connector::ConnectorError;

use super::client::Consumer;
use crate::remote::passing;

/// How long one question to the brokers may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A topic, as the brokers describe it.
#[derive(Debug)]
pub(super) struct Topic {
    /// Identifies it; see [`is_same`].
    pub(super) log: Arc<str>,
    /// Number of its partitions.
    pub(super) count: usize,
    /// The partitions that were not known.
    pub(super) new: Vec<Watermarks>,
}

/// The records that a partition has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Watermarks {
    pub(super) partition: i32,
    /// The first offset that still exists.
    pub(super) low: i64,
    /// The offset after the last record that is committed.
    pub(super) high: i64,
}

/// Asks the brokers. Blocks for some seconds at most per question.
///
/// # Errors
///
/// The brokers cannot be reached, or the topic does not exist or may not be read.
pub(super) fn look(consumer: &Consumer, topic: &str, known: &[i32]) -> Result<Topic, ConnectorError> {
    let failed = |error: KafkaError| consumer.context().explained(&error);
    let metadata = consumer.fetch_metadata(Some(topic), TIMEOUT).map_err(failed)?;
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let missing = || passing(format!("the topic `{topic}` does not exist"));
    let found = found.ok_or_else(missing)?;
    if let Some(error) = found.error() {
        let code = RDKafkaErrorCode::from(error);
        return Err(match code {
            RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic => missing(),
            code => passing(format!("the topic `{topic}`: {code}")),
        });
    }
    let partitions: Vec<i32> = found.partitions().iter().map(|partition| partition.id()).collect();
    if partitions.is_empty() {
        return Err(missing());
    }
    let mut new = Vec::new();
    for partition in partitions.iter().copied().filter(|partition| !known.contains(partition)) {
        let (low, high) = consumer.fetch_watermarks(topic, partition, TIMEOUT).map_err(failed)?;
        new.push(Watermarks { partition, low, high });
    }
    // Any broker knows the topic. librdkafka would ask the controller, which may be away.
    let broker = match metadata.orig_broker_id() {
        known @ 0.. => known,
        _ => metadata.brokers().first().map_or(0, |broker| broker.id()),
    };
    let log = match topic_id(consumer, topic, broker)? {
        Some(id) => format!("id/{id}"),
        // Brokers before Kafka 2.8 give topics no ids. The clusters are told apart at least.
        None => format!("name/{}/{topic}", consumer.client().fetch_cluster_id(TIMEOUT).unwrap_or_default()),
    };
    Ok(Topic { log: log.into(), count: partitions.len(), new })
}

/// Whether two identities may be those of one topic. An identity by id and one by name are not comparable: the brokers
/// were updated in between.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    let kind = |log: &str| log.split_once('/').map(|(kind, _)| kind.to_owned());
    one == other || kind(one) != kind(other)
}

/// Destroys an object of librdkafka at the end of its scope.
struct Owned<T>(*mut T, unsafe extern "C" fn(*mut T));

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the object was created by librdkafka, is owned by this value, and is destroyed once.
            unsafe { (self.1)(self.0) }
        }
    }
}

/// The topic's id, which is another one after the topic was deleted and created again. `None` if the brokers have no ids.
///
/// # Errors
///
/// The brokers do not answer, or the topic does not exist.
fn topic_id(consumer: &Consumer, topic: &str, broker: i32) -> Result<Option<String>, ConnectorError> {
    let failed = |problem: &str| passing(format!("cannot read the id of the topic `{topic}`: {problem}"));
    let name = CString::new(topic).map_err(|_| failed("its name is not valid"))?;
    let client = consumer.client().native_ptr();
    let milliseconds = i32::try_from(TIMEOUT.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the client outlives every object below, because `consumer` is borrowed. Each object is destroyed once, by
    // `Owned`, in the reverse order. What an event points to is only read while the event lives, and is checked for null.
    unsafe {
        let admin = c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let options = Owned(c::rd_kafka_AdminOptions_new(client, admin), c::rd_kafka_AdminOptions_destroy);
        c::rd_kafka_AdminOptions_set_request_timeout(options.0, milliseconds, ptr::null_mut(), 0);
        c::rd_kafka_AdminOptions_set_broker(options.0, broker, ptr::null_mut(), 0);
        let queue = Owned(c::rd_kafka_queue_new(client), c::rd_kafka_queue_destroy);
        let mut names = [name.as_ptr()];
        let topics = c::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len());
        let topics = Owned(topics, c::rd_kafka_TopicCollection_destroy);
        c::rd_kafka_DescribeTopics(client, topics.0, options.0, queue.0);
        // The request ends by itself; the wait is longer, so that no answer comes to a queue without a reader.
        let event = Owned(c::rd_kafka_queue_poll(queue.0, 2 * milliseconds), c::rd_kafka_event_destroy);
        let result = c::rd_kafka_event_DescribeTopics_result(event.0);
        if event.0.is_null() || result.is_null() {
            return Err(failed("no answer"));
        }
        if c::rd_kafka_event_error(event.0) as i32 != 0 {
            let text = CStr::from_ptr(c::rd_kafka_event_error_string(event.0));
            return Err(failed(&text.to_string_lossy()));
        }
        let mut count = 0;
        let described = c::rd_kafka_DescribeTopics_result_topics(result, &mut count);
        if described.is_null() || count == 0 {
            return Err(failed("no answer"));
        }
        let described = *described;
        let error = c::rd_kafka_TopicDescription_error(described);
        if !error.is_null() && c::rd_kafka_error_code(error) as i32 != 0 {
            return Err(failed(&CStr::from_ptr(c::rd_kafka_error_string(error)).to_string_lossy()));
        }
        let id = c::rd_kafka_TopicDescription_topic_id(described);
        if id.is_null() {
            return Ok(None);
        }
        let is_zero =
            c::rd_kafka_Uuid_most_significant_bits(id) == 0 && c::rd_kafka_Uuid_least_significant_bits(id) == 0;
        let text = CStr::from_ptr(c::rd_kafka_Uuid_base64str(id)).to_string_lossy().into_owned();
        Ok((!is_zero).then_some(text))
    }
}

#[cfg(test)]
impl Topic {
    /// The topic as if it had this number of partitions.
    pub(super) fn up_to(mut self, count: i32) -> Self {
        self.new.retain(|found| found.partition < count);
        self.count = self.count.min(usize::try_from(count).unwrap_or(0));
        self
    }
}
