//! Several processes that run one pipeline: timely's cluster, and what it needs around it.
//!
//! A corpus is divided into shards by document. Each process indexes and searches the shards that it owns. The first
//! process reads all sources, answers all turns and writes all sinks; its retrievers ask the other processes for the
//! passages of their shards ([`OtherParts`]). An epoch is published by the first process when every process has prepared
//! it.
//!
//! The processes share their fate: if one is lost, all end, are restarted, and go on from their checkpoints.

pub mod connect;
mod link;
mod messages;
mod parts;
mod peers;
mod shape;

use std::sync::Arc;
use std::time::Duration;

use self::connect::Secret;
pub(crate) use self::link::{Bond, Link};
pub(crate) use self::messages::build as build_messages;
pub(crate) use self::parts::{Lead, OtherShards, Prepared, ServedParts, Target, Targets};
pub use self::parts::{OtherParts, Restriction, answered};
pub(crate) use self::peers::{Order, Peers, name_of};
pub use self::shape::{SHARDS, Shape};

/// Called with one line when another process is lost. It should end the process.
pub type OnLost = Arc<dyn Fn(&str) + Send + Sync>;

/// The place of a process in its cluster.
#[derive(Clone)]
pub struct ClusterOptions {
    /// The number of this process, from 0.
    pub process: usize,
    /// `HOST:PORT` of each process, in order.
    pub hosts: Vec<String>,
    /// What all processes must know. `None` is allowed only if all addresses are of this machine.
    pub secret: Option<Secret>,
    /// How long to wait for the other processes at the start.
    pub patience: Duration,
    /// Whether to give up waiting for them.
    pub is_cancelled: Arc<dyn Fn() -> bool + Send + Sync>,
    /// What to do when another process is lost.
    pub on_lost: OnLost,
}
