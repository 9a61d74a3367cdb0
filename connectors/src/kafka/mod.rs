//! Kafka: turns from a topic ([`source`]), a corpus from a compacted topic ([`corpus`]), and answers to a topic ([`sink`]).
//!
//! librdkafka reads and writes. `properties` are its settings; those that decide what is read, or what is safe, cannot be
//! set. The values of `secrets` are read for each new client and appear in no log. SASL with `PLAIN`, `SCRAM-SHA-256` and
//! `SCRAM-SHA-512`, and TLS, are supported; Kerberos and tokens that are fetched by HTTP are not. A source waits for brokers
//! that are away, without end while it follows, and half a minute if it reads the existing records only. So it does for a
//! topic that does not exist, and for wrong credentials. librdkafka's log goes to turnflow's, with the target `librdkafka`.
//!
//! `client` has the settings of a connection, `topic` asks what a topic is now, and `reader` reads its partitions.

mod client;
pub mod corpus;
mod reader;
pub mod sink;
pub mod source;
mod topic;

#[cfg(test)]
pub(crate) mod tests;
