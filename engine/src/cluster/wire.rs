//! What the processes of a cluster send each other.

use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that are sent as a whole, not one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes(pub Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Bytes;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }
        }
        deserializer.deserialize_byte_buf(Whole)
    }
}

/// Encodes a value for another process of the same version.
pub(crate) fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Bytes, String> {
    bincode::serialize(value).map(Bytes).map_err(|error| format!("cannot encode a message: {error}"))
}

/// Decodes a value from another process of the same version.
pub(crate) fn decode<T: for<'de> Deserialize<'de>>(bytes: &Bytes) -> Result<T, String> {
    bincode::deserialize(&bytes.0).map_err(|error| format!("cannot decode a message: {error}"))
}

/// What the first process tells the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// No more turns come.
    Finish {
        /// Whether documents that are not indexed yet are left to a restart.
        stopping: bool,
    },
    /// Nothing more is sent.
    Close,
    /// A process other than the first was told to stop.
    Stop,
    /// Stop the sources that all processes read together.
    StopSources,
}

/// What a question is about. Each topic has its own service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Topic {
    /// A part of a corpus ([`super::ServedParts`]).
    Parts,
    /// The epochs that all processes read ([`super::manifest`]).
    Epochs,
    /// The call of a model ([`super::models`]).
    Models,
    /// A reload of the pipeline.
    Reload,
    /// A dead letter for the first process.
    Letters,
    /// The checkpoint database, which the first process has.
    Store,
    /// Whether the first process reads a source that all processes read together, and from where.
    Sources,
    /// Write a checkpoint, before the cluster ends.
    Settle,
    /// What the program that runs the engine asks.
    Program,
    /// The first process ends soon. The answer comes when the program of this process has no more requests.
    Drain,
}

/// What a message is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A question. Its number is given back with its answer.
    Ask(u64, Topic, Bytes),
    /// A part of an answer, before its end.
    Part(u64, Bytes),
    /// Another part of an answer may come: one has been taken.
    Taken(u64),
    /// The answer to a question, or its end.
    Answer(u64, Result<Bytes, String>),
    /// Nobody waits for the answer any more.
    Cancel(u64),
    /// A message that has no answer.
    Tell(Topic, Bytes),
    /// An order.
    Order(Order),
    /// No more messages come from the worker that sends this.
    Last,
}

/// A message and its way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// The worker that gets it, among all workers of the cluster.
    pub to: u64,
    /// The process that sent it.
    pub from: u64,
    pub message: Message,
}
