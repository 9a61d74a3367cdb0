//! Tests with librdkafka's mock cluster: brokers in this process that speak Kafka's protocol.

mod corpus;
mod sink;
mod turns;

use std::collections::HashMap;
use std::ffi::CString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Headers, Message};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::runtime::Runtime;
use turnflow_engine::component::ComponentContext;

use crate::testing::PATIENCE;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());

/// What a source gets from the engine.
pub(crate) fn context() -> ComponentContext {
    ComponentContext::alone("kafka", RUNTIME.handle().clone())
}

/// A record as the brokers have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) partition: i32,
    pub(crate) key: Option<String>,
    pub(crate) value: Vec<u8>,
    pub(crate) headers: Vec<(String, String)>,
}

/// A cluster of one broker, and a producer.
pub(crate) struct Cluster {
    producer: BaseProducer,
}

impl Cluster {
    /// Starts a cluster with these topics, given with their numbers of partitions.
    pub(crate) fn start(topics: &[(&str, i32)]) -> Self {
        let producer: BaseProducer = ClientConfig::new()
            .set("test.mock.num.brokers", "1")
            .set("linger.ms", "0")
            .set("message.max.bytes", "67108864")
            .create()
            .unwrap();
        let cluster = Self { producer };
        for (topic, partitions) in topics {
            cluster.mock().create_topic(topic, *partitions, 1).unwrap();
        }
        cluster
    }

    pub(crate) fn mock(&self) -> MockCluster<'_, DefaultProducerContext> {
        self.producer.client().mock_cluster().unwrap()
    }

    pub(crate) fn brokers(&self) -> String {
        self.mock().bootstrap_servers()
    }

    /// Appends a record.
    pub(crate) fn put(&self, topic: &str, partition: i32, key: Option<&str>, value: Option<&[u8]>) {
        let mut record = BaseRecord::<str, [u8]>::to(topic).partition(partition);
        record.key = key;
        record.payload = value;
        self.producer.send(record).map_err(|(error, _)| error).unwrap();
        self.producer.flush(PATIENCE).unwrap();
    }

    /// Appends a turn with this text.
    pub(crate) fn turn(&self, topic: &str, partition: i32, text: &str) {
        self.put(topic, partition, Some("c"), Some(crate::testing::turn(text).as_bytes()));
    }

    fn port(&self) -> u16 {
        self.brokers().rsplit(':').next().unwrap().parse().unwrap()
    }

    /// Advertises another port than its own.
    fn advertise(&self, port: u16) {
        let host = CString::new("127.0.0.1").unwrap();
        // SAFETY: the cluster belongs to the producer, which lives; librdkafka copies the host.
        unsafe {
            let cluster = rdkafka::bindings::rd_kafka_handle_mock_cluster(self.producer.client().native_ptr());
            rdkafka::bindings::rd_kafka_mock_broker_set_host_port(cluster, 1, host.as_ptr(), port.into());
        }
    }
}

/// Every record of a topic that exists now, in the order of each partition.
pub(crate) fn stored(brokers: &str, topic: &str) -> Vec<Stored> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).unwrap();
    let mut list = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        list.add_partition_offset(topic, partition.id(), Offset::Beginning).unwrap();
    }
    consumer.assign(&list).unwrap();
    let (mut ended, mut records) = (0, Vec::new());
    let until = Instant::now() + PATIENCE;
    while ended < list.count() {
        assert!(Instant::now() < until, "the topic has no end");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(record)) => records.push(Stored {
                partition: record.partition(),
                key: record.key().map(|key| String::from_utf8_lossy(key).into_owned()),
                value: record.payload().unwrap_or_default().to_vec(),
                headers: record.headers().into_iter().flat_map(|headers| headers.iter()).map(header).collect(),
            }),
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) => ended += 1,
            _ => {}
        }
    }
    records
}

fn header(header: rdkafka::message::Header<'_, &[u8]>) -> (String, String) {
    (header.key.to_owned(), String::from_utf8_lossy(header.value.unwrap_or_default()).into_owned())
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The brokers of the conformance tests, by the directory of a case. They live as long as the process.
static CONFORMING: LazyLock<Mutex<HashMap<std::path::PathBuf, String>>> = LazyLock::new(Mutex::default);

/// The brokers with a topic `t` of one partition that has these records: key and value. A second call for a directory
/// returns the same brokers.
pub(crate) fn conforming<'a>(base: &Path, records: impl Iterator<Item = (Option<String>, &'a [u8])>) -> String {
    let mut all = CONFORMING.lock().unwrap();
    let start = || {
        let cluster = Cluster::start(&[("t", 1)]);
        for (key, value) in records {
            let mut record = BaseRecord::<str, [u8]>::to("t").partition(0).payload(value);
            record.key = key.as_deref();
            cluster.producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        cluster.producer.flush(PATIENCE).unwrap();
        let brokers = cluster.brokers();
        std::mem::forget(cluster);
        brokers
    };
    all.entry(base.to_owned()).or_insert_with(start).clone()
}

/// Forwards connections to a broker that can be exchanged for another one, at the same address.
struct Proxy {
    port: u16,
    /// The broker's port; 0 while it is away.
    target: Arc<AtomicU16>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (target, open) = (Arc::new(AtomicU16::new(0)), Arc::new(Mutex::new(Vec::new())));
        let proxy = Self { port, target: target.clone(), open: open.clone() };
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut open = open.lock().unwrap();
                let port = target.load(Ordering::Acquire);
                if port == 0 {
                    continue;
                }
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
                open.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                forward(client.try_clone().unwrap(), server.try_clone().unwrap());
                forward(server, client);
            }
        });
        proxy
    }

    fn brokers(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends all connections; later ones go to this cluster, or nowhere.
    fn exchange(&self, cluster: Option<&Cluster>) {
        let port = cluster.map_or(0, |cluster| {
            cluster.advertise(self.port);
            cluster.port()
        });
        let mut open = self.open.lock().unwrap();
        self.target.store(port, Ordering::Release);
        for stream in open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let mut bytes = [0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
